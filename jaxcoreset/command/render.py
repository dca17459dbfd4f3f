"""Text from the files in ``templates``: the HTML report, and programs for other tools."""

import functools
import json
from typing import TYPE_CHECKING, Any

from jaxcoreset.coreset.report_table import rounded_up
from jaxcoreset.data.messages import require

if TYPE_CHECKING:
    import jinja2


def render(template: str, **values: Any) -> str:
    """Fill in a template.

    Args:
        template: its file name; what is filled into ``.html.j2`` is escaped.
        **values: what the template needs, by name.

    Raises:
        ModuleNotFoundError: if Jinja is not installed; the extra ``tables`` brings it.
    """
    return _environment().get_template(template).render(**values)


@functools.cache
def _environment() -> "jinja2.Environment":
    require("jinja2")
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxcoreset.command"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["formatted"] = format
    environment.filters["quoted"] = _quoted
    environment.filters["rounded_up"] = rounded_up
    return environment


def _quoted(text: str) -> str:
    """A string as both Python and R write it."""
    return json.dumps(text, ensure_ascii=False)
