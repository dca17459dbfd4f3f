"""Frank–Wolfe and GIGA: vertices added one after the other."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers.frank_wolfe import GIGA, FrankWolfe
from tests.datasets import atoms_of
from tests.problems import unequal_atoms
from tests.reference.frank_wolfe import frank_wolfe
from tests.reference.giga import giga
from tests.solvers.helpers import path_in_float32, solve_in_float64, true_errors

GREEDY = [pytest.param(GIGA(), giga, id="GIGA"), pytest.param(FrankWolfe(), frank_wolfe, id="FW")]


def _reference_path(atoms, reference):
    """No rows where the weights are worse than none, as `jaxcoreset.sweep` returns them."""
    target = atoms.sum(axis=0)
    weights = reference(atoms.T, target, 50)
    errors = np.linalg.norm(target - weights @ atoms, axis=1) / np.linalg.norm(target)
    return np.where((errors <= 1)[:, None], weights, 0), np.minimum(errors, 1)


@pytest.mark.parametrize("name", ["synthetic", "phishing_500"])
@pytest.mark.parametrize(("solver", "reference"), GREEDY)
def test_greedy_solver_equals_its_reference_iterate_by_iterate(solver, reference, name):
    atoms = unequal_atoms() if name == "synthetic" else atoms_of(name)
    expected, _ = _reference_path(atoms, reference)
    weights = solve_in_float64(atoms, np.arange(1, 81), solver)[1][:50]
    scale = np.maximum(np.abs(expected).max(axis=1, keepdims=True), 1e-300)
    np.testing.assert_allclose(weights / scale, expected / scale, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("solver", "reference"), GREEDY)
def test_float32_reaches_the_error_of_the_float64_reference_by_an_iteration_per_size(
    solver, reference
):
    atoms = unequal_atoms()
    _, expected = _reference_path(atoms, reference)
    path = path_in_float32(atoms, solver)
    assert path.weights.dtype == jnp.float32
    # Where float32 breaks a near tie the other way, the two go apart, to errors as good.
    np.testing.assert_allclose(path.relative_error[:50], expected, rtol=0.02)
    np.testing.assert_array_equal(path.num_iters, np.arange(1, 81))
    # Frank–Wolfe's first points are worse than no rows; they are dropped, and say so.
    np.testing.assert_array_equal(path.converged, path.size > 0)
    assert path.converged[4:].all()


@pytest.mark.parametrize("solver", [GIGA(), FrankWolfe()])
def test_run_stops_at_a_target_it_has_reached_and_repeats_the_solution(solver):
    atoms = unequal_atoms()
    norms = np.linalg.norm(atoms, axis=1)
    weight = norms.sum() / norms[7]  # a vertex of the polytope, so both can reach it
    path = path_in_float32(atoms, solver, weight * atoms[7])
    dense = np.asarray(path.dense(80))
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
