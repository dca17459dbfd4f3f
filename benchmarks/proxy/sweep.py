"""The error of every size on one set of draws: rows alone, a Gaussian, and a proxy with rows.

A build of one size solves on S draws and measures the error on others. Here one run of the solver
gives all sizes, and the errors are measured on further draws still, by which neither a size nor one
of the approaches was chosen.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks.proxy.data import Case
from jaxcoreset.data.utils import Clock
from jaxcoreset.likelihood.expansion import Expansion
from jaxcoreset.selection.baseline import GaussianBaseline
from jaxcoreset.selection.construction import Construction
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import errors_on
from jaxcoreset.selection.parts import Approach, Use
from jaxcoreset.selection.solving import select_none
from jaxcoreset.solvers.solution import Solution
from jaxcoreset.weighting import Weighting

# The builder looks for further candidates where the error is above half of this.
_TOL = 2e-3
CHOOSING = 1000


@dataclass
class Curves:
    """Errors by size, each an array with an entry for the sizes 1 to K.

    Attributes:
        rows: symmetrised KL of rows alone, in nats.
        both: that of the expansion with rows.
        none: that of the expansion without rows, a number.
        gaussian: the Gaussian of the report, and its standard error.
        auto: that of what the builder chooses, by other draws.
        seconds: of each approach.
    """

    rows: np.ndarray
    both: np.ndarray
    none: float
    gaussian: tuple[float, float]
    auto: np.ndarray
    seconds: dict[str, float] = field(default_factory=dict)


class Sweep:
    """The draws, the expansion and the candidates of one case.

    Args:
        case: a model and its data.
        size: the largest size, K.
        num_judging: the number of draws on which errors are measured.
        num_draws: the number of the solver's draws, S; as the builder takes if left out.
        weighting: where draws come from; the Laplace approximation if left out.
        seed: of the random numbers.
    """

    def __init__(
        self,
        case: Case,
        size: int,
        num_judging: int = 4000,
        num_draws: int | None = None,
        weighting: Weighting | None = None,
        seed: int = 0,
    ):
        start_key, key, draws_key, rows_key = jax.random.split(jax.random.key(seed), 4)
        self.case, self.seconds = case, {}
        begin = time.perf_counter()
        self.likelihood = jc.model_likelihood(case.model, case.args, key=start_key)
        self.size = min(size, self.likelihood.num_data)
        weighting = jc.Laplace() if weighting is None else weighting
        self.source = weighting.fit(self.likelihood, key)
        self.construction = Construction(
            likelihood=self.likelihood,
            solver=None,
            size=None,
            tol=_TOL,
            max_size=self.size,
            max_shift=np.inf,
            num_draws=num_draws,
            num_held_out=CHOOSING,
            num_candidates=None,
            rows_key=rows_key,
            clock=Clock(),
            extra_passes="auto",
        )
        self.pool = DrawPool(self.likelihood, self.source, draws_key)
        if self.source.approximation is not None:
            self.pool.expansion = self.source.approximation.expansion
        self.construction.embed(self.pool, self.size)
        self.pool.ensure_draws(confirmation=num_judging)
        self.seconds["draws and log-likelihoods"] = time.perf_counter() - begin

    @property
    def expansion(self) -> Expansion:
        """The expansion of all rows."""
        assert self.pool.expansion is not None
        return self.pool.expansion

    @property
    def num_params(self) -> int:
        """The number of parameters, D."""
        return self.expansion.center.size

    def path(self, approach: Approach) -> Solution:
        """The solutions of all sizes."""
        begin = time.perf_counter()
        path, _ = self.construction.path(self.pool, self.size, jax.random.key(1), approach)
        jax.block_until_ready(path)
        self.seconds[approach] = time.perf_counter() - begin
        return path

    def errors(
        self, path: Solution, approach: Approach, use: Use = "confirmation"
    ) -> dict[str, np.ndarray]:
        """The errors of solutions, on draws that did not choose them."""
        return errors_on(self.pool, path, use, approach)

    def curves(self) -> Curves:
        """The errors of everything that the builder may return."""
        found, chosen = {}, {}

        def judge(name: str, path: Solution, approach: Approach) -> None:
            found[name] = self.errors(path, approach)["kl"]
            chosen[name] = self.errors(path, approach, "selection")["kl"]

        judge("rows", self.path("rows"), "rows")
        judge("both", self.path("proxy and rows"), "proxy and rows")
        judge("none", select_none(self.pool, Clock()).path, "proxy")
        both, none = found["both"], float(found["none"][0])
        self.pool.regress()  # as the builder does with "auto"
        judge("both", self.path("proxy and rows"), "proxy and rows")
        judge("none", select_none(self.pool, Clock()).path, "proxy")
        by_choice, judged = (
            np.stack([np.broadcast_to(curve, self.size) for curve in curves.values()])
            for curves in (chosen, found)
        )
        auto = np.take_along_axis(judged, by_choice.argmin(axis=0)[None], axis=0)[0]
        baseline = GaussianBaseline.of(self.pool)
        assert baseline is not None
        gaussian = baseline.kl, baseline.kl_standard_error
        return Curves(found["rows"], both, none, gaussian, auto, self.seconds)


def cells(case: Case, curves: Curves, ks: list[int]) -> list[dict[str, Any]]:
    """The rows of a table for some sizes."""
    gaussian, error = curves.gaussian
    return [
        {
            "data": case.name,
            "n": case.num_rows,
            "k": k,
            "rows alone": float(curves.rows[k - 1]),
            "Gaussian": gaussian,
            "its standard error": error,
            "proxy + rows": float(curves.both[k - 1]),
            "auto": float(curves.auto[k - 1]),
            "rows / auto": float(curves.rows[k - 1] / curves.auto[k - 1]),
        }
        for k in ks
        if k <= len(curves.rows)
    ]


def largest_ratio(curves: Curves, most: int = 100) -> tuple[float, int]:
    """The largest ratio of auto to the better of Gaussian and rows alone, and at which size."""
    better = np.minimum(curves.gaussian[0], curves.rows[:most])
    ratio = curves.auto[:most] / better
    return float(ratio.max()), int(ratio.argmax()) + 1
