"""The papers' experiments, with their methods and ours.

    python -m benchmarks.paper NAME|all --quick|--full [--data-dir DIR] [--out DIR]
    python -m benchmarks.paper all --redraw --out DIR
    python -m benchmarks.paper data --download --data-dir DIR

gaussian         Zhang et al. (2021), section 5.1: Figures 1a, 5 and 6
radial_basis     section 5.2: Figures 1b, 2 and 7
regressions      section 5.3 and appendix G: Figures 3, 8 and 9, batch gradients (10), MAP
                 distance (11)
large_scale      section 5.3: Figure 4
vector_sums      Campbell and Broderick (2018): Figures 1 and 3
fisher_distance  Campbell and Broderick (2018): Figure 4
distributions    Zhang et al. (2019): Figure 2
compression      Zhang et al. (2019): Figure 3

Each writes NAME.json, NAME.md and figures in the layout of the paper's own. ``--full`` has the
papers' settings, ``--quick`` small ones. Data are looked for in --data-dir or the folder that
JAXCORESET_DATA names; ``--download`` fetches what is missing there.
"""

import argparse
import json
import os
from pathlib import Path

from benchmarks.paper import download, runner


def main(arguments: list[str] | None = None) -> None:
    """Run experiments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[*runner.NAMES, "all", "data"], metavar="NAME")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="small sizes (the default)")
    how.add_argument("--full", action="store_true", help="the papers' settings")
    how.add_argument("--redraw", action="store_true", help="tables and figures from JSON in --out")
    parser.add_argument("--trials", type=int, help="trials of each cell, in place of the setting's")
    parser.add_argument("--slow-trials", type=int, help="trials of slow methods, where fewer")
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--download", action="store_true", help="fetch data sets that are missing")
    parser.add_argument(
        "--out", type=Path, default=Path("paper-results"), help="folder for results (%(default)s)"
    )
    parser.add_argument("--figures", type=Path, help="folder for figures (that of --out)")
    options = parser.parse_args(arguments)
    for flag, number in (("--trials", options.trials), ("--slow-trials", options.slow_trials)):
        if number is not None and number < 1:
            parser.error(f"{flag} is {number}; wanted at least 1")
    folder = options.data_dir or os.environ.get("JAXCORESET_DATA")
    if options.download:
        if not folder:
            parser.error("--download needs a folder: give --data-dir or set JAXCORESET_DATA")
        download.fetch_all(Path(folder))
    elif options.name == "data":
        parser.error("data only goes with --download")
    names = {"all": runner.NAMES, "data": ()}.get(options.name, (options.name,))
    if options.redraw:
        for name in names:
            path = options.out / f"{name}.json"
            if path.is_file():
                runner.draw(name, json.loads(path.read_text()), options.out, options.figures)
            else:
                print(f"{name} is skipped: no {path}")
        return
    settings = runner.Settings(
        "full" if options.full else "quick",
        Path(folder) if folder else None,
        options.trials,
        options.slow_trials,
    )
    for name in names:
        runner.run(name, settings, options.out, options.figures)


if __name__ == "__main__":
    main()
