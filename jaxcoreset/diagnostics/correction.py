"""Draws of the full posterior from those of the coreset posterior, by Pareto-smoothed weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int, PRNGKeyArray
from numpyro.infer import MCMC

from jaxcoreset.coreset.belonging import DIGEST, digest_of
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.arviz import container, groups_of_mcmc, groups_of_samples
from jaxcoreset.data.utils import host_generator
from jaxcoreset.diagnostics.certificate import Certificate
from jaxcoreset.diagnostics.log_ratio import full_likelihood
from jaxcoreset.diagnostics.measurement import measure
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.trace import one_at_a_time, plate_names
from jaxcoreset.solvers.numerics import as_key
from jaxcoreset.weighting.chains import systematic_resample


class CorrectionError(ValueError):
    """The coreset posterior is too far from the full one for its draws to be reweighted.

    Attributes:
        certificate: the certificate of the draws.
    """

    def __init__(self, message: str, certificate: Certificate):
        super().__init__(message)
        self.certificate = certificate


def require_reweightable(certificate: Certificate) -> None:
    """Raise a CorrectionError if weighted averages of the draws cannot be trusted."""
    if certificate.can_be_reweighted:
        return
    if certificate.coreset_verdict == "not known":
        raise CorrectionError(
            f"these draws cannot be reweighted. {certificate.reason} The `certificate` of this "
            "error has the numbers.",
            certificate,
        )
    raise CorrectionError(
        f"k-hat is {certificate.khat:.2f}; expected at most {certificate.khat_limit:.2f} to "
        f"reweight {certificate.num_draws} draws. The coreset is {certificate.distance}, so that a "
        f"correction cannot be trusted. {certificate.remedy} The `certificate` of this error has "
        "the numbers.",
        certificate,
    )


@one_at_a_time
def correct(
    coreset: Coreset,
    mcmc: MCMC | Mapping[str, Any],
    *args: Any,
    resample: bool = False,
    key: PRNGKeyArray | int | None = None,
    num_draws: int | None = None,
    likelihood: ModelLikelihood | None = None,
    batch_size: int | None = None,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Any:
    """Weight or resample the draws of the coreset posterior so that they target the full one.

    It costs as much as `certify` with all draws. With the weights,
    ``data.posterior.to_dataset().weighted(np.exp(data.sample_stats.log_weight))`` (in ArviZ 0.23
    ``data.posterior.weighted(…)``) has the means and quantiles of the full posterior. The group
    "observed_data", and deterministic sites with one value per datum, are those of the rows of the
    coreset. Other deterministic sites that are computed from the rows are left out.

    Args:
        coreset: the coreset.
        mcmc: see `certify`.
        *args: see `certify`.
        resample: whether to resample the draws by their weights, so that the result needs no
            weights. This adds a little Monte Carlo error. Copies of a draw are adjacent, so that
            ArviZ's effective sample size takes them into account.
        key: a JAX random key, for `resample`.
        num_draws: see `certify`; all draws by default.
        likelihood: see `certify`.
        batch_size: see `certify`.
        progress_bar: see `certify`.
        **kwargs: see `certify`.

    Returns:
        An ArviZ `InferenceData` (ArviZ 0.23) or a `DataTree` (ArviZ 1), as ``arviz.from_numpyro``
        makes it. Its sample_stats have "log_ratio", and without `resample` "log_weight", normalised
        over all draws. Its attributes, and those of sample_stats, are `Certificate.scalars`, and
        a digest of the coreset, by which it is recognised where it is used.

    Raises:
        CorrectionError: a ValueError, if the weights cannot be trusted, because k-hat is above
            min(1 − 1/log10(S), 0.7) (Vehtari et al. 2024) and the weights are not nearly equal
            either; see `Certificate.can_be_reweighted`.
        ValueError: see `certify`, or if there is no key and `resample` needs one.
        RuntimeError: see `certify`.
        ModuleNotFoundError: if ArviZ is not installed.
    """
    if resample and key is None:
        raise ValueError("key is missing; resample is random: pass key=jax.random.key(seed).")
    full = full_likelihood(coreset, args, kwargs, likelihood)
    certificate, samples, positions = measure(
        coreset, mcmc, full, num_draws, batch_size, progress_bar
    )
    require_reweightable(certificate)
    dims = plate_names(coreset.model, (coreset.args, coreset.kwargs))
    if isinstance(mcmc, MCMC):
        groups = groups_of_mcmc(mcmc, dims)
        groups = {
            name: data.isel(draw=positions) if "draw" in data.dims else data
            for name, data in groups.items()
        }
    else:
        groups = groups_of_samples(samples.sites, dims)
    posterior = groups["posterior"].drop_vars(full.summaries_of_rows, errors="ignore")
    stats = groups.pop("sample_stats", posterior[[]])
    # Those of the first process, at whose draws the rows of all processes were evaluated.
    posterior = posterior.assign(
        {name: (posterior[name].dims, samples.sites[name]) for name in posterior.data_vars}
    )
    stats = stats.assign(
        {name: (stats[name].dims, values) for name, values in _of_first(full, stats).items()}
    )
    stats = stats.assign(
        log_ratio=(("chain", "draw"), certificate.log_ratios),
        log_weight=(("chain", "draw"), certificate.log_weights),
    )
    if resample:
        assert key is not None
        chosen = systematic_resample(certificate.log_weights, host_generator(as_key(key)))
        posterior = _take(posterior, chosen)
        stats = _take(stats.drop_vars("log_weight"), chosen)
    attributes = certificate.scalars() | {"resampled": int(resample), DIGEST: digest_of(coreset)}
    stats = stats.assign_attrs(attributes)
    return container({**groups, "posterior": posterior, "sample_stats": stats}, attributes)


def _of_first(full: ModelLikelihood, stats: Any) -> dict[str, np.ndarray]:
    """The arrays of a data set as the first of several processes has them."""
    arrays = {str(name): np.asarray(values) for name, values in stats.data_vars.items()}
    return full.rows.context.processes.first(arrays) if arrays else {}


def _take(data: Any, chosen: Int[np.ndarray, " s"]) -> Any:
    """A data set with the chosen draws, numbered over all chains."""
    taken = {}
    for name, variable in data.data_vars.items():
        if variable.dims[:2] == ("chain", "draw"):
            pooled = variable.values.reshape(-1, *variable.shape[2:])
            variable = variable.copy(data=pooled[chosen].reshape(variable.shape))
        taken[name] = variable
    return data.assign(taken)
