"""How good a coreset posterior is, measured against all the data after NUTS has run on it.

A build estimates the divergence under the weighting π̂. A certificate estimates it again with draws
of the coreset posterior π_w itself: the log-ratio of the full to the coreset likelihood at each
draw is the log importance ratio π/π_w, up to a constant. The k-hat of Pareto-smoothed importance
sampling (Vehtari, Simpson, Gelman, Yao and Gabry, JMLR 25(72), 2024) says whether averages over
these ratios can be trusted. The averages give both Kullback–Leibler divergences and the ratio of
the evidences.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpyro.infer import MCMC

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.coreset.report import GOOD_KL
from jaxcoreset.data.messages import text_table
from jaxcoreset.data.utils import check_int, progress_bar
from jaxcoreset.diagnostics.log_ratio import full_likelihood, log_ratios, starting_point
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.trace import latent_shapes, one_at_a_time
from jaxcoreset.weighting.chains import (
    MAX_RHAT,
    MIN_DRAWS,
    ChainSamples,
    chain_samples,
    effective_size,
)
from jaxcoreset.weighting.psis import (
    khat_limit,
    log_sum_exp,
    pareto_smooth,
    unseen_tail_contribution,
)

# Below it the variance of the ratios is finite, and their plain means have the usual errors.
FINITE_VARIANCE_KHAT = 0.5
# With this number a mean has an error of a tenth of a standard deviation.
_FEW_EFFECTIVE_DRAWS = 100
# Chains of NUTS should be below it (Vehtari et al., Bayesian Analysis 16(2), 2021).
_FINE_RHAT = 1.01
# In nats. k-hat has no scale: weights that differ by a few per cent may have any shape of tail. If
# the log-ratios of all draws are within this range, and the fitted tail has a mean (k-hat below 1),
# then the contribution of the tail beyond the largest weight to the KL is far below `GOOD_KL`; see
# "What the error bars mean" in the documentation.
_NARROW = 0.1
# Draws whose density is overrated by more nats than this are not where the coreset was built.
_ELSEWHERE = 20.0


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far a coreset posterior π_w is from the full posterior π, at draws of π_w.

    Every ``…_standard_error`` is a Monte Carlo error. It includes the autocorrelation of the chains
    and the contribution of the fitted tail beyond the largest weight. Two standard errors cover the
    truth in 95 of 100 runs if k-hat is near 0, and in 82 to 88 if the true shape of the tail is
    0.5. The divergences are then too low by a tenth or more, because draws that are too rare to be
    in the sample contribute much to them.

    Attributes:
        num_data: the number of rows of the data.
        num_rows: the number of rows of the coreset.
        num_chains: the number of chains.
        num_draws: the number of draws used, from all chains.
        khat: k-hat, the estimated shape of the tail of the importance ratios π/π_w.
        khat_limit: the largest k-hat with which this number S of draws can be reweighted,
            min(1 − 1/log10(S), 0.7).
        kl_forward: estimate of KL(π‖π_w), in nats.
        kl_forward_standard_error: its standard error.
        kl_reverse: estimate of KL(π_w‖π), in nats.
        kl_reverse_standard_error: its standard error.
        kl: estimate of their sum, the symmetrised divergence, in nats.
        kl_standard_error: its standard error.
        log_evidence_ratio: estimate of log Z − log Z_w, the evidence of all the data over that of
            the weighted rows, in nats.
        log_evidence_ratio_standard_error: its standard error.
        weight_ess: effective sample size by the weights alone, 1/Σ W² (Kish).
        ess: effective sample size of the reweighted draws: `weight_ess` times the smallest relative
            efficiency of the chains, over all parameters and the ratio.
        rhat: the largest split-R̂ of a parameter.
        log_ratios: shape (chains, draws), the log-likelihood of all rows less that of the coreset.
        log_weights: shape (chains, draws), smoothed; their exponentials add up to one.
        excess: how much too high the coreset's log-density is at the draws, in nats, compared with
            the point where chains should start, `Coreset.init_params`; None if not known.
    """

    num_data: int
    num_rows: int
    num_chains: int
    num_draws: int
    khat: float
    khat_limit: float
    kl_forward: float
    kl_forward_standard_error: float
    kl_reverse: float
    kl_reverse_standard_error: float
    kl: float
    kl_standard_error: float
    log_evidence_ratio: float
    log_evidence_ratio_standard_error: float
    weight_ess: float
    ess: float
    rhat: float
    log_ratios: Float[np.ndarray, "chains draws"]
    log_weights: Float[np.ndarray, "chains draws"]
    excess: float | None = None

    @property
    def verdict(self) -> str:
        """What to do with the draws of the coreset posterior.

        "good" (use them as they are): the symmetrised KL plus two standard errors is at most 0.02
        nats, and the draws `can_be_reweighted`. "usable with correction" (use them through
        `correct`): the KL may be larger, but the draws can be reweighted. "don't use": they cannot
        be reweighted, or the R̂ of the chains is above 1.1.

        The verdict is about the coreset. If a good coreset has few effective draws, `reason` says
        so.
        """
        if not (self.can_be_reweighted and self.rhat <= MAX_RHAT) or self._is_elsewhere:
            return "don't use"
        close = self.kl + 2 * self.kl_standard_error <= GOOD_KL
        return "good" if close else "usable with correction"

    @property
    def _is_elsewhere(self) -> bool:
        """True if the chains are where the full posterior has no mass."""
        return self.excess is not None and self.excess > _ELSEWHERE

    @property
    def can_be_reweighted(self) -> bool:
        """True if weighted averages can be trusted.

        They can if k-hat is at most `khat_limit`. They also can if k-hat is below 1, all log-ratios
        are within 0.1 nats of one another, and there are at least 100 effective draws: the shape of
        the tail of nearly equal weights says little, and `weight_ess` is at least 99.7 per cent of
        the draws.
        """
        return self.khat <= self.khat_limit or self._is_narrow

    @property
    def _is_narrow(self) -> bool:
        narrow = self._range <= _NARROW and self.ess >= _FEW_EFFECTIVE_DRAWS
        return bool(narrow and self.khat < 1)

    @property
    def _range(self) -> float:
        """The range of the log-ratios in nats, infinite if one of them is −∞."""
        return float(np.max(self.log_ratios) - np.min(self.log_ratios))

    @property
    def reason(self) -> str:
        """The reason for the verdict in a sentence or two, and what to do."""
        if self._is_elsewhere:
            return (
                "The chains are in a mode that only the weighted density has: it is "
                f"{self.excess:.3g} nats too high there, against where the coreset was built. "
                "Start them there: init_params=coreset.init_params(num_chains)."
            )
        if self.rhat > MAX_RHAT:
            return (
                f"The coreset's chains disagree (R-hat {self.rhat:.3g}, limit {MAX_RHAT}): run "
                "them longer from init_params=coreset.init_params(num_chains), and certify again."
            )
        if not self.can_be_reweighted:
            return (
                f"k-hat is {self.khat:.2f}, above the limit {self.khat_limit:.2f}: the tail of the "
                "weights is so long that a few draws dominate the averages, and the numbers above "
                f"cannot be trusted. {REMEDY}"
            )
        tail = f"k-hat is at most {self.khat_limit:.2f}"
        if not self.khat <= self.khat_limit:
            tail = (
                f"k-hat is {self.khat:.2f}, above {self.khat_limit:.2f}, but all weights are "
                f"within {100 * np.expm1(self._range):.1g}% of one another, so their tail matters "
                "little"
            )
        if self.verdict == "good":
            return f"{tail}, and the KL is at most {GOOD_KL} nats.{self._few}"
        return (
            f"The KL may be above {GOOD_KL} nats. {tail}, so you can reweight the draws with "
            f"jaxcoreset.correct.{self._few}"
        )

    @property
    def _few(self) -> str:
        """A sentence that the chains are too short, if they are."""
        if self.ess >= _FEW_EFFECTIVE_DRAWS:
            return ""
        rhat = f" (R-hat {self.rhat:.2f})" if self.rhat > _FINE_RHAT else ""
        return f" There are only {self.ess:.0f} effective draws{rhat}: run NUTS for longer."

    def scalars(self) -> dict[str, Any]:
        """The verdict and all attributes except the arrays of values at the draws."""
        left_out = ("log_ratios", "log_weights")
        facts = {name: value for name, value in vars(self).items() if value is not None}
        return {name: x for name, x in facts.items() if name not in left_out} | {
            "verdict": self.verdict
        }

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain numbers, strings and lists, for JSON."""
        lists = {"log_ratios": self.log_ratios.tolist(), "log_weights": self.log_weights.tolist()}
        return {**self.scalars(), **lists}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Certificate":
        """The inverse of `to_dict`."""
        names = [item.name for item in dataclasses.fields(cls)]
        arrays = {name: np.asarray(plain[name], float) for name in ("log_ratios", "log_weights")}
        return cls(**{**{name: plain[name] for name in names if name in plain}, **arrays})

    def __str__(self) -> str:
        def nats(name: str) -> str:
            error = getattr(self, f"{name}_standard_error")
            text = f"{getattr(self, name):.2g} ± {error:.1g} nats"
            return text if self.can_be_reweighted else f"at least {text}"

        ratio, error = self.log_evidence_ratio, self.log_evidence_ratio_standard_error
        rows = [
            ("rows", f"{self.num_rows:,} of {self.num_data:,}"),
            ("draws", f"{self.num_draws:,} in {self.num_chains} chains, R-hat {self.rhat:.3f}"),
            ("k-hat", f"{self.khat:.2f} (limit {self.khat_limit:.2f})"),
            ("KL(full ‖ coreset)", nats("kl_forward")),
            ("KL(coreset ‖ full)", nats("kl_reverse")),
            ("their sum", nats("kl")),
            ("log Z / Z_coreset", f"{ratio:.3f} ± {error:.1g} nats"),
            ("effective draws", f"{self.ess:,.0f} ({self.weight_ess:,.0f} by the weights alone)"),
            ("verdict", f"{self.verdict}. {self.reason}"),
        ]
        return text_table("Coreset certificate", rows)


REMEDY = (
    "Build a larger coreset (size, or a smaller tol), or use better draws (weighting, rounds), or "
    "run NUTS on all rows from coreset.warm_start(mcmc)."
)


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

    It evaluates one row's log-likelihood draws × rows times, in one streamed pass over all the
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
    chains, draws = _samples(coreset, mcmc).thin(_checked(num_draws))[0].shape
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
    samples = _samples(coreset, mcmc)
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
        raise ValueError(
            f"every draw of chain {', '.join(map(str, stuck))} of {samples.shape[0]} is the same: "
            "the sampler never moved. Start it at init_params=coreset.init_params(num_chains), or "
            "warm it up for longer; see 'Know when not to' in the documentation."
        )
    n = likelihood.num_data
    cost = f"{chains * draws:,} draws × {n:,} rows"
    with (
        likelihood.rows.context.precision(),
        progress_bar(n, cost, show=show_progress) as bar,
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
    )
    return dataclasses.replace(found, excess=excess), used, positions


def certificate_of(
    log_ratios: Float[np.ndarray, "chains draws"],
    efficiency: float = 1.0,
    *,
    num_data: int,
    num_rows: int,
    rhat: float = 1.0,
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
        log_ratios=np.asarray(log_ratios, np.float64),
        log_weights=log_weights,
        **{f"{name}_standard_error": error for name, error in errors.items()},
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


def _samples(coreset: Coreset, mcmc: MCMC | Mapping[str, Any]) -> ChainSamples:
    """The draws, after a check that they are not those of the model without weights."""
    if isinstance(mcmc, MCMC) and getattr(mcmc.sampler, "model", None) is getattr(
        coreset.model, "model", None
    ):
        raise ValueError(
            "mcmc has run on the model without weights; run NUTS on coreset.model, with "
            "coreset.args and coreset.kwargs."
        )
    return chain_samples(mcmc, latent_shapes(coreset.model, (coreset.args, coreset.kwargs)))
