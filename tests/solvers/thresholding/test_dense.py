"""Sweeps of the hard-thresholding solvers by whole vectors, and with warm starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import jaxcoreset as jc
from jaxcoreset.solvers.thresholding.dense import largest_positive
from tests.problems import correlated_atoms, independent_atoms
from tests.reference import hard_thresholding as reference
from tests.solvers.helpers import solve_in_float64

KS = np.arange(3, 15)
_largest_positive = jax.jit(largest_positive)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_largest_positive_entries_are_those_of_a_stable_sort(dtype, data):
    """Few distinct values, so that most examples have ties."""
    values = data.draw(arrays(dtype, (13, 4), elements=st.sampled_from([-2, -0.0, 0, 1e-30, 1, 3])))
    ks = data.draw(arrays(np.int32, 4, elements=st.integers(1, 13)))
    with jax.enable_x64(dtype is np.float64):
        found = np.asarray(_largest_positive(jnp.asarray(values), jnp.asarray(ks)))
    for column, k, flags in zip(values.T, ks, found.T, strict=True):
        expected = np.zeros(13, bool)
        expected[np.argsort(-column, kind="stable")[:k]] = True
        np.testing.assert_array_equal(flags, expected & (column > 0))


@pytest.mark.parametrize(
    ("algorithm", "fractions"),
    [("IHT", {}), ("AIHT2", {"step_fraction": 0.5}), ("AIHT", {"momentum_fraction": 0.5})],
)
def test_sweep_equals_the_reference_for_every_k(algorithm, fractions):
    atoms = independent_atoms()
    atoms[[5, 50]] = 0
    solver = getattr(jc, algorithm)(tol=1e-4, **fractions)
    path, weights = solve_in_float64(atoms, KS, solver)
    for i, k in enumerate(KS):
        iterates = reference.hard_thresholding(
            atoms.T, atoms.sum(0), k, algorithm=algorithm, tol=1e-4, **fractions
        )
        np.testing.assert_allclose(
            weights[i], iterates[-1], rtol=1e-8, atol=1e-8 * iterates[-1].max()
        )
        assert int(path.num_iters[i]) == len(iterates)
        assert bool(path.converged[i]) == (len(iterates) < 300)
        expected = reference.objective(atoms.T, atoms.sum(0), iterates[-1])
        np.testing.assert_allclose(path.objective[i], expected, rtol=1e-10)


def test_float32_sweep_is_about_as_good_as_single_solves():
    """Lane by lane rounding decides near ties otherwise, for better or worse."""
    problem = jc.CoresetProblem(correlated_atoms().astype(np.float32))
    ks = np.arange(5, 25)
    path = jc.sweep(problem, ks, jc.AIHT2())
    single = [float(jc.solve(problem, int(k), jc.AIHT2(), max_k=24).objective) for k in ks]
    ratios = np.asarray(path.objective) / np.array(single)
    assert 0.8 < np.median(ratios) < 1.25


class _Timid(jc.AIHT2):
    """A user's own solver: A-IHT II without its de-bias step, which is A-IHT."""

    def debias(self, problem, iterate):
        return iterate


def test_a_solver_of_ones_own_is_swept_as_it_is_written():
    atoms = independent_atoms(seed=2)
    _, weights = solve_in_float64(atoms, KS, _Timid(max_iters=20))
    _, plain = solve_in_float64(atoms, KS, jc.AIHT(max_iters=20))
    np.testing.assert_allclose(weights, plain, rtol=1e-8, atol=1e-8)


def test_warm_starts_go_from_the_next_smaller_k():
    """The second k's iteration begins where the first one's ended, in whatever order k come."""
    atoms = independent_atoms(seed=4)
    solver = jc.AIHT2(warm_starts=True, max_iters=6, tol=0.0)
    _, weights = solve_in_float64(atoms, np.array([9, 5, 12]), solver)
    for start, end, k in ((np.zeros(len(atoms)), 1, 5), (weights[1], 0, 9), (weights[0], 2, 12)):
        options = {"algorithm": "AIHT2", "tol": 0.0, "max_iters": 6}
        iterates = reference.hard_thresholding(atoms.T, atoms.sum(0), k, start=start, **options)
        np.testing.assert_allclose(weights[end], iterates[-1], rtol=1e-8, atol=1e-8)
