"""What the solvers find and what they cost: quality, ablation, speed, size and scaling.

    python -m benchmarks.solvers [--quick] [--parts quality,whole,optimum,…]
                                 [--data-dir DIR] [--output FILE.json] [--figures DIR]
                                 [--earlier FILE.json] [--trials N M]
                                 [--keep DIR [--share I/M]]

quality   relative error of every method with its paper's settings, on the papers' small data sets
whole     the same on all rows of four of them
optimum   how far the best two and three of 500 rows are, which are found by trying all
ablation  what each part of ExchangePursuit brings and costs
speed     all k in one run, beside a plain NumPy A-IHT II that solves for each k in turn
large     n = 200,000, S = 2000, k = 1000: time, memory and passes over the atoms
scaling   time against n, S, k and batch, with the exponents; a figure each with --figures

The other methods take hours for quality and whole and do not change with the default solver:
with --earlier their errors are taken from earlier results where those have the data set, draws and
trial, and only what is not there is run. One trial of whole with S = 2000, of four data sets, took
17 minutes on one core; --trials says how many there are to be with S = 500, and with S = 2000.
With --keep the problems of whole are kept in a folder as they are done, and not run again: it is to
be emptied when a solver has changed. Processes that are given shares, 1/2 and 2/2, have each its
part of the problems; once they are done, the same command without a share puts all together.

Times are wall seconds: "cold" is the first call, compilation included, "warm" the median of
further ones. Relative errors below 3e-5 are rounding in float32 and count as 3e-5.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.solvers import optimum, quality, speed
from benchmarks.solvers.kept import Kept

PARTS = ("quality", "whole", "optimum", "ablation", "speed", "large", "scaling")


def _share(text: str) -> tuple[int, int]:
    """I/M as two numbers."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no share; wanted 1/2 or 2/2, for instance")
    return int(found[1]), int(found[2])


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, under two minutes")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas")
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--figures", type=Path, help="folder for the figures of scaling")
    parser.add_argument(
        "--earlier", type=Path, help="results to take the other methods' errors from"
    )
    parser.add_argument(
        "--trials",
        type=int,
        nargs=2,
        default=(20, 20),
        metavar=("N", "M"),
        help="draws of the parameters for whole with S = 500, and with S = 2000",
    )
    parser.add_argument("--keep", type=Path, help="folder for the problems of whole that are done")
    parser.add_argument("--share", type=_share, help="which of them are solved: 1/2, 2/2")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    unknown = set(parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts {sorted(unknown)}; there are {', '.join(PARTS)}")
    environment = common.environment()
    if min(options.trials) < 1:
        parser.error(f"--trials is {options.trials}; wanted 1 or more of each")
    shares = options.share is not None
    if shares and (options.keep is None or options.output is not None or parts != ["whole"]):
        parser.error("--share goes with --keep and --parts whole, and without --output")
    kept = Kept(options.keep, options.share or (1, 1))
    earlier = None if options.earlier is None else json.loads(options.earlier.read_text())
    result: dict[str, Any] = {"benchmark": "solvers"}
    if options.output is not None and options.output.is_file():
        result = json.loads(options.output.read_text())  # parts that are not run again are kept
    run = {
        "quality": lambda: quality.quality(options.data_dir, options.quick, earlier),
        "whole": lambda: quality.whole(
            options.data_dir, options.quick, earlier, options.trials, kept
        ),
        "optimum": lambda: optimum.optimum(options.data_dir, options.quick),
        "ablation": lambda: quality.ablation(options.data_dir, options.quick),
        "speed": lambda: speed.speed(options.data_dir, options.quick),
        "large": lambda: speed.large(options.quick),
        "scaling": lambda: speed.scaling(options.quick, options.figures),
    }
    for part in parts:
        print(f"\n== {part} ==", flush=True)
        # Parts are run at different times.
        environments = result.get("environments", {}) | {part: environment}
        result |= {"environment": environment, "environments": environments}
        result |= {"quick": options.quick, part: run[part]()}
        common.write(options.output, result)


if __name__ == "__main__":
    common.use_every_core()
    main()
