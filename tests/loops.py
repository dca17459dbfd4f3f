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
    jaxpr = jax.make_jaxpr(fn)(*args)
    return [str(op) for loop in _loops(jaxpr.jaxpr) for op in _rounding(loop)]


def _loops(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "while":
            yield eqn.params["cond_jaxpr"].jaxpr
        for inner in jaxprs_in_params(eqn.params):
            yield from _loops(inner)


def _rounding(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        inner = list(jaxprs_in_params(eqn.params))
        for one in inner:
            yield from _rounding(one)
        floats = [jnp.issubdtype(out.aval.dtype, jnp.floating) for out in eqn.outvars]
        if any(floats) and not inner and eqn.primitive.name not in _EXACT.split():
            yield eqn
