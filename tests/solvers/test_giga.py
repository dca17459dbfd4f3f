"""GIGA: its scale, its start, and the geodesics that it does not take."""

import jax
import numpy as np

from jaxcoreset.solvers.giga import GIGA
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solve import sweep
from tests.problems import unequal_atoms
from tests.solvers.helpers import KEY, path_in_float32


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
