"""Problems of a benchmark that takes hours, each kept in a file of its own as it is done.

So it can be stopped and go on, and several processes can share it.
"""

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common


@dataclass(frozen=True)
class Kept:
    """A folder with what was found for each problem, under a name.

    Attributes:
        folder: where the files are; None keeps nothing.
        share: i and m, where this process is the i-th, from 1, of m that share the problems.
    """

    folder: Path | None = None
    share: tuple[int, int] = (1, 1)

    def is_mine(self, number: int) -> bool:
        """Whether a problem, by its number, is for this process to solve."""
        i, m = self.share
        return number % m == i - 1

    def find(self, name: str) -> dict[str, Any] | None:
        """What is kept under a name."""
        path = self._path(name)
        return json.loads(path.read_text()) if path is not None and path.is_file() else None

    def keep(self, name: str, found: dict[str, Any]) -> None:
        """Keep what was found, with the day."""
        path = self._path(name)
        if path is not None:
            common.write(path, found | {"date": datetime.date.today().isoformat()})

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.json"
