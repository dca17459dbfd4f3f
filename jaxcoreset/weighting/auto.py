"""π̂ for any model: the Laplace approximation, or, if there is none, the next weighting that works.

Many posteriors have no mode that Newton's method can reach: a hierarchy whose scale may be near
zero, a direction that the data leave flat, derivatives that are not finite where the search starts.
They still have a posterior, and other weightings find a π̂ for it, at a higher cost.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
from jaxtyping import Int, PRNGKeyArray

from jaxcoreset.data.dtypes import default_float
from jaxcoreset.data.messages import warn_user
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import runs_in_float64
from jaxcoreset.weighting.base import DrawSource, Weighting
from jaxcoreset.weighting.errors import UnusableWeightingError
from jaxcoreset.weighting.gaussian import Laplace


class AutoWeighting(Weighting):
    """`Laplace` where there is a mode; else `SubsampleNUTS`, and then `Pathfinder` if installed.

    It is what ``CoresetBuilder(weighting="auto")`` uses. Where a model can run in float64 and does
    not, a mode that is not found in float32 is an error, so that the builder tries float64 first.
    """

    def indices(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray
    ) -> Int[np.ndarray, " m"] | None:
        """The rows that `Laplace` reads; other weightings read theirs when they are needed."""
        return Laplace().indices(likelihood, key)

    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> DrawSource:
        """See `Weighting.fit`. Warns if `Laplace` found no mode, and says what is used instead.

        Raises:
            UnusableWeightingError: if no way finds a π̂; or if `Laplace` found no mode in float32,
                and the model can run in float64.
        """
        failures: list[tuple[str, UnusableWeightingError]] = []
        for weighting in _ways(likelihood):
            name = type(weighting).__name__
            try:
                source = _fit(weighting, likelihood, key, show_progress)
            except UnusableWeightingError as error:
                if float64_is_left(likelihood):
                    raise
                failures.append((name, error))
                continue
            source.weighting = name
            if failures:
                found = "; ".join(f"{failed} failed: {error.reason}" for failed, error in failures)
                warn_user(f"{found}; the build goes on with {weighting}.")
            return source
        (_, first), *others = failures
        rest = "".join(f" {name} was tried as well: {error.reason}." for name, error in others)
        raise UnusableWeightingError(f"{first}{rest}", first.reason) from first


def float64_is_left(likelihood: ModelLikelihood) -> bool:
    """Return whether the model runs in float32 now and could run in float64."""
    return default_float() != np.float64 and runs_in_float64(likelihood)


def _ways(likelihood: ModelLikelihood) -> Iterator[Weighting]:
    """The weightings to try, in order; their modules are imported when they are needed."""
    yield Laplace()
    from jaxcoreset.weighting.nuts import SubsampleNUTS

    yield SubsampleNUTS()
    rows = likelihood.rows
    # Pathfinder holds all rows on the device.
    if rows.is_local and not rows.is_streamed and find_spec("blackjax") is not None:
        from jaxcoreset.weighting.pathfinder import Pathfinder

        yield Pathfinder()


def _fit(
    weighting: Weighting, likelihood: ModelLikelihood, key: PRNGKeyArray, show_progress: bool
) -> DrawSource:
    """A fit that succeeds in all processes or in none, since processes may round differently."""
    source, failure = None, None
    try:
        source = weighting.fit(likelihood, key, show_progress=show_progress)
    except UnusableWeightingError as error:
        failure = error
    states = likelihood.rows.context.processes.gather({"failed": np.asarray(failure is not None)})
    if failure is None and any(state["failed"] for state in states):
        reason = "it found nothing in another process"
        failure = UnusableWeightingError(f"{type(weighting).__name__} failed: {reason}.", reason)
    if failure is not None:
        raise failure
    assert source is not None
    return source
