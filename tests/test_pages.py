"""The tables of the documentation are those of the committed results."""

import pytest

from benchmarks.pages import DOCS, fill

PAGES = sorted(path.name for path in DOCS.glob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_tables_come_from_the_committed_results(name: str) -> None:
    text = (DOCS / name).read_text()
    assert fill(text) == text, "run python -m benchmarks.pages"
