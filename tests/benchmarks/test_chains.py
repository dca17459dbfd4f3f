"""The benchmark of NumPyro's ways to run chains starts the way that it names."""

import json

import pytest

import jaxcoreset as jc
from benchmarks.builds import chains
from benchmarks.builds.tables import TABLES


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_way_is_timed_as_it_is_named(tmp_path, monkeypatch, capsys):
    path = str(tmp_path / "coreset.npz")
    coreset = chains.build("logistic", 300, 5)
    assert len(coreset) <= 5
    coreset.save(path)
    used = []

    def jit_chains(chain):
        used.append(chain)
        return jc.weighting.jit_chains.map_chains(chain)

    monkeypatch.setattr(jc, "jit_chains", jit_chains)
    chains.main(["--job", json.dumps(["logistic", path, 4, "jit_chains", 40])])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(used) == 1
    assert found["seconds"] > 0
    assert found["processor seconds"] > 0
    row = {"coreset": "logistic", "rows": 5, "chains": 4, "chain_method": "jit_chains"} | found
    assert "| jit_chains |" in TABLES["chains"][1]({"rows": [row]})
