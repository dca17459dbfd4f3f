"""Draws of the coreset posterior with their weights towards the full one."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpyro.infer import MCMC

from jaxcoreset.coreset.belonging import check_belongs
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.arviz import corrected
from jaxcoreset.data.processes import SINGLE_PROCESS, ProcessGroup
from jaxcoreset.diagnostics.correction import require_reweightable
from jaxcoreset.diagnostics.measurement import measure, samples_of
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.weighting.chains import ChainSamples, effective_size
from jaxcoreset.weighting.psis import log_sum_exp


@dataclass(frozen=True, eq=False)
class ReweightedDraws:
    """Draws of a coreset posterior.

    Attributes:
        samples: the draws.
        log_ratios: shape (chains, draws), the log-density of the full posterior less that of the
            coreset's, up to a constant.
        log_weights: shape (chains, draws), smoothed; their exponentials add up to one.
    """

    samples: ChainSamples
    log_ratios: Float[np.ndarray, "chains draws"]
    log_weights: Float[np.ndarray, "chains draws"]

    @property
    def efficiency(self) -> float:
        """The mean effective sample size of a parameter over the number of draws."""
        sizes = [effective_size(self.samples.sites[name]) for name in self.samples.latent]
        sizes = np.concatenate([np.ravel(size) for size in sizes])
        chains, draws = self.samples.shape
        return float(np.nanmean(sizes)) / (chains * draws) if np.isfinite(sizes).any() else 1.0


def plain_draws(coreset: Coreset, samples: Any, num_draws: int | None) -> ReweightedDraws:
    """Draws with equal weights."""
    used = samples_of(coreset, samples).thin(num_draws)[0]
    zeros = np.zeros(used.shape)
    return ReweightedDraws(used, zeros, zeros - np.log(zeros.size))


def known_draws(
    coreset: Coreset,
    data: Any,
    num_draws: int | None,
    *,
    processes: ProcessGroup = SINGLE_PROCESS,
    reweight: bool = True,
) -> ReweightedDraws | None:
    """The draws and weights of what `correct` returned; None if `data` is not that.

    Args:
        coreset: the coreset.
        data: what `correct` returned, or something else.
        num_draws: see `certify`.
        processes: the processes that use the draws together. All use those of the first one.
        reweight: whether to use these weights. Otherwise all weights are equal.

    Raises:
        ValueError: if `reweight` is False and `correct` has resampled the draws.
    """
    found = corrected(data)
    if found is None:
        return None
    check_belongs(coreset, data)
    sites, stats = (processes.first(dict(one)) for one in found)
    is_resampled = "log_weight" not in stats
    if is_resampled and not reweight:
        raise ValueError(
            "reweight is False, but correct(..., resample=True) has resampled these draws by their "
            "weights; pass the mcmc itself for draws of the coreset posterior."
        )
    if is_resampled or not reweight:
        return plain_draws(coreset, sites, num_draws)
    samples, positions = plain_draws(coreset, sites, None).samples.thin(num_draws)
    log_weights = np.asarray(stats["log_weight"], np.float64)[:, positions]
    log_ratios = np.asarray(stats["log_ratio"], np.float64)[:, positions]
    return ReweightedDraws(samples, log_ratios, log_weights - log_sum_exp(log_weights))


def reweighted_draws(
    coreset: Coreset,
    mcmc: MCMC | Mapping[str, Any],
    likelihood: ModelLikelihood,
    num_draws: int | None,
    batch_size: int | None,
    progress_bar: bool,
) -> ReweightedDraws:
    """The draws and their weights, from one pass over all rows unless `correct` made it before.

    Raises:
        CorrectionError: if weighted averages of the draws cannot be trusted.
        ValueError: see `certify`.
    """
    processes = likelihood.rows.context.processes
    known = known_draws(coreset, mcmc, num_draws, processes=processes)
    if known is not None:
        return known
    certificate, samples, _ = measure(
        coreset, mcmc, likelihood, num_draws, batch_size, progress_bar
    )
    require_reweightable(certificate)
    samples = dataclasses.replace(samples, sites={x: samples.sites[x] for x in samples.latent})
    return ReweightedDraws(samples, certificate.log_ratios, certificate.log_weights)
