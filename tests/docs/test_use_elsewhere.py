"""The page on other programs: what can be run here is run, on flights like those."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from jaxcoreset.command import main as cli
from jaxcoreset.command.export import programs
from jaxcoreset.command.inputs import Inputs
from jaxcoreset.command.regressions import logistic
from jaxcoreset.command.tables import Table
from tests.markdown_pages import blocks, run_page

PAGE = "docs/how-to/use-elsewhere.md"
BLOCKS = [(block.language, block.text) for block in blocks(PAGE)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    n = 300
    distance, temperature = rng.normal(1048, 736, n), rng.normal(57, 18, n)
    eta = -1 + 0.4 * (distance - 1048) / 736 - 0.3 * (temperature - 57) / 18
    late = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    table = pd.DataFrame({"late": late, "distance": distance, "temperature": temperature})
    table.to_csv(tmp_path / "flights.csv", index=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_programs_run_one_after_the_other(folder):
    """All that need nothing but what the tests have; and PyMC and statsmodels where they are."""
    namespace = run_page(PAGE, {}, {"=1000": "=20", "tol=0.001": "size=20"})
    table, rows = pd.read_csv("flights.csv"), pd.read_csv("coreset.csv")
    assert len(rows) <= 20
    np.testing.assert_allclose(rows["distance"], table["distance"][rows["row"]])

    x = table[["distance", "temperature"]].to_numpy()
    x = (x - [1048.101915, 57.006096]) / [735.811331, 17.895834]
    everything = LogisticRegression(C=2.5**2, tol=1e-8).fit(x, table["late"])
    # a tenth of a posterior standard deviation, which is about 0.14
    np.testing.assert_allclose(namespace["sklearn_fit"].coef_, everything.coef_, atol=0.014)


def test_programs_are_complete():
    for language, block in BLOCKS:
        if language == "python":
            compile(block, PAGE, "exec")
        if language in ("stan", "r"):
            for opening, closing in ("{}", "()", "[]"):
                assert block.count(opening) == block.count(closing)


def test_page_has_the_program_that_the_report_writes():
    """The Stan program of the page is that of the HTML report for the same regression."""
    columns = ["distance", "temperature"]
    inputs = Inputs(
        logistic,
        "logistic regression",
        {"prior_scale": 2.5},
        Table(Path("flights.csv"), pd.DataFrame()),
        likelihood="logistic",
        response="late",
        columns=columns,
        coefficients=columns,
        scaling={"distance": (1048.101915, 735.811331), "temperature": (57.006096, 17.895834)},
    )
    found = programs(inputs, Path("coreset.csv"))
    page = [block for _, block in BLOCKS]
    assert found["Stan"] in page
    pymc = found["Python, with PyMC"]
    assert pymc[pymc.index("import pymc") :] in page
    brms = found["R, with brms"]
    assert any(brms[brms.index("fit <- ") :] in block for block in page)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_its_command_runs(folder):
    """The first block of the page, as it stands."""
    language, block = BLOCKS[0]
    assert language == "bash"
    words = shlex.split(block.replace("\\\n", " "))
    assert words[0] == "jaxcoreset"
    assert cli.main([*words[1:], "--no-progress"]) == 0
    assert list(pd.read_csv("coreset.csv").columns[:2]) == ["row", "weight"]
    assert "Stan" in Path("report.html").read_text(encoding="utf-8")
