"""From draws of the coreset posterior to draws of the full one, by Pareto-smoothed weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray
from numpyro.infer import MCMC

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.utils import host_generator
from jaxcoreset.diagnostics.arviz import container, groups_of_mcmc, groups_of_samples
from jaxcoreset.diagnostics.certificate import REMEDY, Certificate, measure
from jaxcoreset.diagnostics.log_ratio import full_likelihood
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.trace import plate_names


class CorrectionError(ValueError):
    """The coreset posterior is too far from the full one for its draws to be reweighted.

    Attributes:
        certificate: what was found.
    """

    def __init__(self, message: str, certificate: Certificate):
        super().__init__(message)
        self.certificate = certificate


def correct(
    coreset: Coreset,
    mcmc: MCMC | Mapping[str, Any],
    *args: Any,
    resample: bool = False,
    key: PRNGKeyArray | None = None,
    num_draws: int | None = None,
    likelihood: ModelLikelihood | None = None,
    batch_size: int | None = None,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Any:
    """The draws of the coreset posterior, weighted or resampled so that they target the full one.

    It costs draws × rows of all the data, as `certify` does. With the weights,
    ``data.posterior.to_dataset().weighted(np.exp(data.sample_stats.log_weight))`` (in ArviZ 0.23
    ``data.posterior.weighted(…)``) has the means and quantiles of the full posterior. The group
    "observed_data" and deterministic sites with one value per datum are those of the coreset's
    rows.

    Args:
        coreset: the coreset.
        mcmc: as of `certify`.
        *args: as of `certify`.
        resample: whether to draw from the draws by their weights, so that what comes back needs no
            weights; a little is lost by it. Copies of a draw lie side by side, so that ArviZ's
            effective sample size sees them.
        key: a JAX random key, for `resample`.
        num_draws: as of `certify`, but all of them by default.
        likelihood: as of `certify`.
        batch_size: as of `certify`.
        progress_bar: as of `certify`.
        **kwargs: as of `certify`.

    Returns:
        An ArviZ `InferenceData` (ArviZ 0.23) or a `DataTree` (ArviZ 1), as ``arviz.from_numpyro``
        makes it. Weighted, its sample_stats have "log_weight", normalised over all draws, and
        "log_ratio"; its attributes, and those of sample_stats, are `Certificate.scalars`.

    Raises:
        CorrectionError: a ValueError, if k-hat is above min(1 − 1/log10(S), 0.7), where weights are
            not to be trusted (Vehtari et al. 2024), and they are not nearly equal either; see
            `Certificate.can_be_reweighted`.
        ValueError: as of `certify`, or if there is no key where one is needed.
        RuntimeError: as of `certify`.
        ModuleNotFoundError: if ArviZ is not installed.
    """
    if resample and key is None:
        raise ValueError("key is missing; resample draws at random: pass key=jax.random.key(seed).")
    full = full_likelihood(coreset, args, kwargs, likelihood)
    certificate, samples, places = measure(coreset, mcmc, full, num_draws, batch_size, progress_bar)
    if not certificate.can_be_reweighted:
        raise CorrectionError(
            f"k-hat is {certificate.khat:.2f}; at most {certificate.khat_limit:.2f} is wanted for "
            f"{certificate.num_draws} draws to be reweighted. The coreset posterior is too far "
            f"from the full one for a correction to be trusted. {REMEDY} The numbers are in this "
            "error's `certificate`.",
            certificate,
        )
    dims = plate_names(coreset.model, (coreset.args, coreset.kwargs))
    if isinstance(mcmc, MCMC):
        groups = groups_of_mcmc(mcmc, dims)
        groups = {
            name: data.isel(draw=places) if "draw" in data.dims else data
            for name, data in groups.items()
        }
    else:
        groups = groups_of_samples(samples.sites, dims)
    posterior = groups["posterior"]
    stats = groups.pop("sample_stats", posterior[[]])
    stats = stats.assign(
        log_ratio=(("chain", "draw"), certificate.log_ratios),
        log_weight=(("chain", "draw"), certificate.log_weights),
    )
    if resample:
        assert key is not None
        chosen = systematic_resample(certificate.log_weights, host_generator(key))
        posterior = _take(posterior, chosen)
        stats = _take(stats.drop_vars("log_weight"), chosen)
    attributes = certificate.scalars() | {"resampled": int(resample)}
    stats = stats.assign_attrs(attributes)
    return container({**groups, "posterior": posterior, "sample_stats": stats}, attributes)


def systematic_resample(
    log_weights: Float[np.ndarray, "chains draws"], generator: np.random.Generator
) -> Int[np.ndarray, " s"]:
    """As many places as there are draws, each as often as its weight says, up to one; in order."""
    ends = np.cumsum(np.exp(log_weights.ravel()))
    points = (generator.random() + np.arange(log_weights.size)) / log_weights.size
    return np.minimum(np.searchsorted(ends / ends[-1], points), log_weights.size - 1)


def _take(data: Any, chosen: Int[np.ndarray, " s"]) -> Any:
    """A data set with other draws, numbered over all chains, in the place of its own."""
    taken = {}
    for name, variable in data.data_vars.items():
        if variable.dims[:2] == ("chain", "draw"):
            pooled = variable.values.reshape(-1, *variable.shape[2:])
            variable = variable.copy(data=pooled[chosen].reshape(variable.shape))
        taken[name] = variable
    return data.assign(taken)
