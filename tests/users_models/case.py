"""What a test knows of a user's model: the model, its arguments, and what must come of them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

# Most models have as many rows, so that the solver's programs are compiled once for all of them.
NUM_ROWS = 2000


@dataclasses.dataclass(frozen=True)
class Case:
    """A NumPyro model with its arguments, as its user calls it.

    Attributes:
        model: the model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        settings: settings of the builder that this model's user must give, or `proxy=None` where
            the weights of rows are tested.
        marginal: the model of the shared parameters alone, with the same arguments, where `model`
            has effects of rows or groups that a coreset integrates out.
        refusal: a pattern of the error that says why there is no coreset of the model.
    """

    model: Callable
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    marginal: Callable | None = None
    refusal: str = ""

    @property
    def shared(self) -> Callable:
        """The model whose posterior a coreset stands for."""
        return self.marginal or self.model


def covariates(
    seed: int, num_columns: int = 2, num_rows: int = NUM_ROWS
) -> tuple[np.random.Generator, np.ndarray]:
    """A generator, and covariates in float32 whose first column is one."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, num_columns)).astype(np.float32)
    return rng, np.hstack([np.ones((num_rows, 1), np.float32), x])


def linear_data(
    seed: int, num_rows: int = NUM_ROWS
) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    """A generator, covariates, and responses with a standard deviation of 0.7."""
    rng, x = covariates(seed, num_rows=num_rows)
    y = x @ [1, 0.5, -0.3] + 0.7 * rng.normal(size=num_rows)
    return rng, x, y.astype(np.float32)
