"""Measure a coreset posterior against all the data, at the draws of NUTS on the coreset."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpyro.infer import MCMC
from numpyro.infer.util import potential_energy

from jaxcoreset.coreset.belonging import check_belongs
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.compiling import quick_jit
from jaxcoreset.data.utils import check_int, progress_bar
from jaxcoreset.diagnostics.certificate import FINITE_VARIANCE_KHAT, Certificate, is_elsewhere
from jaxcoreset.diagnostics.log_ratio import full_likelihood, log_ratios, starting_point
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import needs_float64
from jaxcoreset.likelihood.trace import latent_shapes, one_at_a_time
from jaxcoreset.weighting.chains import (
    MIN_DRAWS,
    ChainSamples,
    chain_samples,
    effective_size,
    too_few_directions,
)
from jaxcoreset.weighting.psis import (
    khat_limit,
    log_sum_exp,
    pareto_smooth,
    unseen_tail_contribution,
)

# Lines from the starting point to draws, the points on each, and the trough between two modes, in
# nats.
_NUM_LINES, _NUM_POINTS, _TROUGH = 8, 33, 2.0


@one_at_a_time
def certify(
    coreset: Coreset,
    mcmc: MCMC | Mapping[str, Any],
    *args: Any,
    num_draws: int | None = 1000,
    likelihood: ModelLikelihood | None = None,
    batch_size: int | None = None,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Certificate:
    """Measure how far the posterior that `mcmc` sampled on a coreset is from the full one.

    It makes draws × rows evaluations of one row's log-likelihood, in one streamed pass over all the
    data; see `certificate_cost`.

    Args:
        coreset: the coreset.
        mcmc: NUTS that has run on ``coreset.model``, or a dictionary of constrained samples of its
            latent sites with leading axes (draws,) or (chains, draws).
        *args: the model's positional arguments with all rows; needed if the coreset was loaded.
        num_draws: the approximate number of draws to use, evenly spaced, and the same number in
            every chain; all draws if None.
        likelihood: the result of `model_likelihood`, to pass in place of the model's arguments; for
            a model that has an argument with the same name as one of these.
        batch_size: the number of rows that are evaluated at once.
        progress_bar: whether to show the cost and the progress on a terminal.
        **kwargs: the model's keyword arguments with all rows.

    Raises:
        ValueError: if the data are missing or are not those that the coreset was built from, or
            the samples do not fit the model, are fewer than 50, come from the model without
            weights, or are all the same in one of the chains.
        RuntimeError: if a compiled program is found to be wrong; some of its values are compared
            with those of another program, once per likelihood and number of draws.
        ModuleNotFoundError: if ArviZ is not installed.
    """
    likelihood = full_likelihood(coreset, args, kwargs, likelihood)
    return measure(coreset, mcmc, likelihood, num_draws, batch_size, progress_bar)[0]


def certificate_cost(
    coreset: Coreset, mcmc: MCMC | Mapping[str, Any], num_draws: int | None = 1000
) -> int:
    """The number of evaluations of one row's log-likelihood by `certify`: draws × rows.

    The arguments are those of `certify`. `correct` uses all draws by default: num_draws=None.
    """
    chains, draws = samples_of(coreset, mcmc).thin(_checked(num_draws))[0].shape
    return chains * draws * coreset.report.num_data


def measure(
    coreset: Coreset,
    mcmc: MCMC | Mapping[str, Any],
    likelihood: ModelLikelihood,
    num_draws: int | None,
    batch_size: int | None,
    show_progress: bool,
) -> tuple[Certificate, ChainSamples, np.ndarray]:
    """The certificate, the draws that it uses, and their positions in the chains."""
    samples = samples_of(coreset, mcmc)
    # Chains whose draws are in float64 were rounded less.
    is_exact = any(samples.sites[name].dtype == np.float64 for name in samples.latent)
    rounding = None if is_exact else coreset.report.rounding
    # Several processes sum over their rows at the same draws.
    sites = likelihood.rows.context.processes.first(dict(samples.sites))
    samples = dataclasses.replace(samples, sites=sites)
    used, positions = samples.thin(_checked(num_draws))
    chains, draws = used.shape
    if chains * draws < MIN_DRAWS:
        raise ValueError(
            f"mcmc has {chains * draws} draws to use; expected at least {MIN_DRAWS}, better 1000."
        )
    stuck = samples.stuck_chains()
    if stuck:
        remedy = (
            "Start it at init_params=coreset.init_params(num_chains), or warm it up for longer; "
            "see 'Know when not to' in the documentation."
            if rounding is None
            else f"The reason may be that {needs_float64(rounding)}."
        )
        raise ValueError(
            f"every draw of chain {', '.join(map(str, stuck))} of {samples.shape[0]} is the same: "
            f"the sampler never moved. {remedy}"
        )
    free = likelihood.unconstrain_draws(used.flat())
    flat = np.concatenate([np.asarray(x).reshape(chains * draws, -1) for x in free.values()], 1)
    if (trouble := too_few_directions(flat)) is not None:
        cause = "" if rounding is None else f" The reason may be that {needs_float64(rounding)}."
        raise ValueError(
            f"mcmc: {trouble}; expected draws of the coreset's posterior in all of its parameters: "
            f"pass chains that have mixed, with all their draws.{cause}"
        )
    n, unit = likelihood.num_data, coreset.report.unit
    cost = f"{chains * draws:,} draws × {n:,} {unit}"
    with (
        likelihood.rows.context.precision(),
        progress_bar(n, cost, show=show_progress, unit=unit) as bar,
    ):
        at, start = used.flat(), starting_point(coreset, likelihood)
        if start is not None:
            at = {name: np.concatenate([start[name][None], values]) for name, values in at.items()}
        ratios = log_ratios(coreset, likelihood, at, batch_size=batch_size, on_rows=bar.update)
    excess = None if start is None else float(ratios[0] - np.median(ratios))
    ratios = ratios[-chains * draws :]
    found = certificate_of(
        ratios.reshape(chains, draws),
        used.least_effective_size() / (chains * draws),
        num_data=n,
        num_rows=len(coreset),
        rhat=samples.rhat(),
        unit=unit,
    )
    separated = _has_trough(coreset, free) if is_elsewhere(excess) else None
    found = dataclasses.replace(
        found,
        excess=excess,
        separated=separated,
        rounding=rounding,
        divergent=_divergent(mcmc),
    )
    return found, used, positions


def _divergent(mcmc: MCMC | Mapping[str, Any]) -> float | None:
    """The fraction of divergent transitions; None if the sampler does not tell."""
    fields = mcmc.get_extra_fields() if isinstance(mcmc, MCMC) else {}
    return float(np.mean(fields["diverging"])) if "diverging" in fields else None


def _has_trough(coreset: Coreset, draws: Mapping[str, Any]) -> bool:
    """Return whether the coreset's density has a trough between its starting point and the draws.

    It has one on most of the lines to some of the draws if they are in another mode. It has none if
    the coreset's only mode is far from the full posterior.

    Args:
        coreset: the coreset.
        draws: unconstrained draws, with one leading axis.
    """
    start, steps = coreset.init_params(), jnp.linspace(0, 1, _NUM_POINTS)

    @quick_jit
    def on_a_line(end: Mapping[str, Any]) -> Any:
        def energy(step: Any) -> Any:
            at = {name: x + step * (end[name] - x) for name, x in start.items()}
            return potential_energy(coreset.model, coreset.args, coreset.kwargs, at)

        return jax.lax.map(energy, steps)

    some = np.linspace(0, len(next(iter(draws.values()))) - 1, _NUM_LINES, dtype=int)
    energies = np.stack([on_a_line({name: x[i] for name, x in draws.items()}) for i in some])
    rise = energies.max(axis=1) - np.maximum(energies[:, 0], energies[:, -1])
    return bool(np.mean(rise > _TROUGH) >= 0.5)


def certificate_of(
    log_ratios: Float[np.ndarray, "chains draws"],
    efficiency: float = 1.0,
    *,
    num_data: int,
    num_rows: int,
    rhat: float = 1.0,
    unit: str = "rows",
) -> Certificate:
    """The certificate from log-ratios L − L_w at draws of the coreset posterior.

    Each estimate is a mean of S numbers, or a function of such means. Its standard error is that of
    the mean of its influence function, with the effective sample size of the chains in place of S,
    and with the `unseen_tail_contribution` if k-hat can be trusted. The ratios are smoothed if
    k-hat is above 0.5.

    Args:
        log_ratios: in nats, including the constant; −inf where the full likelihood is zero.
        efficiency: the smallest effective sample size of a parameter over the number of draws.
        num_data: the number of rows of the data.
        num_rows: the number of rows of the coreset.
        rhat: the largest split-R̂ of the chains.
        unit: what a datum is.
    """
    ratios = np.asarray(log_ratios, np.float64)
    count = ratios.size
    if not np.isfinite(ratios).any():
        raise ValueError(
            "the likelihood of all the data is zero at every draw, so the coreset posterior lies "
            "where the full posterior has no mass; build a larger coreset, or use other draws."
        )
    # The constant may be millions of nats, whose rounding error would stay in weighted means.
    constant = float(ratios.max())
    ratios = ratios - constant
    of_ratio = float(effective_size(np.exp(ratios))) / count
    of_ratio = 1.0 if np.isnan(of_ratio) else of_ratio
    flat, khat = pareto_smooth(ratios.ravel(), of_ratio)
    log_weights = flat.reshape(ratios.shape)
    plain = ratios.ravel() - log_sum_exp(ratios)
    # Smoothing shifts estimates by some thousandths of the ratios' standard deviation, which can be
    # more than the divergence itself; plain ratios are used if their variance is finite.
    used = flat if khat > FINITE_VARIANCE_KHAT else plain
    # Smoothing changes the largest ratios only, so the smallest one gives the scale.
    body = np.argmin(np.where(np.isfinite(used), used, np.inf))
    log_evidence = float(ratios.ravel()[body] - used[body] - np.log(count))

    weights = count * np.exp(used).reshape(ratios.shape)
    weighted = np.where(weights > 0, weights * np.where(weights > 0, ratios, 0), 0)
    full_mean, coreset_mean = float(weighted.mean()), float(ratios.mean())
    of_evidence = weights - 1
    of_forward = weighted - weights * full_mean
    of_reverse = coreset_mean - np.where(np.isfinite(coreset_mean), ratios, 0)
    weight_ess = float(1 / np.sum(np.exp(2 * flat)))
    influences = {
        "kl_forward": of_forward - of_evidence,
        "kl_reverse": of_reverse + of_evidence,
        "kl": of_forward + of_reverse,
        "log_evidence_ratio": of_evidence,
    }
    errors = {name: _standard_error(influence) for name, influence in influences.items()}
    with_errors: dict[str, Any] = {f"{name}_standard_error": x for name, x in errors.items()}
    found = Certificate(
        num_data=num_data,
        num_rows=num_rows,
        num_chains=ratios.shape[0],
        num_draws=count,
        khat=khat,
        khat_limit=khat_limit(count),
        # A divergence is not negative, but its estimate may be, by smoothing and rounding.
        kl_forward=max(full_mean - log_evidence, 0.0),
        kl_reverse=max(log_evidence - coreset_mean, 0.0),
        kl=max(full_mean - coreset_mean, 0.0),
        log_evidence_ratio=log_evidence + constant,
        weight_ess=weight_ess,
        ess=weight_ess * min(1.0, efficiency, of_ratio),
        rhat=rhat,
        unit=unit,
        log_ratios=np.asarray(log_ratios, np.float64),
        log_weights=log_weights,
        **with_errors,
    )
    if not found.can_be_reweighted:
        return found
    unseen = unseen_tail_contribution(float(weights.max()), khat, count * of_ratio)
    wider = {f"{name}_standard_error": np.hypot(errors[name], unseen[name]) for name in unseen}
    return dataclasses.replace(found, **{name: float(error) for name, error in wider.items()})


def _standard_error(influence: Float[np.ndarray, "chains draws"]) -> float:
    if not np.isfinite(influence).all():
        return float("inf")
    size = float(effective_size(influence))
    return 0.0 if np.isnan(size) else float(influence.std() / np.sqrt(size))


def _checked(num_draws: int | None) -> int | None:
    return None if num_draws is None else check_int("num_draws", num_draws, MIN_DRAWS)


def samples_of(coreset: Coreset, mcmc: MCMC | Mapping[str, Any]) -> ChainSamples:
    """The draws, after a check that an MCMC ran on the coreset's model."""
    check_belongs(coreset, mcmc)
    return chain_samples(mcmc, latent_shapes(coreset.model, (coreset.args, coreset.kwargs)))
