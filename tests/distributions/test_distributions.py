"""Sparse distributions: each algorithm against NumPy, and the paper's size against all supports.

Iterates are compared in float64, where the same arithmetic in another order is right to about
1e-12; the projections' thresholds and the steps' doublings magnify that, so 1e-9 is allowed.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset import distributions as jd
from tests.reference import distributions as ref

FLOAT64 = {"rtol": 1e-9, "atol": 1e-9}
FLOOR = 1e-3


def random_table(seed, lattice):
    masses = np.random.default_rng(seed).exponential(size=lattice) ** 2
    return masses / masses.sum()


def random_features(seed, num, lattice):
    return np.random.default_rng(seed).normal(size=(num, *lattice))


def both_objectives(kind, seed, lattice, k):
    """The objective on the device and in NumPy."""
    p = random_table(seed, lattice)
    if kind == "squared":
        return jd.SquaredDistance(p), ref.SquaredDistance(p)
    if kind == "kl":
        return jd.KLDivergence(p, FLOOR), ref.KLDivergence(p, FLOOR, lattice[0] ** k)
    a = random_features(seed + 100, 25, lattice)
    return jd.ExpectationDistance(a, p), ref.ExpectationDistance(a, p)


def paper_tables(num, divergence, lattice=(2,) * 15):
    """Section 4.1: 50 random points with random masses; a little everywhere where KL needs it."""
    tables = []
    for seed in range(num):
        rng = np.random.default_rng(seed)
        p = np.full(np.prod(lattice), 1e-6 if divergence == "kl" else 0.0)
        p[rng.choice(p.size, 50, replace=False)] += rng.random(50)
        tables.append((p / p.sum()).reshape(lattice))
    return np.array(tables)


def is_sparse_distribution(table, k, atol=1e-5):
    table = np.asarray(table)
    varying = [np.take(table, range(1, table.shape[i]), axis=i).any() for i in range(table.ndim)]
    return table.min() >= 0 and abs(table.sum() - 1) <= atol and sum(varying) <= k


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_simplex_projection_equals_the_one_by_sorting(scale):
    with jax.enable_x64(True):
        vectors = scale * np.random.default_rng(0).normal(size=(20, 12))
        allowed = np.random.default_rng(1).random((20, 12)) < 0.7
        allowed[:, 3] = True
        found = jax.vmap(jd.project_simplex)(jnp.asarray(vectors), jnp.asarray(allowed))
        for vector, mask, got in zip(vectors, allowed, np.asarray(found), strict=True):
            np.testing.assert_allclose(got[mask], ref.project_simplex(vector[mask]), **FLOAT64)
            assert not got[~mask].any()


def test_simplex_projection_of_huge_float32_entries_is_still_a_distribution():
    vector = jnp.asarray([3e12, 3e12, -1e12, 0.0], jnp.float32)
    found = jd.project_simplex(vector, jnp.ones(4, bool))
    np.testing.assert_allclose(found, [0.5, 0.5, 0, 0], rtol=1e-6)


def test_sparse_projection_equals_the_reference_whatever_the_bound_on_k():
    with jax.enable_x64(True):
        tables = np.random.default_rng(0).normal(size=(6, *(3,) * 4)) / 4
        # The last table is sparse already, and stays as it is.
        tables[-1] = jd.random_sparse_distribution(jax.random.key(0), (3,) * 4, 2)
        for max_k in (None, 3):
            project = jax.vmap(lambda t, bound=max_k: jd.sparse_projection(t, 2, max_k=bound))
            found = project(jnp.asarray(tables))
            for table, got in zip(tables, found, strict=True):
                np.testing.assert_allclose(got, ref.sparse_projection(table, 2)[0], **FLOAT64)
            np.testing.assert_allclose(found[-1], tables[-1], **FLOAT64)


@pytest.mark.parametrize("kind", ["kl", "expectation"])
def test_greedy_equals_reference(kind):
    # Two levels of non-negative least squares are enough, and compile in half the time.
    lattice, k = (2,) * 5, 2 if kind == "expectation" else 3
    with jax.enable_x64(True):
        device, host = both_objectives(kind, 3, lattice, k)
        solution = jd.learn_distribution(device, k, jd.DistributionGreedy())
        table, chosen = ref.greedy(host, lattice, k)
        # There the reference's sum is one up to rounding.
        tolerance = {"rtol": 1e-5, "atol": 1e-6} if kind == "expectation" else FLOAT64
        np.testing.assert_allclose(solution.table, table, **tolerance)
        assert np.flatnonzero(solution.support).tolist() == sorted(chosen)
        np.testing.assert_allclose(solution.objective, host.value(table), rtol=1e-6)


@pytest.mark.parametrize("kind", ["kl", "expectation"])
def test_iht_equals_reference_iterate_by_iterate(kind):
    lattice, k, num_iters = (2,) * 6, 3, 40
    with jax.enable_x64(True):
        device, host = both_objectives(kind, 5, lattice, k)
        start = jd.random_sparse_distribution(jax.random.key(1), lattice, k)
        fractions = {"step_fraction": 0.05, "stuck_tol": 0.05}
        solver = jd.DistributionIHT(
            **fractions, max_iters=num_iters, refit=False, record_history=True
        )
        tables, supports, steps = ref.hard_thresholding(
            host, np.asarray(start), k, **fractions, num_iters=num_iters
        )
        iterate = jax.jit(lambda state: solver.iterate(device, state, jnp.asarray(k), k))
        state = solver.begin(device, start, jnp.ones(6, bool), k)
        for table, step in zip(tables, steps, strict=True):
            np.testing.assert_allclose(
                0.05 / host.smoothness * 2.0 ** int(state.doublings), step, rtol=1e-9
            )
            state = iterate(state)
            np.testing.assert_allclose(state.table, table, **FLOAT64)
        assert len(set(steps)) > 1, "the step was never doubled, so the rule was not tested"
        assert len({tuple(sorted(s)) for s in supports}) > 1, "no change of support was tested"

        if kind == "kl":
            values = [host.value(table) for table in tables]
            solution = jd.learn_distribution(device, k, solver, start=start)
            np.testing.assert_allclose(solution.history, values, **FLOAT64)
            best = min([host.value(np.asarray(start)), *values])
            np.testing.assert_allclose(solution.objective, best, **FLOAT64)
            refit = jd.learn_distribution(
                device, k, dataclasses.replace(solver, refit=True), start=start
            )
            assert refit.objective <= solution.objective


def test_gradients_are_the_derivatives_of_the_objectives():
    with jax.enable_x64(True):
        q = jnp.maximum(random_table(9, (2,) * 4), 2 * FLOOR)
        objectives = [
            both_objectives(kind, 2, (2,) * 4, 2)[0] for kind in ("squared", "kl", "expectation")
        ]
        both = jax.jit(lambda q: [(f.gradient(q), jax.grad(f)(q)) for f in objectives])
        for found, expected in both(q):
            np.testing.assert_allclose(found, expected, **FLOAT64)


# The paper's size, against every support


@pytest.mark.parametrize("divergence", ["squared", "kl"])
def test_exchange_finds_the_best_of_all_6435_supports(divergence):
    tables = paper_tables(2, divergence)
    objective = jd.SquaredDistance if divergence == "squared" else jd.KLDivergence

    @jax.jit
    @jax.vmap
    def run(table, key):
        return jd.learn_distribution(objective(table), 7, key=key)

    found = run(jnp.asarray(tables, jnp.float32), jax.random.split(jax.random.key(0), 2))
    best = [ref.exhaustive(p, 7, divergence) for p in tables]
    np.testing.assert_allclose(found.objective, best, rtol=1e-4)
    assert np.asarray(found.converged).all()


def test_iht_after_greedy_lies_between_greedy_and_the_best_of_all_supports():
    table = paper_tables(1, "squared")[0]
    objective = jd.SquaredDistance(jnp.asarray(table, jnp.float32))
    best = ref.exhaustive(table, 7, "squared")
    greedy = jd.learn_distribution(objective, 7, jd.DistributionGreedy())
    after = jd.learn_distribution(objective, 7, jd.DistributionIHT("greedy", max_iters=30))
    assert best <= after.objective + 1e-6
    assert after.objective <= greedy.objective + 1e-6


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize(
    "solver",
    [jd.DistributionIHT(num_starts=3, max_iters=20), jd.DistributionExchange(num_starts=4)],
    ids=lambda solver: type(solver).__name__,
)
def test_vmapped_and_traced_k_solves_equal_single_solves(solver):
    lattice = (2,) * 6
    tables = jnp.asarray(np.stack([random_table(s, lattice) for s in range(3)]), jnp.float32)
    keys, ks = jax.random.split(jax.random.key(0), 3), jnp.asarray([1, 2, 3])

    def run(table, key, k):
        return jd.learn_distribution(jd.KLDivergence(table), k, solver, key, max_k=3)

    batch = jax.jit(jax.vmap(run))(tables, keys, ks)
    for i in range(3):
        single = run(tables[i], keys[i], i + 1)
        np.testing.assert_allclose(batch.objective[i], single.objective, rtol=1e-5)
        np.testing.assert_allclose(batch.table[i], single.table, atol=1e-5)
        assert batch.num_iters[i] == single.num_iters
        assert is_sparse_distribution(single.table, i + 1)
        assert single.table.dtype == jnp.float32


def test_more_starts_are_no_worse_and_the_same_key_gives_the_same():
    objective = jd.KLDivergence(random_table(4, (2,) * 8))
    one = jd.learn_distribution(objective, 3, jd.DistributionExchange(1))
    many, again = (
        jd.learn_distribution(objective, 3, jd.DistributionExchange(8), jax.random.key(0))
        for _ in range(2)
    )
    assert many.objective <= one.objective
    np.testing.assert_array_equal(many.table, again.table)


def test_iht_stops_where_no_step_moves_it():
    # The target lies behind a corner of the simplex, so that every step leads back to the corner.
    corner = jnp.zeros((2,) * 3).at[1, 1, 1].set(1)
    objective = jd.SquaredDistance(3 * corner)
    solution = jd.learn_distribution(objective, 3, jd.DistributionIHT(), start=corner)
    assert bool(solution.converged)
    assert int(solution.num_iters) == 17
    np.testing.assert_array_equal(solution.table, corner)


def test_compression_keeps_the_expectations_of_a_sparse_distribution():
    lattice = (2,) * 7
    p = jd.random_sparse_distribution(jax.random.key(3), lattice, 2)
    features = random_features(0, 40, lattice)
    solution = jd.compress_distribution(p, 2, features, jd.DistributionGreedy())
    np.testing.assert_allclose(solution.table, p, atol=1e-4)
    coordinates, small = solution.compact()
    assert coordinates.tolist() == np.flatnonzero(solution.support).tolist()
    assert small.shape == (2, 2)
    np.testing.assert_allclose(small.sum(), 1, atol=1e-5)


def learn(table, k, *options, **start):
    return jd.learn_distribution(jd.SquaredDistance(table), k, *options, **start)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: jd.SquaredDistance(p[:1]), "one axis for each"),
        (lambda p: jd.SquaredDistance(p * jnp.nan), "not finite"),
        (lambda p: jd.KLDivergence(p.at[0].set(0)), "not positive"),
        (lambda p: jd.KLDivergence(p, floor=0.0), "floor is"),
        (lambda p: jd.ExpectationDistance(p, p), "features has shape"),
        (lambda p: learn(p, 0), "k is 0"),
        (lambda p: learn(p, 5), "k is 5"),
        (lambda p: learn(p, 2), "key is missing"),
        (lambda p: learn(p, 2, jd.DistributionIHT(), start=p), "varies in 4"),
        (
            lambda p: learn(p, 2, jd.DistributionGreedy(), start=p),
            "DistributionGreedy has no start",
        ),
        (lambda p: jd.compress_distribution(2 * p, 2, p[None]), "sums to 2"),
        (lambda p: jd.sparse_projection(p, 9), "k is 9"),
        (lambda p: jd.DistributionIHT(num_starts=0), "num_starts is 0"),
        (lambda p: jd.DistributionIHT("greedy", 2), "one start"),
        (lambda p: jd.DistributionExchange(max_iters=0), "max_iters is 0"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call(jnp.full((2,) * 4, 1 / 16))
