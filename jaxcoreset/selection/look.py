"""A first look before a build: how many parameters there are, what the build costs, and what to do.

A posterior that is nearly Gaussian needs about D(D + 3)/2 rows for D parameters, and the search for
its mode needs a D × D matrix for each row. A hierarchy whose effects are parameters has hundreds of
them, and is much easier as a model of groups. So such a build is timed on a few rows before it
begins.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxcoreset.data.messages import warn_user
from jaxcoreset.data.rows import PassContext, Rows
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.weighting.laplace import LaplaceFitter

# The number of parameters from which a build is timed before it begins.
MANY_PARAMS = 100
# The rows on which it is timed.
_NUM_ROWS = 2_048
# The passes of the search of a mode.
_PASSES = 20
# What the search for a size takes beside an expansion of all rows, if that is not enough: paths of
# some five sizes are compiled and solved, and further candidates are searched. A logistic
# regression with 120 columns and 20,000 rows took 130 to 180 s in all on one core.
_SEARCH_SECONDS = 100.0
# The seconds that a thousand rows take the solver on a laptop, to the third power of their number;
# and what a build takes in any case.
_SOLVER_SECONDS, _LEAST_SECONDS = 10.0, 20.0
# A build that is expected to take more seconds is announced. It is said to be late after this
# multiple of the estimated time, or of these seconds if it was not timed.
_LONG, _LATE = 60.0, 3.0


@dataclass(frozen=True)
class FirstLook:
    """What is known of a build before it begins.

    Attributes:
        num_data: the number n of rows.
        num_params: the number D of parameters.
        groups: the integer argument whose values a latent site has entries for, the number of its
            values, and the fewest rows that one of them has; None if there is no such argument.
        seconds: the expected time of the build; None if it was not timed.
        search_seconds: the further time that it takes if the expansion of all rows is not enough.
    """

    num_data: int
    num_params: int
    groups: tuple[str, int, int] | None = None
    seconds: float | None = None
    search_seconds: float = 0.0

    @property
    def num_coefficients(self) -> int:
        """The number of coefficients of a quadratic, D(D + 3)/2."""
        return self.num_params * (self.num_params + 3) // 2

    def __str__(self) -> str:
        text = (
            f"{self.num_params:,} parameters; a coreset of rows alone needs about D(D + 3)/2 = "
            f"{self.num_coefficients:,} of {self.num_data:,} rows"
        )
        if self.groups is not None:
            name, num, fewest = self.groups
            text += f"; {num:,} groups by {name!r}, of {fewest:,} rows or more"
        return text

    @property
    def time(self) -> str:
        """The expected time in words; empty if the build was not timed."""
        if self.seconds is None:
            return ""
        text = f"{self.seconds:.0f} s"
        if self.search_seconds:
            most = self.seconds + self.search_seconds
            text += f", or {most:.0f} s if rows are needed beside the proxy of all rows"
        return text

    @property
    def advice(self) -> str | None:
        """What to do instead, in a sentence; None if the parameters are few."""
        if self.num_params < MANY_PARAMS:
            return None
        if self.groups is not None:
            name, num, _ = self.groups
            return (
                f"groups={name!r} integrates out the effects of the {num:,} groups, and the "
                "coreset then keeps only some of the groups."
            )
        if self.num_params > self.num_data:
            return (
                "There are fewer rows than parameters, so a coreset cannot leave any rows out: "
                "run NUTS on all rows, or use fewer parameters."
            )
        return (
            'proxy="auto", the default, needs fewer rows than a coreset of rows alone; fewer '
            "parameters, or a hierarchy with groups=, need fewer rows, less memory and less time."
        )


def first_look(
    likelihood: ModelLikelihood, most_rows: int, *, may_search: bool = False
) -> FirstLook:
    """Count the parameters and, if they are many, time a pass over a few rows.

    Args:
        likelihood: the model's likelihood and data.
        most_rows: the number of rows that the solver is expected to choose at most.
        may_search: whether rows are searched for if an expansion of all rows is not enough.
    """
    num_params = likelihood.num_params
    # A build that is repeated in float64 was looked at before.
    if num_params < MANY_PARAMS or likelihood.rows.context.in_float64:
        return FirstLook(likelihood.num_data, num_params)
    look = FirstLook(likelihood.num_data, num_params, _groups_by_hand(likelihood))
    rows = likelihood.rows
    fitter = LaplaceFitter(likelihood)
    context = dataclasses.replace(rows.context, checkpoint=None)
    num = min(_NUM_ROWS, rows.num_local)
    one_pass = time_pass(rows, context, num, lambda some: fitter.at(some, likelihood.init_params))
    num_rows = min(most_rows, look.num_data, 2 * _NUM_ROWS) / 1000
    # The trust-region search factorizes the Hessian a few times in each step.
    factors = 1e-9 * num_params**3
    seconds = _LEAST_SECONDS + _PASSES * (one_pass + factors) + _SOLVER_SECONDS * num_rows**3
    search_seconds = _SEARCH_SECONDS if may_search else 0.0
    return dataclasses.replace(look, seconds=seconds, search_seconds=search_seconds)


def _groups_by_hand(likelihood: ModelLikelihood) -> tuple[str, int, int] | None:
    """The argument of labels that a latent site has an entry for each value of, if there is one."""
    rows = likelihood.rows
    if isinstance(likelihood.model, GroupModel) or rows.is_streamed or not rows.is_local:
        return None
    sizes = {np.shape(value)[0] for value in likelihood.init_params.values() if np.ndim(value)}
    for name, leaf in zip(likelihood.arguments.data_names, rows.data, strict=True):
        labels = np.asarray(leaf)
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0:
            continue
        labels = labels.astype(np.int64) - int(labels.min() == 1)  # numbered from 0 or from 1
        num = int(labels.max()) + 1
        if num in sizes and 2 < num < labels.size:
            return name, num, int(np.bincount(labels).min())
    return None


@contextmanager
def foretold(
    likelihood: ModelLikelihood,
    most_rows: int,
    stage: Callable[[], str],
    *,
    may_search: bool = False,
) -> Iterator[FirstLook]:
    """Warn of a build that takes long before it begins, and log a line if it takes far longer.

    A hierarchy whose effects are parameters is reported in any case.

    Args:
        likelihood: the model's likelihood and data.
        most_rows: see `first_look`.
        stage: a function that names the stage of the build.
        may_search: see `first_look`.
    """
    look = first_look(likelihood, most_rows, may_search=may_search)
    # A build of few parameters is not timed, and said to be late after the same time.
    expected = _LONG if look.seconds is None else look.seconds + look.search_seconds
    if look.seconds is not None and (look.seconds > _LONG or look.groups is not None):
        warn_user(f"the model has {look}. The build takes about {look.time}. {look.advice}")
    start = time.perf_counter()

    def say() -> None:
        logging.getLogger("jaxcoreset").warning(
            "the build has taken %.0f s, three times %s; it is in the stage %r.",
            time.perf_counter() - start,
            "what most builds take" if look.seconds is None else "the estimate",
            stage(),
        )

    timer = threading.Timer(_LATE * expected, say)
    timer.daemon = True
    timer.start()
    try:
        yield look
    finally:
        timer.cancel()


def time_pass(
    rows: Rows, context: PassContext, batch_size: int, evaluate: Callable[[Rows], Any]
) -> float:
    """The time of a pass over all rows, from the second of two passes over the first ones."""
    some = _First(rows, context, batch_size)
    jax.block_until_ready(evaluate(some))
    start = time.perf_counter()
    jax.block_until_ready(evaluate(some))
    num = rows.num_places if rows.folding is None else rows.folding.first.size
    return (time.perf_counter() - start) * num / some.num_places


class _First(Rows):
    """The first rows of some, in blocks of the same size."""

    def __init__(self, rows: Rows, context: PassContext, num: int):
        self._whole = rows
        alone = PassContext(context.mesh, num)
        places = np.arange(num)
        if rows.is_ragged and not rows.is_streamed:  # some of each length
            places = np.linspace(0, rows.num_local - 1, num).round().astype(np.int64)
        super().__init__(rows.select(places) if rows.is_ragged else rows.head(num), alone)

    def block(self, width: int, at: int = 0, typical: int | None = None) -> int:
        one = self if self.is_ragged else self._whole
        return Rows.block(one, width, at, typical)
