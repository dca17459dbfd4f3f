"""With a maximum number of rows, a size is chosen that NUTS can sample in float32."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.data.rows import Rows
from jaxcoreset.likelihood.precision import MAX_ENERGY_ERROR, energy_error
from jaxcoreset.selection import rounding
from jaxcoreset.selection.estimate import estimate_on
from jaxcoreset.selection.tolerance import Selection
from jaxcoreset.solvers.solution import Solution


class Pool:
    """One candidate row for each weight, whose rounding is its weight, in millionths of a nat."""

    indices = None
    likelihood = SimpleNamespace(rows=Rows((np.zeros((6, 1), np.float32),)))

    def parts(self, use):
        return [SimpleNamespace(draws={})]

    def data_of(self, positions):
        return (positions,)


@pytest.fixture
def pool(monkeypatch):
    def errors(likelihood, draws, data, weights):
        return 1e-6 * weights.sum(axis=1)

    monkeypatch.setattr(rounding, "energy_errors", errors)
    return Pool()


def selection(weights, kl, approach="proxy and rows"):
    """A path whose size k has k rows, the first of which has the weight given."""
    num = len(weights)
    each = np.tril(np.ones((num, num)))
    each[:, 0] = weights
    path = Solution(
        indices=jnp.tile(jnp.arange(num), (num, 1)),
        weights=jnp.asarray(each),
        objective=jnp.zeros(num),
        relative_error=jnp.zeros(num),
        num_iters=jnp.zeros(num, int),
        converged=jnp.ones(num, bool),
        solver="any",
    )
    names = ("kl_standard_error", "held_out_error", "mean_shift", "mean_shift_standard_error")
    curve = {"kl": np.asarray(kl), **dict.fromkeys(names, np.zeros(num))}
    sizes = np.arange(1, num + 1)
    return Selection(path, sizes, num - 1, estimate_on(curve, num - 1), curve, True, approach)


@pytest.mark.usefixtures("untyped")
def test_largest_size_stays_where_float32_holds_it(pool):
    found = selection([10, 10, 4e4], [1e-2, 1e-4, 1e-6])
    assert rounding.best_of(pool, [found]) is found


@pytest.mark.usefixtures("untyped")
def test_largest_size_that_float32_holds_is_taken_beside_its_own_estimate(pool):
    found = rounding.best_of(pool, [selection([10, 10, 9e5, 20, 4e5], [1e-2, 1e-4, 0, 1e-6, 1e-8])])
    assert (found.num_rows, found.estimate.kl) == (4, 1e-6)
    # A rounding that is just within the limit is the second choice.
    assert rounding.best_of(pool, [selection([10, 4e4, 4e5], [1e-6, 1e-7, 0])]).num_rows == 1
    assert rounding.best_of(pool, [selection([4e5, 4e4, 4e5], [1e-6, 1e-7, 0])]).num_rows == 2


@pytest.mark.usefixtures("untyped")
def test_sizes_that_are_far_worse_are_not_taken(pool):
    rounded = selection([10, 10, 4e5], [3.0, 0.1, 1e-4])
    assert rounding.best_of(pool, [rounded]).num_rows == 3
    alone = selection([0.0], [5e-4], "proxy")
    assert rounding.best_of(pool, [alone, rounded]).approach == "proxy"
    poor = selection([0.0], [0.1], "proxy")
    assert rounding.best_of(pool, [poor, rounded]).num_rows == 3


def logistic(X, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ b), obs=y)
