"""The methods that the figures compare, the papers' and ours, and how they are run and timed.

A method's trials and values of k are one compiled call: `sweep` under ``jax.vmap`` over the
problems. Where lanes end at very different times, so that most would wait for one, that call takes
them one after the other; see `Method.lanes`.
"""

import functools
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc

T = TypeVar("T", jc.CoresetProblem, jc.Solution)


@dataclass(frozen=True)
class Method:
    """A way to choose rows and weights.

    Attributes:
        name: as in the figures.
        solver: None for the default.
        lanes: what is solved side by side: "all", or the k of one trial ("k"), or nothing ("one").
    """

    name: str
    solver: jc.Solver | None
    lanes: Literal["all", "k", "one"] = "all"

    @property
    def is_slow(self) -> bool:
        """Whether fewer trials may be asked for."""
        return self.lanes == "one"


UNIFORM = Method("Uniform", jc.UniformSampling(replace=True))
GIGA = Method("GIGA", jc.GIGA())
FRANK_WOLFE = Method("Frank–Wolfe", jc.FrankWolfe())
AIHT = Method("A-IHT", jc.AIHT())
AIHT2 = Method("A-IHT II", jc.AIHT2())
# The printed estimator, two batches of a fifth of the rows, in Algorithm 2's iterations.
BATCH_AIHT = Method(
    "A-IHT batch grad.",
    jc.StochasticAIHT(base=jc.AIHT(), estimator="double", batch_size=0.2),
    lanes="one",
)
OWN_BATCH = Method(
    "StochasticAIHT",
    jc.StochasticAIHT(base=jc.AIHT2(), batch_size=0.2, normalise=True),
    lanes="one",
)
PURSUIT = Method("MatchingPursuit", jc.MatchingPursuit())
SUBSPACE = Method("SubspacePursuit", jc.SubspacePursuit(), lanes="one")
RECOMBINATION = Method("Recombination", jc.Recombination(), lanes="one")
DEFAULT = Method("default (ExchangePursuit)", None, lanes="k")
SPARSE_VI = "SparseVI"

PAPER = (UNIFORM, GIGA, AIHT, AIHT2)
OURS = (PURSUIT, SUBSPACE, RECOMBINATION, DEFAULT)


def solve_all(
    problems: jc.CoresetProblem, ks: Sequence[int], method: Method, seed: int = 0
) -> tuple[jc.Solution, float]:
    """A batch of problems for all k in one compiled call.

    Returns:
        Solutions with the leading axes (trials, number of k), and the seconds for each trial,
        compilation apart.
    """
    num_trials = problems.target.shape[0]
    keys = jax.random.split(jax.random.key(seed), num_trials)
    arrays = problems, jnp.asarray(ks), keys
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arrays)
    leaves, structure = jax.tree.flatten(shapes)
    compiled = _compiled(tuple(leaves), structure, method.solver, method.lanes, max(ks))
    start = time.perf_counter()
    solutions = jax.block_until_ready(compiled(*arrays))
    return solutions, (time.perf_counter() - start) / num_trials


@functools.cache
def _compiled(
    leaves: tuple, structure: Any, solver: jc.Solver | None, lanes: str, max_k: int
) -> Callable:
    arrays = jax.tree.unflatten(structure, leaves)
    return _solve_all.lower(*arrays, solver, lanes, max_k).compile()


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _solve_all(
    problems: jc.CoresetProblem,
    ks: jax.Array,
    keys: jax.Array,
    solver: jc.Solver | None,
    lanes: str,
    max_k: int,
) -> jc.Solution:
    def one(lane: tuple[jc.CoresetProblem, jax.Array]) -> jc.Solution:
        problem, key = lane
        if lanes == "one":
            return jax.lax.map(lambda k: jc.solve(problem, k, solver, key, max_k=max_k), ks)
        return jc.sweep(problem, ks, solver, key, max_k=max_k)

    lane = problems, keys
    return jax.vmap(one)(lane) if lanes == "all" else jax.lax.map(one, lane)


def seconds_per_solve(
    problem: jc.CoresetProblem, ks: Sequence[int], method: Method, repeats: int = 3
) -> list[float]:
    """Median warm seconds of one solve for each k from nothing, as the papers time theirs."""
    key = jax.random.key(0)
    result = []
    for k in ks:
        times = []
        for _ in range(repeats + 1):  # the first one compiles
            start = time.perf_counter()
            jax.block_until_ready(jc.solve(problem, k, method.solver, key))
            times.append(time.perf_counter() - start)
        result.append(statistics.median(times[1:]))
    return result


def dense(solutions: jc.Solution, n: int) -> np.ndarray:
    """Weights of every row: shape (trials, number of k, n)."""
    indices, weights = np.asarray(solutions.indices), np.asarray(solutions.weights, np.float64)
    result = np.zeros((*indices.shape[:-1], n))
    # Slots that are not used hold row 0 and weight 0.
    lead = np.ogrid[tuple(slice(0, size) for size in indices.shape[:-1])]
    np.add.at(result, (*(axis[..., None] for axis in lead), indices), weights)
    return result


def take(batch: T, which: int | slice) -> T:
    """One of a batch of problems or solutions, or a part of the batch."""
    return jax.tree.map(operator.itemgetter(which), batch)
