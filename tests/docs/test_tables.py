"""The tables of the documentation are those of the committed results."""

import json

import pytest

tables = pytest.importorskip("docs.tables", reason="the tables come from the folder benchmarks")

PAGES = [path.relative_to(tables.DOCS).as_posix() for path in tables.pages()]


@pytest.mark.parametrize("name", PAGES)
def test_tables_and_numbers_come_from_the_committed_results(name: str) -> None:
    text = (tables.DOCS / name).read_text(encoding="utf-8")
    assert tables.fill(text) == text, "run python -m docs.tables"


def test_a_number_that_was_typed_is_replaced_by_the_one_in_the_file():
    cells = json.loads((tables.RESULTS / "solvers.json").read_text())["quality"]["summary"]["cells"]
    page = "in <!-- value: solvers > quality > summary > cells; d -->5<!-- end --> cells"
    assert tables.fill(page) == page.replace("-->5<!--", f"-->{cells}<!--")


def test_results_of_the_papers_experiments_have_tables_and_stay_small():
    folder = tables.RESULTS / "paper"
    for path in folder.glob("*.json"):
        made = tables.table(f"paper_{path.stem}")
        assert made.startswith(("Median", "Figure", "F over"))
    assert sum(path.stat().st_size for path in folder.iterdir()) < 6_000_000
