"""Constraint sets: exact projections, solvers that end in the set, errors that say what to do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoreset as jc
from jaxcoreset.solvers.constraints import GroupTopK, SimplexTopK, Sparse, StratifiedTopK, TopK
from tests.reference import hard_thresholding as reference_solver
from tests.reference import projections as reference
from tests.solvers.helpers import solve_in_float64

SMALL = 7  # rows: few enough for every support, and one length for every compiled program
GROUPS = np.array([0, 2, 1, 0, 2, 2, 1])

SETS = ["top", "group", "stratified", "reserved", "simplex"]


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
    return len(support) <= k


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


def make_atoms(seed, n):
    """Atoms with common directions, as log-likelihoods have them."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 4)) @ rng.normal(size=(4, 40)) / 4
    return common + 0.3 * rng.normal(size=common.shape)


# Whole numbers and halves make ties, between rows and between groups, that random floats never do.
vectors = st.lists(st.integers(-6, 8), min_size=SMALL, max_size=SMALL).map(
    lambda halves: np.array(halves) / 2
)
labels = st.permutations([0, 1, 2, *GROUPS[3:]]).map(np.array)
project_for_all_k = jax.jit(jax.vmap(project, in_axes=(None, None, 0)))


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(vector=vectors, groups=labels)
def test_projections_in_a_batch_are_as_near_as_exhaustive_search_finds(name, vector, groups):
    ks = np.arange(1, SMALL + 1)
    given = make_set(name, groups), jnp.asarray(vector, jnp.float32), jnp.asarray(ks)
    for k, found in zip(ks, np.asarray(project_for_all_k(*given)), strict=True):
        assert is_in_set(name, found, k, groups)
        least = squared_distance(vector, exhaustive(name, vector, k, groups))
        assert squared_distance(vector, found) == pytest.approx(least, abs=1e-4)


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 30))
def test_no_feasible_point_is_closer_and_projecting_again_changes_nothing(name, seed, k):
    rng = np.random.default_rng(seed)
    groups = np.concatenate([[0, 1, 2], rng.integers(0, 3, 27)])
    constraint = make_set(name, groups)
    with jax.enable_x64(True):
        vector = rng.normal(size=30)
        found = np.asarray(project(constraint, jnp.asarray(vector), k))
        assert is_in_set(name, found, k, groups)
        again = np.asarray(project(constraint, jnp.asarray(found), k))
        np.testing.assert_allclose(again, found, atol=1e-12)
        for spread in (0.01, 0.3, 3.0):
            # Any vector's projection is a point of the set; those of its neighbours are near ones.
            other = jnp.asarray(vector + spread * rng.normal(size=30))
            point = np.asarray(project(constraint, other, k))
            assert is_in_set(name, point, k, groups)
            assert squared_distance(vector, found) <= squared_distance(vector, point) + 1e-12


FEW = [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("constraint", "vector", "k", "rows"),
    [
        # Equal entries go to the lower index.
        (make_set("top", GROUPS), [1] * SMALL, 2, [0, 1]),
        (make_set("stratified", GROUPS), [1] * SMALL, 2, [0, 1]),
        (make_set("simplex", GROUPS), [1] * SMALL, 2, [0, 1]),
        # Group 1 is rows 2 and 6, group 2 rows 1, 4 and 5. One slot and two are reserved for them,
        # so that k = 2 has room for two of those three.
        (make_set("reserved", GROUPS), [1] * SMALL, 2, [1, 2]),
        (GroupTopK([0, 1, 0, 1, 1], 1), [1, 2, 1, 2, 2], 2, [1, 3]),
        # Reserved slots are not taken by another group.
        (StratifiedTopK(FEW), [9, 8, 7, 6, 2, 1], 3, [0, 1, 2]),
        (StratifiedTopK(FEW, reserved=1), [9, 8, 7, 6, 2, 1], 3, [0, 1, 4]),
        # A slot is an offer: a negative entry does not fill it, and nobody else does.
        (StratifiedTopK(FEW, reserved=1), [9, 8, 7, 6, -2, -1], 3, [0, 1]),
    ],
)
def test_rows_that_are_chosen_among_equals_and_by_reserved_slots(constraint, vector, k, rows):
    found = project(constraint, jnp.asarray(vector, float), k)
    assert np.flatnonzero(found).tolist() == rows


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
    for constraint in (GroupTopK(GROUPS, 9), StratifiedTopK(GROUPS)):
        assert jnp.array_equal(project(constraint, vector, 3), project(TopK(), vector, 3))


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


def test_new_labels_budgets_and_totals_do_not_compile_again():
    traced = []
    run = eqx.filter_jit(lambda solver: traced.append(solver))
    for constraints in (
        [StratifiedTopK(np.arange(12) % 3, 1), StratifiedTopK(np.arange(12) // 4, [2, 0, 1])],
        [GroupTopK(np.arange(12) % 3, 1), GroupTopK(np.repeat([0, 1, 2], [3, 4, 5]), 1)],
        [SimplexTopK(3.0), SimplexTopK(12)],
    ):
        traced.clear()
        for constraint in constraints:
            run(jc.IHT(constraint=constraint))
        assert len(traced) == 1


def test_totals_may_be_vmapped_over_and_give_no_weight_to_atoms_of_norm_zero():
    atoms = make_atoms(6, 12)
    atoms[[0, 3]] = 0
    problem, totals = jc.CoresetProblem(atoms), jnp.array([0.5, 4.0, 12.0, 100.0])
    found = jax.vmap(lambda t: jc.solve(problem, 12, jc.AIHT2(constraint=SimplexTopK(t))))(totals)
    np.testing.assert_allclose(found.weights.sum(axis=1), totals, rtol=1e-5)
    assert not np.asarray(found.dense(12))[:, [0, 3]].any()


@pytest.mark.parametrize("name", ["group", "simplex"])
def test_iht_with_backtracking_never_raises_the_objective(name):
    groups = np.arange(30) % 3
    options = {"line_search": "backtracking", "record_history": True, "max_iters": 60}
    solver = jc.IHT(constraint=make_set(name, groups, 20.0), **options)
    found, weights = solve_in_float64(make_atoms(8, 30), 6, solver)
    history = found.history
    assert is_in_set(name, weights, 6, groups, 20.0)
    assert (np.diff(history) <= 1e-10 * history[:-1]).all()
    assert history[-1] < history[0]


def test_backtracking_keeps_a_step_that_is_short_enough():
    # Orthonormal atoms: a step of 1 along the gradient is exact for every direction.
    atoms = np.linalg.qr(np.random.default_rng(9).normal(size=(20, 8)))[0].T
    solver = jc.AIHT(line_search="backtracking", max_iters=1)
    found = jc.solve(jc.CoresetProblem(atoms), 3, solver)
    np.testing.assert_allclose(found.weights, 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["group", "stratified", "reserved"])
def test_iterates_with_groups_equal_a_loop_with_exhaustive_projections(name):
    n, k, num_iters = 9, 4, 10
    groups, atoms = np.arange(n) % 3, make_atoms(10, n)
    given = atoms.T, atoms.sum(axis=0), k
    options = {"algorithm": "AIHT2", "max_iters": num_iters, "tol": 0.0}
    path = reference_solver.hard_thresholding(
        *given, projection=lambda vector, k: exhaustive(name, vector, k, groups), **options
    )
    free = reference_solver.hard_thresholding(*given, **options)
    assert not np.allclose(path[-1], free[-1], atol=1e-3)  # the constraint matters here
    solver = jc.AIHT2(
        constraint=make_set(name, groups), max_iters=num_iters, tol=0.0, record_history=True
    )
    found, weights = solve_in_float64(atoms, k, solver)
    objectives = [reference_solver.objective(atoms.T, atoms.sum(axis=0), w) for w in path]
    np.testing.assert_allclose(found.history, objectives, rtol=1e-8)
    np.testing.assert_allclose(weights, path[-1], atol=1e-9)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: GroupTopK(np.array([0, 1, 3]), 1), ValueError, "no row with label 2"),
        (lambda: GroupTopK(np.array([0, -1]), 1), ValueError, "label -1; expected labels from 0"),
        (lambda: GroupTopK(np.array([0.0, 1.0]), 1), TypeError, "float64; expected integers"),
        (lambda: GroupTopK(np.array(["a", "b"]), 1), TypeError, "numpy.unique"),
        (lambda: GroupTopK(np.zeros((2, 2), int), 1), ValueError, r"shape \(2, 2\)"),
        (lambda: GroupTopK(GROUPS, 0), ValueError, "max_groups is 0; expected at least 1"),
        (lambda: GroupTopK(GROUPS, True), TypeError, "max_groups"),
        (lambda: StratifiedTopK(GROUPS, -1), ValueError, "k_per_group is -1"),
        (lambda: StratifiedTopK(GROUPS, [1, 2]), ValueError, "each of the 3 groups"),
        (lambda: StratifiedTopK(GROUPS, 0), ValueError, "0 for every group"),
        (lambda: StratifiedTopK(GROUPS, 1.5), TypeError, "integers"),
        (lambda: StratifiedTopK(GROUPS, [1, 1, 0], 1), ValueError, "reserved is 1 for group 2"),
        (lambda: SimplexTopK(0), ValueError, "total is 0.0; expected a positive number"),
        (lambda: SimplexTopK(np.inf), ValueError, "total is inf"),
        (lambda: SimplexTopK(np.ones(2)), ValueError, r"total has shape \(2,\)"),
        (lambda: jax.jit(lambda g: GroupTopK(g, 1).groups)(GROUPS), TypeError, "outside jit"),
    ],
)
def test_bad_arguments_fail_with_a_message_that_says_what_was_wanted(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("make", [GroupTopK, StratifiedTopK])
@pytest.mark.parametrize("wrap", [lambda base: base, jc.StochasticAIHT])
def test_labels_of_the_wrong_length_fail_at_the_door(make, wrap):
    problem = jc.CoresetProblem(make_atoms(11, 12))
    with pytest.raises(ValueError, match="groups has length 7, but the problem has n = 12"):
        jc.solve(problem, 3, wrap(jc.IHT(constraint=make(GROUPS, 1))), 0)
    wrap(jc.IHT(constraint=make(np.arange(12) % 3, 1))).check(problem)
