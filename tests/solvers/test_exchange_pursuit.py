"""Claims about `ExchangePursuit`, held against all supports, SciPy's NNLS and `MatchingPursuit`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxcoreset.solvers.exchange import slot_matrix
from jaxcoreset.solvers.exchange import working_set as exchange_candidates
from jaxcoreset.solvers.exchange.pursuit import ExchangePursuit
from jaxcoreset.solvers.exchange.working_set import working_set_size
from jaxcoreset.solvers.matching_pursuit import MatchingPursuit
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.solvers.solve import solve, sweep
from tests.datasets import NAMES, atoms_of
from tests.problems import low_rank_atoms
from tests.solvers.helpers import assert_best_on_its_support, in_float32, pick, scipy_nnls, used

# Relative errors below this are rounding in float32.
FLOAT32_FLOOR = 3e-5
# Nearly all tests share one shape and one bound on k, and so a few compiled programs.
NUM_DATA, NUM_DRAWS, MAX_K = 60, 40, 24
KS = np.arange(1, MAX_K + 1)


def _sweep(problem: CoresetProblem) -> Solution:
    return sweep(problem, KS, ExchangePursuit())


def _small_problems(num_problems: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Random atoms of four kinds; a target that is their sum, or is not."""
    rng = np.random.default_rng(1)
    atoms = rng.normal(size=(num_problems, n, NUM_DRAWS))
    for i in range(num_problems):
        if i % 4 == 1:
            atoms[i] *= np.exp(rng.normal(size=(n, 1)))
        if i % 4 == 2:
            low_rank = rng.normal(size=(n, 4)) @ rng.normal(size=(4, NUM_DRAWS))
            atoms[i] = 0.1 * atoms[i] + low_rank
        if i % 4 == 3:
            atoms[i] += rng.normal(size=(n, 1)) * rng.normal(size=NUM_DRAWS)
    targets = atoms.sum(axis=1)
    targets[::8] += rng.normal(size=targets[::8].shape)
    return atoms, targets


def _best_of_all_supports(atoms: np.ndarray, target: np.ndarray, k: int) -> float:
    """The smallest objective by trying every support of size k."""
    supports = np.array(list(itertools.combinations(range(len(atoms)), k)))
    gram, correlations = atoms @ atoms.T, atoms @ target
    grams = gram[supports[:, :, None], supports[:, None, :]]
    weights = np.linalg.solve(grams, correlations[supports][:, :, None])[:, :, 0]
    # Without the bounds an objective is at most what it is with them.
    bounds = target @ target - np.sum(weights * correlations[supports], axis=1)
    best = np.inf
    for i in np.argsort(bounds):
        if bounds[i] >= best:
            break
        best = min(best, scipy.optimize.nnls(atoms[supports[i]].T, target)[1] ** 2)
    return best


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_small_problems_are_mostly_solved_to_the_global_optimum(k: int) -> None:
    atoms, targets = _small_problems(num_problems=240, n=14)
    problems = jax.vmap(CoresetProblem)(
        jnp.asarray(atoms, jnp.float32), jnp.asarray(targets, jnp.float32)
    )
    found = jax.vmap(lambda p: solve(p, k, ExchangePursuit(), max_k=5))(problems).objective
    best = [_best_of_all_supports(a, t, k) for a, t in zip(atoms, targets, strict=True)]
    ratios = np.asarray(found) / np.array(best)
    assert ratios.min() > 1 - 1e-3
    assert np.mean(ratios < 1 + 1e-3) >= 0.9
    # Where few supports are enough to try them all, the default solver does that.
    assert np.mean(ratios <= 1.1) >= 0.97


@pytest.mark.parametrize("name", NAMES[::2])
def test_error_is_never_above_matching_pursuits(name: str) -> None:
    problem = in_float32(atoms_of(name))
    ks = np.array([5, 10, 20, 50, 100])
    ours = sweep(problem, ks, ExchangePursuit()).relative_error
    theirs = sweep(problem, ks, MatchingPursuit()).relative_error
    live = np.asarray(theirs) > FLOAT32_FLOOR
    ratios = (np.maximum(ours, FLOAT32_FLOOR) / np.asarray(theirs))[live] ** 2
    assert ratios.max() <= 1.02
    assert np.median(ratios) <= 0.75


@pytest.fixture(scope="module")
def path():
    """Atoms with a common part, and the solutions for every k in float32."""
    atoms = low_rank_atoms().astype(np.float32).astype(np.float64)
    return atoms, _sweep(in_float32(atoms))


def test_objective_falls_and_is_scipys_on_supports_of_at_most_k_rows(path) -> None:
    atoms, found = path
    for i, k in enumerate(KS):
        assert_best_on_its_support(atoms, pick(found, i), k)
    assert np.all(np.diff(found.objective) <= 1e-6 * found.objective[:-1])
    assert found.converged.all()


def test_a_solve_is_about_as_good_as_the_sweep(path) -> None:
    atoms, found = path
    for k in (3, 10, MAX_K):
        # Of the two the sweep comes down from further up.
        assert (
            solve(in_float32(atoms), k, ExchangePursuit(), max_k=MAX_K).objective
            <= 1.25 * found.objective[k - 1]
        )


def test_blocks_of_atoms_are_as_good_as_single_atoms_with_scipys_weights(path) -> None:
    atoms, one_by_one = path
    in_blocks = sweep(in_float32(atoms), KS[3:], ExchangePursuit(max_single=4), max_k=MAX_K)
    for i, k in enumerate(KS[3:]):
        assert_best_on_its_support(atoms, pick(in_blocks, i), k)
    assert np.median(np.asarray(in_blocks.objective) / one_by_one.objective[3:]) <= 1.5


def test_a_lone_row_is_taken() -> None:
    solution = solve(in_float32(low_rank_atoms()[:1]), 1, ExchangePursuit())
    np.testing.assert_allclose(solution.weights, [1], rtol=1e-3)


@pytest.mark.parametrize("argument", ["exchanges_down", "overshoot", "num_starts", "working_set"])
def test_negative_arguments_are_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        ExchangePursuit(**{argument: -1.0 if argument == "overshoot" else -1})


@pytest.mark.parametrize("seed", range(2))
def test_candidates_that_are_all_alike_do_not_end_the_search(seed):
    rng = np.random.default_rng(seed)
    # Most atoms are one direction but for a little noise, and correlate best with the target.
    atoms = rng.standard_normal((NUM_DATA, NUM_DRAWS)) / NUM_DRAWS**0.5
    atoms[20:] = rng.standard_normal(NUM_DRAWS) + 1e-4 * atoms[20:]
    problem = in_float32(rng.permutation(atoms))
    found = sweep(problem, KS, ExchangePursuit(working_set=16)).relative_error
    # From k = 21 on one could be exact, which so few candidates do not always find.
    assert np.all(found[:20] <= 1.5 * _sweep(problem).relative_error[:20])


@pytest.mark.parametrize("seed", [3, 4, 8])
def test_solutions_are_compared_by_the_error_of_their_weights(seed):
    # One parameter and draws near each other: beyond five atoms all are nearly dependent, and
    # weights can be off by more than their residual.
    random = np.random.default_rng(seed)
    x, slopes = random.normal(size=(300, 1)), 1 + 0.1 * random.normal(size=200)
    counts = random.poisson(np.log1p(np.exp(x)))
    rates = np.log1p(np.exp(x * slopes))
    atoms = counts * np.log(rates) - rates
    atoms = (atoms - atoms.mean(axis=1, keepdims=True)).astype(np.float32)
    errors = np.asarray(sweep(in_float32(atoms), np.arange(2, 31)).relative_error)
    assert np.all(errors <= np.minimum.accumulate(errors) + 1e-6)
    assert errors[-1] < 1e-5


@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_atoms_have_candidates_of_their_own(seed):
    # Vectors in all directions: what promised most one atom ago no longer does.
    vectors = np.random.default_rng(seed).normal(size=(20_000, 40))
    problem, ks = in_float32(vectors), np.array([5, 10, 15, 20, 24])
    found = sweep(problem, ks, ExchangePursuit(working_set=64)).relative_error
    pursuit = sweep(problem, ks, MatchingPursuit()).relative_error
    assert np.mean(np.log(np.asarray(found / pursuit))) < 0


@pytest.mark.parametrize("seed", range(2))
def test_a_few_rows_are_never_worse_than_matching_pursuits(seed):
    # Without exchanges only the start that is matching pursuit can do as well everywhere.
    vectors = np.abs(np.random.default_rng(seed).normal(size=(2_000, 40)))
    problem, ks = in_float32(vectors), np.arange(1, 25)
    solver = ExchangePursuit(exchanges_down=0, working_set=256)
    found = sweep(problem, ks, solver).relative_error
    assert np.all(found <= 1.001 * sweep(problem, ks, MatchingPursuit()).relative_error)


@pytest.mark.parametrize(
    ("sizes", "working_set", "at_a_time"),
    [
        ((28_000, 2_000, 140), None, 28_000),
        ((28_000, 2_300, 140), None, 4096),  # too many entries
        ((30_000, 2_000, 140), None, 4096),  # too many coordinates
        ((3_000, 30_000, 2_000), None, 3_000),  # no more than a working set
        ((28_000, 2_000, 140), 700, 700),
        ((500, 2_000, 140), 700, 500),
    ],
)
def test_all_atoms_are_candidates_unless_they_are_too_many(sizes, working_set, at_a_time):
    assert working_set_size(*sizes, working_set) == at_a_time


def test_slots_in_parts_change_nothing_and_float64_has_scipys_weights(monkeypatch):
    vectors, ks = np.random.default_rng(3).normal(size=(2, 200, 40)), np.array([3, 10, 20])
    solver = ExchangePursuit(working_set=60, num_starts=1)

    def found(problems: CoresetProblem) -> Solution:
        return jax.jit(jax.vmap(lambda p: solver.run_path(p, jnp.asarray(ks), 20, None)))(problems)

    with jax.enable_x64(True):
        problems = jax.vmap(CoresetProblem)(jnp.asarray(vectors))
        monkeypatch.setattr(slot_matrix, "_MIN_ENTRIES", np.inf)
        at_once = found(problems)
        # Four of them, free ones among them on the way up and down.
        monkeypatch.setattr(slot_matrix, "_MIN_ENTRIES", 0)
        monkeypatch.setattr(slot_matrix, "_ENDS", (0.1, 0.3, 0.6, 1))
        in_parts = found(problems)
    np.testing.assert_array_equal(in_parts.indices, at_once.indices)
    np.testing.assert_allclose(in_parts.weights, at_once.weights, rtol=1e-9)
    np.testing.assert_array_equal(in_parts.num_iters, at_once.num_iters)
    for i, j in itertools.product(range(2), range(3)):
        support, _ = used(pick(at_once, i, j))
        _, least = scipy_nnls(vectors[i][support], vectors[i].sum(axis=0))
        np.testing.assert_allclose(at_once.objective[i, j], least, rtol=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_further_starts_take_nothing_away(seed):
    problem = in_float32(low_rank_atoms(seed=seed))
    without = sweep(problem, KS, ExchangePursuit(num_starts=0)).relative_error
    errors = _sweep(problem).relative_error
    assert np.all(errors <= 1.001 * without + FLOAT32_FLOOR)
    assert np.any(errors < 0.95 * without)


def test_a_sweep_whose_atoms_are_too_many_for_large_k_has_a_run_for_small_k(monkeypatch):
    rng = np.random.default_rng(5)
    # Of these a small part at a time is not enough to choose from.
    atoms = rng.normal(size=(150, 12)) @ rng.normal(size=(12, 60))
    problem = in_float32(atoms + 0.5 * rng.normal(size=atoms.shape))
    monkeypatch.setattr(exchange_candidates, "_WORKING_SET", 32)
    # All atoms are candidates for k up to 25, whose slots are ten more.
    monkeypatch.setattr(exchange_candidates, "_MAX_COORDINATES", 35 * 150)
    # So that slots come in parts where all atoms are candidates, and only there.
    monkeypatch.setattr(slot_matrix, "_MIN_ENTRIES", 3000)
    # For large k alone there is no such run, and some atoms at a time are candidates.
    large = np.array([26, 28, 30])
    found, few = (sweep(problem, large, ExchangePursuit(working_set=size)) for size in (None, 32))
    np.testing.assert_array_equal(found.indices, few.indices)
    np.testing.assert_array_equal(found.num_iters, few.num_iters)

    found = sweep(problem, np.array([5, 24, 28]), ExchangePursuit(), max_k=30)
    short = sweep(problem, np.array([5, 24]), ExchangePursuit())
    # The better of both runs is kept, and the one for small k is the short one.
    assert np.all(found.objective[:-1] <= 1.001 * short.objective)
    images = jax.vmap(problem.combine)(found.indices, found.weights)
    errors = jnp.linalg.norm(problem.target - images, axis=1) / jnp.linalg.norm(problem.target)
    np.testing.assert_allclose(errors, found.relative_error, rtol=1e-3)


@pytest.mark.slow
def test_few_candidates_at_a_time_are_enough_to_beat_matching_pursuit() -> None:
    atoms = np.concatenate([low_rank_atoms(seed=seed) for seed in range(10)])
    problem = in_float32(atoms)
    ks = np.array([4, 12, MAX_K])
    ours = sweep(problem, ks, ExchangePursuit(working_set=100))
    theirs = sweep(problem, ks, MatchingPursuit())
    ratios = np.asarray(ours.objective) / np.asarray(theirs.objective)
    assert ratios.max() <= 1.02
    assert np.median(ratios) <= 0.9
