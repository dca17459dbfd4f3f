"""Stochastic hard thresholding: the iterates, held to NumPy, and what is done with them."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxcoreset as jc
from jaxcoreset.solvers.constraints import GroupTopK, SimplexTopK, Sparse, StratifiedTopK
from jaxcoreset.solvers.thresholding.batches import Batch, draw_batch, second_batch
from jaxcoreset.solvers.thresholding.hard import AIHT, AIHT2, IHT, Iterate, Task, zero_iterate
from jaxcoreset.solvers.thresholding.stochastic import SVRGIHT, ProjectedOptax, StochasticAIHT
from tests.loops import operations
from tests.problems import correlated_atoms, independent_atoms
from tests.reference import stochastic as reference
from tests.solvers.helpers import solve_in_float64
from tests.solvers.thresholding.helpers import (
    KEY,
    assert_same,
    batches_of,
    device_iterates,
    objective,
    point,
    rows_of,
)

ATOMS, K, NUM_ITERS = independent_atoms(60, 40), 8, 12
N, GIVEN = len(ATOMS), (ATOMS.T, ATOMS.sum(0), K)

CASES = {
    "IHT, batch": StochasticAIHT(IHT(), estimator="batch", batch_size=0.3),
    "AIHT, double": StochasticAIHT(AIHT(), estimator="double", batch_size=0.3),
    "AIHT2, support": StochasticAIHT(AIHT2(), estimator="support", batch_size=19),
    "AIHT2, pool, normalise": StochasticAIHT(AIHT2(), normalise=True, batch_size=0.1),
    "AIHT2, pool, more rows than n": StochasticAIHT(AIHT2(), batch_size=0.9),
}


@pytest.mark.parametrize("case", CASES)
def test_iterates_equal_the_reference_on_the_same_batches(case):
    solver = CASES[case]
    epochs, keys = batches_of(solver, N, NUM_ITERS)
    batches = [batch for epoch in epochs for batch in epoch]
    image_batches = [
        np.flatnonzero(np.asarray(second_batch(key, N, batch)))
        for key, batch in zip(keys, batches, strict=True)
    ]
    settings = {"algorithm": type(solver.base).__name__, "estimator": solver.estimator}
    settings |= {"image_batches": image_batches, "normalise": solver.normalise}
    rows = [rows_of(batch) for batch in batches]
    iterates = reference.stochastic(*GIVEN, rows, **settings)
    assert_same(device_iterates(solver, ATOMS, K, epochs, keys), iterates)


@pytest.mark.parametrize("estimator", ["batch", "support"])
def test_variance_reduced_iterates_equal_the_reference(estimator):
    solver = SVRGIHT(AIHT2(), estimator=estimator, batch_size=0.3)
    epochs, keys = batches_of(solver, N, NUM_ITERS)
    rows = [[rows_of(batch) for batch in epoch] for epoch in epochs]
    iterates = reference.svrg(*GIVEN, rows, algorithm="AIHT2", estimator=estimator)
    assert_same(device_iterates(solver, ATOMS, K, epochs, keys), iterates)


def test_optax_iterates_equal_the_reference():
    rate = 0.3 / np.linalg.norm(ATOMS, 2) ** 2
    solver = ProjectedOptax(optax.sgd(rate, momentum=0.5), estimator="support", batch_size=0.3)
    epochs, keys = batches_of(solver, N, NUM_ITERS)
    rows = [rows_of(batch) for epoch in epochs for batch in epoch]
    iterates = reference.projected_momentum(*GIVEN, rows, rate=rate, decay=0.5, estimator="support")
    assert_same(device_iterates(solver, ATOMS, K, epochs, keys), iterates)


def test_run_follows_its_batches_and_keeps_the_best_iterate():
    solver = StochasticAIHT(AIHT2(max_iters=NUM_ITERS, record_history=True))
    epochs, _ = batches_of(solver, N, NUM_ITERS)
    rows = [rows_of(batch) for epoch in epochs for batch in epoch]
    iterates = reference.stochastic(*GIVEN, rows, algorithm="AIHT2", estimator="pool")
    objectives = np.array([objective(ATOMS, w) for w in iterates])
    best = iterates[int(objectives.argmin())]
    solution, weights = solve_in_float64(ATOMS, K, solver, KEY)
    np.testing.assert_allclose(solution.history, np.minimum.accumulate(objectives), rtol=1e-7)
    np.testing.assert_allclose(weights, best, rtol=1e-6, atol=1e-6 * best.max())


def test_batch_of_all_rows_is_the_full_method_exactly():
    problem = jc.CoresetProblem(correlated_atoms(40, 30))
    base = AIHT2(max_iters=20)
    full = jc.solve(problem, 6, base)
    batched = jc.solve(problem, 6, StochasticAIHT(base, batch_size=1.0), key=KEY)
    assert np.array_equal(full.indices, batched.indices)
    assert np.array_equal(full.weights, batched.weights)
    assert full.num_iters == batched.num_iters


GROUPS = np.arange(N) % 6
CONSTRAINTS = {
    "SimplexTopK": SimplexTopK(60.0),
    "StratifiedTopK": StratifiedTopK(GROUPS, k_per_group=2, reserved=1),
    "GroupTopK": GroupTopK(GROUPS, max_groups=3),
}


@pytest.mark.parametrize(
    ("method", "constraint"), [(AIHT2, "SimplexTopK"), (IHT, "StratifiedTopK")]
)
def test_batched_iteration_on_all_rows_has_the_full_methods_iterates(method, constraint):
    base = method(CONSTRAINTS[constraint], max_iters=6, tol=0.0, record_history=True)
    solver = StochasticAIHT(base, batch_size=1.0)
    iterates = device_iterates(solver, ATOMS, K, *batches_of(solver, N, 6))
    full, weights = solve_in_float64(ATOMS, K, base)
    np.testing.assert_allclose([objective(ATOMS, w) for w in iterates], full.history, rtol=1e-8)
    np.testing.assert_allclose(iterates[-1], weights, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["StratifiedTopK", "GroupTopK"])
def test_constraints_hold_in_batches_of_rows(name):
    solver = StochasticAIHT(AIHT2(CONSTRAINTS[name]))
    weights = device_iterates(solver, ATOMS, K, *batches_of(solver, N, 10))[-1]
    per_group = np.bincount(GROUPS[weights > 0], minlength=6)
    assert (weights >= 0).all()
    assert 0 < (weights > 0).sum() <= K
    if name == "StratifiedTopK":
        assert per_group.max() <= 2
    else:
        assert (per_group > 0).sum() <= 3


def test_a_total_is_kept_where_a_batch_has_only_atoms_of_norm_zero():
    # No rows are nearer to the target than any with the total, but do not have it.
    atoms = np.random.default_rng(0).normal(size=(12, 6))
    atoms[3:] = 0
    problem = jc.CoresetProblem(atoms, -atoms.sum(axis=0))
    base = jc.AIHT2(constraint=SimplexTopK(40.0), max_iters=30)
    solver = StochasticAIHT(base, batch_size=2)
    found = jax.vmap(lambda key: jc.solve(problem, 3, solver, key))(jax.random.split(KEY, 30))
    np.testing.assert_allclose(found.weights.sum(axis=1), 40, rtol=1e-5)


def test_a_run_ends_by_its_own_rule_after_whole_epochs():
    solver = StochasticAIHT(AIHT2(max_iters=60, tol=0.02), batch_size=0.5, patience=1)
    atoms = np.stack([independent_atoms(50, 30, seed) for seed in range(3)])
    with jax.enable_x64(True):
        problems = jax.vmap(jc.CoresetProblem)(jnp.asarray(atoms))
        found = jax.vmap(lambda p, k: jc.solve(p, k, solver, KEY, max_k=12))(
            problems, jnp.array([4, 9, 6])
        )
    np.testing.assert_array_equal(found.converged, found.num_iters < 60)
    assert (found.num_iters % 2 == 0).all()
    assert len(set(found.num_iters.tolist())) > 1


def test_atoms_of_norm_zero_are_not_chosen_by_normalised_steps():
    atoms = correlated_atoms(50, 30)
    atoms[::2] = 0
    solver = StochasticAIHT(AIHT2(max_iters=10), batch_size=0.2, normalise=True)
    solution = jc.solve(jc.CoresetProblem(atoms), 12, solver, KEY)
    assert solution.size > 0
    assert (np.asarray(solution.indices)[np.asarray(solution.weights) > 0] % 2 == 1).all()
    assert np.isfinite(solution.objective)


@pytest.mark.parametrize("line_search", ["exact", "backtracking"])
def test_a_small_fixed_step_and_backtracking_never_raise_the_objective(line_search):
    atoms = correlated_atoms(N, 40)
    step = 0.5 / np.linalg.norm(atoms, 2) ** 2 if line_search == "exact" else None
    solver = StochasticAIHT(IHT(step=step, line_search=line_search))
    iterates = device_iterates(solver, atoms, K, *batches_of(solver, N, 10))
    values = [atoms.sum(0) @ atoms.sum(0)] + [objective(atoms, w) for w in iterates]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(values))
    assert values[-1] < values[0]


def test_several_steps_per_batch_are_several_iterations_on_the_same_rows():
    once, thrice = StochasticAIHT(AIHT()), StochasticAIHT(AIHT(), steps_per_batch=3)
    (epoch,), keys = batches_of(once, N, 1)
    expected = device_iterates(once, ATOMS, K, [epoch * 3], list(keys) * 3)
    assert_same(device_iterates(thrice, ATOMS, K, [epoch], keys), expected[-1:])


def test_iteration_touches_the_atoms_by_gathering_alone():
    n, s, k = 400, 30, 5
    problem = jc.CoresetProblem(independent_atoms(n, s))
    solver = StochasticAIHT(AIHT2(), batch_size=20)
    task = Task.of(problem, jnp.int32(k), k)
    state = solver._start(task, zero_iterate(problem, k))
    batch = draw_batch(KEY, n, 20)
    traced = jax.make_jaxpr(solver._advance)(task, state, batch, KEY)

    uses = {
        operation.primitive.name
        for operation in operations(traced.jaxpr)
        if any(getattr(v.aval, "shape", ()) == (n, s) for v in operation.invars)
    }
    assert uses == {"gather"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StochasticAIHT(batch_size=0), "batch_size is 0"),
        (lambda: StochasticAIHT(batch_size=1.5), "batch_size is 1.5"),
        (lambda: StochasticAIHT(patience=0), "patience is 0"),
        (lambda: StochasticAIHT(steps_per_batch=0), "steps_per_batch is 0"),
        (lambda: StochasticAIHT(steps_per_batch=2, estimator="batch"), "steps_per_batch is 2"),
        (
            lambda: StochasticAIHT(AIHT2(SimplexTopK(1.0)), normalise=True),
            "normalise is True with a SimplexTopK",
        ),
        (lambda: ProjectedOptax(optax.sgd(1.0), max_iters=0), "max_iters is 0"),
        (lambda: ProjectedOptax(optax.sgd(1.0), tol=-1.0), "tol is -1.0"),
    ],
)
def test_bad_field_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "solver", [StochasticAIHT(), SVRGIHT(), ProjectedOptax(optax.adam(1.0), max_iters=10)]
)
def test_batch_larger_than_the_problem_is_refused(solver):
    solver = dataclasses.replace(solver, batch_size=51)
    with pytest.raises(ValueError, match="batch_size is 51, but the problem has n = 50 atoms"):
        jc.solve(jc.CoresetProblem(independent_atoms(50, 30)), 5, solver, KEY)


@pytest.mark.parametrize("at_snapshot", [False, True])
def test_variance_reduced_estimator_is_unbiased_and_exact_at_the_snapshot(at_snapshot):
    """Over all batches of three rows."""
    atoms, weights, _, exact = point()
    rows = np.array(list(itertools.combinations(range(len(atoms)), 3)), np.int32)
    solver = SVRGIHT(estimator="batch", batch_size=3)
    with jax.enable_x64(True):
        problem = jc.CoresetProblem(atoms)
        used = np.flatnonzero(weights).astype(np.int32)
        sparse = Sparse(jnp.asarray(used), jnp.asarray(weights[used]))
        here = Iterate(sparse, jnp.asarray(weights @ atoms))
        nothing = Iterate(Sparse(sparse.indices, jnp.zeros(3)), jnp.zeros(5))
        task = Task.of(problem, jnp.int32(3), 3)
        state = solver._start(task, here if at_snapshot else nothing)
        state = solver._begin_epoch(problem, state)
        iterates = dataclasses.replace(state.iterates, current=here)
        state = dataclasses.replace(state, iterates=iterates)

        @jax.jit
        @jax.vmap
        def estimate(batch_rows):
            return solver.estimate(problem, state, Batch(batch_rows, jnp.ones(3, bool)))

        found = np.asarray(estimate(rows))
    if at_snapshot:
        np.testing.assert_allclose(found, np.broadcast_to(exact, found.shape), rtol=1e-12)
    else:
        assert found.var(0).min() > 1e-3
        np.testing.assert_allclose(found.mean(0), exact, rtol=1e-11, atol=1e-11)
