"""Importance and uniform sampling: what is drawn, and that it is unbiased."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.sampling import ImportanceSampling, UniformSampling
from jaxcoreset.solvers.solve import solve
from tests.problems import unequal_atoms
from tests.solvers.helpers import KEY, path_in_float32

SAMPLERS = [
    pytest.param(ImportanceSampling(), id="importance"),
    pytest.param(UniformSampling(), id="uniform"),
    pytest.param(UniformSampling(replace=True), id="uniform-replace"),
]


@pytest.mark.parametrize("solver", SAMPLERS)
def test_weights_are_those_of_campbell_and_broderick_for_one_more_draw_per_size(solver):
    """(c_n/k)/p_n, where row n was drawn c_n times in k (2019, section 4.1)."""
    atoms = unequal_atoms()
    norms = np.linalg.norm(atoms, axis=1)
    is_uniform = isinstance(solver, UniformSampling)
    probabilities = np.full(80, 1 / 80) if is_uniform else norms / norms.sum()
    problem = CoresetProblem(atoms.astype(np.float32))
    draws = np.asarray(solver.draw(solver.proportions(problem), 80, KEY))
    path = path_in_float32(atoms, solver)
    for k in (1, 2, 10, 50, 80):
        expected = np.bincount(draws[:k], minlength=80) / k / probabilities
        np.testing.assert_allclose(path.dense(80)[k - 1], expected, rtol=1e-5)
    np.testing.assert_array_equal(path.num_iters, np.arange(1, 81))
    assert path.converged.all()
    if solver == UniformSampling():  # without replacement
        np.testing.assert_array_equal(path.size, np.arange(1, 81))
        assert path.relative_error[-1] < 1e-6


@pytest.mark.parametrize("solver", SAMPLERS)
def test_sampling_is_unbiased_for_the_sum_of_the_atoms(solver):
    atoms = unequal_atoms(n=30, s=8).astype(np.float32)
    atoms[4] = 0
    problem = CoresetProblem(atoms)
    keys = jax.random.split(jax.random.key(11), 2000)
    batch = jax.jit(jax.vmap(lambda key: solve(problem, 6, solver, key)))(keys)
    images = np.asarray(batch.dense(30), np.float64) @ atoms
    standard_errors = images.std(axis=0) / np.sqrt(len(keys))
    # Eight coordinates, each within four standard errors but for one case in two thousand.
    z = (images.mean(axis=0) - atoms.sum(axis=0)) / standard_errors
    assert np.abs(z).max() < 4


def test_importance_sampling_draws_rows_in_proportion_to_their_norms():
    # Not a square number of rows, zeros among them, and a whole block of zeros.
    rng = np.random.default_rng(5)
    proportions = rng.gamma(1.0, size=1010)
    proportions[rng.random(1010) < 0.3] = 0
    proportions[100:200] = 0
    num_draws = 200_000
    draws = ImportanceSampling().draw(jnp.asarray(proportions, jnp.float32), num_draws, KEY)
    counts = np.bincount(np.asarray(draws), minlength=1010)
    assert len(counts) == 1010
    assert not counts[proportions == 0].any()
    expected = num_draws * proportions / proportions.sum()
    seen = expected > 0
    chi_squared = np.sum((counts[seen] - expected[seen]) ** 2 / expected[seen])
    degrees = seen.sum() - 1
    assert abs(chi_squared - degrees) < 4 * np.sqrt(2 * degrees)
