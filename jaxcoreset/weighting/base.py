"""The base classes: a weighting, and the source of draws that it returns."""

import abc

import equinox as eqx
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.weighting.laplace import LaplaceApproximation

# Minimum number of draws: fewer cannot be centred or divided among uses.
FEWEST = 8


class DrawSource(abc.ABC):
    """Draws from a weighting distribution that has been found: a sequence that is read in parts.

    Attributes:
        approximation: the Laplace approximation that the draws come from; None for other draws.
        limit: the number of draws that there are; None if it is unlimited.
        inefficiency: the number of draws that are worth one independent draw, at least 1.
        weighting: the name of the weighting that made the draws, if it is not the one that was
            configured; None otherwise.
        has_repeats: whether more than half of the draws are copies of other draws, or all are those
            of a chain that moves slowly, so that held-out draws are not new.
    """

    approximation: LaplaceApproximation | None = None
    limit: int | None = None
    inefficiency: float = 1.0
    weighting: str | None = None
    has_repeats: bool = False

    @abc.abstractmethod
    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        """The draws at positions `start`, …, `start` + `num` − 1 of the sequence.

        Continue where the last call ended: then no draw is returned twice.

        Args:
            key: a JAX random key, the same in every call of one sequence.
            start: the number of draws that were taken before.
            num: the number of further draws; with a `limit`, at most those that are left.

        Returns:
            A dictionary of unconstrained parameters with leading axis `num`.
        """

    def split(self, key: PRNGKeyArray, num_draws: int, num_held_out: int) -> tuple[Params, Params]:
        """Draws for the solver, and held-out draws that it does not see.

        Returns:
            Two dictionaries of unconstrained parameters with leading axes `num_draws` and
            `num_held_out`. If a source has too few draws, both shrink in proportion.

        Raises:
            ValueError: if there are fewer than 8 draws.
        """
        num_draws, num_held_out = shares([num_draws, num_held_out], self.limit)
        draws = self.take(key, 0, num_draws + num_held_out)
        solver = {name: value[:num_draws] for name, value in draws.items()}
        return solver, {name: value[num_draws:] for name, value in draws.items()}


def shares(requested: list[int], available: int | None) -> list[int]:
    """The number of draws for each of several uses; if there are too few, all shrink in proportion.

    Raises:
        ValueError: if there are fewer than 8 draws.
    """
    total = sum(requested)
    if available is None or available >= total:
        return requested
    if available < FEWEST:
        raise ValueError(
            f"samples has {available} draws; expected at least {FEWEST}, better 1000: pass more "
            "draws (weighting)."
        )
    lowest = [min(4, one) for one in requested]
    got = [max(low, available * one // total) for low, one in zip(lowest, requested, strict=True)]
    # The largest share absorbs what rounding left over, or took too much.
    got[got.index(max(got))] += available - sum(got)
    return got


class Weighting(eqx.Module):
    """A way to find the weighting distribution π̂ of a model."""

    def indices(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray
    ) -> Int[np.ndarray, " m"] | None:
        """The rows that `fit` will read with this key, so that they can be read in advance."""
        return None

    @abc.abstractmethod
    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> DrawSource:
        """Find π̂.

        Args:
            likelihood: the model's likelihood and data.
            key: a JAX random key.
            show_progress: whether to show a progress bar on a terminal.
        """
