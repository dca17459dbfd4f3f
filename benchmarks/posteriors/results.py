"""The results so far, as one JSON file that is written after each cell."""

import json
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.posteriors.density import FOLDER

PATH = FOLDER.with_name("posteriors.json")


def read(path: Path = PATH) -> dict[str, Any]:
    """All results: "environment", "truths" by case, and "cells" by case and method."""
    empty: dict[str, Any] = {"truths": {}, "cells": {}}
    return empty | (json.loads(path.read_text()) if path.is_file() else {})


def cell(case: str, method: str, path: Path = PATH) -> dict[str, Any] | None:
    """The result of a method on a case; None if there is none yet."""
    return read(path)["cells"].get(case, {}).get(method)


def keep(case: str, method: str, found: dict[str, Any], path: Path = PATH) -> None:
    """Add a cell to the file."""
    result = read(path)
    result["cells"].setdefault(case, {})[method] = found
    _write(path, result)


def keep_truth(case: str, facts: dict[str, Any], path: Path = PATH) -> None:
    """Add the facts of a truth to the file."""
    result = read(path)
    result["truths"][case] = facts
    _write(path, result)


def _write(path: Path, result: dict[str, Any]) -> None:
    result["environment"] = common.environment()
    temporary = path.with_suffix(".part")
    temporary.write_text(common.dumps(result, allow_nan=True))
    temporary.replace(path)
