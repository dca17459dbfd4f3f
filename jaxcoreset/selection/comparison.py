"""Compare solvers on one problem: errors by size, also on draws that no solver saw, and times."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PRNGKeyArray

from jaxcoreset.data import utils
from jaxcoreset.data.messages import ShownAsTable, require, text_table
from jaxcoreset.data.utils import check_int
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.numerics import as_key
from jaxcoreset.solvers.problem import CoresetProblem, check_single, static_bound
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.solvers.solve import checked_sizes, checked_solver, sweep

if TYPE_CHECKING:
    import pandas as pd

# The maximum number of sizes in the text.
_MOST_COLUMNS = 6


@dataclass(frozen=True, eq=False)
class Comparison(ShownAsTable):
    """What several solvers find on one problem, and how long they take.

    ``print(comparison)`` shows a small table, and `jaxcoreset.plotting.plot_comparison` a figure.

    Attributes:
        ks: shape (m,), the sizes.
        solutions: the `sweep` of each solver by its label, with a leading axis of length m.
        held_out_error: ‖y − Φw‖/‖y‖ on the held-out problem by label, each of shape (m,); None
            without one.
        held_out_objective: ‖y − Φw‖² on it. On atoms of `embed` with the norm "l2" it estimates the
            symmetrised KL divergence in nats, below about 0.3; above, it is a lower bound.
        cold_seconds: the wall time of the first sweep over all sizes by label, with compilation.
        warm_seconds: the median wall time of further sweeps, by label.
    """

    ks: Int[np.ndarray, " m"]
    solutions: dict[str, Solution]
    held_out_error: dict[str, Float[np.ndarray, " m"]] | None
    held_out_objective: dict[str, Float[np.ndarray, " m"]] | None
    cold_seconds: dict[str, float]
    warm_seconds: dict[str, float]

    @property
    def error(self) -> dict[str, Float[np.ndarray, " m"]]:
        """The held-out error by label; without a held-out problem, the error on the problem."""
        if self.held_out_error is not None:
            return self.held_out_error
        return {label: np.asarray(found.relative_error) for label, found in self.solutions.items()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary of plain numbers and strings for each solver and size, for JSON.

        The keys are "solver", the label; "k"; "num_used", the number of rows used;
        "relative_error"; with a held-out problem "held_out_error" and "held_out_objective";
        "num_iters"; "converged"; and "cold_seconds" and "warm_seconds", of the whole sweep.
        """
        held_out = {}
        if self.held_out_error is not None and self.held_out_objective is not None:
            held_out = {
                "held_out_error": self.held_out_error,
                "held_out_objective": self.held_out_objective,
            }
        return [
            {
                "solver": label,
                "k": int(k),
                "num_used": int(found.size[i]),
                "relative_error": float(found.relative_error[i]),
                **{name: float(values[label][i]) for name, values in held_out.items()},
                "num_iters": int(found.num_iters[i]),
                "converged": bool(found.converged[i]),
                "cold_seconds": self.cold_seconds[label],
                "warm_seconds": self.warm_seconds[label],
            }
            for label, found in self.solutions.items()
            for i, k in enumerate(self.ks)
        ]

    def to_frame(self) -> "pd.DataFrame":
        """The `rows` as a data frame.

        Raises:
            ModuleNotFoundError: if pandas is not installed; the extra ``tables`` brings it.
        """
        require("pandas")
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __str__(self) -> str:
        where = "" if self.held_out_error is None else " on held-out draws"
        shown = np.unique(np.linspace(0, self.ks.size - 1, _MOST_COLUMNS).round().astype(int))
        order = np.argsort(self.ks, kind="stable")[shown]
        header = ["solver", *(f"k = {self.ks[i]:,}" for i in order), "seconds", "first run"]
        rows = [
            [
                label,
                *(f"{error[i]:.2e}" for i in order),
                f"{self.warm_seconds[label]:.2g}",
                f"{self.cold_seconds[label]:.2g}",
            ]
            for label, error in self.error.items()
        ]
        return text_table(f"Relative error{where} by size k", [header, *rows])


def compare(
    problem: CoresetProblem,
    solvers: Mapping[str, Solver | None] | Sequence[Solver | None],
    ks: ArrayLike | Sequence[int],
    *,
    held_out: CoresetProblem | None = None,
    key: PRNGKeyArray | int | None = None,
    repeats: int = 1,
    progress_bar: bool = True,
) -> Comparison:
    """Run several solvers over the same sizes on one problem.

    Each solver makes one `sweep` over all sizes per run: the first is compiled, and the further
    ones are timed without compilation.

    Args:
        problem: the problem.
        solvers: solvers by label, or a sequence of them, which are labelled by their classes. None
            stands for the default solver.
        ks: integers of shape (m,), each between 1 and n, in any order.
        held_out: the same rows under draws that no solver sees, such as
            ``embed(log_likelihood, other_draws, data)``. Its errors show how far a solution
            overfits the draws.
        key: a JAX random key or an integer seed, for solvers that draw random numbers. All get
            the same one.
        repeats: the number of further sweeps that are timed, at least 1.
        progress_bar: whether to show the progress on a terminal.

    Raises:
        TypeError: if `problem`, `held_out` or a solver is something else, or `ks` are no integers.
        ValueError: if there are no solvers, a k is out of range, `held_out` has another number of
            rows, or a solver does not fit the problem or needs a key and there is none.
    """
    # All arguments are checked before the first solver runs.
    check_single(problem)
    key = None if key is None else as_key(key)
    n = problem.num_data
    sizes = np.asarray(checked_sizes(ks))
    longest = static_bound(sizes, None, n)
    repeats = check_int("repeats", repeats, 1)
    if held_out is not None:
        check_single(held_out)
        if held_out.num_data != n:
            raise ValueError(
                f"held_out has {held_out.num_data:,} rows and problem has {n:,}; expected the same "
                "rows under other draws."
            )
    checked = {
        label: checked_solver(problem, longest, solver, key)
        for label, solver in _labelled(solvers).items()
    }
    solutions, cold, warm = {}, {}, {}
    with utils.progress_bar(len(checked), "compare", show=progress_bar, unit="solvers") as bar:
        for label, solver in checked.items():
            found = _timed(problem, sizes, solver, key, repeats)
            solutions[label], cold[label], warm[label] = found
            bar.update()
    errors, objectives = None, None
    if held_out is not None:
        measured = {label: _errors(held_out, found) for label, found in solutions.items()}
        errors = {label: error for label, (error, _) in measured.items()}
        objectives = {label: objective for label, (_, objective) in measured.items()}
    return Comparison(
        ks=sizes,
        solutions=solutions,
        held_out_error=errors,
        held_out_objective=objectives,
        cold_seconds=cold,
        warm_seconds=warm,
    )


def _labelled(solvers: Any) -> dict[str, Solver | None]:
    """The solvers by label; of several of one class, the later ones are numbered."""
    if isinstance(solvers, Mapping):
        labelled = dict(solvers)
    elif isinstance(solvers, Sequence):
        labelled = {}
        for solver in solvers:
            name = "default" if solver is None else type(solver).__name__
            same = sum(other.split(" ")[0] == name for other in labelled)
            labelled[f"{name} ({same + 1})" if same else name] = solver
    else:
        raise TypeError(
            f"solvers is a {type(solvers).__name__}; expected several solvers, such as "
            "[jc.MatchingPursuit(), jc.AIHT2()], or a dictionary of them by label."
        )
    if not labelled:
        raise ValueError("solvers is empty; expected at least one solver.")
    return labelled


def _timed(
    problem: CoresetProblem,
    ks: Int[np.ndarray, " m"],
    solver: Solver,
    key: PRNGKeyArray | None,
    repeats: int,
) -> tuple[Solution, float, float]:
    """The sweep, the seconds of its first run, and the median seconds of further ones."""

    # A new function, so that it is compiled whatever was compiled before.
    @eqx.filter_jit
    def run(problem: CoresetProblem, key: PRNGKeyArray | None) -> Solution:
        return sweep(problem, ks, solver, key)

    def seconds() -> tuple[Solution, float]:
        start = time.perf_counter()
        found = jax.block_until_ready(run(problem, key))
        return found, time.perf_counter() - start

    found, cold = seconds()
    return found, cold, float(np.median([seconds()[1] for _ in range(repeats)]))


@eqx.filter_jit
def _residuals(held_out: CoresetProblem, solutions: Solution) -> jax.Array:
    """The residuals y − Φw of each size, shape (m, S)."""
    return jax.lax.map(
        lambda pair: held_out.target - held_out.combine(*pair),
        (solutions.indices, solutions.weights),
    )


def _errors(held_out: CoresetProblem, solutions: Solution) -> tuple[np.ndarray, np.ndarray]:
    """The relative error and the objective of each size on another problem."""
    residuals = np.asarray(_residuals(held_out, solutions), np.float64)
    objective = np.sum(residuals**2, axis=-1)
    norm = float(np.linalg.norm(np.asarray(held_out.target, np.float64)))
    return np.sqrt(objective) / norm if norm > 0 else np.sqrt(objective), objective
