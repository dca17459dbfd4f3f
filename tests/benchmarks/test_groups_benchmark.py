"""The benchmark of groups: its quick run, and what its parts compute by hand."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density
from scipy.integrate import quad
from scipy.stats import beta, gamma

from benchmarks.groups import __main__ as program
from benchmarks.groups import lifetime, lme4, tables, truth
from jaxcoreset.command.flights import late_by_plane


@pytest.mark.slow
@pytest.mark.unoptimised
def test_quick_run_keeps_a_cell_that_a_table_is_made_of(tmp_path, monkeypatch):
    monkeypatch.setattr(lme4.shutil, "which", lambda name: None)
    lme4.version.cache_clear()
    out = tmp_path / "groups.json"
    program.main(["sizes", "--quick", "--out", str(out)])
    lme4.version.cache_clear()
    result = json.loads(out.read_text())
    (cell,) = result["sizes"]
    assert cell["groups kept"] <= 8
    assert cell["lme4"] is None
    # Both are posteriors of the same rows, with 100 draws each.
    assert cell["mean error, sd"] < 1
    assert "| normal | 60 |" in tables.TABLES["groups_sizes"][1](result)


def small_planes():
    rng = np.random.default_rng(0)
    plane = np.sort(rng.integers(0, 6, 80))
    features = rng.normal(size=(80, 3)).astype(np.float32)
    late = (rng.random(80) < 0.3).astype(np.float32)
    return truth.Planes(*map(jnp.asarray, (features, plane, late)))


def test_density_of_the_truth_is_that_of_the_model():
    data = small_planes()
    scale = truth.scales(data, 6, num_steps=5)
    reference = truth.log_likelihoods(scale.beta, scale.effect, data)
    potential = truth.potential_of(data, scale, reference)
    points = jax.random.normal(jax.random.key(0), (3, 3 + 1 + 6))

    def of_model(at):
        # The log-density by the sampler's coordinates, of which the Jacobian is found by autodiff.
        weights, log_sd, effect = truth.place(at, scale)
        params = {"beta": weights, "sd_planes": jnp.exp(log_sd), "effect": effect}
        args = (data.features, data.plane, 6, data.late.astype(int))
        jacobian = jax.jacobian(lambda at: jnp.hstack(truth.place(at, scale)))(at)
        found = log_density(late_by_plane, args, {}, params)[0]
        return found + log_sd + jnp.linalg.slogdet(jacobian)[1]

    own = np.array([-potential(at) for at in points])
    expected = np.array([of_model(at) for at in points])
    np.testing.assert_allclose(own - own[0], expected - expected[0], atol=2e-3)


def test_gradients_lower_the_errors_of_moments_and_do_not_move_them():
    # Standard normal coordinates, whose slopes are their own values, and x + 0.1 x² of each.
    at = np.random.default_rng(0).normal(size=(4, 500, 2))
    derivatives = np.einsum("csd,de->csde", 1 + 0.2 * at, np.eye(2))
    found = truth.corrected_moments(at + 0.1 * at**2, at, derivatives)
    np.testing.assert_allclose(found["mean"], 0.1, atol=5 * found["mean error"].max())
    np.testing.assert_allclose(found["sd"], np.sqrt(1.02), atol=5 * found["sd error"].max())
    # Without them the errors are 1 / √2000 and 1 / √4000.
    assert found["mean error"].max() < 0.01
    assert found["sd error"].max() < 0.01


@pytest.mark.parametrize(("x", "last"), [(0, 0.0), (1, 7.0), (4, 20.0)])
def test_a_customers_likelihood_is_the_integral_over_rate_and_dropout(x, last):
    r, alpha, a, b, duration = 0.9, 4.4, 0.8, 2.5, 30.0

    def over_rate(power, time):
        return quad(lambda z: z**power * np.exp(-z * time) * gamma.pdf(z, r, scale=1 / alpha), 0, 9)

    stays = beta(a, b).expect(lambda p: (1 - p) ** x)
    exact = stays * over_rate(x, duration)[0]
    if x:
        exact += beta(a, b).expect(lambda p: p * (1 - p) ** (x - 1)) * over_rate(x, last)[0]
    one = lifetime.BetaGeometric(r, alpha, a, b, jnp.array(duration))
    found = float(one.log_prob(jnp.array([x, last], float)))
    np.testing.assert_allclose(found, np.log(exact), atol=1e-4)


def test_simulated_customers_buy_within_their_time():
    _, duration, purchases = lifetime.simulate(1000)
    assert np.all(purchases[:, 1] <= duration)
    assert np.all((purchases[:, 1] > 0) == (purchases[:, 0] > 0))
