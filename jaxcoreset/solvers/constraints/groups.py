"""Constraints on groups of rows: a maximum number of rows of each group, or of groups.

The projections are exact, like that of `TopK`: for a fixed support X the nearest w ≥ 0 keeps the
positive entries of the vector v on X, at squared distance ‖v‖² − Σ_{i∈X} max(v_i, 0)². So it
remains to find the allowed support of the largest gain, where row i gains max(v_i, 0)².
"""

import abc
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jaxcoreset.solvers.arguments import as_integer, is_concrete
from jaxcoreset.solvers.constraints.base import Constraint, Sparse, TopK
from jaxcoreset.solvers.numerics import divide

# Steps of the bisection for a multiplier in `GroupTopK`. Any multiplier gives a valid bound; a
# better one leaves fewer groups undecided.
_BISECTIONS = 24
# The number of groups of a constraint that names an argument, until it is given its labels.
_NO_LIMIT = int(np.iinfo(np.int32).max)


class _Grouped(Constraint):
    """A constraint with labels, or the name of an argument that has them."""

    groups: eqx.AbstractVar[Int[Array, " n"]]
    name: eqx.AbstractVar[str | None]

    @abc.abstractmethod
    def _with_groups(self, groups: Int[np.ndarray, " n"]) -> "_Grouped":
        """The same constraint with these labels."""

    def check(self, num_data: int) -> None:
        """See `Constraint.check`."""
        if self.name is not None and not self.groups.size:
            raise ValueError(
                f"groups is the name {self.name!r}, which only CoresetBuilder can look up among a "
                "model's arguments; expected labels of shape (n,)."
            )
        if self.groups.shape[0] != num_data:
            raise ValueError(
                f"groups has length {self.groups.shape[0]}, but the problem has n = {num_data} "
                "atoms; expected one label per atom. If the atoms are only some of the data, pass "
                "their labels: groups[rows]."
            )

    def bind(self, labels: Callable[[str], np.ndarray]) -> "_Grouped":
        """See `Constraint.bind`."""
        if self.name is None:
            return self
        return self._with_groups(np.unique(labels(self.name), return_inverse=True)[1])

    def take(self, rows: Int[np.ndarray, " c"] | Int[Array, " c"]) -> "_Grouped":
        """See `Constraint.take`."""
        return eqx.tree_at(lambda c: c.groups, self, self.groups[rows])


class StratifiedTopK(_Grouped):
    """At most k rows, with a maximum for each group (class, site, day): sparsity within groups.

    To get rows of every class, reserve slots for each class with `reserved`: rows of other classes
    cannot use them, so that a rare class is represented. Reserved slots may stay empty: a row whose
    weight would be negative is still left out, since "has a positive weight" is not a closed set
    and has no nearest point. If k is less than the number of reserved slots, the best k of them are
    filled. Budgets `k_per_group` that sum to k do the same and fix the shares.

    The projection takes the best `k_per_group` rows of each group. Of these it keeps k: first the
    best `reserved` rows of each group, then the largest entries. Equal entries go to the lower
    index. Sparsity within groups is Kyrillidis et al. 2015, cited in section 3.1 of Zhang et al.
    2021.

    Args:
        groups: integers of shape (n,), the group of each row: 0, 1, …, m − 1, each at least once.
            `CoresetBuilder` also takes the name of an argument of the model, whose values, one per
            row, are the labels; groups are then numbered in the order of the sorted values.
        k_per_group: the maximum number of rows of each group, an integer or integers of shape (m,).
            A group with budget 0 is left out. By default there is no maximum.
        reserved: the number of slots reserved for each group, an integer or integers of shape (m,);
            the number of the group's rows if that is less.

    Raises:
        TypeError: if labels or counts are not integers, or the labels are being traced.
        ValueError: if a label is negative, a group is empty, a count is negative, the number of
            counts is not that of the groups, no row is allowed, or more slots are reserved than
            allowed.
    """

    groups: Int[Array, " n"]
    k_per_group: Int[Array, "..."]
    reserved: Int[Array, "..."] | None
    num_groups: int = eqx.field(static=True)
    name: str | None = eqx.field(static=True)

    def __init__(
        self,
        groups: ArrayLike | Sequence[int] | str,
        k_per_group: ArrayLike | Sequence[int] | None = None,
        reserved: ArrayLike | Sequence[int] | None = None,
    ):
        self.groups, self.num_groups, self.name = _read_labels(groups)
        if self.name is not None:
            self.k_per_group = jnp.asarray(_NO_LIMIT if k_per_group is None else k_per_group)
            self.reserved = None if reserved is None else jnp.asarray(reserved)
            return
        budgets = self.groups.shape[0] if k_per_group is None else k_per_group
        self.k_per_group = _read_counts("k_per_group", budgets, self.num_groups)
        if is_concrete(self.k_per_group) and not self.k_per_group.any():
            raise ValueError(
                "k_per_group is 0 for every group; expected at least one row of one group."
            )
        self.reserved = None
        if reserved is not None:
            self.reserved = _read_counts("reserved", reserved, self.num_groups)
            if is_concrete(self.reserved, self.k_per_group):
                _check_reserved(np.asarray(self.reserved), np.asarray(self.k_per_group))

    def project(self, vector: Float[Array, " n"], k: Int[Array, ""], max_k: int) -> Sparse:
        """See `Constraint.project`."""
        # Why this is exact. "At most u_g rows of group g, at most k rows" is a partition matroid,
        # truncated. With l_g slots held, an allowed support is the union of one with at most l_g
        # rows of each group and one with at most u_g − l_g of each and k − Σl in all: a union of
        # matroids, which is a matroid. On a matroid the greedy choice, largest gain first wherever
        # a row still fits, has the largest gain in total. In a group it takes rows by rank, so a
        # row of rank u_g or more never fits, one of rank below l_g always does, and rows in between
        # fit until k − Σl of them are taken.
        order, starts = _sort_by_group(vector, self.groups, self.num_groups)
        in_order = jnp.arange(vector.shape[0]) - starts[self.groups[order]]
        rank = jnp.zeros_like(in_order).at[order].set(in_order)
        allowed = rank < self.k_per_group[self.groups]
        if self.reserved is not None:
            held = allowed & (rank < self.reserved[self.groups])
            free = jnp.where(allowed & ~held, vector, -jnp.inf)
            _, free_rows = jax.lax.top_k(free, max_k)
            taken = jnp.arange(max_k) < k - jnp.sum(held)
            allowed &= held.at[free_rows].max(taken)
        return TopK().project(jnp.where(allowed, vector, -jnp.inf), k, max_k)

    def _with_groups(self, groups: Int[np.ndarray, " n"]) -> "StratifiedTopK":
        return StratifiedTopK(groups, self.k_per_group, self.reserved)


class GroupTopK(_Grouped):
    """At most k rows, all from at most `max_groups` groups: for data that are expensive to access.

    k counts rows, as in every constraint. To limit only the groups, pass a k as large as the
    `max_groups` largest groups together, or n.

    The projection chooses the groups and the rows in them jointly and exactly. Without the limit on
    rows it takes the `max_groups` groups with the largest sums of squared positive entries. With
    it, the choice is a knapsack problem. A Lagrange multiplier for the limit bounds every choice.
    The groups that the bound does not decide, usually none or a handful, are decided by dynamic
    programming over (groups used, rows used), as Baldassarre et al. (2016, "Group-sparse model
    selection") do for all groups. Each of these groups costs ``max_groups · k²`` operations, and
    the table holds ``m · max_groups · k`` integers. If several choices are equally good, the first
    one found is taken. Within the groups, equal entries go to the lower index.

    Args:
        groups: integers of shape (n,), the group of each row: 0, 1, …, m − 1, each at least once.
            Groups may differ in size. `CoresetBuilder` also takes the name of an argument of the
            model, whose values, one per row, are the labels.
        max_groups: the maximum number of groups with a row in the coreset, g. Values above m have
            the effect of m.

    Raises:
        TypeError: if labels or `max_groups` are not integers, or the labels are being traced.
        ValueError: if a label is negative, a group is empty, or `max_groups` is less than 1.
    """

    groups: Int[Array, " n"]
    num_groups: int = eqx.field(static=True)
    max_groups: int = eqx.field(static=True)
    name: str | None = eqx.field(static=True)

    def __init__(self, groups: ArrayLike | Sequence[int] | str, max_groups: int):
        self.groups, self.num_groups, self.name = _read_labels(groups)
        self.max_groups = min(as_integer("max_groups", max_groups, 1), self.num_groups)

    def project(self, vector: Float[Array, " n"], k: Int[Array, ""], max_k: int) -> Sparse:
        """See `Constraint.project`."""
        if self.max_groups < self.num_groups:
            chosen = self._choose_groups(vector, k, max_k)
            vector = jnp.where(chosen[self.groups], vector, -jnp.inf)
        return TopK().project(vector, k, max_k)

    def _with_groups(self, groups: Int[np.ndarray, " n"]) -> "GroupTopK":
        return GroupTopK(groups, self.max_groups)

    def _choose_groups(
        self, vector: Float[Array, " n"], k: Int[Array, ""], max_k: int
    ) -> Bool[Array, " m"]:
        """The groups, g at most, whose k best rows gain most."""
        positive = jnp.maximum(vector, 0)
        largest = jnp.max(positive)
        gains = jnp.square(divide(positive, largest))  # at most 1

        def choose(multiplier: Array) -> tuple[Array, Array]:
            """The g best groups if each row costs `multiplier`, and every group's gain."""
            above = jnp.maximum(gains - multiplier, 0)
            of_group = jax.ops.segment_sum(above, self.groups, self.num_groups)
            best = jax.lax.top_k(of_group, self.max_groups)[1]
            return jnp.zeros(self.num_groups, bool).at[best].set(True), of_group

        def bisect(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            middle = (low + high) / 2
            rows = jnp.sum(choose(middle)[0][self.groups] & (gains > middle))
            return jnp.where(rows > k, middle, low), jnp.where(rows > k, high, middle)

        def value(chosen: Array) -> Array:
            return jnp.sum(self._best_rows(gains, chosen, max_k)[1], where=jnp.arange(max_k) < k)

        zero, one = jnp.zeros((), gains.dtype), jnp.ones((), gains.dtype)
        low, high = jax.lax.fori_loop(0, _BISECTIONS, bisect, (zero, one))
        # At most k rows gain more than `high` in its groups. If this holds at 0, k is no limit.
        multiplier = jnp.where(low > 0, high, 0)
        chosen, of_group = choose(multiplier)
        other, _ = choose(low)
        chosen = jnp.where(value(other) > value(chosen), other, chosen)
        reached = value(chosen)

        # No choice gains more than `bound`. A choice without one of the best g groups, or with
        # another one, loses at least the difference to the first group across the border.
        top = jax.lax.top_k(of_group, self.max_groups + 1)[0]
        bound = multiplier * k + jnp.sum(top[:-1])
        rounding = 100 * jnp.finfo(gains.dtype).eps * bound
        gap = jnp.maximum(bound - reached, 0) + rounding
        surely_in = of_group - top[-1] > gap
        surely_out = top[-2] - of_group > gap
        undecided = ~surely_in & ~surely_out
        decided, value_decided = self._decide_groups(gains, surely_in, undecided, k, max_k)
        return jnp.where(value_decided > reached, decided, chosen)

    def _best_rows(self, gains: Array, chosen: Array, max_k: int) -> tuple[Array, Array]:
        """The sums of the 0, 1, …, max_k best gains in the chosen groups, and the gains."""
        best = jax.lax.top_k(jnp.where(chosen[self.groups], gains, 0), max_k)[0]
        return jnp.concatenate([jnp.zeros(1, best.dtype), jnp.cumsum(best)]), best

    def _decide_groups(
        self,
        gains: Float[Array, " n"],
        surely_in: Bool[Array, " m"],
        open_groups: Bool[Array, " m"],
        k: Int[Array, ""],
        max_k: int,
    ) -> tuple[Bool[Array, " m"], Float[Array, ""]]:
        """The best choice of all groups in `surely_in` and some of `open_groups`, and its gain.

        ``best[a, b]`` is the largest gain of at most b rows from the groups in `surely_in` and at
        most a of the open groups processed so far.
        """
        order, starts = _sort_by_group(gains, self.groups, self.num_groups)
        ends = jnp.append(starts[1:], gains.shape[0])
        todo = jnp.argsort(~open_groups, stable=True)
        num_open = jnp.sum(open_groups)
        slots = jnp.arange(max_k)

        def see_group(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            best, choices = carry
            position = starts[todo[i]] + slots
            rows = order[jnp.minimum(position, gains.shape[0] - 1)]
            of_group = jnp.cumsum(jnp.where(position < ends[todo[i]], gains[rows], 0))
            padded = jnp.pad(best[:-1], ((1, 0), (max_k, 0)), constant_values=-jnp.inf)

            def take(count: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
                """Add one group with `count` rows to an entry of the table."""
                value, choice = found
                before = jax.lax.dynamic_slice_in_dim(padded, max_k - count, max_k + 1, axis=1)
                new = before + of_group[count - 1]
                return jnp.maximum(value, new), jnp.where(new > value, count, choice)

            start = (best, jnp.zeros(best.shape, jnp.int32))
            best, choice = jax.lax.fori_loop(jnp.int32(1), jnp.int32(max_k + 1), take, start)
            return best, choices.at[i].set(choice)

        def walk_back(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            chosen, a, b = carry
            group = num_open - 1 - i
            count = choices[group, a, b]
            chosen = chosen.at[todo[group]].max(count > 0)
            return chosen, a - (count > 0), b - count

        prefix, _ = self._best_rows(gains, surely_in, max_k)
        best = jnp.broadcast_to(prefix, (self.max_groups + 1, max_k + 1))
        choices = jnp.zeros((self.num_groups, *best.shape), jnp.int32)
        best, choices = jax.lax.fori_loop(0, num_open, see_group, (best, choices))
        left = self.max_groups - jnp.sum(surely_in)
        end = (surely_in, left.astype(jnp.int32), k.astype(jnp.int32))
        chosen, _, _ = jax.lax.fori_loop(0, num_open, walk_back, end)
        return chosen, best[left, k]


def _sort_by_group(
    values: Float[Array, " n"], groups: Int[Array, " n"], num_groups: int
) -> tuple[Int[Array, " n"], Int[Array, " m"]]:
    """Rows by group, the largest value first and ties by index, and each group's first position."""
    order = jnp.lexsort((-values, groups))
    return order, jnp.searchsorted(groups[order], jnp.arange(num_groups))


def _read_labels(
    groups: ArrayLike | Sequence[int] | str,
) -> tuple[Int[Array, " n"], int, str | None]:
    """The group labels as an array, how many groups there are, and the name if it is given."""
    if isinstance(groups, str):
        return jnp.zeros(0, jnp.int32), _NO_LIMIT, groups
    if not is_concrete(groups):
        raise TypeError(
            "groups is being traced, so the number of groups is not known; create the constraint "
            "outside jit and vmap and pass it in."
        )
    labels = np.asarray(groups)
    relabel = "Relabel with numpy.unique(groups, return_inverse=True)[1]."
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(f"groups has shape {labels.shape}; expected (n,), one label per row.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(f"groups has type {labels.dtype}; expected integers 0, 1, 2, …. {relabel}")
    found = np.unique(labels)
    if found[0] < 0:
        raise ValueError(f"groups has the label {found[0]}; expected labels from 0 up. {relabel}")
    misplaced = np.flatnonzero(found != np.arange(found.size))
    if misplaced.size:
        raise ValueError(
            f"groups has labels up to {found[-1]} but no row with label {misplaced[0]}; expected "
            f"at least one row in every group. {relabel}"
        )
    return jnp.asarray(labels, jnp.int32), int(found.size), None


def _read_counts(name: str, counts: ArrayLike | Sequence[int], num_groups: int) -> Int[Array, " m"]:
    """One non-negative integer per group, from one for all or one for each."""
    counts = counts if isinstance(counts, jax.Array) else np.asarray(counts)
    if not jnp.issubdtype(counts.dtype, jnp.integer):
        raise TypeError(f"{name} has type {counts.dtype}; expected integers, numbers of rows.")
    if counts.shape not in ((), (num_groups,)):
        raise ValueError(
            f"{name} has shape {counts.shape}; expected one number, or one for each of the "
            f"{num_groups} groups."
        )
    if is_concrete(counts) and (lowest := int(counts.min())) < 0:
        raise ValueError(f"{name} is {lowest} for some group; expected numbers of rows, 0 or more.")
    return jnp.broadcast_to(jnp.asarray(counts, jnp.int32), (num_groups,))


def _check_reserved(reserved: np.ndarray, k_per_group: np.ndarray) -> None:
    excess = np.flatnonzero(reserved > k_per_group)
    if excess.size:
        group = int(excess[0])
        raise ValueError(
            f"reserved is {reserved[group]} for group {group}, where k_per_group is "
            f"{k_per_group[group]}; expected no more reserved slots than allowed."
        )
