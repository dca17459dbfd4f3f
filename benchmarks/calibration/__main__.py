"""Simulation-based calibration of the whole chain: build, NUTS on the coreset, correction.

    python -m benchmarks.calibration run [MODEL ...] [--settings SETTING ...] [--num N]
    python -m benchmarks.calibration tables [--out FILE.json] [--figure FILE.png]

Data sets are simulated with parameters drawn from the prior (Talts et al. 2018, arXiv 1804.06788).
``run`` adds the ranks of the parameters among the draws to a file for each cell, up to N data
sets, and goes on where it ended; ``tables`` summarises the files. The settings are tolerances, and
"small" for a number of rows that is too small. ``--quick`` runs two data sets.
"""

import argparse
from pathlib import Path

from benchmarks import common
from benchmarks.calibration import bands, figure, tables
from benchmarks.calibration.models import MODELS
from benchmarks.calibration.run import NUM_RANKS, SETTINGS, run

RESULT = Path(__file__).parents[1] / "results" / "calibration.json"
FIGURE = Path(__file__).parents[2] / "docs" / "images" / "calibration.png"
# After so many data sets of a cell the next cell has its turn, so that all grow together.
_TURN = 25


def main(arguments: list[str] | None = None) -> None:
    """Run cells, or summarise them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=["run", "tables"])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all")
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--num", type=int, default=300, help="data sets of a cell")
    parser.add_argument("--quick", action="store_true", help="two data sets; tables of few")
    parser.add_argument("--ranks", type=Path, default=Path("calibration-ranks"), help="the folder")
    parser.add_argument("--out", type=Path, default=RESULT, help="the file of results")
    parser.add_argument("--figure", type=Path, default=FIGURE, help="the file of the figure")
    options = parser.parse_intermixed_args(arguments)
    unknown = sorted(set(options.models) - set(MODELS))
    if unknown:
        parser.error(f"{', '.join(unknown)}: expected models of {', '.join(MODELS)}")
    if options.part == "tables":
        cells = tables.summary(options.ranks, *([1] if options.quick else []))
        rate = bands.detection_rate(
            0.25, max(cell["data sets"] for cell in cells), NUM_RANKS + 1, 6
        )
        found = {"environment": common.environment(), "cells": cells, "found a shift": rate}
        common.write(options.out, found)
        figure.draw(found, options.figure)
        return
    num = 2 if options.quick else options.num
    for until in [*range(_TURN, num, _TURN), num]:
        for setting in options.settings:
            for name in options.models or MODELS:
                run(name, setting, options.ranks / f"{name}-{setting}.jsonl", until)


if __name__ == "__main__":
    main()
