"""How good a coreset posterior is, measured against all the data after NUTS has run on it.

A build estimates the divergence under the weighting π̂. A certificate looks again with draws of
the coreset posterior π_w itself: the log-ratio of the full to the coreset likelihood at each draw
is the log importance ratio π/π_w, up to a constant. Pareto-smoothed importance sampling (Vehtari,
Simpson, Gelman, Yao and Gabry, JMLR 25(72), 2024) says by its k-hat whether averages over them can
be trusted, and those averages are both Kullback–Leibler divergences and the ratio of evidences.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpyro.infer import MCMC

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.utils import check_int, progress_bar
from jaxcoreset.diagnostics.arviz import pareto_smooth
from jaxcoreset.diagnostics.log_ratio import full_likelihood, log_ratios
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.trace import latent_shapes
from jaxcoreset.weighting.chains import MIN_DRAWS, ChainSamples, chain_samples, effective_size

# Vehtari et al. (2024), section 3.2.4, equation 13: beyond 0.7 no practical number of draws is
# enough, and below, S draws are where k-hat < 1 − 1/log10(S).
MAX_KHAT = 0.7
# The ratios' variance is finite below it, and their plain means have the usual errors.
FINITE_VARIANCE_KHAT = 0.5
# In nats. For Gaussians no mean, of any linear combination of parameters, is then off by much more
# than √0.02 = 0.14 posterior standard deviations, the Monte Carlo error of fifty independent draws.
GOOD_KL = 0.02
# Above it chains differ so much that nothing should be read from them (Gelman and Rubin 1992).
MAX_RHAT = 1.1
# A mean has then an error of a tenth of a standard deviation.
_FEW_EFFECTIVE_DRAWS = 100
# What chains of NUTS should have (Vehtari et al., Bayesian Analysis 16(2), 2021).
_FINE_RHAT = 1.01
# In nats. k-hat has no scale: weights that are all within a few per cent of one another may have a
# tail of any shape. Where the log-ratios of all draws are within this range of one another, and
# the tail that was fitted has a mean (k-hat below 1), what it adds to the KL beyond the largest
# weight seen is far below `GOOD_KL`; see "What the error bars mean" for how that was looked at.
_NARROW = 0.1


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far a coreset posterior π_w is from the full posterior π, at draws of π_w.

    Every ``…_standard_error`` is of Monte Carlo, and counts the chains' autocorrelation, and what
    the fitted tail has beyond the largest weight. Two of them cover the truth in 95 of 100 runs
    where k-hat is near 0; where the tail's true shape is 0.5, in 82 to 88, and the divergences are
    then too low by a tenth or more: a draw too rare to be among so many has much of them.

    Attributes:
        num_data: rows of the data.
        num_rows: rows of the coreset.
        num_chains: chains that the draws are from.
        num_draws: draws used, of all chains.
        khat: k-hat, the estimated shape of the tail of the importance ratios π/π_w.
        khat_limit: up to where so many draws can be reweighted, min(1 − 1/log10(S), 0.7).
        kl_forward: estimate of KL(π‖π_w), in nats.
        kl_forward_standard_error: its error.
        kl_reverse: estimate of KL(π_w‖π), in nats.
        kl_reverse_standard_error: its error.
        kl: estimate of their sum, the symmetrised divergence, in nats.
        kl_standard_error: its error.
        log_evidence_ratio: estimate of log Z − log Z_w, the evidence of all the data over that of
            the weighted rows, in nats.
        log_evidence_ratio_standard_error: its error.
        weight_ess: effective sample size of the weights alone, 1/Σ W² (Kish).
        ess: that of the reweighted draws: times the least relative efficiency of the chains, over
            all parameters and the ratio.
        rhat: the largest split-R̂ of a parameter.
        log_ratios: shape (chains, draws), log-likelihood of all rows less that of the coreset.
        log_weights: shape (chains, draws), smoothed, their exponentials add to one.
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

    @property
    def verdict(self) -> str:
        """What to do with the draws of the coreset posterior.

        "good" (use them as they are): the symmetrised KL, with two standard errors on top, is at
        most 0.02 nats, and they `can_be_reweighted`. "usable with correction" (use them through
        `correct`): only the latter. "don't use": they cannot be, or the chains' R̂ is above 1.1.

        It is about the coreset: draws of a good one may still be few, which `reason` says.
        """
        if not (self.can_be_reweighted and self.rhat <= MAX_RHAT):
            return "don't use"
        close = self.kl + 2 * self.kl_standard_error <= GOOD_KL
        return "good" if close else "usable with correction"

    @property
    def can_be_reweighted(self) -> bool:
        """Whether averages by the weights can be trusted.

        Where k-hat is at most `khat_limit`; or below 1, all log-ratios are within 0.1 nats of one
        another, and the effective draws are 100 or more. The shape of the tail of weights that are
        nearly equal says little: `weight_ess` is then 99.7 per cent of the draws or more.
        """
        return self.khat <= self.khat_limit or self._is_narrow

    @property
    def _is_narrow(self) -> bool:
        narrow = self._range <= _NARROW and self.ess >= _FEW_EFFECTIVE_DRAWS
        return bool(narrow and self.khat < 1)

    @property
    def _range(self) -> float:
        """By how many nats the draws' log-ratios differ, infinite where one of them is −∞."""
        return float(np.max(self.log_ratios) - np.min(self.log_ratios))

    @property
    def reason(self) -> str:
        """Why, in a sentence or two, and what to do."""
        if self.rhat > MAX_RHAT:
            return (
                f"The chains on the coreset disagree (R-hat {self.rhat:.3g}, limit {MAX_RHAT}); "
                "run them longer, then certify again."
            )
        if not self.can_be_reweighted:
            return (
                f"k-hat is {self.khat:.2f}, above {self.khat_limit:.2f}: the weights have so long "
                "a tail that a few draws, or some that are not among these, may decide, and the "
                f"numbers above are not to be trusted. {REMEDY}"
            )
        tail = f"k-hat is at most {self.khat_limit:.2f}"
        if not self.khat <= self.khat_limit:
            tail = (
                f"k-hat is {self.khat:.2f}, above {self.khat_limit:.2f}, but all the weights are "
                f"within {100 * np.expm1(self._range):.1g}% of one another, so their tail matters "
                "little"
            )
        if self.verdict == "good":
            return f"{tail}, and the KL at most {GOOD_KL} nats.{self._few}"
        return (
            f"The KL may be above {GOOD_KL} nats. {tail}, so the draws can be reweighted: "
            f"jaxcoreset.correct.{self._few}"
        )

    @property
    def _few(self) -> str:
        """That the chains are too short, where they are."""
        if self.ess >= _FEW_EFFECTIVE_DRAWS:
            return ""
        rhat = f" (R-hat {self.rhat:.2f})" if self.rhat > _FINE_RHAT else ""
        return f" Only {self.ess:.0f} effective draws are left{rhat}: run NUTS for longer."

    def scalars(self) -> dict[str, Any]:
        """All but the draws' own values, with the verdict, as plain numbers and text."""
        arrays = ("log_ratios", "log_weights")
        names = [item.name for item in dataclasses.fields(self) if item.name not in arrays]
        return {**{name: getattr(self, name) for name in names}, "verdict": self.verdict}

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain numbers, strings and lists, as JSON can hold them."""
        lists = {"log_ratios": self.log_ratios.tolist(), "log_weights": self.log_weights.tolist()}
        return {**self.scalars(), **lists}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Certificate":
        """The inverse of `to_dict`."""
        names = [item.name for item in dataclasses.fields(cls)]
        arrays = {name: np.asarray(plain[name], float) for name in ("log_ratios", "log_weights")}
        return cls(**{**{name: plain[name] for name in names}, **arrays})

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
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{width}}  {text}" for name, text in rows]
        return "\n".join(["Coreset certificate", *lines])


REMEDY = (
    "Build a larger coreset (size, or a smaller tol), or one from better draws (weighting, "
    "rounds); or run NUTS on all rows from coreset.warm_start(mcmc)."
)


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

    It costs as many evaluations of one row's log-likelihood as draws × rows of all the data, see
    `certificate_cost`, in one streamed pass.

    Args:
        coreset: the coreset.
        mcmc: NUTS that has run on ``coreset.model``, or a dictionary of constrained samples of its
            latent sites with leading axes (draws,) or (chains, draws).
        *args: the model's positional arguments with all rows; wanted where the coreset was loaded.
        num_draws: about so many draws, evenly spaced and equally many in every chain; all if None.
        likelihood: in place of the arguments, what `model_likelihood` made of them; for a model
            with an argument of the same name as one of these here, or data of an odd layout.
        batch_size: rows that are evaluated at a time.
        progress_bar: whether to show, on a terminal, the cost and the progress.
        **kwargs: the model's keyword arguments with all rows.

    Raises:
        ValueError: if the data are missing or are not those that the coreset was built from, or
            samples do not fit the model, are fewer than 50, come from the model without weights, or
            are all the same in one of the chains.
        RuntimeError: if a compiled program is found to be wrong; some of its values are held to
            another one's, once per likelihood and number of draws.
        ModuleNotFoundError: if ArviZ is not installed.
    """
    likelihood = full_likelihood(coreset, args, kwargs, likelihood)
    return measure(coreset, mcmc, likelihood, num_draws, batch_size, progress_bar)[0]


def certificate_cost(
    coreset: Coreset, mcmc: MCMC | Mapping[str, Any], num_draws: int | None = 1000
) -> int:
    """How often `certify` will evaluate one row's log-likelihood: draws × rows of all the data.

    Arguments as of `certify`; `correct` uses all draws unless told otherwise: num_draws=None.
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
    """The certificate, the draws that it is of, and their places in the chains."""
    samples = _samples(coreset, mcmc)
    # Sums over the parts of several processes are to be at the same draws.
    sites = likelihood.rows.context.processes.first(dict(samples.sites))
    samples = dataclasses.replace(samples, sites=sites)
    used, places = samples.thin(_checked(num_draws))
    chains, draws = used.shape
    if chains * draws < MIN_DRAWS:
        raise ValueError(
            f"mcmc has {chains * draws} draws to use; wanted at least {MIN_DRAWS}, better 1000."
        )
    stuck = samples.stuck_chains()
    if stuck:
        raise ValueError(
            f"every draw of chain {', '.join(map(str, stuck))} of {samples.shape[0]} is the same: "
            "the sampler never moved. Start it elsewhere, such as at a draw of the weighting's, or "
            "warm it up for longer; see 'Know when not to' in the documentation."
        )
    n = likelihood.num_data
    cost = f"{chains * draws:,} draws × {n:,} rows"
    with progress_bar(n, cost, show=show_progress) as bar:
        ratios = log_ratios(
            coreset, likelihood, used.flat(), batch_size=batch_size, on_rows=bar.update
        )
    found = certificate_of(
        ratios.reshape(chains, draws),
        used.least_effective_size() / (chains * draws),
        num_data=n,
        num_rows=len(coreset),
        rhat=samples.rhat(),
    )
    return found, used, places


def certificate_of(
    log_ratios: Float[np.ndarray, "chains draws"],
    efficiency: float = 1.0,
    *,
    num_data: int,
    num_rows: int,
    rhat: float = 1.0,
) -> Certificate:
    """The certificate that log-ratios L − L_w at draws of the coreset posterior make.

    Each estimate is a mean of S numbers, or a function of such means; its standard error is that of
    the mean of its influence function, with the chains' effective sample size in place of S, and,
    as far as k-hat is to be believed, what `_beyond` adds. The ratios are smoothed for it where
    k-hat is above 0.5.

    Args:
        log_ratios: in nats, constant included; −inf where the full likelihood is zero.
        efficiency: the least effective sample size of a parameter over the number of draws.
        num_data: rows of the data.
        num_rows: rows of the coreset.
        rhat: of the chains.
    """
    ratios = np.asarray(log_ratios, np.float64)
    count = ratios.size
    if not np.isfinite(ratios).any():
        raise ValueError(
            "the likelihood of all the data is zero at every draw, so the coreset posterior lies "
            "where the full one has no mass; build a larger coreset, or from other draws."
        )
    # Their constant may be millions of nats, of which a mean by weights would keep a roundoff.
    constant = float(ratios.max())
    ratios = ratios - constant
    of_ratio = float(effective_size(np.exp(ratios))) / count
    of_ratio = 1.0 if np.isnan(of_ratio) else of_ratio
    flat, khat = pareto_smooth(ratios.ravel(), of_ratio)
    log_weights = flat.reshape(ratios.shape)
    plain = ratios.ravel() - _log_mean_exp(ratios) - np.log(count)
    # Smoothing shifts estimates by some thousandths of the ratios' standard deviation, which is
    # more than a small divergence; plain ratios do where their variance is finite.
    used = flat if khat > FINITE_VARIANCE_KHAT else plain
    # Smoothing leaves all but the largest ratios as they are, so that any of those has the scale.
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
        # A divergence is not negative; its estimate may be, by the smoothing and by rounding.
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
    beyond = _beyond(float(weights.max()), khat, count * of_ratio)
    wider = {f"{name}_standard_error": np.hypot(errors[name], beyond[name]) for name in beyond}
    return dataclasses.replace(found, **{name: float(error) for name, error in wider.items()})


def _beyond(top: float, khat: float, size: float) -> dict[str, float]:
    """What weights that are larger than any drawn add to each estimate, by the fitted tail.

    Of S draws the largest weight, W, is passed with a probability of about 1/S; the tail goes on as
    1 + (W − 1) t^−k with t uniform in (0, 1). That no such weight was drawn makes an estimate too
    low, and the spread of those that were does not show it.

    Args:
        top: the largest weight, where their mean is one.
        khat: the tail's shape, below 1.
        size: how many independent draws those of the weights are worth.
    """
    if not top > 1:
        return {}
    shape = max(khat, 0.0)
    # By u = −log t, in which the integrands fall like exp(−(1 − k) u).
    u = np.linspace(0, 40 / (1 - shape), 4001)
    excess = (top - 1) * np.exp(-(1 - shape) * u)
    logs = np.logaddexp(0, np.log(top - 1) + shape * u)
    mass = np.exp(-u)
    integrands = {  # W log W − W + 1, W − 1 − log W, (W − 1) log W and W − 1
        "kl_forward": (excess + mass) * logs - excess,
        "kl_reverse": excess - mass * logs,
        "kl": excess * logs,
        "log_evidence_ratio": excess,
    }
    return {
        name: float(np.sum((values[1:] + values[:-1]) / 2) * (u[1] - u[0]) / size)
        for name, values in integrands.items()
    }


def khat_limit(num_draws: int) -> float:
    """Up to which k-hat so many draws can be reweighted (Vehtari et al. 2024, equation 13)."""
    return float(min(1 - 1 / np.log10(num_draws), MAX_KHAT))


def _log_mean_exp(values: np.ndarray) -> float:
    top = np.max(values)
    return float(top + np.log(np.mean(np.exp(values - top))))


def _standard_error(influence: Float[np.ndarray, "chains draws"]) -> float:
    if not np.isfinite(influence).all():
        return float("inf")
    size = float(effective_size(influence))
    return 0.0 if np.isnan(size) else float(influence.std() / np.sqrt(size))


def _checked(num_draws: int | None) -> int | None:
    return None if num_draws is None else check_int("num_draws", num_draws, MIN_DRAWS)


def _samples(coreset: Coreset, mcmc: MCMC | Mapping[str, Any]) -> ChainSamples:
    """The draws, unless they are plainly of another posterior than the coreset's."""
    if isinstance(mcmc, MCMC) and getattr(mcmc.sampler, "model", None) is getattr(
        coreset.model, "model", None
    ):
        raise ValueError(
            "mcmc has run on the model without weights; wanted NUTS on coreset.model, with "
            "coreset.args and coreset.kwargs."
        )
    return chain_samples(mcmc, latent_shapes(coreset.model, (coreset.args, coreset.kwargs)))
