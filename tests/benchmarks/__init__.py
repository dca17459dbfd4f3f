"""Skips these tests where the folder `benchmarks` is missing, as beside an installed package."""

from pathlib import Path

import pytest

if not (Path(__file__).parents[2] / "benchmarks").is_dir():
    pytest.skip("there is no folder benchmarks", allow_module_level=True)
