"""How programs are compiled for a CPU: quickly, or to run fast.

XLA has two ways of making a program's kernels for a CPU. Compared with the newer one, which is the
default, the older one takes half the time to compile, and its kernels take up to a third longer.
Most programs of a build run for milliseconds only.
"""

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError
from jaxtyping import Array, Int, PyTree

# Programs by their code, and how many of them are kept.
_SHARED: OrderedDict[Hashable, Callable] = OrderedDict()
_MOST_SHARED = 32
# Whether XLA uses its newer way.
_OPTION = "xla_cpu_use_fusion_emitters"


def quick_jit(function: Callable, jit: Callable[..., Any] = jax.jit, **settings: Any) -> Any:
    """Compile a function quickly, for a program that runs briefly.

    JAX takes options of the compiler for a whole program only, so that within another program or a
    transformation this is ``jit(function)``.

    Args:
        function: the function.
        jit: ``jax.jit`` or ``equinox.filter_jit``.
        **settings: of `jit`, such as ``static_argnums``.
    """
    return _with_option(False, function, jit, settings)


def fast_jit(function: Callable, jit: Callable[..., Any] = jax.jit, **settings: Any) -> Any:
    """Compile a function to run fast, even if ``XLA_FLAGS`` asks for quick compilation.

    See `quick_jit`.
    """
    return _with_option(True, function, jit, settings)


def _with_option(value: bool, function: Callable, jit: Callable, settings: dict) -> Any:
    within = jit(function, **settings)

    @functools.cache
    def alone() -> Any:
        options = {_OPTION: value} if _knows_option() else None
        return jit(function, compiler_options=options, **settings)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (within if _is_traced((args, kwargs)) else alone())(*args, **kwargs)

    call.alone = alone  # pyright: ignore[reportAttributeAccessIssue]
    return call


def _is_traced(given: PyTree) -> bool:
    """True within a program or a transformation, whose values are not arrays yet."""
    made_here = jnp.zeros(())  # a tracer within a program, even if all that is given is constant
    return any(isinstance(leaf, jax.core.Tracer) for leaf in (made_here, *jax.tree.leaves(given)))


def shared_program(function: Callable, *args: PyTree) -> Callable:
    """Compile a function quickly, or take the program of an earlier one with the same code.

    The function is traced each time, and compared by its code in StableHLO with all constants. So
    a closure that is made anew is compiled again only if it computes something else. Functions
    that call Python do not share programs, since the code does not tell what Python does.

    Args:
        function: a function of arrays.
        *args: pytrees of arrays with the shapes and types of all calls.
    """
    lowered = jax.jit(function).lower(*args)
    code = lowered.as_text()
    # The code need not have the names in dictionaries, which the trees have.
    device = str(jax.config.jax_default_device)  # pyright: ignore[reportAttributeAccessIssue]
    digest = hashlib.sha256(code.encode()).digest()
    key = digest, device, lowered.in_tree, lowered.out_tree
    program = _SHARED.pop(key, None)
    if program is None:
        options: dict[str, Any] | None = {_OPTION: False} if _knows_option() else None
        program = lowered.compile(compiler_options=options)
    if "callback" not in code:
        _SHARED[key] = program
        while len(_SHARED) > _MOST_SHARED:
            _SHARED.popitem(last=False)
    return program


def rows_at(values: Any, positions: Int[np.ndarray, " j"]) -> Any:
    """Some rows of an array, by one program for a JAX array, where indexing takes several.

    Args:
        values: shape (m, …), of JAX or NumPy, as the rows are then.
        positions: from 0 to m − 1; they may repeat.
    """
    return _rows_at(values, positions) if isinstance(values, jax.Array) else values[positions]


def largest_size(values: Array | np.ndarray) -> float:
    """The largest absolute value; NaN if there is a NaN."""
    return float(_largest_size(values) if isinstance(values, jax.Array) else np.max(np.abs(values)))


@quick_jit
def _rows_at(values: Array, positions: Array) -> Array:
    return jnp.take(values, positions, axis=0, mode="clip")


@quick_jit
def _largest_size(values: Array) -> Array:
    return jnp.max(jnp.abs(values))


@functools.cache
def _knows_option() -> bool:
    """False for versions of XLA that do not have both ways."""
    try:
        jax.jit(lambda: 0, compiler_options={_OPTION: False}).lower().compile()
    except JaxRuntimeError:
        return False
    return True
