"""With a maximum number of rows, a size is chosen that NUTS can sample in float32."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from numpyro.diagnostics import summary
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from jaxcoreset.data.rows import Rows
from jaxcoreset.selection import rounding
from jaxcoreset.selection.estimate import estimate_on
from jaxcoreset.selection.parts import Approach
from jaxcoreset.selection.tolerance import Selection
from jaxcoreset.solvers.solution import Solution
from tests.models import logistic_model

# Stand-ins for pools and draws do not have the types of the annotations.
pytestmark = pytest.mark.usefixtures("untyped")


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


def selection(weights, kl, approach: Approach = "proxy and rows"):
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


def test_largest_size_stays_where_float32_holds_it(pool):
    found = selection([10, 10, 4e4], [1e-2, 1e-4, 1e-6])
    assert rounding.best_of(pool, [found]) is found


def test_largest_size_that_float32_holds_is_taken_beside_its_own_estimate(pool):
    found = rounding.best_of(pool, [selection([10, 10, 9e5, 20, 4e5], [1e-2, 1e-4, 0, 1e-6, 1e-8])])
    assert (found.num_rows, found.estimate.kl) == (4, 1e-6)
    # A rounding that is just within the limit is the second choice.
    assert rounding.best_of(pool, [selection([10, 4e4, 4e5], [1e-6, 1e-7, 0])]).num_rows == 1
    assert rounding.best_of(pool, [selection([4e5, 4e4, 4e5], [1e-6, 1e-7, 0])]).num_rows == 2


def test_sizes_that_are_far_worse_are_not_taken(pool):
    rounded = selection([10, 10, 4e5], [3.0, 0.1, 1e-4])
    assert rounding.best_of(pool, [rounded]).num_rows == 3
    alone = selection([0.0], [5e-4], "proxy")
    assert rounding.best_of(pool, [alone, rounded]).approach == "proxy"
    poor = selection([0.0], [0.1], "proxy")
    assert rounding.best_of(pool, [poor, rounded]).num_rows == 3


def laplace(X, y):
    """The mode and the standard deviations by Newton's method, in float64."""
    X, b, precision = X.astype(np.float64), np.zeros(3), np.eye(3)
    for _ in range(20):
        p = scipy.special.expit(X @ b)
        precision = (X.T * p * (1 - p)) @ X + np.eye(3)
        b = b + np.linalg.solve(precision, X.T @ (y - p) - b)
    return b, np.sqrt(np.diag(np.linalg.inv(precision)))


@pytest.mark.slow
@pytest.mark.unoptimised
def test_nuts_in_float32_samples_a_plain_model_beside_a_proxy():
    """All 25 rows that the solver found had weights of a million: R-hat was 2.4, the sd a fifth."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 3)).astype(np.float32)
    y = (rng.random(20_000) < scipy.special.expit(X @ [1, -0.5, 0.2])).astype(int)
    builder = jc.CoresetBuilder(logistic_model, size=50, progress_bar=False)
    coreset = builder.run(jax.random.key(0), X, y)
    report = coreset.report
    assert report.size == 50
    assert report.rounding is None
    assert report.num_used < 25
    assert report.kl < 1e-6 < 1e-4 < report.gaussian_kl
    settings = {"num_chains": 4, "chain_method": jc.jit_chains, "progress_bar": False}
    mcmc = MCMC(NUTS(coreset.model), num_warmup=500, num_samples=1000, **settings)
    start = coreset.init_params(4)
    mcmc.run(jax.random.key(1), *coreset.args, **coreset.kwargs, init_params=start)
    found = summary(mcmc.get_samples(group_by_chain=True))["beta"]
    mode, sd = laplace(X, y)
    assert np.all(found["r_hat"] < 1.01)
    assert np.all(np.abs(found["mean"] - mode) < 0.1 * sd)
    np.testing.assert_allclose(found["std"], sd, rtol=0.05)
