"""Every code block of the documentation and the README runs, or is listed here as not run."""

import ast
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.command import flights
from jaxcoreset.command import main as cli
from tests import OLDER_EMITTERS
from tests.markdown_pages import DOCS, PAGES, ROOT, SHORTER, blocks, run_page

TEXTS = ["README.md", "CONTRIBUTING.md", *PAGES]
BLOCKS = [block for page in TEXTS for block in blocks(page)]

# The other pages take longer than a few seconds, mostly to compile.
FAST = {"error-bars", "kl-estimate", "numerics", "cluster", "compile-less"}
SLOW_PAGE = [pytest.mark.slow, pytest.mark.unoptimised]
# Pages whose code begins where another's ends.
GOES_ON = {
    "docs/how-to/predict.md": "docs/how-to/compare-models.md",
    "docs/how-to/read-the-report.md": "docs/tutorial.md",
}
# Pages that tests of their own run: `test_readme_runs`, and tests/docs/test_use_elsewhere.py.
ELSEWHERE = {"README.md", "docs/how-to/use-elsewhere.md"}
# All blocks that are not run as they stand, by page, language and mark.
# Run by tests/data/sources/test_recipes.py.
RECIPES = ("duckdb", "polars", "datasets", "ray")
NOT_RUN = {
    ("docs/how-to/cluster.md", "python", "not run: a script for several processes"): 3,
    ("docs/how-to/use-elsewhere.md", "python", "not run: CmdStan"): 1,
    ("docs/how-to/use-elsewhere.md", "python", "needs: pymc"): 1,
    ("docs/how-to/use-elsewhere.md", "python", "needs: statsmodels"): 1,
    ("docs/how-to/use-elsewhere.md", "r", ""): 3,
    ("docs/how-to/use-elsewhere.md", "stan", ""): 1,
    ("docs/how-to/big-data.md", "text", ""): 1,
    **{("docs/how-to/big-data.md", "python", f"needs: {name}"): 1 for name in RECIPES},
    ("docs/how-to/read-the-report.md", "text", ""): 1,
    ("docs/tutorial.md", "text", ""): 2,
}
# What makes the pages short enough for a test, replaced in this order. Those with a logistic
# regression share its programs, with as many rows and columns.
SMALLER = SHORTER | {
    "(20_000, 5)": "(600, 4)",
    "(1000, 3)": "(600, 4)",
    "jax.random.key(0), (2000, 4)": "jax.random.key(0), (600, 4)",
    "0.08 * jax": "0.15 * jax",  # standard deviations of fewer rows
    "num_rows=500": "num_rows=300",
    "(0, 300, 6_000)": "(0, 60, 1_200)",
    "random(6_000)": "random(1_200)",
    "0.7, 300)": "0.7, 60)",
    "plane, 300, ": "plane, 60, ",
    "size=5_000": "size=1_500",
    "(3000": "(1000",
    "size=3000": "size=1000",
    "total=3000": "total=1000",
    "10_000": "3_000",
    "2_000": "600",
    "n, num_depots = 50_000": "n, num_depots = 2_000",
    "num_warmup=500,\n    num_samples=500": "num_warmup=100,\n    num_samples=50",
    # The expansion of integrals takes most of the time to compile; tests/builders has it.
    'groups="plane", ': 'groups="plane", proxy=None, ',
}
# What the programs of a page print, in this order.
PRINTED = {
    "docs/how-to/when-not-to.md": "conditionally independent.*\n.*when other rows are dropped",
}

# A page that goes on from another comes after it, so that one worker runs both.
IN_ORDER = sorted(PAGES, key=lambda page: (GOES_ON.get(page, page), page in GOES_ON))
WITH_PYTHON = [
    pytest.param(page, marks=[] if Path(page).stem in FAST else SLOW_PAGE, id=page)
    for page in IN_ORDER
    if page not in ELSEWHERE and any(block.language == "python" for block in blocks(page))
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """What a page writes goes here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")


@pytest.fixture(scope="module")
def ran():
    """Namespaces of the pages that others go on from."""
    return {}


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_of_a_page_runs(page, ran, capsys):
    before = GOES_ON.get(page)
    if before is not None and before not in ran:
        ran[before] = run_page(before, {}, SMALLER)
    namespace = dict(ran[before]) if before is not None else {}
    if page not in ran:
        run_page(page, namespace, SMALLER)
    if page in GOES_ON.values():
        ran.setdefault(page, namespace)
    if page in PRINTED:
        assert re.search(PRINTED[page], capsys.readouterr().out)


def test_what_the_page_on_large_data_prints_is_what_it_says(capsys):
    page = DOCS / "how-to" / "big-data.md"
    _, section = page.read_text(encoding="utf-8").split("## Data that do not fit\n")
    section, checked = section.split("\n## ")[0].split("### Queries and other libraries\n")
    section += checked.partition("### What is checked\n")[2]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 6
    namespace = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)
    trips = namespace["trips"]
    wanted = trips[["distance", "hour"]].to_numpy(np.float32)
    np.testing.assert_allclose(namespace["X"][:], wanted / 24, rtol=1e-6)
    np.testing.assert_array_equal(namespace["y"][:], trips["late"])
    printed = capsys.readouterr().out
    for line in re.findall(
        r"print\(.*?\) +# (Source.*|batches.*); \.\.\.|# (SourceArray.*)", section
    ):
        assert "".join(line) in printed
    namespace["file"].close()


def test_blocks_that_do_not_run_are_known():
    found = {}
    for block in BLOCKS:
        runs = block.language in ("python", "bash") and not block.note.startswith(("not", "needs"))
        if not runs:
            key = (block.page, block.language, block.note)
            found[key] = found.get(key, 0) + 1
    assert found == NOT_RUN


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "bash"], ids=lambda b: f"{b.page}:{b.line}"
)
def test_commands_are_right(block):
    """Those of ours go to the parser, and of the others what they name must be there."""
    lines = block.text.replace("\\\n", " ").splitlines()
    for line in lines:
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if words:
                check_command(words)


def check_command(words: list[str]) -> None:
    program, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if program == "jaxcoreset":
        cli._parser().parse_args(rest)
    elif program == "pip":
        assert rest[0] == "install"
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extra in re.findall(r"\[(.*?)\]", " ".join(rest)):
            assert set(extra.split(",")) <= set(extras["optional-dependencies"])
    elif program in ("python", "python3"):
        assert rest[0] == "-m"
        assert importlib.util.find_spec(rest[1]) is not None
    elif program == "export":
        name, setting = rest[0].split("=", 1)
        if name == "XLA_FLAGS":
            assert setting == OLDER_EMITTERS  # which another test gives to XLA
        else:
            assert name.lower() in jax.config.values
    elif program == ".ci/run":
        assert (ROOT / program).is_file()
    else:
        assert program in ("ruff", "pyright", "lint-imports", "mkdocs", "mpirun", "srun"), (
            f"{program} is not known to this test"
        )


def test_examples_are_shortened_where_they_say_so():
    text = "".join(block.text for block in BLOCKS)
    assert [long for long in SMALLER if long not in text] == []


def test_a_wrong_command_is_found():
    with pytest.raises(SystemExit):
        check_command(["jaxcoreset", "demo", "--sise", "5"])
    for wrong in (["pip", "install", ".[no-such-extra]"], ["export", "JAX_NO_SUCH_OPTION=1"]):
        with pytest.raises(AssertionError):
            check_command(wrong)


def test_public_names_are_in_the_reference():
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)", text, re.MULTILINE))
    # By the statements of the file itself, since names that are asked for later are no attributes.
    tree = ast.parse((ROOT / "jaxcoreset" / "__init__.py").read_text())
    imported = [
        alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]  # fmt: skip
    public = {name for name in imported if name and not name.startswith("_")}
    namespaces = set(jc._NAMESPACES)
    assert public == set(jc._NOW) | set(jc._LATER) | namespaces, "a name is missing in this test"
    assert {f"jaxcoreset.{name}" for name in public - namespaces} <= shown
    # A function whose module has its name is shown by its full path.
    shown |= {re.sub(r"\.(\w+)\.\1$", r".\1", path) for path in shown}
    for module in ("diagnostics", "distributions", "plotting", "sources"):
        found = vars(getattr(jc, module)).items()
        names = {n for n, value in found if callable(value) and not n.startswith("_")}
        missing = {f"jaxcoreset.{module}.{name}" for name in names} - shown
        assert missing <= {"jaxcoreset.diagnostics.CorrectionError"} & shown


def test_rooms_and_modules_of_contributing_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d \| `(\w+)/` \|.*\| (.*) \|$", text, re.MULTILINE)
    package = ROOT / "jaxcoreset"
    rooms = sorted(path.parent.name for path in package.glob("*/__init__.py"))
    assert sorted(room for room, _ in rows) == rooms
    named = [f"{room}/{name}" for room, names in rows for name in re.findall("`(.*?)`", names)]
    named += re.findall(rf"`((?:{'|'.join(rooms)})/.*?)`", text)
    paths = [package / name for name in named]
    assert [p for p in paths if not (p.is_dir() or p.with_suffix(".py").is_file())] == []


def test_reference_has_every_option_of_the_command():
    page = (DOCS / "reference" / "command.md").read_text()
    commands = next(a for a in cli._parser()._actions if a.dest == "command").choices
    for name, parser in commands.items():
        part = page.partition(f"## jaxcoreset {name}\n")[2].partition("\n## ")[0]
        options = [option for action in parser._actions for option in action.option_strings]
        missing = [one for one in options if one.startswith("--") and f"`{one}" not in part]
        assert missing == ["--help"]


def test_readmes_links_are_there():
    for page in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
        assert [link for link in links if not (ROOT / link).exists()] == []


def test_pages_render_as_they_are_meant():
    """A comment that begins a line ends the paragraph; longer lines of code do not fit a page."""
    for page in PAGES:
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.lstrip().startswith("<!-- value")] == [], page
    code = [b for b in BLOCKS if b.page in PAGES and b.language in ("python", "bash")]
    long = [(b.page, line) for b in code for line in b.text.splitlines() if len(line) > 88]
    assert long == []


def test_citation_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project['version']}\nlicense: {project['license']}\n" in text
    assert [author["name"] for author in project["authors"]] == re.findall("  - name: (.*)", text)
    keywords = text.partition("\nkeywords:\n")[2].partition("\nreferences:")[0]
    assert re.findall("  - (.*)", keywords) == project["keywords"]


def test_images_have_a_text_and_newcomers_two_commands_are_marked():
    for page in TEXTS:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert not re.search(r"!\[\s*\]\(", text), page
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for which in ("main", "tests"):
        assert re.search(rf"<!-- newcomer: {which} -->\n```bash\n.+?```", text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_readme_runs(monkeypatch):
    """On a part of the flights and of their columns, and with short chains."""
    features, late, names = flights.load_flights()
    rows = np.random.default_rng(0).choice(len(late), 1_500, replace=False)
    part = features[rows, :8], late[rows], names[:8]
    monkeypatch.setattr(flights, "load_flights", lambda: part)
    smaller = {"=1000": "=200", "size=250": "size=50", "50_000": "2_000"}
    namespace = run_page("README.md", {}, smaller)
    assert namespace["coreset"].report.kl < 0.01
    assert namespace["path"].weights.shape == (50, 50)
    assert namespace["batch"].weights.shape == (4, 50)
