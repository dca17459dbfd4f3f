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
from tests.solvers.helpers import pick, used

# Relative errors below this are rounding in float32.
FLOAT32_FLOOR = 3e-5
# Nearly all tests share one shape and one bound on k, and so a few compiled programs.
NUM_DATA, NUM_DRAWS, MAX_K = 60, 40, 24
KS = np.arange(1, MAX_K + 1)


def _problem(atoms: np.ndarray, target: np.ndarray | None = None) -> CoresetProblem:
    dtype = jnp.zeros(()).dtype
    return CoresetProblem(
        jnp.asarray(atoms, dtype), None if target is None else jnp.asarray(target, dtype)
    )


def _solve(problem: CoresetProblem, k: int | jax.Array = MAX_K) -> Solution:
    return solve(problem, k, ExchangePursuit(), max_k=MAX_K)


def _sweep(problem: CoresetProblem) -> Solution:
    return sweep(problem, KS, ExchangePursuit())


def _on_support(atoms: np.ndarray, target: np.ndarray, support: np.ndarray) -> float:
    """SciPy's objective, with atoms scaled to norm one for its tolerances."""
    scaled = atoms[support] / np.linalg.norm(atoms[support], axis=1)[:, None]
    return scipy.optimize.nnls(scaled.T, target, maxiter=10_000)[1] ** 2


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
    num_problems = 240
    atoms, targets = _small_problems(num_problems, n=14)
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


@pytest.mark.parametrize("name", NAMES)
def test_error_is_never_above_matching_pursuits(name: str) -> None:
    problem = _problem(atoms_of(name))
    ks = np.array([5, 10, 20, 50, 100])
    ours = sweep(problem, ks, ExchangePursuit()).relative_error
    theirs = sweep(problem, ks, MatchingPursuit()).relative_error
    live = np.asarray(theirs) > FLOAT32_FLOOR
    ratios = (np.maximum(ours, FLOAT32_FLOOR) / np.asarray(theirs))[live] ** 2
    assert ratios.max() <= 1.02
    assert np.median(ratios) <= 0.75


def test_weights_are_scipys_on_the_support() -> None:
    atoms = low_rank_atoms()
    target = atoms.sum(axis=0)
    with jax.enable_x64(True):
        path = _sweep(_problem(atoms))
    for i in range(len(KS)):
        support, weights = used(pick(path, i))
        objective = _on_support(atoms, target, support)
        np.testing.assert_allclose(path.objective[i], objective, rtol=1e-9, atol=1e-20)
        np.testing.assert_allclose(
            np.sum((target - weights @ atoms[support]) ** 2), objective, rtol=1e-9
        )


def test_float32_objective_is_scipys_on_the_support() -> None:
    atoms = low_rank_atoms().astype(np.float32).astype(np.float64)
    target = atoms.sum(axis=0)
    path = _sweep(_problem(atoms))
    for i in range(len(KS)):
        support, weights = used(pick(path, i))
        true = np.sum((target - weights @ atoms[support]) ** 2)
        assert true <= 1.001 * _on_support(atoms, target, support)
        np.testing.assert_allclose(path.objective[i], true, rtol=1e-3)


def test_path_falls_and_uses_no_more_rows_than_allowed() -> None:
    path = _sweep(_problem(low_rank_atoms()))
    assert np.all(np.diff(path.objective) <= 1e-6 * path.objective[:-1])
    assert np.all(np.asarray(path.size) <= KS)
    assert path.converged.all()


def test_a_solve_is_about_as_good_as_the_sweep() -> None:
    problem = _problem(low_rank_atoms())
    path = _sweep(problem)
    for k in (3, 10, MAX_K):
        # Of the two the sweep comes down from further up.
        assert _solve(problem, k).objective <= 1.25 * path.objective[k - 1]


@pytest.mark.slow
def test_few_candidates_at_a_time_are_enough_to_beat_matching_pursuit() -> None:
    atoms = np.concatenate([low_rank_atoms(seed=seed) for seed in range(10)])
    problem = _problem(atoms)
    ks = np.array([4, 12, MAX_K])
    ours = sweep(problem, ks, ExchangePursuit(working_set=100))
    theirs = sweep(problem, ks, MatchingPursuit())
    ratios = np.asarray(ours.objective) / np.asarray(theirs.objective)
    assert ratios.max() <= 1.02
    assert np.median(ratios) <= 0.9


def test_fewer_useful_atoms_than_k_end_early() -> None:
    rng = np.random.default_rng(0)
    directions = np.eye(NUM_DRAWS)[:3]
    atoms = np.repeat(directions, NUM_DATA // 3, axis=0) * rng.exponential(size=(NUM_DATA, 1))
    solution = _solve(_problem(atoms))
    assert solution.size == 3
    assert solution.relative_error < 1e-6
    assert solution.converged


@pytest.mark.parametrize("n", [1, 3])
def test_all_rows_may_be_asked_for(n: int) -> None:
    atoms = low_rank_atoms()[:n]
    solution = solve(_problem(atoms), n, ExchangePursuit())
    np.testing.assert_allclose(solution.dense(n), 1, rtol=1e-3)


@pytest.mark.parametrize("argument", ["exchanges_down", "overshoot", "num_starts", "working_set"])
def test_negative_arguments_are_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        ExchangePursuit(**{argument: -1.0 if argument == "overshoot" else -1})


@pytest.mark.parametrize("seed", range(4))
def test_candidates_that_are_all_alike_do_not_end_the_search(seed):
    rng = np.random.default_rng(seed)
    # Most atoms are one direction but for a little noise, and correlate best with the target.
    atoms = rng.standard_normal((NUM_DATA, NUM_DRAWS)) / NUM_DRAWS**0.5
    atoms[20:] = rng.standard_normal(NUM_DRAWS) + 1e-4 * atoms[20:]
    problem = _problem(rng.permutation(atoms))
    few = ExchangePursuit(working_set=16)
    # From k = 21 on one could be exact, which so few candidates do not always find.
    ks = KS[:20]
    all_of_them = sweep(problem, ks, ExchangePursuit(), max_k=MAX_K).relative_error
    found = sweep(problem, ks, few, max_k=MAX_K).relative_error
    assert np.all(found <= 1.5 * all_of_them)


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
    errors = np.asarray(sweep(_problem(atoms), np.arange(2, 31)).relative_error)
    assert np.all(errors <= np.minimum.accumulate(errors) + 1e-6)
    assert errors[-1] < 1e-5


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_the_first_atoms_have_candidates_of_their_own(seed):
    # Vectors in all directions: what promised most one atom ago no longer does.
    vectors = np.random.default_rng(seed).normal(size=(20_000, 40))
    problem, ks = _problem(vectors), np.array([5, 10, 15, 20, 24])
    found = sweep(problem, ks, ExchangePursuit(working_set=64)).relative_error
    pursuit = sweep(problem, ks, MatchingPursuit()).relative_error
    assert np.mean(np.log(np.asarray(found / pursuit))) < 0


@pytest.mark.parametrize(
    ("num_data", "num_draws", "num_slots", "working_set", "at_a_time"),
    [
        (28_000, 2_000, 140, None, 28_000),
        (28_000, 2_300, 140, None, 4096),  # too many entries
        (30_000, 2_000, 140, None, 4096),  # too many coordinates
        (3_000, 30_000, 2_000, None, 3_000),  # no more than a working set
        (28_000, 2_000, 140, 700, 700),
        (500, 2_000, 140, 700, 500),
    ],
)
def test_all_atoms_are_candidates_unless_they_are_too_many(
    num_data, num_draws, num_slots, working_set, at_a_time
):
    assert working_set_size(num_data, num_draws, num_slots, working_set) == at_a_time


@pytest.mark.parametrize("working_set", [None, 100])
def test_slots_in_parts_change_nothing(monkeypatch, working_set):
    vectors, ks = np.random.default_rng(3).normal(size=(2, 400, 60)), np.array([3, 20, 40])
    solver = ExchangePursuit(working_set=working_set)

    def found(problems: CoresetProblem) -> Solution:
        return jax.jit(jax.vmap(lambda p: solver.run_path(p, jnp.asarray(ks), 40)))(problems)

    with jax.enable_x64(True):
        batch = jax.tree.map(lambda *x: jnp.stack(x), *map(_problem, vectors))
        monkeypatch.setattr(slot_matrix, "_MIN_ENTRIES", np.inf)
        at_once = found(batch)
        # Four of them, free ones among them on the way up and down.
        monkeypatch.setattr(slot_matrix, "_MIN_ENTRIES", 0)
        monkeypatch.setattr(slot_matrix, "_ENDS", (0.1, 0.3, 0.6, 1))
        in_parts = found(batch)
        alone = found(jax.tree.map(lambda x: x[1:], batch))
    np.testing.assert_array_equal(in_parts.indices, at_once.indices)
    np.testing.assert_allclose(in_parts.weights, at_once.weights, rtol=1e-9)
    np.testing.assert_array_equal(in_parts.num_iters, at_once.num_iters)
    np.testing.assert_array_equal(alone.indices[0], at_once.indices[1])


@pytest.mark.slow
@pytest.mark.unoptimised
def test_too_many_atoms_are_candidates_some_at_a_time():
    vectors = np.random.default_rng(0).normal(size=(300_000, 8)).astype(np.float32)
    problem, ks = _problem(vectors), np.array([3, 6])
    found, some, all_of_them = (
        sweep(problem, ks, ExchangePursuit(working_set=size)).indices
        for size in (None, 4096, 300_000)
    )
    np.testing.assert_array_equal(found, some)
    assert not np.array_equal(found, all_of_them)


@pytest.mark.parametrize("seed", range(4))
def test_a_few_rows_are_never_worse_than_matching_pursuits(seed):
    # Without exchanges only the start that is matching pursuit can do as well everywhere.
    vectors = np.abs(np.random.default_rng(seed).normal(size=(2_000, 40)))
    problem, ks = _problem(vectors), np.arange(1, 25)
    solver = ExchangePursuit(exchanges_down=0, working_set=256)
    found = sweep(problem, ks, solver).relative_error
    assert np.all(found <= 1.001 * sweep(problem, ks, MatchingPursuit()).relative_error)


def _two_with_many_atoms(num_data: int) -> np.ndarray:
    """Atoms of which a small part at a time is not enough to choose from."""
    rng = np.random.default_rng(5)
    low_rank = rng.normal(size=(2, num_data, 12)) @ rng.normal(size=(2, 12, 120))
    return (low_rank + 0.5 * rng.normal(size=low_rank.shape)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize(("largest", "num_slots"), [(24, 34), (50, 65)])
def test_a_long_sweep_is_at_small_k_as_good_as_a_short_one(monkeypatch, largest, num_slots):
    vectors = _two_with_many_atoms(num_data=16 * largest)
    monkeypatch.setattr(exchange_candidates, "_WORKING_SET", 8)
    monkeypatch.setattr(exchange_candidates, "_MAX_COORDINATES", num_slots * vectors.shape[1])
    with jax.enable_x64(True):
        problems = jax.vmap(CoresetProblem)(vectors.astype(np.float64))

        def found(ks: list[int], max_k: int, **settings: int) -> Solution:
            solver = ExchangePursuit(**settings)
            return jax.vmap(lambda p: sweep(p, np.array(ks), solver, max_k=max_k))(problems)

        ks = [1, 5, 10, 20, largest, 100]
        long, short = found(ks, 100), found(ks[:-1], largest)
        with_few = found(ks, 100, working_set=8)
        assert np.all(long.objective[:, :-1] <= 1.001 * short.objective)
        assert np.all(long.num_iters[:, 0] > short.num_iters[:, 0])
        np.testing.assert_array_equal(long.indices[:, -1], with_few.indices[:, -1])
        # At k = 1 they are the same but for the rounding of two programs.
        gains = np.mean(np.log(with_few.objective / long.objective)[:, :-1], axis=0)
        assert np.all(gains >= -1e-14)
        assert np.median((long.objective / with_few.objective)[:, 1:-1]) < 0.95
        assert np.all(np.sum(long.weights > 0, axis=2) <= np.array(ks))
        images = jax.vmap(jax.vmap(CoresetProblem.combine, (None, 0, 0)))(
            problems, long.indices, long.weights
        )
        errors = jnp.sum((problems.target[:, None] - images) ** 2, axis=2)
    np.testing.assert_allclose(errors, long.objective, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_further_start_takes_nothing_away(seed):
    problem = _problem(low_rank_atoms(seed=seed))
    solvers = [ExchangePursuit(num_starts=number) for number in (0, 1, 3, 6)]
    errors = np.array([sweep(problem, KS, solver).relative_error for solver in solvers])
    assert np.all(errors[1:] <= 1.001 * errors[:-1] + FLOAT32_FLOOR)
    assert np.any(errors[-1] < 0.95 * errors[0])


def test_a_long_sweep_of_large_k_has_no_run_for_small_ones(monkeypatch):
    # Up to 91 atoms on the way: near as many as draws, two programs would go different ways.
    problem, ks = _problem(_two_with_many_atoms(num_data=300)[0]), np.array([55, 70])
    monkeypatch.setattr(exchange_candidates, "_WORKING_SET", 32)
    monkeypatch.setattr(exchange_candidates, "_MAX_COORDINATES", 65 * 300)
    found = sweep(problem, ks)
    alone = sweep(problem, ks, ExchangePursuit(working_set=32))
    np.testing.assert_array_equal(found.indices, alone.indices)
    np.testing.assert_array_equal(found.num_iters, alone.num_iters)


def test_a_run_for_small_k_may_have_its_slots_in_parts(monkeypatch):
    problem, ks = _problem(_two_with_many_atoms(num_data=300)[0]), np.array([5, 50, 60])
    monkeypatch.setattr(exchange_candidates, "_WORKING_SET", 32)
    monkeypatch.setattr(exchange_candidates, "_MAX_COORDINATES", 65 * 300)
    # So that slots come in parts where all atoms are candidates, and only there.
    monkeypatch.setattr(slot_matrix, "_MIN_ENTRIES", 78 * 78 + 1)
    found = sweep(problem, ks)
    short = sweep(problem, ks[:-1], max_k=50)
    # The better of both runs is kept, and the one for small k is the short one.
    assert np.all(found.objective[:-1] <= 1.001 * short.objective)
    images = jax.vmap(problem.combine)(found.indices, found.weights)
    errors = jnp.linalg.norm(problem.target - images, axis=1) / jnp.linalg.norm(problem.target)
    np.testing.assert_allclose(errors, found.relative_error, rtol=1e-3)


def test_blocks_of_atoms_are_as_good_as_single_atoms_with_scipys_weights():
    atoms = low_rank_atoms().astype(np.float32).astype(np.float64)
    target, problem = atoms.sum(axis=0), _problem(atoms)
    in_blocks = sweep(problem, KS[3:], ExchangePursuit(max_single=4), max_k=MAX_K)
    one_by_one = _sweep(problem).objective[3:]
    for i, k in enumerate(KS[3:]):
        support, weights = used(pick(in_blocks, i))
        assert len(support) <= k
        true = np.sum((target - weights @ atoms[support]) ** 2)
        assert true <= 1.001 * _on_support(atoms, target, support)
        np.testing.assert_allclose(in_blocks.objective[i], true, rtol=1e-3)
    assert np.median(np.asarray(in_blocks.objective) / np.asarray(one_by_one)) <= 1.5
