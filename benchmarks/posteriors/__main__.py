"""Posteriors that are not Gaussian: the library's default, and what people would pick instead.

    python -m benchmarks.posteriors PART [--cases NAME ...] [--methods NAME ...] [--repeats N]

Parts:

- ``truth``: NUTS on all rows in float64, for each case that has none yet.
- ``run``: each method on each case, in a fresh process each; what is there is kept, and the results
  are written after each cell.
- ``all``: both.

A table of all methods is a matter of hours. ``--again`` measures what is there once more.
"""

import argparse

import jax

from benchmarks.posteriors import results, run, truth
from benchmarks.posteriors.cases import CASES
from benchmarks.posteriors.density import FOLDER, load


def _truths(options: argparse.Namespace) -> None:
    with jax.enable_x64(True):
        for name in options.cases:
            if options.again or not (FOLDER / f"truth_{name}.npz").is_file():
                print(f"{name}: the truth", flush=True)
                truth.measure(CASES[name])
            results.keep_truth(name, load(CASES[name]).facts)


def _cells(options: argparse.Namespace) -> None:
    for method in options.methods:
        for name in options.cases:
            if not (FOLDER / f"truth_{name}.npz").is_file():
                print(f"{name} has no truth yet: run the part `truth` first", flush=True)
                continue
            if results.cell(name, method) is not None and not options.again:
                continue
            found = run.measure(
                name, method, options.repeats, options.limit, options.draws, options.warm
            )
            results.keep(name, method, found)
            shown = ("KL", "error", "KL of moments", "CPU s", "bound", "missing", "failed")
            print(name, method, {key: found[key] for key in shown if key in found}, flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.posteriors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=["truth", "run", "all"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument(
        "--methods", nargs="+", choices=list(run.METHODS), default=list(run.METHODS)
    )
    parser.add_argument("--repeats", type=int, default=3, help="processes whose medians are kept")
    parser.add_argument("--limit", type=float, default=300.0, help="CPU seconds of a process")
    parser.add_argument("--draws", type=int, default=run.NUM_DRAWS, help="draws of a method")
    parser.add_argument("--warm", action="store_true", help="time a second call too")
    parser.add_argument("--again", action="store_true", help="measure what is there once more")
    options = parser.parse_args(arguments)
    if options.part in ("truth", "all"):
        _truths(options)
    if options.part in ("run", "all"):
        _cells(options)


if __name__ == "__main__":
    main()
