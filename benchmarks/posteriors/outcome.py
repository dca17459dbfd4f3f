"""What a method returns, and what it raises if it cannot run here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Missing(Exception):
    """A package or program that a method needs is not there; the sentence stands in the table."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Draws of a method's posterior.

    Attributes:
        draws: of the constrained sample sites, draws along the leading axis, float64.
        log_density: the logarithm of the unnormalised density of the method's posterior at one
            draw of the unconstrained sites of the full model, a dict, where it is known. For a case
            with groups it takes the shared sites alone (`case.parameters`); it is None for a method
            whose density is one of the effects too.
        unconstrained: draws of the unconstrained sites, where the method has them; otherwise they
            are found from `draws`.
        log_weights: importance weights of the draws towards the full posterior, where the method
            gives them beside the draws, shape (s,).
        info: rows kept, Pareto k, evaluations, settings: numbers and short strings.
    """

    draws: dict[str, np.ndarray]
    log_density: Callable[[Mapping[str, Any]], Any] | None = None
    unconstrained: dict[str, np.ndarray] | None = None
    log_weights: np.ndarray | None = None
    info: dict[str, Any] = field(default_factory=dict)
