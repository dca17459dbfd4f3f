"""Constraint sets: exact projections, solvers that end in the set, errors that say what to do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoreset as jc
from jaxcoreset.solvers.constraints import GroupTopK, SimplexTopK, Sparse, StratifiedTopK, TopK
from tests.reference import hard_thresholding as reference_solver
from tests.reference import projections as reference

SMALL = 7  # rows: few enough for every support, and one length for every compiled program
GROUPS = np.array([0, 2, 1, 0, 2, 2, 1])

SETS = ["top", "group", "stratified", "reserved", "simplex"]
SOLVERS = [jc.IHT, jc.AIHT, jc.AIHT2]


def make_set(name, groups, total=3.0):
    """A constraint of each kind, the budgets for three groups."""
    return {
        "top": lambda: TopK(),
        "group": lambda: GroupTopK(groups, 2),
        "stratified": lambda: StratifiedTopK(groups, [2, 1, 3]),
        "reserved": lambda: StratifiedTopK(groups, [3, 2, 3], reserved=[0, 1, 2]),
        "simplex": lambda: SimplexTopK(total),
    }[name]()


def allows(name, support, k, groups):
    """Whether the set `make_set(name, groups)` allows a support, by its definition."""
    if name == "group":
        return reference.allows_groups(support, k, groups, 2)
    if name == "stratified":
        return reference.allows_strata(support, k, groups, np.array([2, 1, 3]), np.zeros(3))
    if name == "reserved":
        return reference.allows_strata(support, k, groups, np.array([3, 2, 3]), np.array([0, 1, 2]))
    return reference.allows_top_k(support, k)


def is_in_set(name, weights, k, groups, total=3.0):
    summed = name != "simplex" or np.isclose(weights.sum(), total, rtol=1e-5)
    support = tuple(np.flatnonzero(weights))
    return bool(weights.min() >= 0 and summed and allows(name, support, k, groups))


def exhaustive(name, vector, k, groups, total=3.0):
    def nearest(v, support):
        if name == "simplex":
            return reference.nearest_on_simplex(v, support, total)
        return reference.nearest_on_orthant(v, support)

    return reference.project(vector, lambda support: allows(name, support, k, groups), nearest)


@jax.jit
def project(constraint, vector, k):
    """The projection as a dense vector, with the loosest static bound."""
    n = vector.shape[0]
    sparse = constraint.project(vector, jnp.asarray(k, jnp.int32), n)
    return jnp.zeros_like(vector).at[sparse.indices].add(sparse.values)


def squared_distance(vector, point):
    return np.sum((np.asarray(vector, float) - np.asarray(point, float)) ** 2)


def make_atoms(rng, n, num_draws=40):
    """Atoms with common directions, as log-likelihoods have them, of shape (n, S)."""
    common = rng.normal(size=(n, 4)) @ rng.normal(size=(4, num_draws)) / 4
    return common + 0.3 * rng.normal(size=(n, num_draws))


# Whole numbers and halves make ties, between rows and between groups, that random floats never do.
vectors = st.lists(st.integers(-6, 8), min_size=SMALL, max_size=SMALL).map(
    lambda halves: np.array(halves) / 2
)
labels = st.permutations([0, 1, 2, *GROUPS[3:]]).map(np.array)


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(vector=vectors, groups=labels, k=st.integers(1, SMALL))
def test_projection_is_as_near_as_exhaustive_search_finds(name, vector, groups, k):
    found = np.asarray(project(make_set(name, groups), jnp.asarray(vector, jnp.float32), k))
    assert is_in_set(name, found, k, groups)
    nearest = exhaustive(name, vector, k, groups)
    least = squared_distance(vector, nearest)
    assert squared_distance(vector, found) == pytest.approx(least, abs=1e-4)


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 30))
def test_no_feasible_point_is_closer_and_projecting_again_changes_nothing(name, seed, k):
    rng = np.random.default_rng(seed)
    n = 30
    groups = np.concatenate([[0, 1, 2], rng.integers(0, 3, n - 3)])
    constraint = make_set(name, groups)
    with jax.enable_x64(True):
        vector = rng.normal(size=n)
        found = np.asarray(project(constraint, jnp.asarray(vector), k))
        assert is_in_set(name, found, k, groups)
        again = np.asarray(project(constraint, jnp.asarray(found), k))
        np.testing.assert_allclose(again, found, atol=1e-12)
        for spread in (0.01, 0.3, 3.0):
            # Any vector's projection is a point of the set; those of its neighbours are near ones.
            other = jnp.asarray(vector + spread * rng.normal(size=n))
            point = np.asarray(project(constraint, other, k))
            assert is_in_set(name, point, k, groups)
            assert squared_distance(vector, found) <= squared_distance(vector, point) + 1e-12


@pytest.mark.parametrize("name", ["top", "stratified", "reserved", "simplex"])
def test_equal_entries_go_to_the_lower_index(name):
    found = np.asarray(project(make_set(name, GROUPS), jnp.ones(SMALL), 2))
    # Group 1 is rows 2 and 6, group 2 rows 1, 4 and 5; "reserved" holds one slot and two for them,
    # so that k = 2 has room for two of those three.
    assert np.flatnonzero(found).tolist() == ([1, 2] if name == "reserved" else [0, 1])


def test_equal_entries_of_a_chosen_group_go_to_the_lower_index():
    vector = jnp.array([1.0, 2.0, 1.0, 2.0, 2.0])
    found = np.asarray(project(GroupTopK([0, 1, 0, 1, 1], 1), vector, 2))
    assert np.flatnonzero(found).tolist() == [1, 3]


def test_group_projection_knows_how_many_rows_a_group_may_have():
    # One group of three: 27 by four rows, 25 by one, 18 by two. With k = 2 the norms mislead.
    groups = np.array([0, 0, 0, 0, 1, 2, 2])
    vector = np.array([2.6, 2.6, 2.6, 2.6, 5.0, 3.0, 3.0])
    found = np.asarray(project(GroupTopK(groups, 1), jnp.asarray(vector, jnp.float32), 2))
    np.testing.assert_allclose(found, [0, 0, 0, 0, 5, 0, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("groups", "vector", "k", "gain"),
    [
        ([0, 1, 2, 3, 0, 3, 1, 2, 2, 2], [6, 3, 5, 3, 4, 2, 7, 5, 4, 1], 3, 101),
        ([0, 1, 2, 3, 0, 3, 1, 2, 0, 0], [5, 4, 4, 2, 4, 6, 5, 5, 7, 1], 4, 126),
        ([0, 1, 2, 3, 0, 1, 0, 0, 2, 2], [5, 3, 2, 6, 5, 6, 5, 5, 6, 2], 3, 86),
    ],
)
def test_group_projection_is_exact_where_the_bound_leaves_groups_open(groups, vector, k, gain):
    # Found by random search: the best choice that the multiplier leads to gains 99, 115 and 81.
    found = np.asarray(project(GroupTopK(groups, 2), jnp.asarray(vector, jnp.float32), k))
    assert reference.allows_groups(tuple(np.flatnonzero(found)), k, np.array(groups), 2)
    assert np.sum(found**2) == gain


def test_sets_without_effect_project_as_top_k():
    vector = jnp.asarray(np.random.default_rng(0).normal(size=SMALL), jnp.float32)
    for constraint in (GroupTopK(GROUPS, 3), GroupTopK(GROUPS, 9), StratifiedTopK(GROUPS)):
        assert jnp.array_equal(project(constraint, vector, 3), project(TopK(), vector, 3))


def test_reserved_slots_are_not_taken_by_another_group():
    groups = np.array([0, 0, 0, 0, 1, 1])
    vector = jnp.array([9.0, 8.0, 7.0, 6.0, 2.0, 1.0])
    assert np.flatnonzero(project(StratifiedTopK(groups), vector, 3)).tolist() == [0, 1, 2]
    held = StratifiedTopK(groups, reserved=1)
    assert np.flatnonzero(project(held, vector, 3)).tolist() == [0, 1, 4]
    # A slot is an offer: a negative entry does not fill it, and nobody else does.
    negative = vector.at[4:].multiply(-1)
    assert np.flatnonzero(project(held, negative, 3)).tolist() == [0, 1]


@pytest.mark.parametrize("total", [1e-3, 1.0, 1e6])
def test_simplex_projection_keeps_its_total_in_float32(total):
    rng = np.random.default_rng(0)
    vector = jnp.asarray(1e3 + rng.normal(size=500), jnp.float32)
    found = project(SimplexTopK(total), vector, 200)
    assert found.dtype == jnp.float32
    assert float(found.sum()) == pytest.approx(total, rel=1e-5)


def test_simplex_projection_on_a_support_stays_on_it():
    sparse = Sparse(jnp.array([4, 1, 2]), jnp.array([-1.0, -3.0, 0.0]))
    support = jnp.array([True, True, False])
    found = SimplexTopK(3.0).project_on_support(sparse, support)
    np.testing.assert_allclose(found.values, [2.5, 0.5, 0.0], rtol=1e-6)
    # A support that ends up all zero is still filled.
    zero = Sparse(jnp.array([4, 1, 2]), jnp.zeros(3))
    found = SimplexTopK(3.0).project_on_support(zero, jnp.array([True, False, False]))
    np.testing.assert_allclose(found.values, [3.0, 0.0, 0.0])


@pytest.mark.parametrize("name", SETS)
def test_vmapped_projection_equals_single_projections(name):
    rng = np.random.default_rng(1)
    constraint = make_set(name, GROUPS)
    batch = jnp.asarray(rng.normal(size=(4, SMALL)), jnp.float32)
    ks = jnp.arange(1, SMALL + 1)
    over_ks = jax.vmap(project, in_axes=(None, None, 0))
    both = jax.vmap(over_ks, in_axes=(None, 0, None))(constraint, batch, ks)
    for i, vector in enumerate(batch):
        for j, k in enumerate(ks):
            np.testing.assert_allclose(both[i, j], project(constraint, vector, k), atol=1e-6)


@pytest.mark.parametrize("name", SETS[1:])
def test_sweep_over_problems_and_k_ends_in_the_set(name):
    rng = np.random.default_rng(2)
    n, total = 24, 30.0
    groups = np.arange(n) % 3
    solver = jc.AIHT2(constraint=make_set(name, groups, total), max_iters=40)
    atoms = np.stack([make_atoms(rng, n) for _ in range(2)])
    problems = jax.vmap(jc.CoresetProblem)(jnp.asarray(atoms, jnp.float32))
    found = jax.vmap(lambda p: jc.sweep(p, np.array([1, 3, 8]), solver))(problems)
    weights = np.asarray(found.dense(n))
    assert weights.dtype == np.float32
    for i in range(2):
        for j, k in enumerate([1, 3, 8]):
            assert is_in_set(name, weights[i, j], k, groups, total)
            assert weights[i, j].any()
            residual = atoms[i].sum(axis=0) - weights[i, j] @ atoms[i]
            assert found.objective[i, j] == pytest.approx(residual @ residual, rel=1e-3)


def test_new_labels_budgets_and_totals_do_not_compile_again():
    compiled = []

    @eqx.filter_jit
    def run(problem, solver):
        compiled.append(solver)
        return solver.run(problem, jnp.asarray(3, jnp.int32), 3)

    problem = jc.CoresetProblem(make_atoms(np.random.default_rng(4), 12))
    for constraints in (
        [StratifiedTopK(np.arange(12) % 3, 1), StratifiedTopK(np.arange(12) // 4, [2, 0, 1])],
        [GroupTopK(np.arange(12) % 3, 1), GroupTopK(np.repeat([0, 1, 2], [3, 4, 5]), 1)],
        [SimplexTopK(3.0), SimplexTopK(12)],
    ):
        compiled.clear()
        found = [run(problem, jc.IHT(constraint=c, max_iters=3)) for c in constraints]
        assert len(compiled) == 1
        assert not jnp.array_equal(found[0].dense(12), found[1].dense(12))


def test_totals_may_be_vmapped_over():
    problem = jc.CoresetProblem(make_atoms(np.random.default_rng(5), 12))
    totals = jnp.array([0.5, 4.0, 12.0])
    found = jax.vmap(lambda t: jc.solve(problem, 4, jc.AIHT(constraint=SimplexTopK(t))))(totals)
    np.testing.assert_allclose(found.weights.sum(axis=1), totals, rtol=1e-5)


def test_an_atom_of_norm_zero_gets_no_weight_though_the_total_asks_for_more():
    atoms = make_atoms(np.random.default_rng(6), 12)
    atoms[[0, 3]] = 0
    solver = jc.AIHT2(constraint=SimplexTopK(100.0))
    found = jc.solve(jc.CoresetProblem(atoms), 12, solver)
    assert not np.asarray(found.dense(12))[[0, 3]].any()
    assert float(found.weights.sum()) == pytest.approx(100, rel=1e-5)


def test_a_rare_class_is_in_the_coreset_where_slots_are_held_for_it():
    rng = np.random.default_rng(7)
    atoms = make_atoms(rng, 60)
    labels = (np.arange(60) < 4).astype(int)
    atoms[labels == 1] *= 0.05  # rows that matter little, so that none is chosen of itself
    problem = jc.CoresetProblem(atoms)
    free = jc.solve(problem, 10, jc.AIHT2())
    held = jc.solve(problem, 10, jc.AIHT2(constraint=StratifiedTopK(labels, reserved=2)))
    assert not np.asarray(free.dense(60))[labels == 1].any()
    assert np.count_nonzero(np.asarray(held.dense(60))[labels == 1]) in (1, 2)


@pytest.mark.parametrize("name", SETS)
def test_iht_with_backtracking_never_raises_the_objective(name):
    rng = np.random.default_rng(8)
    n = 30
    with jax.enable_x64(True):
        problem = jc.CoresetProblem(make_atoms(rng, n))
        options = {"line_search": "backtracking", "record_history": True, "max_iters": 60}
        solver = jc.IHT(constraint=make_set(name, np.arange(n) % 3, 20.0), **options)
        found = jc.solve(problem, 6, solver)
        weights, history = np.asarray(found.dense(n)), np.asarray(found.history)
    assert is_in_set(name, weights, 6, np.arange(n) % 3, 20.0)
    assert (np.diff(history) <= 1e-10 * history[:-1]).all()
    assert history[-1] < history[0]


def test_backtracking_equals_the_exact_step_where_that_is_short_enough():
    # Orthonormal atoms: a step of 1 along the gradient is exact for every direction.
    atoms = np.linalg.qr(np.random.default_rng(9).normal(size=(20, 8)))[0].T
    problem = jc.CoresetProblem(atoms)
    exact = jc.solve(problem, 3, jc.AIHT())
    backtracked = jc.solve(problem, 3, jc.AIHT(line_search="backtracking"))
    np.testing.assert_allclose(backtracked.weights, exact.weights, rtol=1e-5)


STRUCTURED = ["group", "stratified", "reserved"]


@pytest.mark.parametrize("name", STRUCTURED)
@pytest.mark.parametrize("algorithm", ["AIHT", "AIHT2"])
def test_iterates_with_groups_equal_a_loop_with_exhaustive_projections(name, algorithm):
    n, k, num_iters = 9, 4, 10
    groups = np.arange(n) % 3
    atoms = make_atoms(np.random.default_rng(10), n)
    given = atoms.T, atoms.sum(axis=0), k
    options = {"algorithm": algorithm, "max_iters": num_iters, "tol": 0.0}
    path = reference_solver.hard_thresholding(
        *given, projection=lambda vector, k: exhaustive(name, vector, k, groups), **options
    )
    free = reference_solver.hard_thresholding(*given, **options)
    assert not np.allclose(path[-1], free[-1], atol=1e-3)  # the constraint matters here
    with jax.enable_x64(True):
        solver = getattr(jc, algorithm)(
            constraint=make_set(name, groups), max_iters=num_iters, tol=0.0, record_history=True
        )
        found = jc.solve(jc.CoresetProblem(atoms), k, solver)
        weights, history = np.asarray(found.dense(n)), np.asarray(found.history)
    objectives = [reference_solver.objective(atoms.T, atoms.sum(axis=0), w) for w in path]
    np.testing.assert_allclose(history, objectives, rtol=1e-8)
    np.testing.assert_allclose(weights, path[-1], atol=1e-9)


@pytest.mark.parametrize("name", STRUCTURED)
@pytest.mark.parametrize("solver", [jc.AIHT, jc.AIHT2])
def test_solutions_with_groups_are_allowed_and_beat_random_rows_that_are(name, solver):
    n, k = 60, 6
    rng = np.random.default_rng(13)
    groups, atoms = np.arange(n) % 3, make_atoms(rng, n)
    target = atoms.sum(axis=0)
    found = jc.solve(jc.CoresetProblem(atoms), k, solver(constraint=make_set(name, groups)))
    weights = np.asarray(found.dense(n))
    assert is_in_set(name, weights, k, groups)
    objectives = []
    while len(objectives) < 10:
        rows = rng.choice(n, k, replace=False)
        if allows(name, tuple(rows), k, groups):
            objectives.append(scipy.optimize.nnls(atoms[rows].T, target)[1] ** 2)
    # As good as the best weights on the best of ten supports drawn at random.
    assert reference_solver.objective(atoms.T, target, weights) <= min(objectives)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: GroupTopK(np.array([0, 1, 3]), 1), ValueError, "no row with label 2"),
        (lambda: StratifiedTopK(np.array([1, 2]), 1), ValueError, "no row with label 0"),
        (lambda: GroupTopK(np.array([0, -1]), 1), ValueError, "label -1; expected labels from 0"),
        (lambda: GroupTopK(np.array([0.0, 1.0]), 1), TypeError, "float64; expected integers"),
        (lambda: GroupTopK(np.array(["a", "b"]), 1), TypeError, "numpy.unique"),
        (lambda: GroupTopK(np.zeros((2, 2), int), 1), ValueError, r"shape \(2, 2\)"),
        (lambda: GroupTopK(np.zeros(0, int), 1), ValueError, "one label per row"),
        (lambda: GroupTopK(GROUPS, 0), ValueError, "max_groups is 0; expected at least 1"),
        (lambda: GroupTopK(GROUPS, True), TypeError, "max_groups"),
        (lambda: StratifiedTopK(GROUPS, -1), ValueError, "k_per_group is -1"),
        (lambda: StratifiedTopK(GROUPS, [1, 2]), ValueError, "each of the 3 groups"),
        (lambda: StratifiedTopK(GROUPS, 0), ValueError, "0 for every group"),
        (lambda: StratifiedTopK(GROUPS, 1.5), TypeError, "integers"),
        (lambda: StratifiedTopK(GROUPS, 2, reserved=-2), ValueError, "reserved is -2"),
        (lambda: StratifiedTopK(GROUPS, [1, 1, 0], 1), ValueError, "reserved is 1 for group 2"),
        (lambda: SimplexTopK(0), ValueError, "total is 0.0; expected a positive number"),
        (lambda: SimplexTopK(-3.0), ValueError, "total is -3.0"),
        (lambda: SimplexTopK(np.inf), ValueError, "total is inf"),
        (lambda: SimplexTopK(np.nan), ValueError, "total is nan"),
        (lambda: SimplexTopK(np.ones(2)), ValueError, r"total has shape \(2,\)"),
        (lambda: jax.jit(lambda g: GroupTopK(g, 1).groups)(GROUPS), TypeError, "outside jit"),
    ],
)
def test_bad_arguments_fail_with_a_message_that_says_what_was_wanted(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("make", [lambda g: GroupTopK(g, 1), lambda g: StratifiedTopK(g, 1)])
@pytest.mark.parametrize("solver", SOLVERS)
def test_labels_of_the_wrong_length_fail_at_the_door(make, solver):
    problem = jc.CoresetProblem(make_atoms(np.random.default_rng(11), 12))
    with pytest.raises(ValueError, match="groups has length 7, but the problem has n = 12"):
        jc.solve(problem, 3, solver(constraint=make(GROUPS)))
    solver(constraint=make(np.arange(12) % 3)).check(problem)


def test_an_unknown_line_search_is_refused():
    with pytest.raises((TypeError, ValueError), match="line_search"):
        jc.IHT(line_search="golden section")
