"""The cases that are generalised linear models, in the terms of programs that fit those."""

from typing import Any, NamedTuple

import numpy as np

from benchmarks.posteriors.case import Case
from benchmarks.posteriors.outcome import Missing

# The sums of parameters that are the coefficients of the case without an identified posterior.
_SUMS = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


class Regression(NamedTuple):
    """Predictors, priors and observations of a regression with the canonical or the log link.

    Attributes:
        family: "bernoulli", "poisson" or "negative binomial".
        X: the predictors, an intercept among them, shape (n, K).
        y: the observations.
        sites: the coefficients' sites in order, and how many each has.
        scales: the standard deviations of their normal priors, shape (K,).
        offset: what is added to the linear predictor: a number, or one for each row.
        group: each row's group, from 0; the prior of the effects' standard deviation is a standard
            half-normal one.
        num_groups: the number of groups.
        mixing: where the coefficients are these sums of parameters with standard Cauchy priors,
            shape (P, K), and None where they have normal priors.
    """

    family: str
    X: np.ndarray
    y: np.ndarray
    sites: dict[str, int]
    scales: np.ndarray
    offset: float | np.ndarray = 0.0
    group: np.ndarray | None = None
    num_groups: int = 0
    mixing: np.ndarray | None = None

    def split(self, beta: np.ndarray) -> dict[str, np.ndarray]:
        """Draws (s, K) of the coefficients by site."""
        parts = np.split(beta, np.cumsum(list(self.sites.values()))[:-1], axis=1)
        return dict(zip(self.sites, parts, strict=True))


def regression_of(case: Case, args: tuple) -> Regression:
    """The case as a regression.

    Raises:
        Missing: if it is not one.
    """

    def normal(family: str, X: Any, y: Any, scale: float, site: str = "beta", **rest: Any) -> Any:
        count = X.shape[1]
        return Regression(family, X, y, {site: count}, np.full(count, scale), **rest)

    match case.name:
        case "rare-events":
            X, y = args
            return normal("bernoulli", X, y, 3.0, offset=-8.0)
        case "wide-logistic":
            X, y = args
            return normal("bernoulli", X, y, 1.0, site="theta")
        case "rare-level":
            X, level, num_levels, y = args
            both = np.column_stack([X, np.eye(num_levels, dtype=np.float32)[level]])
            sites = {"beta": X.shape[1], "effect": num_levels}
            scales = np.repeat([2.0, 3.0], list(sites.values()))
            return Regression("bernoulli", both, y, sites, scales)
        case "unidentifiable":
            X, y = args
            return normal("bernoulli", X, y, 1.0, site="theta", mixing=_SUMS)
        case "negative-binomial":
            X, log_exposure, y = args
            return normal("negative binomial", X, y, 5.0, offset=log_exposure)
        case "groups-200" | "groups-5000":
            X, group, num_groups, y = args
            family = "bernoulli" if case.name == "groups-200" else "poisson"
            return normal(family, X, y.astype(int), 2.0, group=group, num_groups=num_groups)
    raise Missing("the model is not a generalised linear one with these priors")
