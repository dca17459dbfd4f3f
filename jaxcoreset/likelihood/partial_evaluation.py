"""A function of a group's effect, prepared for many calls: what does not change is computed once.

A group's log-density is evaluated at some thirty values of its effect for each draw of the shared
parameters: by Newton's method, and at the nodes of a quadrature. `prepare` traces the function
once, evaluates what does not depend on the effect, such as a product of a design matrix with
coefficients, and replays the rest at each call.

The function is that of a single group, in which an effect is indexed by labels that are all zero.
XLA compiles such a *gather* to a slow loop. One from an axis of length one is a broadcast, so it is
replaced by that. XLA's `log1p` is replaced by one that a CPU evaluates faster.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcoreset.likelihood.densities import log1p

# Equations that hold a program of their own, which is replayed as well.
_CALLS = ("pjit", "jit", "closed_call")


def prepare(
    function: Callable[[Array], Array], like: Float[Array, " d"]
) -> Callable[[Array], Array]:
    """The same function, whose calls repeat only what depends on its argument.

    Args:
        function: a function of an array that returns one array.
        like: an argument, of which only the shape and type matter.
    """
    program = jax.make_jaxpr(function)(like)
    known: dict[Any, Any] = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    (argument,), (result,) = program.jaxpr.invars, program.jaxpr.outvars
    changing, repeated = {argument}, []
    for equation in program.jaxpr.eqns:
        if any(not _is_literal(atom) and atom in changing for atom in equation.invars):
            changing.update(equation.outvars)
            repeated.append(equation)
        else:
            _evaluate(equation, known)

    def prepared(value: Array) -> Array:
        values = {**known, argument: value}
        for equation in repeated:
            _evaluate(equation, values)
        return _read(values, result)

    return prepared


def _evaluate(equation: Any, values: dict[Any, Any]) -> None:
    """Add what an equation computes to the values."""
    inputs = [_read(values, atom) for atom in equation.invars]
    name, params = equation.primitive.name, equation.params
    if name == "gather" and _takes_everything(equation):
        outputs = [_broadcast(inputs[0], equation)]
    elif name == "log1p" and jnp.issubdtype(jnp.result_type(*inputs), jnp.floating):
        outputs = [log1p(*inputs)]
    elif name in _CALLS and "jaxpr" in params:
        outputs = _call(params["jaxpr"], inputs)
    else:
        # Earlier versions of JAX return functions, as of custom derivatives, and parameters.
        bound = equation.primitive.get_bind_params(params)
        functions, bound = bound if isinstance(bound, tuple) else ([], bound)
        outputs = equation.primitive.bind(*functions, *inputs, **bound)
        outputs = outputs if equation.primitive.multiple_results else [outputs]
    values.update(zip(equation.outvars, outputs, strict=True))


def _call(program: Any, inputs: list) -> list:
    values = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    values.update(zip(program.jaxpr.invars, inputs, strict=True))
    for equation in program.jaxpr.eqns:
        _evaluate(equation, values)
    return [_read(values, atom) for atom in program.jaxpr.outvars]


def _takes_everything(equation: Any) -> bool:
    """True if every index of a gather can only be zero, and its slices are the whole operand."""
    numbers, shape = equation.params["dimension_numbers"], equation.invars[0].aval.shape
    is_whole = tuple(equation.params["slice_sizes"]) == shape
    indexed = (shape[axis] == 1 for axis in numbers.start_index_map)
    return is_whole and not numbers.operand_batching_dims and all(indexed)


def _broadcast(operand: Array, equation: Any) -> Array:
    numbers = equation.params["dimension_numbers"]
    squeezed = jnp.squeeze(operand, numbers.collapsed_slice_dims)
    shape = equation.outvars[0].aval.shape
    return jax.lax.broadcast_in_dim(squeezed, shape, numbers.offset_dims)


def _read(values: dict[Any, Any], atom: Any) -> Any:
    return atom.val if _is_literal(atom) else values[atom]


def _is_literal(atom: Any) -> bool:
    return hasattr(atom, "val")
