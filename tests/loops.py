"""What a program's loops compute to decide whether to go on."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

# Operations on floating-point numbers that do not round.
_EXACT = (
    "abs argmax argmin broadcast_in_dim convert_element_type copy gather max min neg reduce_max "
    "reduce_min reshape select_n slice squeeze stop_gradient"
)


def rounding_conditions(fn: Callable, *args: Any) -> list[str]:
    """The operations of loop conditions that round, in a function and in what it calls.

    With `vmap`, a loop's condition is computed twice: over the batch, to go on, and in the body, to
    leave alone the elements that have ended. XLA compiles the two apart. If they differ by
    rounding, the loop goes on for an element that stays as it is, forever.
    """
    found = operations(jax.make_jaxpr(fn)(*args).jaxpr, nested=True)
    loops = [eqn.params["cond_jaxpr"].jaxpr for eqn in found if eqn.primitive.name == "while"]
    return [str(op) for loop in loops for op in operations(loop) if _rounds(op)]


def operations(jaxpr: Any, nested: bool = False) -> Iterator[Any]:
    """The operations of a program and of the programs in it; `nested` ones, such as loops, too."""
    for eqn in jaxpr.eqns:
        inner = list(jaxprs_in_params(eqn.params))
        if nested or not inner:
            yield eqn
        for one in inner:
            yield from operations(one, nested)


def _rounds(eqn: Any) -> bool:
    floats = any(jnp.issubdtype(out.aval.dtype, jnp.floating) for out in eqn.outvars)
    return floats and eqn.primitive.name not in _EXACT.split()
