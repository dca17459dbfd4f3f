"""The HTML report: one file that needs no other, with the numbers that it was given."""

import base64
import copy
import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpyro.infer.util import potential_energy

import jaxcoreset as jc
from jaxcoreset.command import export
from jaxcoreset.command import main as cli
from jaxcoreset.command.html import compare_laplace, html_report, verdict
from jaxcoreset.command.inputs import Inputs, regression_inputs
from jaxcoreset.command.regressions import REGRESSIONS, logistic
from jaxcoreset.command.tables import Table
from tests.command.programs import compiled, prepared

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Reads a page: its tags, which must close, its text, and what it would fetch."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.images, self.words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.links += [values[name] for name in ("src", "href", "data", "action") if name in values]
        if tag == "img":
            self.images.append(values)
        assert tag not in {"script", "link", "iframe", "object"}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def coreset():
    """Of the shapes and settings of `tests/command/test_main.py`, so that programs are shared."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = (rng.random(400) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    builder = jc.CoresetBuilder(logistic, 24, data_axes={"x": 0, "y": 0}, proxy=None)
    return builder.run(jax.random.key(0), x=x, y=y, prior_scale=2.0)


@pytest.fixture(scope="module")
def comparison(coreset):
    names = {"beta[0]": "age", "beta[1]": "<b>"}
    return compare_laplace(coreset, lambda name: names.get(name, name))


@pytest.fixture(scope="module")
def page(coreset, comparison):
    return html_report(
        coreset,
        title="A & B",
        facts={"file": "shop.csv"},
        notes=["Æ <i>"],
        programs={"R": "a < b"},
        comparison=comparison,
        tol=0.01,
    )


def test_page_needs_no_other_file_and_is_well_formed(page):
    read = Page(page)
    assert read.open == []
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    for escaped in ("<title>A &amp; B</title>", "Æ &lt;i&gt;", "a &lt; b"):
        assert escaped in page
    assert not re.search(r"url\(|@import|https?://", re.sub(r'src="[^"]*"', "", page))
    assert len(read.images) == len(read.links) == 2
    for image in read.images:
        assert image["src"].startswith("data:image/png;base64,")
        data = base64.b64decode(image["src"].partition(",")[2], validate=True)
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(image["alt"]) > 20


def test_page_has_styles_for_the_dark_for_narrow_screens_and_for_paper(page):
    style = page.partition("<style>")[2].partition("</style>")[0]
    colours = set(re.findall(r"(--\w+):", style.partition("@media")[0]))
    dark = style.partition("(prefers-color-scheme: dark)")[2].partition("@media")[0]
    assert set(re.findall(r"(--\w+):", dark)) == colours
    # What is folded on a screen is open on paper, and colours of a dark screen are not printed.
    assert "screen and (prefers-color-scheme: dark)" in style
    assert "details::details-content" in style.partition("@media print")[2]
    assert "max-width: 40rem" in style


def test_page_has_the_numbers_of_the_report(page, coreset, comparison):
    report, text = coreset.report, Page(page).text
    assert f"{report.num_used} of 400" in text
    assert f"{report.kl:.2g} ± {report.kl_standard_error:.1g} nats" in text
    assert f"{report.held_out_error:.2e}" in text
    shown = float(re.search(r"largest error of a mean (\S+) sd", text)[1])  # one digit, rounded up
    assert report.mean_shift <= shown <= report.mean_shift + 10 ** np.floor(np.log10(shown)) + 1e-12
    assert "shop.csv" in text
    for i, name in enumerate(["age", "<b>"]):
        assert name in text  # escaped in the page, plain to a reader
        assert f"{comparison.full.mode[i]:.4g}" in text


def test_comparison_is_that_of_two_laplace_approximations(coreset, comparison):
    """Held to Newton's method in NumPy on the weighted rows, with the priors of the model."""
    x = np.column_stack([coreset.kwargs["x"], np.ones(len(coreset))])
    y, w = np.asarray(coreset.kwargs["y"]), coreset.weights
    precision = np.diag([1 / 2**2] * 3 + [1 / 8**2])
    theta = np.zeros(4)
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ theta))
        hessian = (x.T * (w * p * (1 - p))) @ x + precision
        theta = theta + np.linalg.solve(hessian, x.T @ (w * (y - p)) - precision @ theta)
    sd = np.sqrt(np.diag(np.linalg.inv(hessian)))
    # The mode is only looked for to a thousandth of a standard deviation.
    np.testing.assert_allclose(comparison.small.mode, theta, atol=3e-3 * sd.min())
    np.testing.assert_allclose(comparison.small.sd, sd, rtol=2e-3)
    np.testing.assert_allclose(
        comparison.shifts, (comparison.small.mode - comparison.full.mode) / comparison.full.sd
    )


def page_with(coreset, **changes):
    other = copy.copy(coreset)
    other.report = dataclasses.replace(coreset.report, **changes)
    return html_report(other)


def test_rows_needed_are_read_from_the_curve_and_each_number_of_rows_is_listed_once(coreset):
    curve = {
        "num_used": np.array([1, 2, 2, 4]),
        "kl": np.array([0.5, 0.07, 0.05, 0.005]),
        "kl_standard_error": np.array([0.05, 0.02, 0.02, 0.002]),
    }
    page = page_with(coreset, curve={**curve, "held_out_error": curve["kl"]})
    # 0.05 + 2 · 0.02 ≤ 0.1, and 0.005 + 2 · 0.002 ≤ 0.01
    assert "2 for 0.1, 4 for 0.01, more than 4 for 0.001" in Page(page).text
    assert "0.05<" in page
    assert "0.07<" not in page


def test_verdict_does_not_pretend(coreset):
    def kl_of(kl, error):
        return verdict(dataclasses.replace(coreset.report, kl=kl, kl_standard_error=error))

    assert "more than about 0.11 of its standard deviation" in kl_of(0.01, 0.001)
    for kl, error in ((0.5, 0.01), (0.25, 0.1)):
        assert "Do not draw conclusions" in kl_of(kl, error)
        assert "lower bound" in kl_of(kl, error)
    poor = Page(page_with(coreset, kl=2.0, kl_standard_error=0.1))
    assert "at least that, and may differ by far more" in poor.text


def test_coreset_of_all_rows_has_a_page_without_an_error_curve():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), rng.integers(0, 2, 20)
    whole = jc.CoresetBuilder(logistic, size=50, proxy=None).run(jax.random.key(0), x=x, y=y)
    assert compare_laplace(whole) is None
    page = Page(html_report(whole))
    assert page.images == []
    assert "there is no error" in page.text


def inputs_of(likelihood, **more):
    rng = np.random.default_rng(0)
    fields = {
        "model": logistic,
        "title": likelihood,
        "arguments": {"x": rng.normal(size=(4, 3)), "y": np.zeros(4), "prior_scale": 2.5},
        "table": Table(Path("rows.csv"), pd.DataFrame({"age": [28.0, 52.0, 40.0, 33.0]})),
        "likelihood": likelihood,
        "response": "y value",
        "columns": ["age", "town"],
        "levels": {"town": ["Bergen", "Bodø", "Oslo"]},
        "scaling": {"age": (40.0, 12.0)},
        "coefficients": ["age", "town = Bodø", "town = Oslo"],
    }
    return Inputs(**fields | more)


def assert_balanced(program):
    for opening, closing in ("{}", "()", "[]"):
        assert program.count(opening) == program.count(closing)


@pytest.mark.parametrize("likelihood", REGRESSIONS)
def test_programs_weight_the_likelihood_and_scale_by_all_rows(likelihood):
    classes = {"classes": ["a", "b", "c"]} if likelihood == "categorical" else {}
    found = export.programs(inputs_of(likelihood, **classes), Path("out/rows.csv"), "w")
    brms, stan = found["R, with brms"], found["Stan"]
    assert "`y value` | weights(w) ~ 0 + Intercept + age + town" in brms
    assert '(d[["age"]] - 40.0) / 12.0' in brms
    assert "target += weight[n] * " in stan
    assert_balanced(stan)
    assert_balanced(brms)
    for program in compiled(found).values():
        assert 'd = pd.read_csv("rows.csv", dtype={"town": str' in program


@pytest.mark.parametrize(
    ("likelihood", "size"), [("normal", "--tol=0.5"), ("categorical", "--size=3")]
)
def test_programs_of_a_coreset_with_a_proxy_have_its_density(
    likelihood, size, tmp_path, monkeypatch, capsys
):
    rng = np.random.default_rng(0)
    age, town = rng.normal(40, 12, 300), rng.choice(["Bergen", "Oslo"], 300)
    y = 0.03 * age + (town == "Oslo") + rng.normal(size=300)
    y = np.where(y > 2, "a", np.where(y > 1, "b", "c")) if likelihood == "categorical" else y
    pd.DataFrame({"age": age, "town": town, "y": y}).to_csv(tmp_path / "d.csv", index=False)
    monkeypatch.chdir(tmp_path)
    reported = {}

    def report(coreset, **given):
        reported.update(given, coreset=coreset)
        return html_report(coreset, **given)

    monkeypatch.setattr("jaxcoreset.command.html.html_report", report)
    what = f"--likelihood {likelihood} --response y --categorical town --proxy auto --no-progress"
    command = ["build", "d.csv", *what.split(), size, "--out", "c.csv", "--report", "c.html"]
    assert cli.main(command) == 0
    assert "c.proxy.json" in capsys.readouterr().out
    assert "A second-order expansion stands for" in Path("c.html").read_text(encoding="utf-8")
    coreset, programs = reported["coreset"], reported["programs"]
    assert "R, with brms" not in programs
    namespace = {}
    text, _, call = programs["Python, with NumPyro"].partition("mcmc = ")
    exec(text, namespace)
    found = re.search(r"mcmc.run\(jax.random.key\(1\), (.*)\)", call)
    arguments = eval(f"(lambda *args, **kwargs: (args, kwargs))({found[1]})", namespace)
    assert coreset.proxy is not None
    assert (len(coreset) == 0) == (size == "--tol=0.5")
    center = coreset.proxy.unravel(jnp.asarray(coreset.proxy.center))
    points = [jax.tree.map(lambda x, by=by: x + by, center) for by in (-0.1, 1.0)]
    own = [float(potential_energy(coreset.model, coreset.args, coreset.kwargs, z)) for z in points]
    of_program = [float(potential_energy(namespace["model"], *arguments, z)) for z in points]
    np.testing.assert_allclose(of_program, own, rtol=2e-4, atol=2e-3)
    # The others are compared with this one by hand; here, that they are whole.
    assert_balanced(programs["Stan"])
    assert all("c.proxy.json" in text for text in compiled(programs).values())


def test_python_program_prepares_the_matrix_that_was_built_for(tmp_path, monkeypatch):
    """Run on a file, it gives the standardised numbers and the columns of the categories."""
    (tmp_path / "rows.csv").write_text(
        "row,w,age,town,y value\n3,2.5,52,Oslo,1\n7,1.5,28,Bergen,0\n9,4,40,Bodø,1\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    namespace = prepared(export.programs(inputs_of("logistic"), Path("rows.csv"), "w"))
    np.testing.assert_allclose(namespace["x"], [[1, 0, 1], [-1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(namespace["y"], [1, 0, 1])
    np.testing.assert_allclose(namespace["weight"], [2.5, 1.5, 4])


FACTORS = {
    "text": ["01", "02", "NA", "01"],
    "truth": [True, False, True, True],
    "whole number": [10, 9, 10, 10],
    "number": [1.0, 0.5, 1e-5, 1.0],
    "date": pd.to_datetime(["2020-01-02", "2020-01-01", "2020-01-03", "2020-01-02"]),
    "time": [pd.Timestamp(f"2020-01-0{i}") for i in (1, 2, 3)] + [pd.Timestamp("2020-01-01 12:30")],
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("factor", FACTORS)
def test_python_program_finds_the_categories_of_the_table(factor, suffix, tmp_path, monkeypatch):
    """Also where all rows kept are alike, so that pandas writes or reads them otherwise."""
    frame = pd.DataFrame({"x": [1.0, 2.0, 4.0, 3.0], "c": FACTORS[factor], "z": FACTORS[factor]})
    table = Table(Path("rows.parquet"), frame)
    inputs = regression_inputs(table, "categorical", "z", ["x", "c"], ["c"])
    path = tmp_path / f"rows{suffix}"
    programs = export.programs(inputs, path)
    monkeypatch.chdir(tmp_path)
    for rows in ([0, 1, 2, 3], [0], [1, 2], [3]):
        part = frame.iloc[rows].assign(weight=1.0)
        part.to_csv(path, index=False) if suffix == ".csv" else part.to_parquet(path, index=False)
        namespace = prepared(programs)
        np.testing.assert_allclose(namespace["x"], inputs.arguments["x"][rows])
        np.testing.assert_array_equal(namespace["y"], inputs.arguments["y"][rows])


def test_python_program_refuses_a_category_that_it_does_not_know(tmp_path, monkeypatch):
    text = "row,w,age,town,y value\n3,2.5,52,Oslo,1\n7,1.5,28,Paris,0\n"
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = export.programs(inputs_of("logistic"), Path("rows.csv"), "w")
    with pytest.raises(ValueError, match="town has a value that is none of"):
        prepared(found)


def test_r_program_reads_categories_as_text_and_checks_them():
    kinds = {"town": "truth"}
    inputs = inputs_of("categorical", classes=["01", "02", "NA"], kinds=kinds)
    csv = export.programs(inputs, Path("rows.csv"), "w")["R, with brms"]
    columns = 'c("town" = "character", "y value" = "character")'
    assert f"colClasses = {columns}, na.strings = character())" in csv
    assert 'd[["town"]] <- factor(d[["town"]], levels' in csv
    assert 'stopifnot(!anyNA(d[["town"]]))\n' in csv
    assert 'stopifnot(!anyNA(d[["y value"]]))\n' in csv
    parquet = export.programs(inputs, Path("rows.parquet"), "w")["R, with brms"]
    assert 'factor(ifelse(d[["town"]], "True", "False"), levels' in parquet
