"""The notebooks run as they are, and what is committed of them is what they printed."""

import base64
import re

import nbformat
import pytest
from nbformat import NotebookNode

from notebooks.execute import FOLDER, execute, notebooks
from tests import OLDER_EMITTERS

NAMES = [
    "1_quick_start",
    "2_sweeps",
    "3_beyond_regressions",
    "4_how_good",
    "5_big_data",
    "6_your_own_solver",
    "7_which_model",
    "8_customer_lifetimes",
]
# Paths of a machine, its users, or its environments.
_MACHINE_PATH = re.compile(r"(?<![\w.])(/(home|root|tmp|work|Users|opt|usr|var)/|[A-Z]:\\)")
_MOST_BYTES = 300_000
# What makes the notebooks short enough for a test, and leaves them the same otherwise: fewer rows
# and draws, and one problem of those that are enumerated.
SHORTER = {
    "n = 50_000\nclock": "n = 2_500\nclock",
    "num_samples=300": "num_samples=60",
    "num_trials = 8": "num_trials = 4",
    "[50, 200, 800]": "[50, 500]",
    "num_shops, n = 12, 20_000": "num_shops, n = 12, 2_000",
    "num_samples=3000": "num_samples=500",
    "n = 20_000\nx = rng": "n = 2_000\nx = rng",
    "jnp.arange(1, 101)": "jnp.arange(1, 51)",
    "20, 30, 45, 70, 100])": "20, 30])",
    "num_samples=400,": "num_samples=100,",
    "n, hidden = 50_000, 12": "n, hidden = 3_000, 12",
    "num_warmup=100, num_samples=4000": "num_warmup=50, num_samples=100",
    "num_warmup=500, num_samples=4000": "num_warmup=500, num_samples=1000",
    '"--xla_force_host_platform_device_count=4"': (
        f'"--xla_force_host_platform_device_count=4 {OLDER_EMITTERS}"'
    ),
    "num_files, rows_each = 4, 30_000": "num_files, rows_each = 4, 6_000",
    "batches_read == 40": "batches_read == 12",
    "num_problems = 16, 200, 20": "num_problems = 12, 200, 4",
    "k, cap, num_tried = 5, 2.0, 4": "k, cap, num_tried = 5, 2.0, 1",
    "names = load_flights()": "names = load_flights()\nX, late = X[::8], late[::8]",
    "n = 100_000\ntruth": "n = 10_000\ntruth",
}


def read(name: str) -> NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook: NotebookNode) -> list[str]:
    """Sources and outputs, without the figures."""
    found = [cell.source for cell in notebook.cells]
    for cell in code_cells(notebook):
        for output in cell.outputs:
            found.append(output.get("text", ""))
            data = output.get("data", {})
            found += [text for kind, text in data.items() if kind.startswith("text/")]
    return found


def test_all_are_there() -> None:
    assert [path.stem for path in notebooks()] == NAMES
    index = (FOLDER / "README.md").read_text()
    assert re.findall(r"\((\w+)\.ipynb\)", index) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_committed_notebook_is_valid_small_and_clean_and_was_run_in_order(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(not cell.metadata for cell in notebook.cells)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < _MOST_BYTES
    assert_no_noise(notebook)
    for target in re.findall(r"\]\(([^)#:]+)\)", "\n".join(texts(notebook))):
        assert (FOLDER / target).exists(), target


def test_notebooks_are_shortened_where_they_say_so() -> None:
    code = [cell.source for name in NAMES for cell in code_cells(read(name))]
    assert [long for long in SHORTER if not any(long in source for source in code)] == []


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs_in_a_fresh_kernel(name: str) -> None:
    fresh = execute(FOLDER / f"{name}.ipynb", SHORTER)  # a cell that raises is an error here
    assert_no_noise(fresh)
    assert figures(fresh) == figures(read(name)), "run python -m notebooks.execute"


def assert_no_noise(notebook: NotebookNode) -> None:
    """Neither errors, nor anything on stderr (warnings, progress bars), nor a machine's paths."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
    assert not [text for text in texts(notebook) if _MACHINE_PATH.search(text)]


def figures(notebook: NotebookNode) -> list[int]:
    """How many figures each code cell shows, each checked to be a PNG that is no mere blank."""
    found = []
    for cell in code_cells(notebook):
        images = [
            base64.b64decode(output.data["image/png"])
            for output in cell.outputs
            if "image/png" in output.get("data", {})
        ]
        for image in images:
            assert image.startswith(b"\x89PNG")
            assert len(image) > 5_000
        found.append(len(images))
    return found
