"""Other people's programs on the same problems, where they are installed.

``bayesiancoresets`` is Campbell's package (github.com/trevorcampbell/bayesian-coresets),
``accelerated_iht`` the file of that name of Zhang et al. (2021)
(github.com/jackyzyb/bayesian-coresets-optimization, folder IHT_toolbox; put it on PYTHONPATH), and
``coreax`` the kernel coresets from PyPI, which see the data and not the posterior. None of them is
needed; one that cannot be imported is skipped with a message.
"""

import contextlib
import importlib
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import jaxcoreset as jc
from jaxcoreset.solvers.kernel import median_bandwidth

# Weights of every row for each k, (m, n), and the seconds that each took from nothing.
Found = tuple[np.ndarray, list[float]]


@dataclass(frozen=True)
class Peer:
    """A program: name, module to import, how it is run, its least k, and how many trials."""

    name: str
    module: str
    run: Callable[[jc.CoresetProblem, np.ndarray, Sequence[int]], Found]
    min_k: int = 1
    max_trials: int = 3


def timed(ks: Sequence[int], build: Callable[[int], np.ndarray]) -> Found:
    """Build for every k from nothing."""
    weights, seconds = [], []
    for k in ks:
        start = time.perf_counter()
        weights.append(build(k))
        seconds.append(time.perf_counter() - start)
    return np.stack(weights), seconds


def _giga(problem: jc.CoresetProblem, rows: np.ndarray, ks: Sequence[int]) -> Found:
    solver: Any = importlib.import_module("bayesiancoresets.snnls").GIGA
    atoms, target = np.asarray(problem.atoms, float).T, np.asarray(problem.target, float)

    def build(k: int) -> np.ndarray:
        one = solver(atoms, target)
        one.build(k)
        return np.asarray(one.weights(), float)

    return timed(ks, build)


def _aiht2(problem: jc.CoresetProblem, rows: np.ndarray, ks: Sequence[int]) -> Found:
    solver: Any = importlib.import_module("accelerated_iht").a_iht_ii
    atoms, target = np.asarray(problem.atoms, float).T, np.asarray(problem.target, float)

    def build(k: int) -> np.ndarray:
        with contextlib.redirect_stdout(io.StringIO()):
            weights, _ = solver(target[:, None], atoms, k, verbose=False)
        return np.asarray(weights, float)[:, 0]

    return timed(ks, build)


def _herding(problem: jc.CoresetProblem, rows: np.ndarray, ks: Sequence[int]) -> Found:
    coreax: Any = importlib.import_module("coreax")
    kernels: Any = importlib.import_module("coreax.kernels")
    solvers: Any = importlib.import_module("coreax.solvers")
    spread = rows.std(axis=0)
    points = ((rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1)).astype(np.float32)
    bandwidth = float(median_bandwidth(points))
    kernel = kernels.SquaredExponentialKernel(length_scale=bandwidth)

    def build(k: int) -> np.ndarray:
        solver = solvers.KernelHerding(k, kernel=kernel, unique=True)
        coreset, _ = solver.reduce(coreax.Data(points))
        weights = np.zeros(len(points))
        chosen = np.ravel(np.asarray(coreset.unweighted_indices))
        weights[chosen] = len(points) / len(chosen)
        return weights

    return timed(ks, build)


PEERS = (
    Peer("bayesiancoresets GIGA", "bayesiancoresets.snnls", _giga),
    Peer("authors' A-IHT II", "accelerated_iht", _aiht2, min_k=2),
    Peer("coreax herding", "coreax", _herding, max_trials=1),
)


def available() -> list[Peer]:
    """Those that can be imported; a message for each of the others."""
    found = []
    for peer in PEERS:
        try:
            importlib.import_module(peer.module)
        except ImportError as error:
            print(f"  {peer.name} is skipped: {error}")
        else:
            found.append(peer)
    return found
