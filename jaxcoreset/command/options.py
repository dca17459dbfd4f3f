"""Types of the command's options, for argparse, and the options that several commands have."""

import argparse
import csv


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the seed and the options on what to print."""
    parser.add_argument("--seed", type=_seed, default=0, help="seed of all random numbers (0)")
    parser.add_argument("--no-progress", action="store_true", help="show no progress")
    add_debug_option(parser)


def add_debug_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that shows tracebacks."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def column_names(text: str) -> list[str]:
    """Names separated by commas and quoted as in CSV."""
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names or not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} contains an empty name; expected a,b,c")
    return names


def positive_integer(text: str) -> int:
    """An integer of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return number


def positive_number(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return number


def _seed(text: str) -> int:
    """An integer that JAX accepts as a seed."""
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if not -(2**63) <= number < 2**63:
        raise argparse.ArgumentTypeError(
            f"expected an integer below 2**63 = {2**63:,}, got {text!r}"
        )
    return number
