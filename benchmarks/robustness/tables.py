"""The tables of what was tried to break the package, as Markdown."""

from collections.abc import Callable
from typing import Any

from benchmarks.common import markdown

_NUMERICAL = ("case", "n", "outcome", "rows", "exact KL", "reported KL", "ratio")


def _programs(result: dict[str, Any]) -> str:
    return markdown(result["rows"], ["program", "what it tries", "trials", "held", "seconds"])


def _numerical(result: dict[str, Any]) -> str:
    return markdown(result["rows"], _NUMERICAL)


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "robustness": ("robustness", _programs),
    "robustness_numerical": ("robustness.robustness_numerical", _numerical),
}
