"""Shorten the atoms of a problem: exactly, if they have low rank, or by a random projection.

Solvers use atoms only through inner products, so atoms may be rotated, and coordinates that are
zero in all atoms may be dropped. `compress` finds the r directions in which atoms of length S
exceed a tolerance, and keeps the norm of the target's remaining part in one more coordinate, where
every atom is zero. So the objective of any weights does not change. A smooth model with few
parameters has a rank far below S.

`project` multiplies atoms and target by a random matrix (Johnson and Lindenstrauss). That works for
any rank and costs one product, but the objective of given weights changes by a factor 1 ± ε, and
the objective of weights *chosen* on the projection is too low: evaluate it on the original problem.

A compression costs O(n S r) operations if r is below a third of n and of S, and otherwise a
factorisation of the atoms, O(n S²). It saves a fraction 1 − r/S of every pass over the atoms: use
it for problems that are solved many times, or with many passes.
"""

import functools
import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.arguments import as_integer, check_choice, check_that, is_concrete
from jaxcoreset.solvers.numerics import as_key, divide, product
from jaxcoreset.solvers.problem import CoresetProblem, check_single

_MAP_ROWS = 4096
# The number of directions that are sampled at a time.
_BLOCK = 32
_POWER_STEPS = 6
# A singular value below this many units of rounding of the largest is a rounding error.
_FLOOR = 8


class CompressedProblem(CoresetProblem):
    """A `CoresetProblem` with shorter atoms, made by `compress`; every solver takes it.

    For weights w ≥ 0, its ‖y − Φw‖ differs from that of the original problem by at most
    Σ w_i · left_out_i; see `error_bound`.

    Attributes:
        atoms: shape (n, r + 1): coordinates in the r directions, then a zero; or the original
            atoms, shape (n, S), if r + 1 is not less than S.
        target: the target in the same coordinates, and last the norm of its part outside.
        left_out: shape (n,), the norm of every atom's part outside the r directions.
        rank: r.
    """

    left_out: Float[Array, " n"]
    rank: int = eqx.field(static=True)

    def __init__(self, atoms: ArrayLike, target: ArrayLike, left_out: ArrayLike, rank: int):
        super().__init__(atoms, target)
        self.left_out = jnp.asarray(left_out, self.atoms.dtype)
        self.rank = rank

    def error_bound(
        self, indices: Int[Array, "*b k"], weights: Float[Array, "*b k"]
    ) -> Float[Array, "*b"]:
        """A bound on the difference of ‖y − Φw‖ from the original problem's, up to rounding.

        Args:
            indices: rows, such as `Solution.indices`.
            weights: their weights, such as `Solution.weights`.
        """
        return jnp.sum(jnp.abs(weights) * self.left_out[indices], axis=-1)


def compress(
    problem: CoresetProblem, tol: float | None = None, *, rank: int | None = None
) -> CompressedProblem:
    """Rewrite the atoms in as few coordinates as they need, without changing any objective.

    With V an orthonormal basis of the directions kept, the atoms become Φ V and the target
    (Vᵀy, ‖y − V Vᵀy‖). The directions are the leading right singular vectors of the atoms.

    The directions are first sought by sampling, which ends when the remainder of the atoms has a
    small enough norm, by power iteration (after Martinsson and Voronin, "A randomized blocked
    algorithm for efficiently computing rank-revealing factorizations of matrices", SIAM J. Sci.
    Comput. 2016). The samples have a fixed key, and affect the result by about `tol`. If a third of
    all directions is not enough, a QR decomposition is computed, and then an SVD of its triangular
    factor. A Gram matrix of the atoms would lose half of the digits.

    The change of ‖y − Φw‖ is at most Σ w_i · left_out_i, where `left_out` is measured for every
    atom. It is also at most 2·tol·σ_1·‖w‖, up to rounding. Log-likelihoods that were evaluated in
    float32 have rounding errors in every direction. If these exceed `tol`, the rank is nearly full,
    and a tol of 1e-5 gives a much smaller one; check the result with `error_bound`.

    Args:
        problem: the problem; a batch only with `rank`, ``jax.vmap(lambda p: compress(p, rank=r))``.
        tol: directions with a singular value of at most tol·σ_1 are left out; 1e-6 by default. The
            smallest tol in effect is 8 units of rounding: 9.5e-7 in float32, 1.8e-15 in float64.
        rank: the number of directions to keep, whatever their singular values. It may be used under
            ``jax.jit`` and ``jax.vmap``, where a `tol` cannot.

    Returns:
        A problem with the same rows in the same order, with atoms of length rank + 1. If that is
        not less than S, its atoms and target are those of `problem`.

    Raises:
        TypeError: if `problem` is something else, or `rank` is not an integer.
        ValueError: if `tol` and `rank` are both given, one is out of range, or `tol` is used while
            tracing.
    """
    check_single(problem)
    atoms = problem.atoms
    if rank is not None:
        if tol is not None:
            raise ValueError(f"tol is {tol} and rank is {rank}; expected only one of them.")
        rank = as_integer("rank", rank, 1, min(atoms.shape))
        basis = principal_directions(atoms)[1]
    else:
        tol = 1e-6 if tol is None else tol
        if not is_concrete(atoms, tol):
            raise ValueError(
                "tol determines the length of the compressed atoms, which cannot be traced; pass "
                "rank=r under jax.jit and jax.vmap, or compress before."
            )
        check_that(0 <= tol < 1, "tol", tol, "0 ≤ tol < 1")
        floor = max(tol, _FLOOR * float(jnp.finfo(atoms.dtype).eps))
        singular_values, basis = _directions_above(atoms, floor)
        rank = int(jnp.sum(singular_values > floor * singular_values[0]))
    if rank + 1 >= atoms.shape[1]:
        return CompressedProblem(atoms, problem.target, jnp.zeros_like(atoms[:, 0]), rank)
    shorter, target, left_out = _rotate(atoms, problem.target, basis[:, :rank])
    return CompressedProblem(shorter, target, left_out, rank)


def _directions_above(atoms: Float[Array, "n s"], tol: float) -> tuple[Array, Array]:
    """Like `principal_directions`, but without some singular values below tol·σ_1."""
    max_blocks = min(atoms.shape) // (3 * _BLOCK)
    if max_blocks == 0:
        return principal_directions(atoms)
    basis, num_blocks, found = _sampled_range(atoms, jnp.asarray(tol, atoms.dtype), max_blocks)
    if not found:
        return principal_directions(atoms)
    basis = basis[:, : _BLOCK * int(num_blocks)]
    singular_values, turned = principal_directions(product(atoms, basis))
    return singular_values, product(basis, turned)


@functools.partial(jax.jit, static_argnames="max_blocks")
def _sampled_range(
    atoms: Float[Array, "n s"], tol: Float[Array, ""], max_blocks: int
) -> tuple[Array, Array, Array]:
    """An orthonormal basis outside which no singular value of the atoms is above tol·σ_1.

    Returns:
        The basis, (S, max_blocks·_BLOCK) with zeros in unused columns, the number of blocks of
        columns in use, and whether the tolerance was reached.
    """
    n, s = atoms.shape
    start_key, key = jax.random.split(jax.random.key(0))

    def norm(matrix: Array) -> Array:
        """The largest singular value, slightly underestimated by a few steps of power iteration."""

        def power(_: Array, vector: Array) -> Array:
            vector = product(product(matrix, vector), matrix)
            return divide(vector, jnp.linalg.norm(vector))

        scale = jnp.max(jnp.abs(matrix))  # squares of the remainder may be too small for float32
        matrix = divide(matrix, scale)
        start = jax.random.normal(start_key, (s,), atoms.dtype)
        vector = jax.lax.fori_loop(0, _POWER_STEPS, power, start)
        return scale * jnp.linalg.norm(product(matrix, vector))

    largest = norm(atoms)
    enough = tol * largest

    def unfinished(state: tuple) -> Array:
        _, _, count, left = state
        return (left > enough) & (count < max_blocks)

    def add_block(state: tuple) -> tuple:
        rest, basis, count, _ = state
        samples = jax.random.normal(jax.random.fold_in(key, count), (n, _BLOCK), atoms.dtype)
        block = jnp.linalg.qr(product(rest.T, samples))[0]
        # Twice, since the remainder may be as small as the rounding of the part that was removed.
        for _ in range(2):
            block = jnp.linalg.qr(block - product(basis, product(basis.T, block)))[0]
        rest = rest - product(product(rest, block), block.T)
        basis = jax.lax.dynamic_update_slice_in_dim(basis, block, count * _BLOCK, axis=1)
        return rest, basis, count + 1, norm(rest)

    empty = jnp.zeros((s, max_blocks * _BLOCK), atoms.dtype)
    begin = (atoms, empty, jnp.zeros((), jnp.int32), largest)
    _, basis, count, left = jax.lax.while_loop(unfinished, add_block, begin)
    return basis, count, left <= enough


@jax.jit
def principal_directions(atoms: Float[Array, "n s"]) -> tuple[Array, Array]:
    """Singular values of the atoms, (m,), and their right singular vectors, (S, m)."""
    n, s = atoms.shape
    with jax.default_matmul_precision("highest"):
        core = jnp.linalg.qr(atoms, mode="r") if n > s else atoms
        _, singular_values, transposed = jnp.linalg.svd(core, full_matrices=False)
    return singular_values, transposed.T


@jax.jit
def _rotate(
    atoms: Float[Array, "n s"], target: Float[Array, " s"], basis: Float[Array, "s r"]
) -> tuple[Array, Array, Array]:
    """Atoms and target in the basis, with one more coordinate, and the atoms' norms outside it."""

    def split(vector: Float[Array, " s"]) -> tuple[Array, Array]:
        inside = product(vector, basis)
        outside = vector - product(basis, inside)
        return inside, jnp.linalg.norm(outside)

    inside, left_out = jax.lax.map(split, atoms, batch_size=min(_MAP_ROWS, atoms.shape[0]))
    target_inside, target_outside = split(target)
    shorter = jnp.pad(inside, ((0, 0), (0, 1)))
    return shorter, jnp.append(target_inside, target_outside), left_out


def project(
    problem: CoresetProblem,
    num_coordinates: int,
    key: PRNGKeyArray | int,
    kind: Literal["gaussian", "sign"] = "gaussian",
) -> CoresetProblem:
    """Multiply atoms and target by a random matrix with m columns, which shortens them.

    For weights that do not depend on the matrix, the objective changes by a factor within 1 ± ε
    with probability at least 1 − δ if m is at least `projection_size(ε, δ)`. Entries are Gaussian
    (Dasgupta and Gupta, "An elementary proof of a theorem of Johnson and Lindenstrauss", Random
    Struct. Algorithms 2003), or √3 times a random sign in one of three and 0 in the others
    (Achlioptas, "Database-friendly random projections", J. Comput. Syst. Sci. 2003, Theorem 1.1),
    all over √m; the bound is the same for both.

    Weights that a solver finds depend on the matrix: their objective is too low here, and close to
    zero with k near m. Choose m several times k, and evaluate the weights on `problem`.

    Args:
        problem: the problem, with atoms of length S.
        num_coordinates: m, the length of the new atoms; useful if less than S.
        key: a JAX random key. Problems projected with the same key remain comparable.
        kind: "gaussian" or "sign".

    Raises:
        TypeError: if `problem` is something else, or `num_coordinates` is not an integer.
        ValueError: if `num_coordinates` is below 1, or `kind` is unknown.
    """
    check_single(problem)
    num_coordinates = as_integer("num_coordinates", num_coordinates, 1)
    check_choice("kind", kind, ("gaussian", "sign"))
    return CoresetProblem(*_project(problem, as_key(key), num_coordinates, kind))


@functools.partial(jax.jit, static_argnames=("num_coordinates", "kind"))
def _project(
    problem: CoresetProblem, key: PRNGKeyArray, num_coordinates: int, kind: str
) -> tuple[Array, Array]:
    shape, dtype = (problem.num_draws, num_coordinates), problem.atoms.dtype
    if kind == "gaussian":
        matrix = jax.random.normal(key, shape, dtype)
    else:
        face = jax.random.randint(key, shape, 0, 6)
        matrix = math.sqrt(3) * ((face == 0).astype(dtype) - (face == 1))
    matrix = matrix / np.sqrt(num_coordinates)
    return product(problem.atoms, matrix), product(problem.target, matrix)


def projection_size(error: float, failure: float = 0.01, num_vectors: int = 1) -> int:
    """The number of coordinates that keeps squared norms within 1 ± error in a random projection.

    It is the smallest m with 2 N exp(−m (ε²/4 − ε³/6)) ≤ δ, the bound of Dasgupta and Gupta (2003)
    and Achlioptas (2003) for N vectors that do not depend on the matrix.

    Args:
        error: ε, between 0 and 1.
        failure: δ, the probability that the bound fails for one of the vectors.
        num_vectors: N, the number of vectors. The residuals of all weights on k of n rows need of
            the order of k·log(n/k)/ε² coordinates.

    Raises:
        ValueError: if an argument is out of range.
        TypeError: if `num_vectors` is not an integer.
    """
    check_that(0 < error < 1, "error", error, "0 < error < 1")
    check_that(0 < failure < 1, "failure", failure, "a probability between 0 and 1")
    num_vectors = as_integer("num_vectors", num_vectors, 1)
    rate = error**2 / 4 - error**3 / 6
    return math.ceil(math.log(2 * num_vectors / failure) / rate)
