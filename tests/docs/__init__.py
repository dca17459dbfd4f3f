"""Skips these tests where the folder `docs` is missing, as beside an installed package."""

from pathlib import Path

import pytest

if not (Path(__file__).parents[2] / "docs").is_dir():
    pytest.skip("there is no folder docs", allow_module_level=True)
