"""Shorter atoms: the same objective by compression, nearly the same by projection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.solvers.compression import CompressedProblem, compress, project, projection_size
from tests.datasets import atoms_of


def low_rank(n, s, rank=7, seed=0):
    rng = np.random.default_rng(seed)
    scales = 10.0 ** -np.arange(rank).clip(0, 3)
    return rng.normal(size=(n, rank)) * scales @ rng.normal(size=(rank, s))


def sparse_weights(n, num=40, size=12, seed=1):
    rng = np.random.default_rng(seed)
    weights = np.zeros((num, n))
    for row in weights:
        row[rng.choice(n, size, replace=False)] = n / size * rng.random(size)
    return weights


def objectives(problem, weights):
    """In float64, so that only the problems' own rounding is compared."""
    atoms, target = np.asarray(problem.atoms, float), np.asarray(problem.target, float)
    return np.sum((target - weights @ atoms) ** 2, axis=1)


CASES = {
    "low rank, sampled": low_rank(300, 200),
    "low rank, factorised in chunks": low_rank(400, 60),
    "fewer rows than draws": np.random.default_rng(2).normal(size=(20, 90)),
    "half the rank": np.random.default_rng(3).normal(size=(300, 100)) @ low_rank(100, 200, 100),
    "full rank": np.random.default_rng(4).normal(size=(80, 40)),
}


@pytest.mark.parametrize("case", CASES)
def test_compression_leaves_every_objective_unchanged(case):
    atoms = CASES[case]
    n, s = atoms.shape
    # As for candidates: the sum of more atoms than these, partly outside their span.
    target = atoms.sum(0)
    target = target + np.random.default_rng(6).normal(size=s) * np.linalg.norm(target) / s**0.5
    weights = sparse_weights(n, size=min(n, 12))
    problem = jc.CoresetProblem(np.float32(atoms), np.float32(target))
    np.testing.assert_allclose(
        objectives(compress(problem), weights), objectives(problem, weights), rtol=1e-5
    )
    with jax.enable_x64(True):
        exact = jc.CoresetProblem(atoms, target)
        shorter = compress(exact, tol=1e-13)
        assert shorter.atoms.dtype == np.float64
    np.testing.assert_allclose(objectives(shorter, weights), objectives(exact, weights), rtol=1e-10)


@pytest.mark.parametrize(("n", "s", "rank"), [(300, 200, 7), (1, 9, 1)])
def test_the_rank_is_found_and_atoms_have_one_coordinate_more(n, s, rank):
    shorter = compress(jc.CoresetProblem(np.float32(low_rank(n, s, rank))))
    assert shorter.rank == rank
    assert shorter.atoms.shape == (n, rank + 1)
    np.testing.assert_array_equal(shorter.atoms[:, -1], 0)
    norms = np.linalg.norm(low_rank(n, s, rank), axis=1)
    assert (np.asarray(shorter.left_out) < 2e-6 * norms.max()).all()


@pytest.mark.parametrize("s", [40, 1])
def test_atoms_that_cannot_be_shortened_stay_as_they_are(s):
    problem = jc.CoresetProblem(np.random.default_rng(0).normal(size=(80, s)))
    shorter = compress(problem)
    np.testing.assert_array_equal(shorter.atoms, problem.atoms)
    np.testing.assert_array_equal(shorter.target, problem.target)
    np.testing.assert_array_equal(shorter.left_out, 0)
    assert shorter.rank == s


def test_what_a_large_tolerance_leaves_out_is_bounded_as_stated():
    atoms = np.asarray(atoms_of("phishing_500", 300))
    problem = jc.CoresetProblem(np.float32(atoms))
    shorter = compress(problem, tol=3e-2)
    assert shorter.rank < 100
    dense = sparse_weights(500)
    change = np.abs(np.sqrt(objectives(shorter, dense)) - np.sqrt(objectives(problem, dense)))
    rows = np.argsort(-dense, axis=1)[:, :12]
    weights = np.take_along_axis(dense, rows, axis=1)
    bounds = shorter.error_bound(jnp.asarray(rows), jnp.asarray(weights))
    assert (change > 1e-4 * np.linalg.norm(problem.target)).any()
    assert (change <= np.asarray(bounds)).all()
    largest = np.linalg.norm(atoms, 2)
    assert (change <= 1.5 * 3e-2 * largest * np.linalg.norm(dense, axis=1)).all()


def test_solvers_find_as_good_a_solution():
    """Ties and rounding may lead to other atoms, so only the error of what is found is compared."""
    problem = jc.CoresetProblem(jnp.asarray(atoms_of("biketrips_500", 300), jnp.float32))
    shorter = compress(problem)
    full, short = (jc.solve(p, 20, jc.MatchingPursuit()) for p in (problem, shorter))
    found = objectives(problem, np.asarray(short.dense(500), float)[None])[0]
    assert found == pytest.approx(float(short.objective), rel=1e-3)
    assert found == pytest.approx(float(full.objective), rel=5e-2)


def test_a_given_rank_works_under_jit_and_vmap():
    batch = jnp.stack([jnp.asarray(low_rank(60, 50, 4, seed), np.float32) for seed in range(3)])
    problems = jax.vmap(jc.CoresetProblem)(batch)
    shorter = jax.jit(jax.vmap(lambda p: compress(p, rank=4)))(problems)
    assert isinstance(shorter, CompressedProblem)
    assert shorter.atoms.shape == (3, 60, 5)
    assert shorter.atoms.dtype == np.float32
    weights = sparse_weights(60)
    for i in range(3):
        one, lane = (jax.tree.map(lambda x, i=i: np.asarray(x[i]), p) for p in (problems, shorter))
        # A coordinate of an atom is a sum of 50 products, rounded in proportion to its norm.
        terms = np.linalg.norm(one.target) + weights @ np.linalg.norm(one.atoms, axis=1)
        change = np.sqrt(objectives(lane, weights)) - np.sqrt(objectives(one, weights))
        assert (np.abs(change) <= 2 * np.finfo(np.float32).eps * terms).all()


@pytest.mark.parametrize("kind", ["gaussian", "sign"])
def test_projected_objective_is_unbiased_with_variance_two_over_m(kind):
    rng = np.random.default_rng(0)
    problem = jc.CoresetProblem(np.float32(rng.normal(size=(5, 200))))
    weights = np.float32(rng.random(5))

    @jax.jit
    @jax.vmap
    def objective(key):
        shorter = project(problem, 50, key, kind)
        assert shorter.atoms.shape == (5, 50)
        return jnp.sum((shorter.target - weights @ shorter.atoms) ** 2)

    values = np.asarray(objective(jax.random.split(jax.random.key(1), 2000)), float)
    ratio = values / objectives(problem, weights[None])[0]
    assert ratio.mean() == pytest.approx(1, abs=4 * np.sqrt(2 / 50 / 2000))
    assert ratio.var() == pytest.approx(2 / 50, rel=0.15)


def test_projection_size_is_the_bound_of_dasgupta_and_gupta():
    m = projection_size(0.2, failure=0.05, num_vectors=10)
    failure = 20 * np.exp(-np.array([m, m - 1]) * (0.2**2 / 4 - 0.2**3 / 6))
    assert failure[0] <= 0.05 < failure[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: compress(p, tol=1.0), "tol is 1.0; expected 0 ≤ tol < 1"),
        (lambda p: compress(p, tol=1e-3, rank=3), "only one"),
        (lambda p: compress(p, rank=0), "rank is 0; expected 1 ≤ rank ≤ 9"),
        (lambda p: jax.jit(compress)(p), "pass rank=r"),
        (lambda p: compress(jax.tree.map(lambda x: x[None], p)), r"expected \(n, S\)"),
        (lambda p: project(p, 0, 0), "num_coordinates is 0; expected at least 1"),
        (lambda p: project(jax.tree.map(lambda x: x[None], p), 3, 0), r"expected \(n, S\)"),
        (lambda p: projection_size(1.0), "error is 1.0"),
        (lambda p: projection_size(0.1, failure=0.0), "failure is 0.0"),
        (lambda p: projection_size(0.1, num_vectors=0), "num_vectors is 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(jc.CoresetProblem(low_rank(20, 9)))
