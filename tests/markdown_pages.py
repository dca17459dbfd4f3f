"""Code blocks of Markdown pages, found as a Markdown parser finds them, and run page by page."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))

# What makes an example short enough for a test and leaves it the same otherwise.
SHORTER = {"num_warmup=1000": "num_warmup=300", "num_samples=1000": "num_samples=300"}


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        page: where it stands, relative to the project.
        line: of the fence, counted from 1.
        language: the first word after the fence.
        text: the code.
        note: the comment in the line above it, ``<!-- not run: … -->`` or ``<!-- needs: … -->``.
    """

    page: str
    line: int
    language: str
    text: str
    note: str

    @property
    def can_run(self) -> bool:
        """False where it is marked as not run, or what it needs is not installed."""
        needed = re.match(r"needs: (\w+)", self.note)
        if needed is not None:
            return importlib.util.find_spec(needed[1]) is not None
        return not self.note.startswith("not run")


def blocks(page: str) -> list[Block]:
    """The blocks of a page in order."""
    found, note, note_ends = [], "", -1
    for token in MarkdownIt().parse((ROOT / page).read_text(encoding="utf-8")):
        if token.map is None:
            continue
        if token.type == "html_block":
            comment = re.fullmatch(r"<!-- (.*?) -->", token.content.strip())
            note, note_ends = (comment[1] if comment else ""), token.map[1]
        if token.type == "fence":
            language = token.info.split()[0] if token.info else ""
            above = note if token.map[0] == note_ends else ""
            found.append(Block(page, token.map[0] + 1, language, token.content, above))
    return found


def run_page(page: str, namespace: dict, shorter: Mapping[str, str] = SHORTER) -> dict:
    """Run the Python of a page in one namespace; a traceback names the page and its line."""
    for block in blocks(page):
        if block.language != "python" or not block.can_run:
            continue
        text = block.text
        for long, short in shorter.items():
            text = text.replace(long, short)
        exec(compile("\n" * block.line + text, page, "exec"), namespace)
    return namespace
