"""The coreset problem: match a target vector by few atoms with non-negative weights.

Row ``i`` of ``atoms`` is ĝ_i, datum i's centred log-likelihood at S draws over √S; the papers' Φ is
its transpose. The target y is the sum of *all* the data's atoms. Solvers look for

    min ‖y − Φw‖²   subject to   w ≥ 0,  at most k of its entries not zero.

Solvers see the atoms only through the few operations of `CoresetProblem`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxcoreset.solvers.arguments import as_float, as_integer, check_that, is_concrete
from jaxcoreset.solvers.numerics import HIGHEST, divide, product


def static_bound(ks: Any, max_k: int | None, n: int) -> int:
    """A static upper bound of one or more sizes: `max_k`, else the largest size, n if it is traced.

    Raises:
        TypeError: if one size or `max_k` is not an integer.
        ValueError: if a size is not between 1 and n, or `max_k` not between the sizes and n.
    """
    least, largest = 1, n
    if is_concrete(ks):
        ks = as_integer("k", ks) if np.ndim(ks) == 0 else ks
        # By NumPy, since in a caller's jit JAX's operations on known values are traced too.
        sizes = np.asarray(ks)
        least = largest = int(sizes.max())
        for k in (int(sizes.min()), largest):
            check_that(1 <= k <= n, "k", k, f"1 ≤ k ≤ n = {n}")
    return largest if max_k is None else as_integer("max_k", max_k, least, n)


def check_single(problem: Any) -> None:
    """Raise an error if this is not one `CoresetProblem`."""
    if not isinstance(problem, CoresetProblem):
        raise TypeError(
            f"problem is a {type(problem).__name__}; expected a CoresetProblem, made by "
            "CoresetProblem(atoms) or embed(...)."
        )
    if problem.atoms.ndim != 2:
        raise ValueError(
            f"problem.atoms has shape {problem.atoms.shape}; expected (n, S). For a batch of "
            "problems use jax.vmap, for instance jax.vmap(lambda p: solve(p, k))(problems)."
        )


@jax.jit
def _largest_on_device(atoms: Float[Array, "n s"]) -> Float[Array, " n"]:
    return jnp.max(jnp.abs(atoms), axis=1)


def _largest(atoms: Float[Array, "n s"]) -> Float[np.ndarray, " n"]:
    """The largest absolute entry of each atom."""
    if {device.platform for device in atoms.devices()} != {"cpu"}:
        return np.asarray(_largest_on_device(atoms))
    # NumPy shares the memory, and XLA compiles for longer than it takes.
    values = np.asarray(atoms)
    return np.maximum(values.max(axis=1), -values.min(axis=1))


class CoresetProblem(eqx.Module):
    """Atoms, and the target that a weighted sum of few of them should match.

    A batch of problems is a `CoresetProblem` whose arrays have leading axes, made by
    ``jax.vmap(CoresetProblem)(atoms)`` and solved under ``jax.vmap``.

    Args:
        atoms: array of shape (n, S), one row per datum. Integers become floats, and floats of 16
            bits become float32.
        target: array of shape (S,); the sum of the atoms if left out. Pass it if the atoms are only
            candidates, a subset of the data.

    Raises:
        ValueError: if a shape does not fit, an entry is not finite, every atom is zero, or squares
            would over- or underflow. Values are not checked while tracing.
        TypeError: if `atoms` is a problem already.
    """

    atoms: Float[Array, "n s"]
    target: Float[Array, " s"]

    def __init__(self, atoms: ArrayLike, target: ArrayLike | None = None):
        if isinstance(atoms, CoresetProblem):
            raise TypeError(
                "atoms is a CoresetProblem; expected an array of shape (n, S). `embed` returns a "
                "problem, which can be solved as it is."
            )
        atoms = as_float(atoms)
        if atoms.dtype.itemsize < 4:
            atoms = atoms.astype(jnp.float32)
        if atoms.ndim != 2 or 0 in atoms.shape:
            raise ValueError(
                f"atoms has shape {atoms.shape}; expected (n, S), one row per datum and at least "
                "one of each. For a batch of problems use jax.vmap(CoresetProblem)(atoms)."
            )
        self.atoms = atoms
        if target is None:
            target = jnp.sum(atoms, axis=0)
        self.target = jnp.asarray(target, atoms.dtype)
        if self.target.shape != atoms.shape[1:]:
            raise ValueError(
                f"target has shape {self.target.shape}; expected {atoms.shape[1:]}, one entry "
                "per column of atoms."
            )
        if is_concrete(atoms, self.target):
            with jax.ensure_compile_time_eval():  # values are known even inside a caller's jit
                _check_values(atoms, self.target)

    @property
    def num_data(self) -> int:
        """The number of atoms, n."""
        return self.atoms.shape[0]

    @property
    def num_draws(self) -> int:
        """The length of an atom, S."""
        return self.atoms.shape[1]

    def correlate(self, vector: Float[Array, " s"]) -> Float[Array, " n"]:
        """Inner product of every atom with a vector: one pass over the atoms."""
        return product(self.atoms, vector)

    def correlate_at(
        self, indices: Int[Array, " m"], vector: Float[Array, " s"]
    ) -> Float[Array, " m"]:
        """Inner product of the atoms at `indices` with a vector."""
        if self.pass_is_cheaper(indices.shape[0]):
            return self.correlate(vector)[indices]
        return product(self.atoms[indices], vector)

    def combine(self, indices: Int[Array, " m"], weights: Float[Array, " m"]) -> Float[Array, " s"]:
        """The weighted sum of the atoms at `indices`, which may repeat."""
        if self.pass_is_cheaper(indices.shape[0]):
            dense = jnp.zeros(self.num_data, weights.dtype).at[indices].add(weights)
            return product(dense, self.atoms)
        return product(weights, self.atoms[indices])

    def gather(self, indices: Int[Array, " m"]) -> Float[Array, "m s"]:
        """The atoms at `indices`."""
        return self.atoms[indices]

    def squared_norms(self) -> Float[Array, " n"]:
        """The squared norm of every atom: one pass over the atoms."""
        return jnp.einsum("ns,ns->n", self.atoms, self.atoms, precision=HIGHEST)

    def scales(self) -> Float[Array, " n"]:
        """The reciprocal norm of every atom, 0 for one of norm zero: one pass over the atoms."""
        return divide(1, jnp.sqrt(self.squared_norms()))

    def pass_is_cheaper(self, num_rows: int) -> bool:
        """Return whether a pass over all atoms costs less than gathering `num_rows` of them.

        Gathered rows are copied before they are multiplied, and under ``vmap`` each batch element
        copies its own, while a pass over all atoms becomes one matrix product for the whole batch.
        """
        return 8 * num_rows >= self.num_data


def _check_values(atoms: Array, target: Array) -> None:
    by_row = _largest(atoms)
    largest, in_target = float(by_row.max()), float(np.abs(np.asarray(target)).max())
    if not np.isfinite(largest):
        rows = np.flatnonzero(~np.isfinite(by_row))
        raise ValueError(
            f"atoms is not finite in {rows.size} of {atoms.shape[0]} rows, the first at "
            f"{rows[:5].tolist()}. A log-likelihood that is infinite or NaN at one draw makes "
            "its whole atom unusable: leave those rows out or change the draws."
        )
    if largest == 0:
        raise ValueError(
            "every atom is zero, so the log-likelihood does not vary over the draws. Check that "
            "the draws differ and that the likelihood depends on the parameters."
        )
    if not np.isfinite(in_target):
        raise ValueError("target has entries that are not finite; expected the sum of all atoms.")
    info = jnp.finfo(atoms.dtype)
    low, high = 1e3 * float(info.tiny) ** 0.5, 1e-3 * float(info.max) ** 0.5
    most = max(largest, in_target)
    if largest < low or most > high:
        what = f"the atoms' largest entry is {largest:.1g}" if largest < low else ""
        what = what or f"the largest entry of atoms and target is {most:.1g}"
        raise ValueError(
            f"{what}, whose square {atoms.dtype} cannot hold; expected a value from {low:.0e} to "
            f"{high:.0e}. Multiply atoms and target by the same number: the weights do not change."
        )
