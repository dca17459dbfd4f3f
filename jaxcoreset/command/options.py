"""Types of the command's options, for argparse, and the options that several commands have."""

import argparse
import csv
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", int, float)


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
    return _number(text, int, lambda number: number >= 1, "an integer of at least 1")


def positive_number(text: str) -> float:
    """A finite number above 0."""
    return _number(text, float, lambda number: 0 < number < float("inf"), "a positive number")


def _seed(text: str) -> int:
    """An integer that JAX accepts as a seed."""
    expected = f"an integer below 2**63 = {2**63:,}"
    return _number(text, int, lambda number: -(2**63) <= number < 2**63, expected)


def _number(text: str, kind: Callable[[str], T], fits: Callable[[T], bool], expected: str) -> T:
    try:
        if fits(number := kind(text)):
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
