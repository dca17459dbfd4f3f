"""What every weighting is, and what it hands back."""

import abc

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.weighting.laplace import LaplaceApproximation

# Fewer draws can be neither centred nor shared out.
FEWEST = 8


class DrawSource(abc.ABC):
    """Draws from a weighting distribution that has been found: a sequence that is read in parts."""

    @property
    def approximation(self) -> LaplaceApproximation | None:
        """The Laplace approximation that they are draws of; None for other draws."""
        return None

    @property
    def limit(self) -> int | None:
        """How many draws there are; None where there are as many as one wants."""
        return None

    @property
    def inefficiency(self) -> float:
        """How many of the draws are worth one independent draw, at least 1."""
        return 1.0

    @abc.abstractmethod
    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        """The draws with the numbers `start`, …, `start` + `num` − 1.

        With one key and calls that go on where the last one ended, draws are never handed out
        twice, and those that were there before stay the same.

        Args:
            key: a JAX random key, the same in every call of one sequence.
            start: the number of draws that were taken before.
            num: how many more; with `limit`, no more than are left.

        Returns:
            A dictionary of unconstrained parameters with leading axis `num`.
        """

    def split(self, key: PRNGKeyArray, num_draws: int, num_held_out: int) -> tuple[Params, Params]:
        """Draws for the solver, and others that it does not see.

        Args:
            key: a JAX random key.
            num_draws: how many draws the solver is to have.
            num_held_out: how many are to be held out.

        Returns:
            Two dictionaries of unconstrained parameters with leading axes `num_draws` and
            `num_held_out`; of a source with a fixed stock, both shrink alike where it is too small.

        Raises:
            ValueError: if there are fewer than 8 draws.
        """
        num_draws, num_held_out = shares([num_draws, num_held_out], self.limit)
        draws = self.take(key, 0, num_draws + num_held_out)
        return (
            jax.tree.map(lambda x: x[:num_draws], draws),
            jax.tree.map(lambda x: x[num_draws:], draws),
        )


def shares(wanted: list[int], available: int | None) -> list[int]:
    """How many draws each of several uses gets; all shrink alike where there are too few.

    Raises:
        ValueError: if there are fewer than 8 draws.
    """
    total = sum(wanted)
    if available is None or available >= total:
        return wanted
    if available < FEWEST:
        raise ValueError(
            f"samples has {available} draws; wanted at least {FEWEST}, better 1000. Bring more "
            "draws (weighting)."
        )
    lowest = [min(4, one) for one in wanted]
    got = [max(low, available * one // total) for low, one in zip(lowest, wanted, strict=True)]
    # What rounding left, or took too much, is settled with the largest share.
    got[got.index(max(got))] += available - sum(got)
    return got


class Weighting(eqx.Module):
    """A way to find the weighting distribution π̂ of a model."""

    def rows(self, likelihood: ModelLikelihood, key: PRNGKeyArray) -> Int[np.ndarray, " m"] | None:
        """The rows that `fit` is going to take with this key, so that they can be read at once."""
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
