"""Predictions of rows with a number that the model indexes an array by, and has no entry for."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.likelihood.arguments import ModelError
from tests.gaussian_coreset import whole

# Of the coreset posterior as it is.
unweighted = partial(
    jc.predict, key=jax.random.key(0), progress_bar=False, reweight=False, quantiles=()
)


def levels(x, level, y=None, *, read=lambda mean, level: mean[level], response=dist.Normal):
    with numpyro.plate("levels", 4):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        of_rows = response(read(mean, level.astype(int)) + x, 1.0)
        numpyro.sample("y", of_rows, obs=y)


@pytest.mark.parametrize(
    ("level", "dtype"),
    [(4, int), (-1, int), (-1, np.int8), (4, float), (-1, float), (np.nan, float)],
)
def test_an_index_that_the_model_has_no_entry_for_is_refused(level, dtype):
    """JAX would take another entry, and predict for another category."""
    rng = np.random.default_rng(0)
    x, known = rng.normal(size=60).astype(np.float32), np.arange(60) % 4
    known = known.astype(np.float32 if dtype is float else np.int32)
    coreset = whole(levels, x, known, x)
    draws = {"mean": rng.normal(size=(100, 4)).astype(np.float32)}
    found = partial(unweighted, coreset, draws)
    far = np.array([-9.0, 9.0], np.float32)  # beyond the build's, but no index
    assert found(far, np.array([0, 3])).mean["y"].shape == (2,)
    with pytest.raises(ModelError, match=rf"level is {level}(\.0)? in row 1, .* of 4 entries"):
        found(far, np.array([0, level], dtype))


def test_an_index_in_a_matrix_is_named_by_its_column():
    def model(X, y=None):
        return levels(X[:, 0], X[:, 1], y)

    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(size=60), np.arange(60) % 4], axis=1)
    found = partial(unweighted, whole(model, X, X[:, 0]), {"mean": rng.normal(size=(100, 4))})
    for new in ([[-9.0, 0.0], [9.0, 5.0]], [[9.0, 5.0]]):
        with pytest.raises(ModelError, match=r"column 1 of X is 5\.0 in row .* of 4 entries"):
            found(np.array(new))


def provided(mean, level):
    return jnp.where((level >= 0) & (level < 4), mean[level], 0.0)


PROVIDED_FOR = {
    "take": lambda mean, level: jnp.take(mean, level, mode="clip"),
    "clip": lambda mean, level: mean[jnp.clip(level, 0, 3)],
    "where": provided,
}


@pytest.mark.parametrize("read", PROVIDED_FOR.values(), ids=list(PROVIDED_FOR))
def test_a_new_category_that_the_model_provides_for_is_predicted(read):
    x, known = np.zeros(60), np.arange(60) % 4
    coreset = whole(partial(levels, read=read), x, known, x)
    draws = {"mean": np.tile([5.0, 0.0, 0.0, -5.0], (100, 1))}
    mean = unweighted(coreset, draws, np.zeros(2), np.array([-1, 4])).mean["y"]
    np.testing.assert_allclose(mean, [0, 0] if read is provided else [5, -5], atol=0.5)


def test_the_build_tells_whether_negative_numbers_may_be_predicted():
    x, known = np.zeros(60), np.arange(60) % 5 - 1
    draws = {"mean": np.random.default_rng(0).normal(size=(100, 4))}
    coreset, new = whole(levels, x, known, x), np.array([0, -1])
    assert unweighted(coreset, draws, np.zeros(2), new).mean["y"].shape == (2,)
    coreset.likelihood = None  # as it is loaded, with its own rows only
    assert unweighted(coreset, draws, np.zeros(2), new).mean["y"].shape == (2,)
    coreset = whole(levels, x, np.arange(60) % 4, x)
    coreset.likelihood = None
    with pytest.raises(ModelError, match=r"level is -1 in row 1, .*build that are known have no"):
        unweighted(coreset, draws, np.zeros(2), new)


def test_a_category_without_an_entry_is_refused_where_draws_would_not_show_it():
    """Nearly all responses are 1, whichever entry is read."""

    def answers(mean, _):
        return dist.Bernoulli(logits=mean)

    x, known = np.full(60, 8.0), np.arange(60) % 4
    coreset = whole(partial(levels, response=answers), x, known, (x > 0).astype(int))
    draws = {"mean": np.random.default_rng(0).normal(size=(100, 4))}
    with pytest.raises(ModelError, match=r"level is 4 in rows 0, 2, .* of 4 entries"):
        unweighted(coreset, draws, x[:3], np.array([4, 0, 6]))
