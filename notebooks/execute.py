"""Executes the notebooks and keeps their outputs: ``python -m notebooks.execute``, or ``… 2 5``.

Each runs from top to bottom in a kernel of its own, in an empty folder. What differs from run to
run and says nothing (times of execution, the kernel's name and version, this folder) is not kept.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
# Four times what the slowest takes on two cores.
SECONDS = 240


def notebooks() -> list[Path]:
    """The notebooks, in the order in which they are to be read."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path, shorter: Mapping[str, str] | None = None) -> NotebookNode:
    """A notebook with the outputs of a run in a fresh kernel.

    Args:
        path: the notebook; the file stays as it is.
        shorter: texts of the code, each with the text to run in its place, as a test has them to
            take less time.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell raises.
        nbclient.exceptions.CellTimeoutError: if a cell takes longer than `SECONDS`.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for long, short in (shorter or {}).items():
            if cell.cell_type == "code":
                cell.source = cell.source.replace(long, short)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        for output in cell.get("outputs", []):
            if "text" in output:  # a warning names the file that it comes from
                output.text = output.text.replace(f"{FOLDER.parent}{os.sep}", "")
    return notebook


def main() -> None:
    """Execute all notebooks, or those whose numbers are given, and write them."""
    parser = argparse.ArgumentParser(description="Executes the notebooks and keeps their outputs.")
    parser.add_argument("numbers", nargs="*", help="the numbers of the notebooks; all by default")
    numbers = parser.parse_args().numbers
    for path in notebooks():
        if numbers and path.name.split("_")[0] not in numbers:
            continue
        start = time.perf_counter()
        nbformat.write(execute(path), path)
        seconds, size = time.perf_counter() - start, path.stat().st_size
        print(f"{path.name}: {seconds:.0f} s, {size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
