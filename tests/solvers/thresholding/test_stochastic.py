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
from jaxcoreset.solvers.thresholding.hard import AIHT, AIHT2, IHT, Iterate
from jaxcoreset.solvers.thresholding.stochastic import SVRGIHT, ProjectedOptax, StochasticAIHT
from tests.datasets import atoms_of
from tests.problems import correlated_atoms, independent_atoms
from tests.reference import stochastic as reference
from tests.solvers.thresholding.helpers import (
    KEY,
    assert_same,
    batches_of,
    device_iterates,
    objective,
    point,
    rows_of,
)

CASES = {
    "IHT, batch": StochasticAIHT(IHT(), estimator="batch", batch_size=0.3),
    "AIHT, double": StochasticAIHT(AIHT(), estimator="double", batch_size=0.3),
    "AIHT2, support": StochasticAIHT(AIHT2(), estimator="support", batch_size=19),
    "AIHT2, pool, normalise": StochasticAIHT(AIHT2(), normalise=True, batch_size=0.1),
    "AIHT2, pool, more rows than n": StochasticAIHT(AIHT2(), batch_size=0.9),
}


@pytest.mark.parametrize("case", CASES)
def test_iterates_equal_the_reference_on_the_same_batches(case):
    solver, atoms, k, num_iters = CASES[case], independent_atoms(60, 40), 8, 12
    n = len(atoms)
    epochs, keys = batches_of(solver, n, num_iters)
    batches = [batch for epoch in epochs for batch in epoch]
    image_batches = [
        np.flatnonzero(np.asarray(second_batch(key, n, batch)))
        for key, batch in zip(keys, batches, strict=True)
    ]
    settings = {"algorithm": type(solver.base).__name__, "estimator": solver.estimator}
    settings |= {"image_batches": image_batches, "normalise": solver.normalise}
    rows = [rows_of(batch) for batch in batches]
    iterates = reference.stochastic(atoms.T, atoms.sum(0), k, rows, **settings)
    assert_same(device_iterates(solver, atoms, k, epochs, keys), iterates)


@pytest.mark.parametrize("estimator", ["batch", "support"])
def test_variance_reduced_iterates_equal_the_reference(estimator):
    atoms, k, num_iters = independent_atoms(60, 40), 8, 12
    solver = SVRGIHT(AIHT2(), estimator=estimator, batch_size=0.3)
    epochs, keys = batches_of(solver, len(atoms), num_iters)
    rows = [[rows_of(batch) for batch in epoch] for epoch in epochs]
    iterates = reference.svrg(
        atoms.T, atoms.sum(0), k, rows, algorithm="AIHT2", estimator=estimator
    )
    assert_same(device_iterates(solver, atoms, k, epochs, keys), iterates)


def test_optax_iterates_equal_the_reference():
    atoms, k, num_iters = independent_atoms(60, 40), 8, 12
    rate = 0.3 / np.linalg.norm(atoms, 2) ** 2
    solver = ProjectedOptax(optax.sgd(rate, momentum=0.5), estimator="support", batch_size=0.3)
    epochs, keys = batches_of(solver, len(atoms), num_iters)
    rows = [rows_of(batch) for epoch in epochs for batch in epoch]
    iterates = reference.projected_momentum(
        atoms.T, atoms.sum(0), k, rows, rate=rate, decay=0.5, estimator="support"
    )
    assert_same(device_iterates(solver, atoms, k, epochs, keys), iterates)


def test_run_follows_its_batches_and_keeps_the_best_iterate():
    atoms, k, num_iters = independent_atoms(60, 40), 8, 12
    solver = StochasticAIHT(AIHT2(max_iters=num_iters, record_history=True))
    epochs, _ = batches_of(solver, 60, num_iters)
    rows = [rows_of(batch) for epoch in epochs for batch in epoch]
    iterates = reference.stochastic(
        atoms.T, atoms.sum(0), k, rows, algorithm="AIHT2", estimator="pool"
    )
    objectives = np.array([objective(atoms, w) for w in iterates])
    best = iterates[int(objectives.argmin())]
    with jax.enable_x64(True):
        solution = jc.solve(jc.CoresetProblem(atoms), k, solver, key=KEY)
        history, weights = np.asarray(solution.history), np.asarray(solution.dense(60))
    np.testing.assert_allclose(history, np.minimum.accumulate(objectives), rtol=1e-7)
    np.testing.assert_allclose(weights, best, rtol=1e-6, atol=1e-6 * best.max())


def test_batch_of_all_rows_is_the_full_method_exactly():
    problem = jc.CoresetProblem(correlated_atoms(40, 30))
    base = AIHT2(max_iters=20)
    full = jc.solve(problem, 6, base)
    batched = jc.solve(problem, 6, StochasticAIHT(base, batch_size=1.0), key=KEY)
    assert np.array_equal(full.indices, batched.indices)
    assert np.array_equal(full.weights, batched.weights)
    assert full.num_iters == batched.num_iters


GROUPS = np.arange(60) % 6

CONSTRAINTS = {
    "TopK": jc.AIHT2().constraint,
    "SimplexTopK": SimplexTopK(60.0),
    "StratifiedTopK": StratifiedTopK(GROUPS, k_per_group=2, reserved=1),
    "GroupTopK": GroupTopK(GROUPS, max_groups=3),
}


@pytest.mark.parametrize(
    ("method", "constraint"), [(AIHT, "TopK"), (AIHT2, "SimplexTopK"), (IHT, "StratifiedTopK")]
)
def test_batched_iteration_on_all_rows_has_the_full_methods_iterates(method, constraint):
    atoms, k, num_iters = independent_atoms(60, 40), 8, 6
    base = method(CONSTRAINTS[constraint], max_iters=num_iters, tol=0.0, record_history=True)
    solver = StochasticAIHT(base, batch_size=1.0)
    iterates = device_iterates(solver, atoms, k, *batches_of(solver, 60, num_iters))
    with jax.enable_x64(True):
        full = jax.jit(lambda p: base.run(p, jnp.int32(k), k))(jc.CoresetProblem(atoms))
        history, weights = np.asarray(full.history), np.asarray(full.dense(60))
    np.testing.assert_allclose([objective(atoms, w) for w in iterates], history, rtol=1e-8)
    np.testing.assert_allclose(iterates[-1], weights, rtol=1e-7, atol=1e-7)


def svrg_estimates(at_snapshot):
    """The estimate of `SVRGIHT` for every batch of three rows, at or off its snapshot."""
    atoms, weights, _, exact = point()
    n = len(atoms)
    rows = np.array(list(itertools.combinations(range(n), 3)), np.int32)
    solver = SVRGIHT(estimator="batch", batch_size=3)
    with jax.enable_x64(True):
        problem = jc.CoresetProblem(atoms)
        used = np.flatnonzero(weights).astype(np.int32)
        here = Iterate(
            Sparse(jnp.asarray(used), jnp.asarray(weights[used])), jnp.asarray(weights @ atoms)
        )
        nothing = Iterate(Sparse(here.weights.indices, jnp.zeros(3)), jnp.zeros(5))
        state = solver._start(problem, here if at_snapshot else nothing)
        state = solver._begin_epoch(problem, state)
        iterates = dataclasses.replace(state.iterates, current=here)
        state = dataclasses.replace(state, iterates=iterates)

        @jax.jit
        @jax.vmap
        def estimate(batch_rows):
            return solver.estimate(problem, state, Batch(batch_rows, jnp.ones(3, bool)))

        found = estimate(rows)
    return np.asarray(found), exact


def test_variance_reduced_estimator_is_unbiased():
    found, exact = svrg_estimates(at_snapshot=False)
    assert found.var(0).min() > 1e-3
    np.testing.assert_allclose(found.mean(0), exact, rtol=1e-11, atol=1e-11)


def test_variance_reduced_estimator_is_exact_at_the_snapshot():
    found, exact = svrg_estimates(at_snapshot=True)
    np.testing.assert_allclose(found, np.broadcast_to(exact, found.shape), rtol=1e-12)


# A short run: what is checked does not depend on its length.
SHORT = StochasticAIHT(AIHT2(max_iters=10, record_history=True), batch_size=0.2)

# The bound on k of all of them, so that they share their programs.
MAX_K = 12

# One that ends by its own rule, each lane when it is done.
ENDING = StochasticAIHT(AIHT2(max_iters=60, tol=0.02), batch_size=0.5, patience=1)

SOLVERS = {
    "StochasticAIHT": ENDING,
    "SVRGIHT": SVRGIHT(AIHT(max_iters=10), batch_size=0.2),
    "ProjectedOptax": ProjectedOptax(optax.adam(1.0), max_iters=10, batch_size=0.2),
}


def test_a_run_ends_by_its_own_rule_after_whole_epochs():
    atoms = np.stack([independent_atoms(50, 30, seed) for seed in range(3)])
    with jax.enable_x64(True):
        problems = jax.vmap(jc.CoresetProblem)(jnp.asarray(atoms))
        found = jax.vmap(lambda p, k: jc.solve(p, k, ENDING, KEY, max_k=MAX_K))(
            problems, jnp.array([4, 9, 6])
        )
    np.testing.assert_array_equal(found.converged, found.num_iters < 60)
    assert (found.num_iters % 2 == 0).all()
    assert len(set(found.num_iters.tolist())) > 1


def test_solution_is_the_best_iterate_and_history_its_objective():
    atoms = correlated_atoms(50, 30).astype(np.float32)
    solution = jc.solve(jc.CoresetProblem(atoms), MAX_K, SHORT, KEY)
    history = np.asarray(solution.history)
    assert (np.diff(history) <= 0).all()
    assert history[-1] == solution.objective
    # Single precision: the residual's entries carry a rounding of the target's.
    direct = objective(atoms, np.asarray(solution.dense(50)))
    np.testing.assert_allclose(solution.objective, direct, rtol=1e-4)
    assert solution.weights.dtype == jnp.float32


@pytest.mark.parametrize("name", ["SimplexTopK", "StratifiedTopK", "GroupTopK"])
def test_constraints_hold_in_batches_of_rows(name):
    solver = StochasticAIHT(AIHT2(CONSTRAINTS[name]))
    iterates = device_iterates(solver, independent_atoms(60, 40), 8, *batches_of(solver, 60, 10))
    weights = iterates[-1]
    per_group = np.bincount(GROUPS[weights > 0], minlength=6)
    assert (weights >= 0).all()
    assert 0 < (weights > 0).sum() <= 8
    if name == "SimplexTopK":
        np.testing.assert_allclose(weights.sum(), 60, rtol=1e-12)
    elif name == "StratifiedTopK":
        assert per_group.max() <= 2
    else:
        assert (per_group > 0).sum() <= 3


def test_atoms_of_norm_zero_are_not_chosen():
    atoms = correlated_atoms(50, 30)
    atoms[::2] = 0
    for solver in (SHORT, dataclasses.replace(SHORT, normalise=True)):
        solution = jc.solve(jc.CoresetProblem(atoms), MAX_K, solver, KEY)
        assert solution.size > 0
        assert (np.asarray(solution.indices)[np.asarray(solution.weights) > 0] % 2 == 1).all()
        assert np.isfinite(solution.objective)


def test_fixed_step_that_is_small_never_raises_the_objective():
    atoms = correlated_atoms(60, 40)
    solver = StochasticAIHT(IHT(step=0.5 / np.linalg.norm(atoms, 2) ** 2))
    iterates = device_iterates(solver, atoms, 8, *batches_of(solver, 60, 10))
    values = [atoms.sum(0) @ atoms.sum(0)] + [objective(atoms, w) for w in iterates]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(values))
    assert values[-1] < values[0]


def test_several_steps_per_batch_are_several_iterations_on_the_same_rows():
    atoms, k = independent_atoms(60, 40), 8
    once, thrice = StochasticAIHT(AIHT()), StochasticAIHT(AIHT(), steps_per_batch=3)
    (epoch,), keys = batches_of(once, 60, 1)
    expected = device_iterates(once, atoms, k, [epoch * 3], list(keys) * 3)
    assert_same(device_iterates(thrice, atoms, k, [epoch], keys), expected[-1:])


def test_backtracking_on_the_pool_never_raises_the_objective():
    atoms = correlated_atoms(60, 40)
    solver = StochasticAIHT(IHT(line_search="backtracking"))
    iterates = device_iterates(solver, atoms, 8, *batches_of(solver, 60, 10))
    values = [objective(atoms, w) for w in iterates]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(values))


def test_iteration_touches_the_atoms_by_gathering_alone():
    n, s, k = 400, 30, 5
    problem = jc.CoresetProblem(independent_atoms(n, s))
    solver = StochasticAIHT(AIHT2(), batch_size=20)
    nothing = Iterate(Sparse(jnp.arange(k), jnp.zeros(k)), jnp.zeros(s))
    state = solver._start(problem, nothing)
    batch = draw_batch(KEY, n, 20)
    traced = jax.make_jaxpr(lambda p, s, b: solver._advance(p, jnp.int32(k), k, s, b, KEY))(
        problem, state, batch
    )

    def uses(jaxpr):
        for equation in jaxpr.eqns:
            inner = [p.jaxpr for p in equation.params.values() if hasattr(p, "jaxpr")]
            if inner:
                for sub in inner:
                    yield from uses(sub)
            elif any(getattr(v.aval, "shape", ()) == (n, s) for v in equation.invars):
                yield equation.primitive.name

    assert set(uses(traced.jaxpr)) == {"gather"}


def test_batches_reach_a_lower_objective_for_the_rows_they_read():
    atoms = atoms_of("phishing_500").astype(np.float32)
    problem, k, passes = jc.CoresetProblem(atoms), 20, 30
    full = jc.solve(problem, k, AIHT2(max_iters=passes))
    # An iteration reads at most 100 + 2 · 20 of the 500 rows.
    solver = StochasticAIHT(AIHT2(max_iters=passes * 500 // 140), batch_size=0.2)
    keys = jax.random.split(KEY, 5)
    batched = [jc.solve(problem, k, solver, key).relative_error for key in keys]
    # Measured: 0.27 and 0.11.
    assert np.median(np.array(batched)) < 0.6 * full.relative_error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StochasticAIHT(batch_size=0), "batch_size is 0"),
        (lambda: StochasticAIHT(batch_size=0.0), "batch_size is 0.0"),
        (lambda: StochasticAIHT(batch_size=1.5), "batch_size is 1.5"),
        (lambda: StochasticAIHT(batch_size=float("nan")), "batch_size is nan"),
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


@pytest.mark.parametrize("solver", ["StochasticAIHT", "SVRGIHT", "ProjectedOptax"])
def test_batch_larger_than_the_problem_is_refused(solver):
    solver = dataclasses.replace(SOLVERS[solver], batch_size=51)
    with pytest.raises(ValueError, match="batch_size is 51, but the problem has n = 50 atoms"):
        jc.solve(jc.CoresetProblem(independent_atoms(50, 30)), 5, solver, KEY)


def test_labels_of_the_wrong_length_are_refused():
    solver = StochasticAIHT(AIHT2(GroupTopK(GROUPS, max_groups=3)))
    with pytest.raises(ValueError, match="groups has length 60"):
        jc.solve(jc.CoresetProblem(independent_atoms(50, 30)), 5, solver, KEY)


def test_a_total_is_kept_where_a_batch_has_only_atoms_of_norm_zero():
    # No rows are nearer to the target than any with the total, but do not have it.
    atoms = np.random.default_rng(0).normal(size=(12, 6))
    atoms[3:] = 0
    problem = jc.CoresetProblem(atoms, -atoms.sum(axis=0))
    base = jc.AIHT2(constraint=SimplexTopK(40.0), max_iters=30)
    solver = StochasticAIHT(base, batch_size=2)
    found = jax.vmap(lambda key: jc.solve(problem, 3, solver, key))(jax.random.split(KEY, 30))
    np.testing.assert_allclose(found.weights.sum(axis=1), 40, rtol=1e-5)
