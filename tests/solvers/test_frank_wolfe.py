"""Frank–Wolfe and GIGA: vertices added one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.frank_wolfe import GIGA, FrankWolfe
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.sampling import ImportanceSampling
from jaxcoreset.solvers.solve import sweep
from tests.datasets import atoms_of
from tests.problems import unequal_atoms
from tests.reference.frank_wolfe import frank_wolfe
from tests.reference.giga import giga
from tests.solvers.helpers import KEY, path_in_float32, true_errors

GREEDY = [pytest.param(GIGA(), giga, id="GIGA"), pytest.param(FrankWolfe(), frank_wolfe, id="FW")]


def _or_none(atoms, weights):
    """No rows where the weights are worse than none, as `jaxcoreset.sweep` returns them."""
    target = atoms.sum(axis=0)
    errors = np.linalg.norm(target - weights @ atoms, axis=1)
    return np.where((errors <= np.linalg.norm(target))[:, None], weights, 0)


@pytest.mark.parametrize("name", ["synthetic", "phishing_500", "biketrips_500"])
@pytest.mark.parametrize(("solver", "reference"), GREEDY)
def test_greedy_solver_equals_its_reference_iterate_by_iterate(solver, reference, name):
    atoms = unequal_atoms() if name == "synthetic" else atoms_of(name)
    expected = _or_none(atoms, reference(atoms.T, atoms.sum(axis=0), 50))
    with jax.enable_x64(True):
        path = sweep(CoresetProblem(atoms), np.arange(1, 81), solver, KEY)
        weights = np.asarray(path.dense(len(atoms)))[:50]
    scale = np.maximum(np.abs(expected).max(axis=1, keepdims=True), 1e-300)
    np.testing.assert_allclose(weights / scale, expected / scale, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("solver", "reference"), GREEDY)
def test_float32_reaches_the_error_of_the_float64_reference(solver, reference):
    atoms = unequal_atoms()
    target = atoms.sum(axis=0)
    residuals = target - _or_none(atoms, reference(atoms.T, target, 50)) @ atoms
    expected = np.linalg.norm(residuals, axis=1) / np.linalg.norm(target)
    path = path_in_float32(atoms, solver)
    assert path.weights.dtype == jnp.float32
    # Where float32 breaks a near tie the other way, the two go apart, to errors as good.
    np.testing.assert_allclose(path.relative_error[:50], expected, rtol=0.02)


@pytest.mark.parametrize("solver", [GIGA(), FrankWolfe()])
def test_each_size_is_one_iteration_more(solver):
    path = path_in_float32(unequal_atoms(), solver)
    np.testing.assert_array_equal(path.num_iters, np.arange(1, 81))
    # Frank–Wolfe's first points are worse than no rows; they are dropped, and say so.
    np.testing.assert_array_equal(path.converged, path.size > 0)
    assert path.converged[4:].all()


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("solver", [GIGA(), FrankWolfe()])
def test_run_stops_at_a_target_it_has_reached_and_repeats_the_solution(solver, x64):
    atoms = unequal_atoms()
    norms = np.linalg.norm(atoms, axis=1)
    weight = norms.sum() / norms[7]  # a vertex of the polytope, so both can reach it
    with jax.enable_x64(x64):
        problem = CoresetProblem(atoms, weight * atoms[7])
        path = jax.tree.map(np.asarray, sweep(problem, np.arange(1, 81), solver, KEY))
    dense = np.zeros((80, 80))
    np.put_along_axis(dense, path.indices, path.weights, axis=1)
    np.testing.assert_array_equal(dense[1:], dense[:1].repeat(79, axis=0))
    np.testing.assert_array_equal(path.num_iters, 1)
    np.testing.assert_array_equal(np.flatnonzero(dense[0]), [7])
    np.testing.assert_allclose(dense[0, 7], weight, rtol=1e-5)
    assert path.converged.all()
    assert path.relative_error.max() < 1e-6


@pytest.mark.parametrize("solver", [GIGA(), FrankWolfe()])
def test_long_run_to_the_limit_of_float32_is_finite_honest_and_falling(solver):
    # Atoms of rank three, so that the target can be matched by a few of them.
    basis = np.random.default_rng(1).standard_normal((3, 60))
    atoms = (unequal_atoms(s=3) @ basis).astype(np.float32)
    path = path_in_float32(atoms, solver)
    errors = np.asarray(path.relative_error)
    assert np.isfinite(errors).all()
    assert errors[-1] < 1e-4
    # The claim follows the weights in print down to float32's rounding of the target.
    np.testing.assert_allclose(errors, true_errors(atoms, path), rtol=1e-2, atol=2e-6)
    assert np.all(np.diff(errors) <= 2e-6)


def test_frank_wolfe_returns_no_rows_until_they_are_better_than_none():
    # Orthogonal atoms: every vertex is further from the target than w = 0 (Proposition 2.1), and
    # the point of m steps is nearest at equal weights 9/m, with an error of (9/m − 1) m + (9 − m).
    path = path_in_float32(np.eye(80, 60) * (np.arange(60) < 9), FrankWolfe())
    m = np.arange(1, 10)
    errors = np.sqrt(m * (9 / m - 1) ** 2 + 9 - m) / 3
    np.testing.assert_array_equal(path.size[:9], np.where(errors > 1, 0, m))
    np.testing.assert_allclose(path.relative_error[:9], np.minimum(errors, 1), atol=1e-6)
    np.testing.assert_allclose(path.weights[5, :6], 9 / 6, rtol=1e-6)
    assert path.relative_error[8] < 1.0


@pytest.mark.parametrize("solver", [FrankWolfe(), ImportanceSampling()])
def test_weights_stay_in_the_polytope(solver):
    atoms = unequal_atoms().astype(np.float32)
    norms = np.linalg.norm(atoms, axis=1)
    path = path_in_float32(atoms, solver)
    # What is worse than no rows leaves the polytope for zero, in Frank–Wolfe's first four points.
    is_first = isinstance(solver, FrankWolfe) & (np.arange(80) < 4)
    expected = np.where(is_first, 0, norms.sum())
    np.testing.assert_allclose(path.dense(80) @ norms, expected, rtol=1e-5)


def test_giga_objective_never_rises_and_its_scale_is_the_best_one():
    atoms = unequal_atoms()
    target = atoms.sum(axis=0)
    with jax.enable_x64(True):
        path = sweep(CoresetProblem(atoms), np.arange(1, 81), GIGA(), KEY)
        assert np.all(np.diff(path.objective) <= 0)
        images = np.asarray(path.dense(80)) @ atoms
    # At the best scale the residual is orthogonal to Φw.
    alignment = np.sum((target - images) * images, axis=1)
    np.testing.assert_allclose(alignment / (target @ target), 0, atol=1e-13)


def test_giga_starts_from_the_best_single_atom():
    atoms = unequal_atoms()
    target = atoms.sum(axis=0)
    correlations = atoms @ target / np.linalg.norm(atoms, axis=1)
    best = np.argmax(correlations)
    expected = np.zeros(80)
    expected[best] = correlations[best] / np.linalg.norm(atoms[best])
    np.testing.assert_allclose(path_in_float32(atoms, GIGA()).dense(80)[0], expected, rtol=1e-5)


def test_giga_takes_no_geodesic_along_or_against_the_iterate():
    # Every atom lies on one line, the target on it or a hair beside it.
    line = np.linspace(-1, 1, 60)
    atoms = np.outer(np.r_[2.0, 1.0, -1.0, -3.0, 0.5, np.zeros(75)], line)
    for target in (line, line + 1e-3 * np.cos(40 * line)):
        path = path_in_float32(atoms, GIGA(), target)
        np.testing.assert_array_equal(path.num_iters, 1)
        # Atoms that are equal but for scale are equals to a choice by angle.
        np.testing.assert_array_equal(path.indices[:, 0], 0)
        np.testing.assert_allclose(path.weights[:, 0], 0.5, rtol=1e-3)
