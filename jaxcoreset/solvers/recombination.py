"""Recombination: find a few atoms that match the target's leading coordinates exactly.

If weights w ≥ 0 solve k linear equations, then so do some weights with at most k positive entries
(Carathéodory). Litterer and Lyons, "High order recombination and an application to cubature on
Wiener space" (Ann. Appl. Probab. 2012), find them in few operations: the points are put into 2 k
groups, each group is represented by its weighted sum, and groups are eliminated one by one along
null vectors of the k equations until half of them are left. This is repeated with the points of the
remaining groups. Tchernychova, "Carathéodory cubature measures" (thesis, Oxford 2016), orders the
work so that a round costs O(k³).

Here the equations keep the total of the weights and the coordinates of Φw on the k − 1 leading
principal directions of the atoms. The residual then lies in the remaining directions, where the
atoms are small. There is no search and no choice by a residual, so the work is one pass over the
atoms for their coordinates, and about log₂(n/k) rounds.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.compression import principal_directions
from jaxcoreset.solvers.matching_pursuit import MatchingPursuit
from jaxcoreset.solvers.nnls import nnls
from jaxcoreset.solvers.numerics import any_in_batch, divide, product, tree_where
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solution import Solution, make_solution

# The range finder's number of additional directions and of power iterations: Halko, Martinsson and
# Tropp (2011), remark 4.4 and algorithm 4.4.
_OVERSAMPLING = 10
_POWER_ITERATIONS = 2
# A singular value below this many units of rounding of the largest counts as zero.
_SMALLEST = 100
_MAX_NEWTON_STEPS = 50


class Leading(eqx.Module):
    """The atoms' leading principal directions: those of Σ φ_i φ_iᵀ, not centred.

    Attributes:
        coordinates: shape (n, m), the atoms' coordinates by direction, each column scaled to norm
            one; columns of zeros where there is no further direction.
        directions: shape (S, m), the matrix that maps a vector to its coordinates in these units.
        left_out: shape (n,), the norm of each atom's part outside all directions.
    """

    coordinates: Float[Array, "n m"]
    directions: Float[Array, "s m"]
    left_out: Float[Array, " n"]


class Recombination(Solver):
    """Carathéodory recombination on the leading principal directions, then least squares.

    The solver finds at most k atoms with non-negative weights that match, up to rounding, the total
    of the starting weights and the target's coordinates on the k − 1 leading principal directions
    of the atoms. It then solves the non-negative least-squares problem on these atoms with all
    draws. If the target is the sum of the atoms, the starting weights are all one. Otherwise they
    are the non-negative weights with the target's coordinates that are nearest to one common
    weight. If these are not found, since no weights have the coordinates or few weights do, the
    atoms are those of the non-negative weights with the nearest coordinates, found by matching
    pursuit in the leading directions; there are at most as many atoms as directions.

    A group may be eliminated along several null vectors. The solver takes the one that most lowers
    Σ w_i ‖part of φ_i outside the leading directions‖, which bounds the part of Φw there.

    It needs far fewer passes over the atoms than a pursuit. But it does not choose atoms for the
    target, so a pursuit is much better for small k; for k = 1 only the total decides. If atoms are
    equal, it may keep any of them. ``Solution.num_iters`` counts the rounds. The module's docstring
    names the papers. If the atoms have many more than k directions, a randomised range finder
    computes the leading ones (Halko, Martinsson and Tropp, "Finding structure with randomness",
    SIAM Review 2011); its sketch is the same in every run, so that no key is needed.
    """

    def run(
        self, problem: CoresetProblem, k: Int[Array, ""], max_k: int, key: PRNGKeyArray | None
    ) -> Solution:
        """Recombine to k rows and solve on them; see `Solver.run`."""
        usable = problem.squared_norms() > 0
        leading = leading_directions(problem, k - 1, max_k - 1)
        start = starting_weights(problem, leading, usable)
        equations = jnp.concatenate([usable[:, None], leading.coordinates], axis=1)
        weights, num_rounds = recombine(equations, leading.left_out, start, k)
        indices = jnp.argsort(weights <= 0)[:max_k].astype(jnp.int32)
        kept = weights[indices]
        if max_k > 1:
            # A pursuit in the leading coordinates, if that is nearer to those of the target. It is
            # not needed where these are matched, and a pursuit of nothing ends at once.
            coordinates = product(problem.target, leading.directions)

            def miss(indices: Array, weights: Array) -> Array:
                return jnp.linalg.norm(coordinates - product(weights, leading.coordinates[indices]))

            ours = miss(indices, kept)
            small = jnp.sqrt(jnp.finfo(kept.dtype).eps)
            found = ours <= small * jnp.linalg.norm(coordinates)
            wanted = jnp.where(found, 0, coordinates)
            atoms = jnp.where(usable[:, None], leading.coordinates, 0)
            pursuit = MatchingPursuit().run(CoresetProblem(atoms, wanted), k, max_k, None)
            nearer = ~found & (miss(pursuit.indices, pursuit.weights) < ours)
            chosen = pursuit.indices, pursuit.weights
            indices, kept = tree_where(nearer, chosen, (indices, kept))
        result = nnls(problem.gather(indices), problem.target, warm_start=kept, mask=kept > 0)
        return make_solution(
            problem, indices, result.weights, result.objective, num_rounds, result.converged
        )


def leading_directions(problem: CoresetProblem, count: Int[Array, ""], max_count: int) -> Leading:
    """The first `count` principal directions, padded with zeros to a static `max_count`."""
    atoms, dtype = problem.atoms, problem.atoms.dtype
    directions = _range(atoms, max_count)
    images = product(atoms, directions)
    values, rotation = principal_directions(images)
    wide = min(max_count, values.shape[0])
    directions = product(directions, rotation[:, :wide])
    directions = jnp.pad(directions, ((0, 0), (0, max_count - wide)))
    values = jnp.pad(values[:wide], (0, max_count - wide))

    present = values > _SMALLEST * float(jnp.finfo(dtype).eps) * jnp.max(values, initial=0)
    present = present & (jnp.arange(max_count) < count)
    directions = directions * present
    unit = divide(1, jnp.where(present, values, 0))
    images = product(atoms, directions)
    left_out = problem.squared_norms() - jnp.sum(images**2, axis=1)
    return Leading(
        coordinates=images * unit,
        directions=directions * unit,
        left_out=jnp.sqrt(jnp.maximum(left_out, 0)),
    )


def _range(atoms: Float[Array, "n s"], count: int) -> Float[Array, "s m"]:
    """An orthonormal basis of a space that approximately holds the `count` leading directions."""
    num_data, num_draws = atoms.shape
    width = count + _OVERSAMPLING
    if 2 * width >= min(num_data, num_draws):  # no less work than computing all directions
        if num_data >= num_draws:
            return jnp.eye(num_draws, dtype=atoms.dtype)
        return jnp.linalg.qr(atoms.T)[0]
    basis = jax.random.normal(jax.random.key(0), (num_draws, width), atoms.dtype)
    for _ in range(_POWER_ITERATIONS + 1):
        images = jnp.linalg.qr(product(atoms, basis))[0]
        basis = jnp.linalg.qr(product(atoms.T, images))[0]
    return basis


class _Dual(eqx.Module):
    multipliers: Float[Array, " m"]
    fraction: Float[Array, ""]
    num_steps: Int[Array, ""]
    stopped: Bool[Array, ""]


def starting_weights(
    problem: CoresetProblem, leading: Leading, usable: Bool[Array, " n"]
) -> Float[Array, " n"]:
    """Non-negative weights with the target's leading coordinates, as even as possible.

    Minimises ½‖w − c‖² + ‖Uᵀw − b‖²/(2ρ) over w ≥ 0, where Uᵀw = b are the coordinates, c is the
    best common weight and ρ is of the order of rounding, by Newton's method on the dual: with
    w(λ) = max(c + Uλ, 0) it solves Uᵀw(λ) + ρλ = b. If the target is the sum of the atoms, the
    solution is w = 1. The common weight is at least ‖y‖ / Σ ‖φ_i‖: with fewer, no common weight
    could reach ‖y‖, and Newton's method needs weights to start from.
    """
    dtype = problem.target.dtype
    small = 64 * float(jnp.finfo(dtype).eps)
    total = jnp.sum(problem.atoms, axis=0)
    common = jnp.maximum(divide(jnp.vdot(total, problem.target), jnp.vdot(total, total)), 0)
    norms = jnp.sum(jnp.sqrt(problem.squared_norms()))
    common = jnp.maximum(common, divide(jnp.linalg.norm(problem.target), norms))
    # Without this, small directions would amplify the rounding of the sum.
    summed = jnp.linalg.norm(problem.target - total) <= small * jnp.linalg.norm(problem.target)
    common = jnp.where(summed, 1, common)
    rest = jnp.where(summed, 0, problem.target - common * total)
    unit = leading.coordinates
    gap = product(rest, leading.directions)
    size = jnp.linalg.norm(gap) + common * jnp.linalg.norm(jnp.sum(unit, axis=0))

    def weights(multipliers: Array) -> Array:
        ahead = common + product(unit, multipliers)
        return jnp.where(usable, jnp.maximum(ahead, 0), 0)

    matched = gap + product(weights(jnp.zeros_like(gap)), unit)

    def value(multipliers: Array) -> Array:
        w = weights(multipliers)
        gain = jnp.vdot(matched, multipliers) - 0.5 * small * jnp.vdot(multipliers, multipliers)
        return gain - 0.5 * jnp.sum(jnp.where(usable, w**2 - common**2, 0))

    def gradient(multipliers: Array) -> Array:
        return matched - product(weights(multipliers), unit) - small * multipliers

    def step(dual: _Dual) -> _Dual:
        slope = gradient(dual.multipliers)
        exact = jnp.linalg.norm(slope) <= small * size
        free = unit * (weights(dual.multipliers) > 0)[:, None]
        curvature = product(free.T, free)
        curvature = curvature + small * jnp.eye(unit.shape[1], dtype=dtype)
        ahead = jax.scipy.linalg.solve(curvature, slope, assume_a="pos")
        moved = dual.multipliers + dual.fraction * ahead
        rise = value(moved) - value(dual.multipliers)
        enough = rise > 1e-4 * dual.fraction * jnp.vdot(slope, ahead)
        going = ~dual.stopped & ~exact
        return _Dual(
            jnp.where(going & enough, moved, dual.multipliers),
            jnp.where(enough, 1, dual.fraction / 2).astype(dtype),
            dual.num_steps + 1,
            dual.stopped | exact | (dual.num_steps >= _MAX_NEWTON_STEPS) | (dual.fraction < 1e-3),
        )

    dual = _Dual(
        jnp.zeros(unit.shape[1], dtype),
        jnp.ones((), dtype),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
    )
    dual = jax.lax.while_loop(lambda d: any_in_batch(~d.stopped), step, dual)
    return weights(dual.multipliers)


def recombine(
    equations: Float[Array, "n m"],
    cost: Float[Array, " n"],
    weights: Float[Array, " n"],
    k: Int[Array, ""],
) -> tuple[Float[Array, " n"], Int[Array, ""]]:
    """Find at most k non-negative weights with the same sums Σ_i w_i e_i, by groups.

    Args:
        equations: a row e_i for each point. Columns from `k` on are zero.
        cost: the cost of a unit of weight of each point; the total cost is kept low.
        weights: the weights to start from, not negative.
        k: between 1 and the number of columns, m.

    Returns:
        The weights, at most k of them positive, and the number of rounds.
    """
    num_columns = equations.shape[1]
    num_groups = 2 * num_columns

    def halve(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        weights, num_rounds = carry
        held = weights > 0
        count = jnp.sum(held, dtype=jnp.int32)
        group = (jnp.cumsum(held) - 1) % (2 * k)
        points = jnp.concatenate([equations, cost[:, None]], axis=1) * weights[:, None]
        sums = jax.ops.segment_sum(points, jnp.where(held, group, num_groups), num_groups)
        factors = _eliminate(sums[:, :-1], sums[:, -1], k, jnp.minimum(count, 2 * k))
        return jnp.where(held, weights * factors[group], 0), num_rounds + (count > k)

    return jax.lax.while_loop(
        lambda carry: any_in_batch(jnp.sum(carry[0] > 0) > k),
        halve,
        (weights, jnp.zeros((), jnp.int32)),
    )


def _eliminate(
    sums: Float[Array, "g m"], cost: Float[Array, " g"], k: Int[Array, ""], count: Int[Array, ""]
) -> Float[Array, " g"]:
    """Find factors μ ≥ 0 with Σ μ_g s_g = Σ s_g, at most k of the first `count` of them positive.

    Rows of `sums` from `count` on and columns from `k` on are zero. If count ≤ k, all factors are
    one.

    The null vectors of the k equations are the columns k to count − 1 of the orthogonal factor of
    `sums`, in which the zero rows remain unit vectors. They are kept orthonormal: after a factor
    has become zero, a reflection makes all but one of them vanish there, and that one is removed.
    """
    num_groups, num_columns = sums.shape
    columns = jnp.arange(num_columns)
    null = jnp.linalg.qr(sums, mode="complete")[0]
    null = jax.lax.dynamic_slice_in_dim(null, k, num_columns, axis=1)
    # The vectors are orthonormal in the rows that have a group.
    null = jnp.where((columns < count - k) & (jnp.arange(num_groups) < count)[:, None], null, 0)
    cost = cost / jnp.maximum(jnp.max(cost), jnp.finfo(cost.dtype).tiny)

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        factors, null, left = carry
        last = left - 1
        along = product(cost, null)
        # If the cost is the same along all null vectors, take the last one.
        flat = jnp.linalg.norm(along) <= 1e-4 * jnp.linalg.norm(cost)
        along = jnp.where(flat, (columns == last).astype(along.dtype), along)
        direction = product(null, along)
        direction = direction / jnp.max(jnp.abs(direction))
        direction = jnp.where((direction > 0).any(), direction, -direction)
        falls = (direction > 0) & (factors > 0)
        ratios = jnp.where(falls, factors / jnp.where(falls, direction, 1), jnp.inf)
        group = jnp.argmin(ratios)
        moved = jnp.maximum(factors - ratios[group] * direction, 0)
        moved = jnp.where(factors > 0, moved, 0).at[group].set(0)

        row = null[group]
        norm = jnp.linalg.norm(row)
        normal = row + jnp.where(columns == last, jnp.where(row[last] < 0, -norm, norm), 0)
        scale = divide(2, jnp.vdot(normal, normal))
        turned = null - scale * product(null, normal)[:, None] * normal
        turned = jnp.where(columns == last, 0, turned).at[group].set(0)
        going = left > 0
        return (
            jnp.where(going, moved, factors),
            jnp.where(going, turned, null),
            jnp.where(going, last, left),
        )

    ones = (jnp.arange(num_groups) < count).astype(sums.dtype)
    factors, _, _ = jax.lax.while_loop(
        lambda carry: any_in_batch(carry[-1] > 0), step, (ones, null, jnp.maximum(count - k, 0))
    )
    return factors
