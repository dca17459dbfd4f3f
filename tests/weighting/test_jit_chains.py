"""Chains in one compiled program are NumPyro's own, and the posterior's."""

import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import summary
from numpyro.infer import HMC, MCMC, NUTS

import jaxcoreset as jc
from jaxcoreset.solvers import batching

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2)).astype(np.float32)
Y = (X @ np.array([1.0, -0.5]) + RNG.normal(size=30)).astype(np.float32)


def regression(x, y=None):
    """Normal errors of known scale, so that the posterior is known."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.deterministic("first", w[0])
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def mcmc(method, kernel=NUTS, num_warmup=20, num_samples=20, num_chains=3, **settings):
    run = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
    return MCMC(kernel(regression, **settings), **run, chain_method=method, progress_bar=False)


def starts(num_chains):
    return {"w": np.linspace(-1.0, 1.0, 2 * num_chains).reshape(num_chains, 2)}


@pytest.mark.parametrize("batch", [False, True])
def test_chains_are_those_that_numpyro_runs(batch, monkeypatch):
    """Of a batch too, as on other devices than a CPU."""
    if batch:
        monkeypatch.setattr("jaxcoreset.weighting.jit_chains.by_platform", lambda _, other: other)
    with jax.enable_x64(True):
        found = mcmc(jc.jit_chains, HMC, num_steps=4, trajectory_length=None)
        expected = mcmc("sequential", HMC, num_steps=4, trajectory_length=None)
        for each in (found, expected):
            each.run(jax.random.key(0), X, Y, init_params=starts(3), extra_fields=("energy",))
        for name in ("w", "first"):
            ours = found.get_samples(group_by_chain=True)[name]
            np.testing.assert_allclose(
                ours, expected.get_samples(group_by_chain=True)[name], rtol=1e-6
            )
        np.testing.assert_allclose(
            found.get_extra_fields(group_by_chain=True)["energy"],
            expected.get_extra_fields(group_by_chain=True)["energy"],
            rtol=1e-6,
        )


def test_a_process_with_other_devices_has_a_program_for_each(monkeypatch):
    """A CPU beside a GPU runs chains one after another."""
    monkeypatch.setattr(batching, "platforms", lambda: {"cpu", "cuda"})

    def chain(state):
        return jax.lax.while_loop(lambda x: x < 10, lambda x: x + 3, state)

    run = jc.jit_chains(chain)
    np.testing.assert_array_equal(run(np.arange(4)), [12, 10, 11, 12])
    text = jax.jit(run).lower(np.arange(4)).as_text()
    assert "tensor<4xi1>" not in text  # of a batch, whose loop ends when all have ended


def test_nuts_finds_the_posterior_in_the_usual_way_and_goes_on():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chains = mcmc(jc.jit_chains, num_warmup=300, num_samples=700)
    chains.run(jax.random.key(1), X, Y)
    precision = np.eye(2) + X.T @ X
    mean, sd = np.linalg.solve(precision, X.T @ Y), np.sqrt(np.diag(np.linalg.inv(precision)))
    found = summary(chains.get_samples(group_by_chain=True))["w"]
    assert np.all(found["r_hat"] < 1.02)
    assert np.all(np.abs(found["mean"] - mean) < 0.15 * sd)
    np.testing.assert_allclose(found["std"], sd, rtol=0.1)
    # NumPyro's ways of going on take the chains as they are.
    adapted = np.asarray(chains.last_state.adapt_state.step_size)
    chains.post_warmup_state = chains.last_state
    chains.run(jax.random.key(2), X, Y)
    np.testing.assert_array_equal(chains.last_state.adapt_state.step_size, adapted)
    assert np.all(np.abs(chains.get_samples()["w"].mean(0) - mean) < 0.15 * sd)


def test_warmup_and_draws_may_be_two_calls():
    chains = mcmc(jc.jit_chains, num_warmup=100, num_samples=100)
    chains.warmup(jax.random.key(0), X, Y, collect_warmup=True)
    assert chains.get_samples(group_by_chain=True)["w"].shape == (3, 100, 2)
    chains.run(jax.random.key(1), X, Y)
    assert chains.get_samples(group_by_chain=True)["w"].shape == (3, 100, 2)
    assert np.all(np.isfinite(chains.get_samples()["w"]))


@pytest.mark.parametrize("num_rows", [100, 200_000])
def test_kernels_of_many_rows_are_compiled_to_run_fast(num_rows, monkeypatch):
    used = []
    for name in ("quick_jit", "fast_jit"):
        monkeypatch.setattr(
            f"jaxcoreset.weighting.jit_chains.{name}",
            lambda function, name=name: used.append(name) or jax.jit(function),
        )
    x = np.zeros((num_rows, 2), np.float32)
    chains = mcmc(
        jc.jit_chains, HMC, num_warmup=1, num_samples=1, num_steps=1, trajectory_length=None
    )
    chains.run(jax.random.key(0), x, x[:, 0], init_params=starts(3))
    assert used == ["quick_jit" if num_rows == 100 else "fast_jit"]


def test_a_model_without_a_valid_start_is_refused():
    y = Y.copy()
    y[3] = np.nan
    chains = mcmc(jc.jit_chains, HMC, num_warmup=2, num_steps=1, trajectory_length=None)
    with pytest.raises(RuntimeError, match=r"not finite where chains \[0, 1, 2\] of 3 start"):
        chains.run(jax.random.key(0), X, y)
    bad = starts(3)
    bad["w"][1] = np.nan
    with pytest.raises(RuntimeError, match=r"chains \[1\] of 3 start.*init_params"):
        chains.run(jax.random.key(0), X, Y, init_params=bad)
