"""What a case of the suite consists of."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A model, what makes its data, and what is compared.

    Attributes:
        name: short, for file names and the command line.
        title: what the tables call it.
        model: a NumPyro model; the observations are one of its arguments.
        make: returns the model's arguments and keyword arguments, NumPy arrays and numbers, always
            the same ones.
        parameters: the sample sites that are compared; the effects of groups are not.
        groups: the name of the argument with each row's group, or None.
        why: why the posterior is not a Gaussian.
        truth: a faster spelling of the same density up to a constant, and what makes its arguments:
            by sufficient statistics, or by counts of equal rows. Its sites are those of the case.
        centred: for NUTS on all rows, by site how far it is centred (`LocScaleReparam`).
        marginal: the log-likelihood of all rows given shared parameters, (sites, args, kwargs) ->
            (), for a case with groups, whose effects it integrates out.
    """

    name: str
    title: str
    model: Callable[..., None]
    make: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    parameters: tuple[str, ...]
    groups: str | None = None
    why: str = ""
    truth: (
        tuple[Callable[..., None], Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] | None
    ) = None
    centred: dict[str, Any] | None = None
    marginal: Callable[..., Any] | None = None

    def flat(self, draws: Mapping[str, np.ndarray]) -> np.ndarray:
        """Draws of the compared sites side by side, shape (s, D)."""
        parts = [np.asarray(draws[name], float) for name in self.parameters]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
