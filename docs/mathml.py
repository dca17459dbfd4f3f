"""A hook of MkDocs: LaTeX into MathML while the pages are built.

Browsers draw MathML by themselves, so no page loads a script or a font for its equations. A command
that is not known is an error of the build.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
# Upright, as LaTeX has them; MathML slants what stands alone.
_CAPITAL_GREEK = re.compile(r"<mi>(&#x003(?:9|A)\w;)</mi>")


def on_page_content(content: str, **_: Any) -> str:
    """Replace what the extension arithmatex has marked as LaTeX."""
    content = _BLOCK.sub(
        lambda found: (
            f'<div class="arithmatex block">{_mathml(found[1], "block")}</div>'
        ),
        content,
    )
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), content)


def _mathml(text: str, display: str) -> str:
    mathml = convert(html.unescape(text).strip(), display=display)
    if "\\" in mathml:
        raise PluginError(
            f"the equation {text!r} has a command that latex2mathml does not know"
        )
    return _CAPITAL_GREEK.sub(r'<mi mathvariant="normal">\1</mi>', mathml)
