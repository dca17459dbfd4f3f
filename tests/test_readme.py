"""The README's Python runs, and its two commands are there."""

import re
from pathlib import Path

import numpy as np
import pytest

from jaxcoreset import flights

README = Path(__file__).parents[1] / "README.md"


def test_newcomers_two_commands_are_marked():
    text = README.read_text(encoding="utf-8")
    for which in ("main", "tests"):
        assert re.search(rf"<!-- newcomer: {which} -->\n```bash\n.+?```", text, re.DOTALL)


@pytest.mark.slow
def test_every_python_block_runs(monkeypatch):
    """On a part of the flights, and with short chains."""
    features, late, names = flights.load_flights()
    rows = np.random.default_rng(0).choice(len(late), 20_000, replace=False)
    monkeypatch.setattr(flights, "load_flights", lambda: (features[rows], late[rows], names))
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    namespace = {}
    for block in blocks:
        short = block.replace("=1000", "=400")
        exec(compile(short, str(README), "exec"), namespace)
    assert namespace["coreset"].report.kl < 0.01
    assert namespace["path"].weights.shape == (50, 50)
    assert namespace["batch"].weights.shape == (4, 50)
