"""The documentation as a site: it builds, it is whole, and it loads nothing from elsewhere."""

import os
import re

import pytest

import jaxcoreset as jc
from tests.markdown_pages import ROOT

os.environ["NO_MKDOCS_2_WARNING"] = "1"  # before the theme is imported
mkdocs_build = pytest.importorskip("mkdocs.commands.build")
pytest.importorskip("mkdocstrings")


def build(folder, config=ROOT / "mkdocs.yml"):
    """As ``mkdocs build --strict``."""
    from mkdocs.config import load_config

    settings = load_config(str(config), strict=True, site_dir=str(folder))
    settings.plugins.on_startup(command="build", dirty=False)
    mkdocs_build.build(settings)
    settings.plugins.on_shutdown()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.html")
    }


def test_reference_shows_solvers_with_their_hyperparameters(site):
    """Their constructors are made by Equinox, and stand in no source."""
    page = site["reference/solvers/index.html"]
    code = page[page.index('id="jaxcoreset.ExchangePursuit"') :]
    signature = re.sub(r"<[^>]+>", "", code[: code.index("</code>")])
    assert f"overshoot: float = {jc.ExchangePursuit().overshoot}" in " ".join(signature.split())


def test_functions_that_share_a_modules_name_and_namespaces_are_shown(site):
    for name in ("solve", "nnls"):
        assert f'id="jaxcoreset.{name}"' in site["reference/problem/index.html"]
    assert 'id="jaxcoreset.sources.parquet.parquet"' in site["reference/sources/index.html"]
    assert 'id="jaxcoreset.diagnostics.divergence"' in site["reference/diagnostics/index.html"]


def test_pages_load_nothing_from_elsewhere(site):
    for name, page in site.items():
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\"\s>]+)", page)
        loaded += re.findall(r"<link[^>]*rel=\"?stylesheet[^>]*>", page)
        assert [one for one in loaded if "//" in one] == [], name


def test_equations_are_mathml(site):
    page = site["explanation/mathematics/index.html"]
    assert page.count("<math") > 40
    for name, text in site.items():
        body = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", text, flags=re.DOTALL)
        assert not re.search(r"\\\(|\\\[|\$\$|\\frac", body), name


def test_names_in_the_text_lead_to_the_reference(site):
    page = site["how-to/choose-a-solver/index.html"]
    assert 'href="../../reference/solvers/#jaxcoreset.ExhaustiveSearch"' in page
    assert 'href="../../reference/problem/#jaxcoreset.solve"' in page
    page = site["how-to/big-data/index.html"]
    assert 'href="../../reference/sources/#jaxcoreset.sources.parquet.parquet"' in page


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[x](#title) $x^2$", None),
        ("[x](index.md#nowhere)", "no such anchor|does not contain an anchor"),
        ("[x](nowhere.md)", "nowhere.md"),
        ("![x](images/none.png)", "images/none.png"),
        ("$\\nonsense{1}$", "nonsense"),
        ("::: jaxcoreset.Nonsense", "Nonsense"),
    ],
)
def test_mistakes_stop_the_build(tmp_path, text, complaint, caplog):
    """With the settings of the site, on one page in place of all."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = config[: config.index("\nnav:")].replace(
        "docs_dir: docs", f"docs_dir: {tmp_path}/docs"
    )
    config = re.sub(r"docs/(\w+\.py)", rf"{ROOT}/docs/\1", config).replace(
        "paths: [.]", f"paths: [{ROOT}]"
    )
    (tmp_path / "docs" / "stylesheets").mkdir(parents=True)
    (tmp_path / "mkdocs.yml").write_text(config, encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text(f"# Title\n\n{text}\n", encoding="utf-8")
    if complaint is None:
        build(tmp_path / "site", tmp_path / "mkdocs.yml")
        return
    with pytest.raises(SystemExit):
        build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert re.search(complaint, caplog.text)
