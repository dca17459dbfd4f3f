"""Claims about `nnls`, held against SciPy in float64 over problems that hypothesis makes."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxcoreset.solvers.nnls import NNLSResult, nnls
from tests.solvers.helpers import scipy_nnls

# Relative errors below this are rounding in float32.
FLOAT32_FLOOR = 3e-5

KINDS = ("gauss", "positive", "duplicates", "near", "zeros", "low_rank")
Problem = tuple[np.ndarray, np.ndarray]
# Fewer and more atoms than draws.
SHAPES = ((12, 20), (24, 10))

solve = jax.jit(nnls)


@functools.cache
def _make(kind: str, shape: tuple[int, int], noise: float, scale: int, seed: int) -> Problem:
    """Atoms and a target that a sparse non-negative combination of them meets up to `noise`."""
    rng = np.random.default_rng(seed)
    m, num_draws = shape
    atoms = rng.standard_normal(shape)
    if kind == "positive":
        atoms = np.abs(atoms)
    elif kind == "duplicates":
        atoms[m // 2 :] = atoms[: m // 2]
    elif kind == "near":
        atoms[m // 2 :] = atoms[: m // 2] + 1e-2 * atoms[m // 2 :]
    elif kind == "zeros":
        atoms[::3] = 0
    elif kind == "low_rank":
        atoms = rng.standard_normal((m, 3)) @ rng.standard_normal((3, num_draws))
    weights = np.where(rng.random(m) < 0.4, rng.exponential(size=m), 0)
    target = weights @ atoms + 1e-3 * atoms[1]
    error = rng.standard_normal(num_draws)
    target += noise * np.linalg.norm(target) * error / np.linalg.norm(error)
    return atoms * 10.0**scale, target


def problems(*shapes: tuple[int, int]) -> st.SearchStrategy:
    return st.builds(
        _make,
        st.sampled_from(KINDS),
        st.sampled_from(shapes),
        st.sampled_from([0.0, 1e-3, 0.1, 1.0]),
        st.integers(-6, 6),
        st.integers(0, 10_000),
    )


quick = hypothesis.settings(
    max_examples=60, deadline=None, derandomize=True, database=None, print_blob=False
)


def _smallest(atoms: np.ndarray, target: np.ndarray) -> float:
    """SciPy's relative error, with atoms and target scaled to norm one for its tolerances."""
    return scipy_nnls(atoms, target / np.linalg.norm(target))[1] ** 0.5


def _error(atoms: np.ndarray, target: np.ndarray, result: NNLSResult) -> float:
    residual = target - np.asarray(result.weights, np.float64) @ atoms
    return float(np.linalg.norm(residual) / np.linalg.norm(target))


def _check_float32(atoms: np.ndarray, target: np.ndarray, result: NNLSResult) -> None:
    weights = np.asarray(result.weights)
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()
    error = _error(atoms, target, result)
    assert error**2 <= max(1.001 * _smallest(atoms, target) ** 2, FLOAT32_FLOOR**2)
    reported = float(result.objective) ** 0.5 / np.linalg.norm(target)
    np.testing.assert_allclose(reported, error, rtol=1e-3, atol=FLOAT32_FLOOR)


@quick
@hypothesis.given(problems(*SHAPES))
def test_float32_objective_is_scipys(problem: Problem) -> None:
    atoms, target = (x.astype(np.float32) for x in problem)
    result = solve(atoms, target)
    # Atoms of low rank have full rank once they are rounded. SciPy in float64 makes use of that
    # with weights of 1e7, which no float32 can, so all are held to the atoms before rounding.
    _check_float32(*problem, result)
    assert result.converged
    assert result.num_pivots <= 3 * len(atoms) + 10


@quick
@hypothesis.given(problems(*SHAPES))
def test_float64_meets_the_kkt_conditions_and_scipys_objective(problem: Problem) -> None:
    atoms, target = problem
    with jax.enable_x64(True):
        result = solve(jnp.asarray(atoms), jnp.asarray(target))
    error = _error(atoms, target, result)
    np.testing.assert_allclose(error, _smallest(atoms, target), rtol=1e-8, atol=1e-10)
    weights = np.asarray(result.weights)
    norms = np.linalg.norm(atoms, axis=1)
    unit = atoms / np.where(norms > 0, norms, 1)[:, None]
    correlations = unit @ (target - weights @ atoms) / np.linalg.norm(target)
    assert (weights >= 0).all()
    assert (weights[norms == 0] == 0).all()
    assert np.max(correlations) <= 1e-9
    assert np.max(np.abs(correlations[weights > 0]), initial=0) <= 1e-9


@quick
@hypothesis.given(problems(SHAPES[1]), st.integers(0, 2**24 - 1))
def test_a_warm_start_changes_nothing_but_the_pivots(problem: Problem, bits: int) -> None:
    atoms, target = problem
    with jax.enable_x64(True):
        guess = np.array([(bits >> i) & 1 for i in range(len(atoms))], float)
        guess *= np.linalg.norm(target) / (1 + np.linalg.norm(atoms, axis=1))
        warm = _warm_solve(jnp.asarray(atoms), jnp.asarray(target), jnp.asarray(guess))
        error = _error(atoms, target, warm)
        np.testing.assert_allclose(error, _smallest(atoms, target), rtol=1e-8, atol=1e-10)
        assert warm.converged
        again = _warm_solve(jnp.asarray(atoms), jnp.asarray(target), warm.weights)
        np.testing.assert_allclose(_error(atoms, target, again), error, rtol=1e-8, atol=1e-10)


_warm_solve = jax.jit(lambda atoms, target, guess: nnls(atoms, target, warm_start=guess))
# The solution after two pivots at most, and that within half the target's norm; one program.
_stopped_early = jax.jit(
    lambda atoms, target: (nnls(atoms, target, max_pivots=2), nnls(atoms, target, tol=0.5))
)


def test_a_warm_start_at_the_solution_needs_no_pivots() -> None:
    atoms, target = _make("gauss", SHAPES[1], 0.1, 0, 3)
    with jax.enable_x64(True):
        cold = solve(jnp.asarray(atoms), jnp.asarray(target))
        warm = _warm_solve(jnp.asarray(atoms), jnp.asarray(target), cold.weights)
    assert cold.num_pivots > 0
    assert warm.num_pivots == 0
    np.testing.assert_allclose(warm.weights, cold.weights, rtol=1e-4)


@pytest.mark.parametrize("spread", [1e-4, 1e-6])
def test_float32_bears_near_duplicates(spread: float) -> None:
    rng = np.random.default_rng(0)
    atoms = rng.standard_normal((60, 60))
    atoms[30:] = atoms[:30] + spread * atoms[30:]
    weights = np.where(rng.random(60) < 0.4, rng.exponential(size=60), 0)
    target = (weights @ atoms + rng.standard_normal(60)).astype(np.float32)
    atoms = atoms.astype(np.float32)
    result = solve(atoms, target)
    _check_float32(atoms.astype(np.float64), target.astype(np.float64), result)


def test_vmapped_systems_equal_single_ones() -> None:
    lanes = [
        _make(kind, SHAPES[0], noise, 0, 5) for kind in KINDS[:5] for noise in (0.0, 1e-3, 0.1)
    ]
    atoms = np.stack([a for a, _ in lanes]).astype(np.float32)
    target = np.stack([y for _, y in lanes]).astype(np.float32)
    together = jax.jit(jax.vmap(nnls))(atoms, target)
    for lane in range(len(lanes)):
        single = solve(atoms[lane], target[lane])
        np.testing.assert_allclose(together.weights[lane], single.weights, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(together.objective[lane], single.objective, rtol=1e-3, atol=1e-8)
        assert together.converged[lane] == single.converged


def test_mask_and_count_leave_the_other_atoms_out() -> None:
    atoms, target = (x.astype(np.float32) for x in _make("gauss", SHAPES[0], 0.1, 0, 7))
    masked = jax.jit(lambda mask, count: nnls(atoms, target, mask=mask, count=count))
    mask = np.arange(12) % 2 == 0
    result = masked(mask, 8)
    allowed = mask & (np.arange(12) < 8)
    assert (result.weights[~allowed] == 0).all()
    expected = solve(np.where(allowed[:, None], atoms, 0), target)
    np.testing.assert_allclose(result.weights, expected.weights, rtol=1e-5)
    nothing = masked(np.zeros(12, bool), 12)
    assert (nothing.weights == 0).all()
    assert nothing.converged


def test_it_stops_at_the_limit_on_pivots_and_at_the_relative_error_asked_for() -> None:
    atoms, target = (x.astype(np.float32) for x in _make("gauss", SHAPES[0], 0.0, 0, 3))
    limited, near = _stopped_early(atoms, target)
    assert limited.num_pivots == 2
    assert not limited.converged
    assert jnp.sum(limited.weights > 0) <= 2
    assert _error(atoms, target, near) <= 0.5
    assert near.num_pivots < solve(atoms, target).num_pivots
    assert near.converged


def test_a_zero_target_has_zero_weights() -> None:
    atoms, _ = _make("gauss", SHAPES[0], 0.1, 0, 3)
    result = solve(atoms.astype(np.float32), np.zeros(20, np.float32))
    assert (result.weights == 0).all()
    assert result.objective == 0
    assert result.converged


def test_wrong_shapes_are_refused_by_name() -> None:
    atoms, target = _make("gauss", SHAPES[0], 0.1, 0, 3)
    with pytest.raises(ValueError, match=r"atoms has shape \(12,\)"):
        nnls(atoms[:, 0], target)
    with pytest.raises(ValueError, match=r"target has shape \(19,\)"):
        nnls(atoms, target[1:])
    with pytest.raises(ValueError, match=r"mask has shape \(11,\)"):
        nnls(atoms, target, mask=np.ones(11, bool))
    with pytest.raises(ValueError, match=r"warm_start has shape \(20,\)"):
        nnls(atoms, target, warm_start=target)


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e8, np.inf])
@pytest.mark.parametrize("kind", ["random", "near duplicates", "cancelling", "nearly cancelling"])
def test_a_warm_start_far_from_the_solution_does_no_harm(scale: float, kind: str) -> None:
    rng = np.random.default_rng(3)
    atoms = rng.normal(size=(6, 10)).astype(np.float32)
    guess = np.float32(scale) * np.abs(rng.normal(size=6)).astype(np.float32)
    if kind == "near duplicates":
        atoms[3:] = atoms[:3] + np.float32(1e-3) * atoms[3:]
    elif "cancelling" in kind:
        # Large weights that add up to little: the start is no worse than zero weights.
        atoms[3:] = -atoms[:3]
        guess[3:] = guess[:3]
        if kind == "nearly cancelling":
            atoms[3:] += (0.1 / np.float32(scale)) * rng.normal(size=(3, 10)).astype(np.float32)
    target = atoms[:2].sum(axis=0)
    found = _warm_solve(jnp.asarray(atoms), jnp.asarray(target), jnp.asarray(guess))
    best = scipy.optimize.nnls(np.float64(atoms).T, np.float64(target))[1]
    residual = np.float64(target) - np.float64(found.weights) @ np.float64(atoms)
    norm = np.linalg.norm(target)
    assert found.converged
    assert np.linalg.norm(residual) <= best + 1e-5 * norm
    assert abs(float(found.objective) ** 0.5 - np.linalg.norm(residual)) <= 1e-5 * norm
