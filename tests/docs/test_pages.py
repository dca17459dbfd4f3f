"""The tables of the documentation are those of the committed results."""

import json

import pytest

from benchmarks.pages import DOCS, RESULTS, fill, pages, value

PAGES = [path.relative_to(DOCS).as_posix() for path in pages()]


@pytest.mark.parametrize("name", PAGES)
def test_tables_and_numbers_come_from_the_committed_results(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert fill(text) == text, "run python -m benchmarks.pages"


def test_a_value_is_the_number_in_the_file():
    cells = json.loads((RESULTS / "solvers.json").read_text())["quality"]["summary"]["cells"]
    assert value("solvers > quality > summary > cells", "d") == str(cells)


def test_a_number_that_was_typed_is_replaced():
    page = "in <!-- value: solvers > quality > summary > cells; d -->5<!-- end --> cells"
    cells = value("solvers > quality > summary > cells", "d")
    assert fill(page) == page.replace("-->5<!--", f"-->{cells}<!--")
