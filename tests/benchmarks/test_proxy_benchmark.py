"""The benchmark of proxies: its quick run, its trial of a regression, and its measures."""

import json

import numpy as np
import pytest

from benchmarks.proxy import __main__ as program
from benchmarks.proxy import ablation, data, tables, truth
from jaxcoreset.likelihood import expansion


@pytest.mark.slow
@pytest.mark.unoptimised
def test_parts_are_joined_in_one_file_and_have_tables(tmp_path):
    out = tmp_path / "proxy.json"
    # As if another part had been measured before.
    before = {"quick": True, "time": {"size = 20": []}, "environments": {"time": {"date": "then"}}}
    out.write_text(json.dumps(before))
    program.main(["--quick", "--parts", "kl", "--only", "small logistic", "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["time"] == before["time"]
    assert result["environments"] == {"kl": result["environment"], **before["environments"]}
    found = result["kl"]["small logistic"]
    assert [cell["k"] for cell in found["cells"]] == [5, 20]
    assert found["cells"][0]["proxy + rows"] < found["cells"][0]["rows alone"]
    assert found["largest ratio of auto to the better"] < 1.5
    assert "small logistic" in tables.TABLES["proxy_kl"][1](result)
    assert "| yes |" in tables.TABLES["proxy_checks"][1](result)


@pytest.mark.parametrize(
    "make", [data.wide_logistic, data.wide_poisson, data.wide_robust], ids=lambda f: f.__name__
)
def test_wide_tables_have_their_width_and_rare_levels(make):
    z, y = make(3000, 40).args
    assert z.shape == (3000, 40)
    assert len(y) == 3000
    np.testing.assert_array_equal(z[:, 0], 1)
    is_level = np.isin(z, (0, 1)).all(axis=0)
    shares = z[:, is_level].mean(axis=0)
    assert 0 < shares.min() < 0.02
    numeric = np.corrcoef(z[:, ~is_level].T)
    assert np.abs(numeric - np.eye(len(numeric))).max() > 0.5


def test_the_divergence_of_moments_is_that_of_the_gaussians():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(400_000, 1)), 0.5 + 2 * rng.normal(size=(400_000, 1))
    # (σ₁² + δ²)/2σ₂² + (σ₂² + δ²)/2σ₁² − 1, with σ = 1, 2 and δ = 0.5.
    expected = (1 + 0.25) / 8 + (4 + 0.25) / 2 - 1
    assert truth.moments_divergence(a, b) == pytest.approx(expected, rel=0.02)


def test_the_radius_is_the_librarys_again_after_a_trial():
    before = expansion._radius(4)
    with ablation.radius(1e6):
        assert expansion._radius(4) > 1e5
    assert expansion._radius(4) == before
