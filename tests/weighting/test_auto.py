"""`weighting="auto"`: Laplace where there is a mode, and no dead end where there is none."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.processes import ProcessGroup
from jaxcoreset.weighting import auto
from jaxcoreset.weighting.errors import UnusableWeightingError
from tests.models import regression_model

KEY = jax.random.key(0)
SETTINGS = {"progress_bar": False, "num_held_out": 200, "proxy": None}


def centred(groups, y=None):
    """A centred hierarchy of groups that hardly differ: the density has no maximum at scale 0."""
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    log_scale = numpyro.sample("log_scale", dist.Normal(-2, 3))
    with numpyro.plate("groups", 8):
        effects = numpyro.sample("effects", dist.Normal(mean, jnp.exp(log_scale)))
    with numpyro.plate("rows", groups.shape[0]):
        numpyro.sample("y", dist.Normal(effects[groups], 1.0), obs=y)


def grouped():
    rng = np.random.default_rng(0)
    groups = rng.integers(8, size=1500)
    return groups, (1 + 0.02 * groups + rng.normal(size=1500)).astype(np.float32)


@pytest.fixture
def linear():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    return x, (x @ [1, -1] + 0.5 * rng.normal(size=300)).astype(np.float32)


class Fails(jc.weighting.Weighting):
    """Finds nothing, and says so in a word."""

    reason: str

    def fit(self, likelihood, key, *, show_progress=False):
        raise UnusableWeightingError(f"nothing was found, since {self.reason}.", self.reason)


def stock(likelihood):
    """Draws near the posterior of `linear`, whose standard deviations are 0.03."""
    beta = np.array([1.0, -1.0]) + 0.03 * np.random.default_rng(2).normal(size=(3000, 2))
    return jc.Draws({"beta": beta})


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_model_without_a_mode_has_draws_by_nuts_and_one_line_says_so():
    groups, y = grouped()
    text = "Laplace failed: .*the build goes on with Sub"
    # The builder gets here where float64 does not find a mode either.
    with jax.enable_x64(True):
        likelihood = jc.model_likelihood(centred, (groups, y))
        with pytest.warns(UserWarning, match=text) as found:
            source = auto.AutoWeighting().fit(likelihood, KEY)
        draws = source.take(KEY, 0, 500)
    lines = [str(one.message) for one in found if "the build goes on" in str(one.message)]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert source.weighting == "SubsampleNUTS"
    # The overall mean has the posterior N(mean of y, about 1/n), whatever the scale.
    assert abs(np.asarray(draws["mean"]).mean() - np.mean(y)) < 0.2


def test_with_a_mode_auto_is_laplace_and_says_nothing(linear):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_default = jc.CoresetBuilder(regression_model, size=10, **SETTINGS).run(KEY, *linear)
    laplace = jc.Laplace()
    explicit = jc.CoresetBuilder(regression_model, size=10, weighting=laplace, **SETTINGS)
    expected = explicit.run(KEY, *linear)
    np.testing.assert_array_equal(by_default.indices, expected.indices)
    np.testing.assert_array_equal(by_default.weights, expected.weights)
    assert by_default.report.weighting == "Laplace"
    assert by_default.approximation is not None


def test_ways_are_tried_in_order_and_the_source_names_the_one_that_works(linear, monkeypatch):
    def ways(likelihood):
        return iter([Fails("it is flat"), Fails("it is slow"), stock(likelihood)])

    monkeypatch.setattr(auto, "_ways", ways)
    likelihood = jc.model_likelihood(regression_model, linear)
    text = "Fails failed: it is flat; Fails failed: it is slow; the build goes on with Draws"
    # In float32 the first failure is an error, so that float64 is tried.
    with jax.enable_x64(True), pytest.warns(UserWarning, match=text):
        source = auto.AutoWeighting().fit(likelihood, KEY)
    assert source.weighting == "Draws"


def test_float64_is_tried_before_another_way_and_where_none_works_the_error_tells_of_all(
    linear, monkeypatch
):
    tried = []

    class Noted(Fails):
        def fit(self, likelihood, key, *, show_progress=False):
            tried.append((self.reason, default_float().name))
            return super().fit(likelihood, key)

    monkeypatch.setattr(auto, "_ways", lambda likelihood: iter([Noted("it is flat"), Noted("no")]))
    with pytest.raises(ValueError, match=r"since it is flat. Noted was tried as well: no."):
        jc.CoresetBuilder(regression_model, size=10, **SETTINGS).run(KEY, *linear)
    assert tried == [("it is flat", "float32"), ("it is flat", "float64"), ("no", "float64")]


class _OtherFailed(ProcessGroup):
    def gather(self, state):
        return [dict(state), {"failed": np.asarray(True)} if "failed" in state else dict(state)]


def test_a_way_that_fails_in_another_process_is_not_used_here(linear):
    likelihood = jc.model_likelihood(regression_model, linear)
    rows = likelihood.rows
    rows.context = dataclasses.replace(rows.context, processes=_OtherFailed())
    with pytest.raises(UnusableWeightingError, match="in another process"):
        auto._fit(stock(likelihood), likelihood, KEY, False)


def test_pathfinder_comes_last_and_only_where_all_rows_are_in_memory(linear, tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "find_spec", lambda name: object())

    def names(data):
        likelihood = jc.model_likelihood(regression_model, data)
        return [type(way).__name__ for way in auto._ways(likelihood)]

    assert names(linear) == ["Laplace", "SubsampleNUTS", "Pathfinder"]
    paths = [tmp_path / "x.npy", tmp_path / "y.npy"]
    for path, array in zip(paths, linear, strict=True):
        np.save(path, array)
    mapped = tuple(np.load(path, mmap_mode="r") for path in paths)
    assert names(mapped) == ["Laplace", "SubsampleNUTS"]
    monkeypatch.setattr(auto, "find_spec", lambda name: None)
    assert names(linear) == ["Laplace", "SubsampleNUTS"]


def test_a_checkpoint_keeps_the_passes_of_another_way_and_tells_auto_from_laplace(
    linear, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        auto, "_ways", lambda likelihood: iter([jc.Laplace(max_iters=1), stock(likelihood)])
    )
    settings = SETTINGS | {"size": 10, "checkpoint": tmp_path / "build"}
    builder = jc.CoresetBuilder(regression_model, **settings)
    with pytest.warns(UserWarning, match="the build goes on with Draws"):
        builds = [builder.run(KEY, *linear) for _ in range(2)]
    np.testing.assert_array_equal(builds[0].weights, builds[1].weights)
    report = builds[0].report
    assert report.weighting == report.rounds[0]["weighting"] == "Draws"
    with pytest.raises(ValueError, match="it differs in weighting"):
        jc.CoresetBuilder(regression_model, weighting=jc.Laplace(), **settings).run(KEY, *linear)


@pytest.mark.usefixtures("untyped")
def test_a_word_that_is_no_weighting_is_refused():
    with pytest.raises(TypeError, match="weighting is 'laplace'; expected 'auto' or a Weighting"):
        jc.CoresetBuilder(regression_model, size=10, weighting="laplace")
