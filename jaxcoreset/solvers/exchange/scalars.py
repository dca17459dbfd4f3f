"""Arithmetic with scalars that a CPU does in one kernel.

XLA makes a kernel of every scalar that several others need, and of each that a loop carries from
one turn to the next. To start a kernel takes longer than all that is done with these scalars, and
to compile it a hundredth of a second. A loop over nothing but scalars is a single kernel, whatever
they are; so what is to be one kernel is a loop that runs once, and scalars that go from turn to
turn are in one array of each kind.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxcoreset.solvers.nnls import any_lane


class Scalars(eqx.Module):
    """A record of scalars, in one array for its floats and one for its whole numbers and flags.

    Attributes:
        floats, ints: its fields, in their order.
        kind: its class, a dataclass.
        dtypes: of its fields, by name.
    """

    floats: Float[Array, " f"]
    ints: Int[Array, " i"]
    kind: type = eqx.field(static=True)
    dtypes: tuple[tuple[str, Any], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, record: Any) -> "Scalars":
        """From a record that has a field of a floating type and one of another at least."""
        fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
        dtypes = tuple((name, x.dtype) for name, x in fields.items())
        floats = [fields[name] for name in _names(dtypes, True)]
        ints = [fields[name].astype(jnp.int32) for name in _names(dtypes, False)]
        return cls(_packed(floats), _packed(ints), type(record), dtypes)

    def __getitem__(self, name: str) -> Array:
        """A field."""
        floats = _names(self.dtypes, True)
        if name in floats:
            return jax.lax.index_in_dim(self.floats, floats.index(name), keepdims=False)
        place = _names(self.dtypes, False).index(name)
        return jax.lax.index_in_dim(self.ints, place, keepdims=False).astype(
            dict(self.dtypes)[name]
        )

    def get(self) -> Any:
        """The record."""
        return self.kind(**{name: self[name] for name, _ in self.dtypes})


@functools.cache
def _names(dtypes: tuple[tuple[str, Any], ...], floating: bool) -> tuple[str, ...]:
    """The fields that are floats, or those that are not."""
    return tuple(name for name, d in dtypes if jnp.issubdtype(d, jnp.floating) == floating)


def _packed(values: list[Array]) -> Array:
    return jax.lax.concatenate([jax.lax.broadcast(x, (1,)) for x in values], 0)


def in_one_kernel(
    function: Callable[..., Any], scalars: Scalars, *args: PyTree, **others: PyTree
) -> Scalars:
    """What a function makes of a record of scalars, on a CPU in one kernel.

    Args:
        function: of the record and what else is given, to a record of the same kind.
        scalars: the record.
        *args: more scalars.
        **others: more scalars.
    """

    def changed(scalars: Scalars) -> Scalars:
        return Scalars.of(function(scalars.get(), *args, **others))

    # On a GPU a loop waits for the host, and kernels have more than one result.
    if jax.default_backend() != "cpu":
        return changed(scalars)
    # True; but a compiler that knew it would leave the loop out.
    once = any_lane(scalars.ints[0] > jnp.iinfo(jnp.int32).min)
    _, scalars = jax.lax.while_loop(
        lambda turn: turn[0],
        lambda turn: (jnp.zeros((), bool), changed(turn[1])),
        (once, scalars),
    )
    return scalars
