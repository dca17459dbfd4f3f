"""Corrected draws against the full posterior in closed form, and warm starts for exact chains."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, SA
from numpyro.infer.util import log_density

import jaxcoreset as jc
from jaxcoreset.coreset.belonging import digest_of
from jaxcoreset.diagnostics.correction import CorrectionError, systematic_resample
from tests.diagnostics.helpers import be_second
from tests.gaussian_coreset import case, coreset_of, regression, whole

QUIET = {"progress_bar": False}
correct = partial(jc.correct, **QUIET)


@pytest.fixture(scope="module")
def poor():
    return case(mismatch=0.1, draws=20_000)


@pytest.fixture(scope="module")
def corrected(poor):
    return correct(coreset_of(poor), poor.samples)


def weighted_moments(data):
    b = np.asarray(data["posterior"]["b"]).reshape(-1, 3).astype(np.float64)
    weights = np.exp(np.asarray(data["sample_stats"]["log_weight"])).ravel()
    assert weights.sum() == pytest.approx(1)
    mean = weights @ b
    return mean, np.sqrt(weights @ (b - mean) ** 2)


def test_weighted_draws_have_the_moments_of_the_full_posterior(poor, corrected):
    sd = np.sqrt(np.diag(poor.full.covariance))
    off = np.abs(poor.small.mean - poor.full.mean) / sd
    assert off.max() > 0.4  # the coreset is poor enough to see a correction
    (mean, spread), ess = weighted_moments(corrected), corrected.attrs["ess"]
    assert np.all(np.abs(mean - poor.full.mean) < 4 * sd / np.sqrt(ess))
    np.testing.assert_allclose(spread, sd, rtol=4 / np.sqrt(2 * ess))
    assert ess > 2000


def test_resampled_draws_need_no_weights(poor):
    coreset = coreset_of(poor)
    data = correct(coreset, poor.samples, resample=True, key=jax.random.key(0))
    b = np.asarray(data["posterior"]["b"], np.float64)
    assert b.shape == poor.samples["b"].shape
    assert "log_weight" not in data["sample_stats"]
    sd = np.sqrt(np.diag(poor.full.covariance))
    assert np.all(np.abs(b.mean((0, 1)) - poor.full.mean) < 4 * sd / np.sqrt(data.attrs["ess"]))
    known = {row.tobytes() for row in poor.samples["b"].reshape(-1, 3)}
    assert all(row.astype(np.float32).tobytes() in known for row in b.reshape(-1, 3)[::97])
    with pytest.raises(ValueError, match="key is missing"):
        correct(coreset, poor.samples, resample=True)


def test_systematic_resampling_keeps_order_and_counts_to_within_one():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(500, 0.2)).reshape(5, 100)
    with np.errstate(divide="ignore"):
        chosen = systematic_resample(np.log(weights), np.random.default_rng(1))
    assert np.all(np.diff(chosen) >= 0)
    counts = np.bincount(chosen, minlength=500)
    assert np.all(np.abs(counts - 500 * weights.ravel()) < 1)


def test_correction_refuses_where_khat_is_too_large():
    far = case(mismatch=0.8)
    coreset = coreset_of(far)
    with pytest.raises(
        CorrectionError, match=r"k-hat is [12]\.\d\d; expected at most 0\.70"
    ) as caught:
        correct(coreset, far.samples)
    assert caught.value.certificate.khat > 0.7
    assert "larger coreset" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_correction_is_made_where_all_weights_are_nearly_equal(poor, monkeypatch):
    """A rare level's log-ratios are tiny, and have a heavy tail all the same."""
    import jaxcoreset.diagnostics.measurement as module

    t = np.random.default_rng(0).uniform(size=4000)
    monkeypatch.setattr(module, "log_ratios", lambda *_, **__: np.log1p(1e-6 * (t**-0.85 - 1)))
    samples = {"b": poor.samples["b"].reshape(4, -1, 3)[:, :1000]}
    data = correct(coreset_of(poor), samples)
    assert 0.7 < data.attrs["khat"] < 1
    assert data.attrs["verdict"] == "good"
    np.testing.assert_allclose(np.exp(data["sample_stats"]["log_weight"]) * 4000, 1, atol=0.05)


@pytest.fixture(scope="module")
def nuts(poor):
    coreset = coreset_of(poor)
    settings = {"num_warmup": 300, "num_samples": 500, "progress_bar": False}
    settings |= {"num_chains": 2, "chain_method": jc.jit_chains}
    mcmc = MCMC(NUTS(coreset.model, dense_mass=True), **settings)
    mcmc.run(jax.random.key(0), *coreset.args, extra_fields=("potential_energy",))
    return coreset, mcmc


def test_nuts_is_corrected_in_arvizs_own_layout(poor, nuts):
    import arviz

    coreset, mcmc = nuts
    data = correct(coreset, mcmc, num_draws=400)
    plain = arviz.from_numpyro(mcmc, log_likelihood=False, dims={}, pred_dims={})
    posterior, expected = data["posterior"], plain["posterior"]
    assert set(posterior.data_vars) == set(expected.data_vars) == {"b", "first"}
    assert posterior["b"].dims == expected["b"].dims
    assert posterior["b"].shape == (2, 200, 3)
    places = np.asarray(posterior["draw"])
    np.testing.assert_array_equal(places, np.linspace(0, 499, 200).round())
    np.testing.assert_array_equal(posterior["b"], np.asarray(expected["b"])[:, places])
    np.testing.assert_allclose(posterior["first"], np.asarray(posterior["b"])[..., 0] ** 2)
    stats = data["sample_stats"]
    assert {"diverging", "lp", "log_weight", "log_ratio"} <= set(stats.data_vars)
    assert "observed_data" in list(data.children if hasattr(data, "children") else data.groups())
    assert stats.attrs["khat"] == data.attrs["khat"] < 0.7
    assert data.attrs["verdict"] == "usable with correction"
    mean, _ = weighted_moments(data)
    sd = np.sqrt(np.diag(poor.full.covariance))
    error = sd / np.sqrt(data.attrs["ess"])
    assert np.all(np.abs(mean - poor.full.mean) < 4 * error)


def test_corrected_posterior_survives_a_file(corrected, tmp_path):
    pytest.importorskip("h5netcdf")
    import arviz

    path = tmp_path / "posterior.nc"
    corrected.to_netcdf(path)
    found, expected = arviz.from_netcdf(path)["sample_stats"], corrected["sample_stats"]
    np.testing.assert_array_equal(found["log_weight"], expected["log_weight"])
    assert found.attrs["khat"] == pytest.approx(corrected.attrs["khat"])


def test_corrected_draws_belong_to_their_coreset(poor, corrected, tmp_path):
    other = case(mismatch=0.1, draws=100, seed=1)
    uses = {
        "loo": lambda coreset, x, y: jc.loo(coreset, corrected, x, y, **QUIET),
        "predict": lambda coreset, x, y: jc.predict(
            coreset, corrected, x[:5], key=0, num_draws=50, **QUIET
        ),
        "warm_start": lambda coreset, x, y: coreset.warm_start(corrected),
    }
    loaded = jc.load(coreset_of(poor).save(tmp_path / "rows"), trust=True)
    for use in uses.values():
        use(loaded, poor.x, poor.y)
        with pytest.raises(ValueError, match="returned for another coreset"):
            use(coreset_of(other), other.x, other.y)
    resampled = correct(coreset_of(poor), poor.samples, resample=True, key=0)
    with pytest.raises(ValueError, match="returned for another coreset"):
        coreset_of(other).warm_start(resampled)


@pytest.mark.parametrize("scale", [2.0, np.float64(2.0), np.float32(2.0), np.int64(2), 2, True])
def test_numbers_among_the_arguments_survive_a_file(scale, tmp_path):
    def model(x, scale, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, scale).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    rng = np.random.default_rng(0)
    coreset = whole(model, rng.normal(size=(50, 2)), scale, y=rng.normal(size=50))
    loaded = jc.load(coreset.save(tmp_path / "rows"), model)
    assert digest_of(loaded) == digest_of(coreset)
    other = whole(model, rng.normal(size=(50, 2)), scale, y=rng.normal(size=50))
    assert digest_of(other) != digest_of(coreset)


def grouped(group, y=None):
    with numpyro.plate("groups", 4):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        numpyro.sample("loading", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.deterministic("level", effect[group])
        numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)


def test_axes_have_the_names_that_arviz_gives_without_weights():
    import arviz

    rng = np.random.default_rng(0)
    group, y = rng.integers(4, size=60), rng.normal(size=60)
    mcmc = MCMC(SA(grouped), num_warmup=5, num_samples=60, **QUIET)
    mcmc.run(jax.random.key(0), group, y)
    expected = arviz.from_numpyro(mcmc, log_likelihood=False)["posterior"]
    coreset = whole(grouped, group, y)
    for given in (mcmc.get_samples(), mcmc.get_samples(group_by_chain=True)):
        found = correct(coreset, given)["posterior"]
        for name in ("effect", "loading", "level"):
            assert found[name].dims == expected[name].dims, name
            np.testing.assert_array_equal(found[name], expected[name])


def test_processes_use_the_draws_of_the_first_one(nuts, monkeypatch):
    """Chains of another process may differ in the last digits, and then in all."""
    coreset, mcmc = nuts
    own = mcmc.get_samples(group_by_chain=True)
    of_first = {name: np.asarray(x)[::-1, ::-1] for name, x in own.items()}
    diverging = ~np.asarray(mcmc.get_extra_fields(group_by_chain=True)["diverging"])
    expected, unaware = correct(coreset, of_first), correct(coreset, mcmc)
    be_second(monkeypatch, coreset, of_first | {"diverging": diverging})
    found = correct(coreset, mcmc)
    stats = found["sample_stats"]
    for name in ("b", "first"):
        np.testing.assert_array_equal(found["posterior"][name], of_first[name])
    np.testing.assert_array_equal(stats["diverging"], diverging)
    log_weights = expected["sample_stats"]["log_weight"]
    np.testing.assert_allclose(stats["log_weight"], log_weights, atol=1e-3)
    # Leave-one-out too, if what this process has corrected is not what the first one has.
    weights = {name: np.asarray(stats[name]) for name in ("log_ratio", "log_weight")}
    be_second(monkeypatch, coreset, of_first | weights)
    left_out = [jc.loo(coreset, one, **QUIET).pareto_k for one in (found, unaware)]
    np.testing.assert_array_equal(*left_out)


def scaled(x, y=None):
    """A positive scale and a matrix of coefficients, sites of several shapes and supports."""
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", x.shape[0]):
        mean = a + (x @ w).sum(-1) + (x**2 @ w)[:, 0]
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


@pytest.fixture(scope="module")
def scaled_coreset():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 2))
    y = 1 + x @ np.array([1.0, -1.0]) + 0.7 * rng.normal(size=500)
    solver = jc.UniformSampling()
    builder = jc.CoresetBuilder(
        scaled, size=40, solver=solver, num_draws=50, num_held_out=50, proxy=None
    )
    return builder.run(jax.random.key(0), x, y), (x, y)


def fake_samples(draws=600):
    rng = np.random.default_rng(1)
    mix = rng.normal(size=(6, 6))
    flat = 0.1 * rng.normal(size=(3, draws, 6)) @ mix
    return flat, {
        "scale": np.exp(flat[..., 1]),
        "w": flat[..., 2:].reshape(3, draws, 2, 2),
        "a": flat[..., 0],
    }


def test_metric_is_the_covariance_of_unconstrained_draws(scaled_coreset):
    coreset, _ = scaled_coreset
    flat, samples = fake_samples()
    # Sites in alphabetical order: a, scale, w.
    expected = np.cov(flat.reshape(-1, 6), rowvar=False)
    start = coreset.warm_start(samples)
    assert start.dense_mass is True
    np.testing.assert_allclose(start.inverse_mass_matrix, expected, rtol=0.01, atol=1e-4)
    diagonal = coreset.warm_start(samples, dense_mass=False)
    np.testing.assert_allclose(diagonal.inverse_mass_matrix, np.diag(expected), rtol=0.01)
    few = coreset.warm_start({name: value[:, :15] for name, value in samples.items()})
    assert few.dense_mass is False
    blocks = coreset.warm_start(samples, dense_mass=[("w", "a")])
    at = [2, 3, 4, 5, 0]
    assert set(blocks.inverse_mass_matrix) == {("w", "a"), ("scale",)}
    np.testing.assert_allclose(
        blocks.inverse_mass_matrix["w", "a"], expected[np.ix_(at, at)], rtol=0.01, atol=1e-4
    )
    with pytest.raises(ValueError, match="each site at most once"):
        coreset.warm_start(samples, dense_mass=[("w", "nothing")])


def test_initial_points_are_draws_by_chain(scaled_coreset):
    coreset, _ = scaled_coreset
    flat, samples = fake_samples()
    start = coreset.warm_start(samples)
    assert start.num_chains == 3
    assert {name: x.shape for name, x in start.init_params.items()} == {
        "a": (3,),
        "scale": (3,),
        "w": (3, 2, 2),
    }
    np.testing.assert_allclose(start.init_params["a"], flat[:, 300, 0], rtol=1e-5)
    np.testing.assert_allclose(start.init_params["scale"], flat[:, 300, 1], atol=1e-5)
    one = coreset.warm_start(samples, num_chains=1, key=jax.random.key(0))
    assert one.init_params["w"].shape == (2, 2)
    again = coreset.warm_start(samples, num_chains=1, key=jax.random.key(0))
    np.testing.assert_array_equal(one.init_params["w"], again.init_params["w"])


def test_without_draws_the_approximation_serves(scaled_coreset):
    """Chains start where the density of all rows is nearly the highest."""
    coreset, data = scaled_coreset
    start = coreset.warm_start(num_chains=2, key=jax.random.key(0))
    np.testing.assert_allclose(
        start.inverse_mass_matrix, coreset.approximation.covariance, rtol=1e-5
    )
    assert start.init_params["w"].shape == (2, 2, 2)
    one = {name: x[0] for name, x in start.init_params.items()}
    points = [coreset.likelihood.constrain(x) for x in (one, coreset.approximation.params())]
    value, best = (float(log_density(scaled, data, {}, point)[0]) for point in points)
    assert best - 30 < value < best + 5
    with pytest.raises(ValueError, match="key is missing"):
        coreset.warm_start()


def test_loaded_coreset_needs_draws_for_a_warm_start(scaled_coreset, tmp_path):
    coreset, _ = scaled_coreset
    loaded = jc.load(coreset.save(tmp_path / "rows"), trust=True)
    with pytest.raises(ValueError, match="mcmc is missing"):
        loaded.warm_start(key=jax.random.key(0))
    assert loaded.warm_start(fake_samples()[1]).num_chains == 3


def test_step_size_for_a_gaussian_is_accepted_eight_times_of_ten():
    # NumPyro's own NUTS on twenty standard normals, the step size fixed.
    def normal():
        numpyro.sample("z", dist.Normal(0, 1).expand([20]).to_event(1))

    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False}
    kernel = NUTS(normal, step_size=1.42 * 20**-0.25, **fixed)
    mcmc = MCMC(kernel, num_warmup=10, num_samples=500, **QUIET)
    mcmc.run(jax.random.key(0), extra_fields=("accept_prob",))
    accepted = float(np.mean(mcmc.get_extra_fields()["accept_prob"]))
    assert 0.75 < accepted < 0.9


@pytest.mark.parametrize(("num_chains", "dense_mass"), [(1, True), (2, [("a", "w")])])
def test_nuts_takes_the_warm_start(scaled_coreset, num_chains, dense_mass):
    coreset, (x, y) = scaled_coreset
    samples = fake_samples()[1]
    start = coreset.warm_start(samples, num_chains=num_chains, dense_mass=dense_mass)
    key = jax.random.key(0)
    keys = key if num_chains == 1 else jax.random.split(key, num_chains)
    state = start.kernel(scaled).init(keys, 50, start.init_params, (x, y), {})
    for name, value in start.init_params.items():
        np.testing.assert_array_equal(state.z[name], value)
    adapt = state.adapt_state
    np.testing.assert_allclose(np.ravel(adapt.step_size), start.step_size, rtol=1e-6)
    given = start.inverse_mass_matrix
    blocks = given if isinstance(given, dict) else {("a", "scale", "w"): given}
    assert set(adapt.inverse_mass_matrix) == set(blocks)
    for sites, block in blocks.items():
        kept = np.asarray(adapt.inverse_mass_matrix[sites]).reshape(-1, *block.shape)
        np.testing.assert_allclose(kept, np.broadcast_to(block, kept.shape), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_warm_chains_sample_the_full_posterior_after_a_short_adaptation(poor, nuts):
    coreset, mcmc = nuts
    start = coreset.warm_start(mcmc, num_chains=2)
    settings = {"num_warmup": 50, "num_samples": 1000, "progress_bar": False}
    settings |= {"num_chains": 2, "chain_method": "sequential"}
    exact = MCMC(start.kernel(regression), **settings)
    exact.run(jax.random.key(1), poor.x, jnp.asarray(poor.y), init_params=start.init_params)
    b = np.asarray(exact.get_samples()["b"])
    sd = np.sqrt(np.diag(poor.full.covariance))
    # 2,000 draws of a well-scaled Gaussian are worth more than 500 independent ones.
    assert np.all(np.abs(b.mean(0) - poor.full.mean) < 4 * sd / np.sqrt(500))
    np.testing.assert_allclose(b.std(0), sd, rtol=0.15)


def test_step_size_of_the_coresets_nuts_is_kept_where_its_metric_is_alike(nuts):
    coreset, mcmc = nuts
    adapted = np.asarray(mcmc.last_state.adapt_state.step_size)
    assert adapted.shape == (2,)
    found = coreset.warm_start(mcmc).step_size
    assert found == pytest.approx(np.sqrt(adapted.prod()), rel=1e-6)
    assert coreset.warm_start(mcmc, dense_mass=False).step_size == pytest.approx(1.42 * 3**-0.25)
