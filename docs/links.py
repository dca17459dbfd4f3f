"""A hook of MkDocs: names in the pages' text lead to the reference.

A name in backticks, such as `AIHT2` or `Laplace()`, becomes a link where a page of the reference
shows it. The sources stay as they are, and read well elsewhere.
"""

import re
from pathlib import Path
from typing import Any

_SHOWN = re.compile(r"^::: (jaxcoreset\.\S+)", re.MULTILINE)
_FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_NAME = re.compile(
    r"(?<![`\[\w])`((?:jaxcoreset\.|jc\.)?)([\w.]+)(\([^`\n]*\))?`(?![`\]])"
)

# Common words, which are links only as `jc.load` and the like.
_COMMON = ("load", "project")

_paths: dict[str, str] = {}


def on_files(files: Any, **_: Any) -> None:
    """Read which names the reference shows, and where; one that is shown twice is no link."""
    _paths.clear()
    found = [
        path
        for file in files.documentation_pages()
        if file.src_uri.startswith("reference/")
        for path in _SHOWN.findall(Path(file.abs_src_path).read_text(encoding="utf-8"))
    ]
    for path in found:
        name, qualified = path.rpartition(".")[2], path.partition(".")[2]
        # A function whose module has its name, as `sources.parquet`, is called without the module.
        if qualified.endswith(f".{name}.{name}"):
            qualified = qualified.removesuffix(f".{name}")
        _paths[qualified] = path
        # The names of `sources` are common words.
        if "." in qualified and not qualified.startswith("sources."):
            _paths[name] = "" if name in _paths else path


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Make the links, outside of blocks of code."""
    parts = _FENCED.split(markdown)
    parts[::2] = [_NAME.sub(_link, part) for part in parts[::2]]
    return "".join(parts)


def _link(found: re.Match[str]) -> str:
    path = _paths.get(found[2])
    if not path or (found[2] in _COMMON and not found[1]):
        return found[0]
    return f"[{found[0]}][{path}]"
