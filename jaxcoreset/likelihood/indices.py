"""Rows that hold a number without an entry in an array that the model indexes by it.

JAX does not raise an error for such an index. It reads the last entry in place of one beyond the
end, and counts a negative index from the end, as NumPy does. A category that is numbered from 1, or
-1 for a missing value, is then taken as another category, and the posterior is wrong.

The model's program is interpreted: `_Interpreter` evaluates it operation by operation and looks at
each index that depends on rows and on no parameter. What is read in place of a missing entry may
not matter, as in ``jnp.where(group >= 0, effects[group], 0)``. So the program is then evaluated
again with another number in its place, and only rows whose values change are reported. Indexing
that says what to do with such an index, such as ``mode="clip"`` or ``"fill"``, is not reported, but
for ``mode="clip"`` of a single entry in a vmap; `jax.numpy.clip` of the index is understood there.

NaN becomes 0 as a whole number, or another number on another platform. Here it is the largest one,
which has no entry.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.lax import GatherScatterMode
from jaxtyping import Array, Int

from jaxcoreset.data.compiling import quick_jit

# Programs within programs, which are evaluated as a part of the outer one.
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_INLINED = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"}
_INLINED |= {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
# What JAX does with indices between counting negative ones from the end and reading the entries.
_PLUMBING = {"broadcast_in_dim", "reshape", "convert_element_type", "concatenate", "squeeze"}
_PLUMBING |= {"expand_dims", "transpose", "slice", "copy"}
# Kinds of indices; where an array has several, its index is of the largest kind.
_FROM_END, _BEYOND, _NONE = 1, 2, 3


@dataclass(frozen=True)
class UnknownIndices:
    """Rows with a number that has no entry of its own.

    Attributes:
        rows: their row numbers, increasing.
        leaves: the positions of the leaves of rows that the index is made of.
        size: the number of entries.
    """

    rows: Int[np.ndarray, " k"]
    leaves: tuple[int, ...]
    size: int


def find_unknown_indices(
    function: Callable[[Any, tuple], Any],
    params: Any,
    chunks: Iterable[tuple[tuple, int]],
) -> tuple[UnknownIndices | None, UnknownIndices | None]:
    """Rows whose values depend on an entry that is read in place of one that does not exist.

    Args:
        function: a function of parameters and m rows, whose values have a leading axis of rows. It
            is traced once for each shape of the rows.
        params: the parameters.
        chunks: leaves with some rows, and the row number of the first of them.

    Returns:
        Those with an index beyond the end, and those with a negative one; None without any.

    Raises:
        Exception: of any kind, if an operation cannot be evaluated by itself, such as a primitive
            of the user's, or one that JAX binds in a way of its own.
    """
    programs: dict[Any, _Program] = {}
    found: list[list[tuple[UnknownIndices, int]]] = [[], []]
    for rows, first in chunks:
        shapes = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in rows)
        program = programs.get(shapes)
        if program is None:
            program = programs[shapes] = _Program.of(function, params, rows)
        for kind, unknown in enumerate(program.unknown(params, rows)):
            if unknown is not None:
                found[kind].append((unknown, first))
    beyond, negative = (_joined(each) for each in found)
    return beyond, negative


def _joined(found: Sequence[tuple[UnknownIndices, int]]) -> UnknownIndices | None:
    if not found:
        return None
    rows = np.unique(np.concatenate([one.rows + first for one, first in found]))
    return UnknownIndices(rows, found[0][0].leaves, found[0][0].size)


@dataclass(frozen=True, eq=False)
class _Program:
    """The interpreted program for rows of one shape.

    Attributes:
        checks: the indices that it looks at; there may be none.
        detect: the kinds of the indices of each check.
        evaluate: the values, with other numbers in place of these entries, by their kind.
    """

    checks: list["_Check"]
    detect: Callable
    evaluate: Callable

    @classmethod
    def of(cls, function: Callable, params: Any, rows: tuple) -> "_Program":
        closed = jax.make_jaxpr(function)(params, rows)
        num_params = len(jax.tree.leaves(params))

        def interpret(params: Any, rows: tuple, replaced: Any) -> tuple[list[_Check], list]:
            leaves = [
                _Value(leaf, leaf, frozenset(), False) for leaf in jax.tree.leaves(params)
            ] + [_Value(leaf, leaf, frozenset([i]), True) for i, leaf in enumerate(rows)]
            assert len(leaves) == num_params + len(rows) == len(closed.jaxpr.invars)
            interpreter = _Interpreter(replaced)
            values = interpreter.run(closed.jaxpr, closed.consts, leaves)
            return interpreter.checks, [value.plain for value in values]

        checks: list[_Check] = []

        def detect(params: Any, rows: tuple) -> list[Array]:
            checks[:] = interpret(params, rows, _NONE)[0]
            return [check.kinds for check in checks]

        def evaluate(params: Any, rows: tuple, replaced: Any) -> list:
            return interpret(params, rows, replaced)[1]

        if _has_gather(closed.jaxpr):
            jax.eval_shape(detect, params, rows)
        return cls(checks, quick_jit(detect), quick_jit(evaluate))

    def unknown(
        self, params: Any, rows: tuple
    ) -> tuple[UnknownIndices | None, UnknownIndices | None]:
        """The rows with an index beyond the end, and with a negative one, counted from 0."""
        if not self.checks:
            return None, None
        # On the host: a program that reduces takes several times as long to compile.
        kinds = [np.asarray(each) for each in self.detect(params, rows)]
        beyond, negative = (
            self._of_kind(params, rows, kinds, kind) for kind in (_BEYOND, _FROM_END)
        )
        return beyond, negative

    def _of_kind(
        self, params: Any, rows: tuple, kinds: list[np.ndarray], kind: int
    ) -> UnknownIndices | None:
        has_kind = [bool((each == kind).any()) for each in kinds]
        if not any(has_kind):
            return None
        before, after = (self.evaluate(params, rows, chosen) for chosen in (_NONE, kind))
        changed = np.zeros(len(rows[0]), bool)
        for one, other in zip(before, after, strict=True):
            # The same program gives the same bits, unless an entry was replaced.
            is_same = np.asarray((one == other) | (jnp.isnan(one) & jnp.isnan(other)))
            changed |= ~is_same.reshape(len(changed), -1).all(axis=1)
        # A row that others change, by a loop that goes on until all rows are done, is innocent.
        where = [_rows_of(each == kind, len(changed)) for each in kinds]
        changed &= functools.reduce(np.logical_or, where)
        if not changed.any():
            return None
        check = self.checks[next(i for i, own in enumerate(where) if (own & changed).any())]
        return UnknownIndices(np.flatnonzero(changed), tuple(sorted(check.leaves)), check.size)


def _rows_of(is_one: np.ndarray, num_rows: int) -> np.ndarray:
    """In which rows an array has an entry; in all of them if it is not one of rows."""
    if is_one.shape[:1] != (num_rows,):
        return np.full(num_rows, is_one.any())
    return np.asarray(is_one.reshape(num_rows, -1).any(axis=1))


@dataclass(frozen=True, eq=False)
class _Check:
    """An index that depends on rows.

    Attributes:
        kinds: of each index, `_BEYOND` the end, negative and so counted `_FROM_END`, or 0.
        leaves: the positions of the leaves that it depends on.
        size: the number of entries.
    """

    kinds: Any
    leaves: frozenset[int]
    size: int


@dataclass(frozen=True, eq=False)
class _Value:
    """A value of the program.

    Attributes:
        plain: the value.
        marked: the same, but for negative indices that JAX counts from the end.
        leaves: the positions of the leaves of rows that it depends on.
        is_fixed: whether it depends on no parameter.
        made: the operation and its operands, if JAX counts indices from the end by it.
    """

    plain: Any
    marked: Any
    leaves: frozenset[int]
    is_fixed: bool
    made: tuple = ()


@dataclass(eq=False)
class _Interpreter:
    """Evaluates a program and looks at its indices.

    Attributes:
        replaced: the kind of index at which the entry that is read is replaced by another number.
        checks: the indices that were found.
    """

    replaced: Any
    checks: list[_Check] = field(default_factory=list)

    def run(self, jaxpr: core.Jaxpr, consts: Sequence, given: Sequence[_Value]) -> list[_Value]:
        """The values that a program returns for the values that it is given."""
        known: dict[Any, _Value] = {}
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            known[var] = _Value(const, const, frozenset(), True)
        known.update(zip(jaxpr.invars, given, strict=True))

        def read(var: Any) -> _Value:
            if isinstance(var, core.Literal):
                return _Value(var.val, var.val, frozenset(), True)
            return known[var]

        for eqn in jaxpr.eqns:
            found = self._evaluate(eqn, [read(var) for var in eqn.invars])
            known.update(zip(eqn.outvars, found, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _evaluate(self, eqn: Any, given: list[_Value]) -> list[_Value]:
        name = eqn.primitive.name
        if name in _INLINED and (inner := _inner(eqn)) is not None:
            return self.run(inner.jaxpr, inner.consts, given)
        if name == "scan" and _has_gather(eqn.params["jaxpr"].jaxpr):
            return self._scan(eqn.params, given)
        plain = _bind(eqn, [value.plain for value in given])
        leaves = frozenset().union(*(value.leaves for value in given))
        is_fixed = all(value.is_fixed for value in given)
        if name == "gather":
            return [self._gather(eqn.params, given, plain[0], leaves, is_fixed)]
        if name == "convert_element_type" and is_fixed and leaves:
            plain = [_last_for_nan(given[0].plain, plain[0])]
        marked, made = plain, ()
        if name in _PLUMBING and any(value.marked is not value.plain for value in given):
            marked = _bind(eqn, [value.marked for value in given])
        elif name in ("lt", "add"):
            made = (name, *given)
        elif name == "select_n" and _counts_from_end(given):
            least = jnp.iinfo(plain[0].dtype).min
            marked = [jnp.where(given[0].plain, least, given[1].plain)]
        pairs = zip(plain, marked, strict=True)
        return [_Value(one, other, leaves, is_fixed, made) for one, other in pairs]

    def _gather(
        self, params: dict, given: list[_Value], found: Any, leaves: frozenset[int], is_fixed: bool
    ) -> _Value:
        operand, index = given[:2]
        numbers, sizes = params["dimension_numbers"], np.array(params["slice_sizes"], np.int64)
        axes = np.array(numbers.start_index_map, np.int64)
        if index.is_fixed and index.leaves and axes.size:
            last = np.array(operand.plain.shape, np.int64)[axes] - sizes[axes]
            is_negative = jnp.zeros(index.plain.shape, bool)
            if index.marked is not index.plain:
                is_negative = index.marked != index.plain
            is_out = (index.plain < 0) | (index.plain > last.astype(index.plain.dtype))
            is_beyond = is_out & _is_unchecked(params)
            of_axes = jnp.where(is_beyond, _BEYOND, jnp.where(is_negative & ~is_out, _FROM_END, 0))
            by_axis = [of_axes[..., i] for i in range(axes.size)]
            for axis, own in zip(axes, by_axis, strict=True):
                self.checks.append(_Check(own, index.leaves, int(operand.plain.shape[axis])))
            kinds = functools.reduce(jnp.maximum, by_axis)
            rows = [axis for axis in range(found.ndim) if axis not in numbers.offset_dims]
            is_replaced = jax.lax.broadcast_in_dim(kinds == self.replaced, found.shape, rows)
            found = jnp.where(is_replaced, _other_than(found), found)
        return _Value(found, found, leaves, is_fixed)

    def _scan(self, params: dict, given: list[_Value]) -> list[_Value]:
        """A loop, whose body is interpreted; what it carries may depend on all that it is given."""
        num_consts, num_carry = params["num_consts"], params["num_carry"]
        consts, start = given[:num_consts], given[num_consts : num_consts + num_carry]
        xs, inner, found = given[num_consts + num_carry :], params["jaxpr"], []
        leaves = frozenset().union(*(value.leaves for value in given))

        def body(carry: list, each: list) -> tuple[list, tuple[list, list]]:
            own = [_Value(value, value, leaves, False) for value in carry]
            own += [
                _Value(value, value, x.leaves, x.is_fixed)
                for value, x in zip(each, xs, strict=True)
            ]
            interpreter = _Interpreter(self.replaced)
            values = interpreter.run(inner.jaxpr, inner.consts, [*consts, *own])
            found[:] = interpreter.checks
            plain = [value.plain for value in values]
            kinds = [check.kinds for check in interpreter.checks]
            return plain[:num_carry], (plain[num_carry:], kinds)

        first, each = ([value.plain for value in values] for values in (start, xs))
        settings = {name: params[name] for name in ("length", "reverse")}
        carry, (ys, kinds) = jax.lax.scan(body, first, each, **settings)
        for check, own in zip(found, kinds, strict=True):
            self.checks.append(_Check(own, check.leaves, check.size))
        return [_Value(value, value, leaves, False) for value in (*carry, *ys)]


def _bind(eqn: Any, values: list) -> list:
    given = eqn.primitive.get_bind_params(eqn.params)
    functions, params = given if isinstance(given, tuple) else ((), given)  # by JAX's version
    found = eqn.primitive.bind(*functions, *values, **params)
    return list(found) if eqn.primitive.multiple_results else [found]


def _inner(eqn: Any) -> Any:
    """The program of a call; None if there is not just one."""
    found = [eqn.params[name] for name in _CALLS if name in eqn.params]
    if len(found) != 1:
        return None
    return found[0] if hasattr(found[0], "consts") else core.ClosedJaxpr(found[0], ())


def _has_gather(jaxpr: core.Jaxpr) -> bool:
    """Return whether a program, or one within it, reads entries by index."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "gather":
            return True
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns") and _has_gather(inner):
                return True
    return False


def _counts_from_end(given: list[_Value]) -> bool:
    """Return whether a selection is that of i, or of i + n where i < 0."""
    if len(given) != 3:
        return False
    is_negative, index, from_end = given
    if is_negative.made[:1] != ("lt",) or from_end.made[:1] != ("add",):
        return False
    zero = is_negative.made[2].plain
    is_zero = not isinstance(zero, jax.core.Tracer) and np.ndim(zero) == 0 and zero == 0
    return is_zero and is_negative.made[1] is index and from_end.made[1] is index


def _is_unchecked(params: dict) -> bool:
    """Return whether an index beyond the end was not provided for.

    JAX writes ``jax.vmap(lambda i: array[i])`` as slices of one entry, which it clips, and
    ``array.at[i].get(mode="clip")`` in a vmap too. These cannot be told apart. Longer slices are of
    `jax.lax.dynamic_slice`, which is known to clip.
    """
    if params["mode"] == GatherScatterMode.PROMISE_IN_BOUNDS:
        return True
    numbers = params["dimension_numbers"]
    sizes = [params["slice_sizes"][axis] for axis in numbers.start_index_map]
    is_entry = not numbers.collapsed_slice_dims and 1 in sizes
    return params["mode"] == GatherScatterMode.CLIP and is_entry


def _last_for_nan(values: Any, converted: Array) -> Array:
    """Values as another type, with the largest whole number for NaN."""
    is_real = jnp.issubdtype(jnp.result_type(values), jnp.inexact)
    if not is_real or not jnp.issubdtype(converted.dtype, jnp.integer):
        return converted
    return jnp.where(jnp.isnan(values), jnp.iinfo(converted.dtype).max, converted)


def _other_than(values: Array) -> Array:
    """Other numbers than these, of their sign if they are positive."""
    if values.dtype == bool:
        return ~values
    return values + (1 if jnp.issubdtype(values.dtype, jnp.integer) else 1.37 + jnp.abs(values))
