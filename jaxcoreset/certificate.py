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

from jaxcoreset.arviz_adapter import pareto_smooth
from jaxcoreset.chain_samples import MIN_DRAWS, ChainSamples, chain_samples, effective_size
from jaxcoreset.coreset import Coreset
from jaxcoreset.host import at_least, progress_bar
from jaxcoreset.likelihood import ModelLikelihood
from jaxcoreset.log_ratio import full_likelihood, log_ratios
from jaxcoreset.model_trace import latent_shapes

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
# A corrected mean has then an error of a tenth of a standard deviation.
_FEW_EFFECTIVE_DRAWS = 100


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far a coreset posterior π_w is from the full posterior π, at draws of π_w.

    Every ``…_standard_error`` is of Monte Carlo, and counts the chains' autocorrelation.

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
        most 0.02 nats, and k-hat at most `khat_limit`. "usable with correction" (use them through
        `correct`): only k-hat is. "don't use": k-hat is above, or the chains' R̂ is above 1.1.
        """
        if not (self.khat <= self.khat_limit and self.rhat <= MAX_RHAT):
            return "don't use"
        close = self.kl + 2 * self.kl_standard_error <= GOOD_KL
        return "good" if close else "usable with correction"

    @property
    def reason(self) -> str:
        """Why, in a sentence or two, and what to do."""
        if self.rhat > MAX_RHAT:
            return (
                f"The chains on the coreset disagree (R-hat {self.rhat:.3g}, limit {MAX_RHAT}); "
                "run them longer, then certify again."
            )
        if not self.khat <= self.khat_limit:
            return (
                f"k-hat is {self.khat:.2f}, above {self.khat_limit:.2f}: a few draws carry nearly "
                f"all the weight, and the numbers above are not to be trusted. {REMEDY}"
            )
        if self.verdict == "good":
            return f"k-hat is at most {self.khat_limit:.2f}, and the KL at most {GOOD_KL} nats."
        few = ""
        if self.ess < _FEW_EFFECTIVE_DRAWS:
            few = f" Only {self.ess:.0f} effective draws are left: run NUTS for longer."
        return (
            f"The KL may be above {GOOD_KL} nats, but k-hat is at most {self.khat_limit:.2f}, so "
            f"the draws can be reweighted: jaxcoreset.correct.{few}"
        )

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
            return text if self.khat <= self.khat_limit else f"at least {text}"

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
    sites = likelihood.rows.placement.processes.first(dict(samples.sites))
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
    the mean of its influence function, with the chains' effective sample size in place of S. The
    ratios are smoothed for it where k-hat is above 0.5.

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
    return Certificate(
        num_data=num_data,
        num_rows=num_rows,
        num_chains=ratios.shape[0],
        num_draws=count,
        khat=khat,
        khat_limit=khat_limit(count),
        # A divergence is not negative; its estimate may be, by the smoothing and by rounding.
        kl_forward=max(full_mean - log_evidence, 0.0),
        kl_forward_standard_error=_standard_error(of_forward - of_evidence),
        kl_reverse=max(log_evidence - coreset_mean, 0.0),
        kl_reverse_standard_error=_standard_error(of_reverse + of_evidence),
        kl=max(full_mean - coreset_mean, 0.0),
        kl_standard_error=_standard_error(of_forward + of_reverse),
        log_evidence_ratio=log_evidence + constant,
        log_evidence_ratio_standard_error=_standard_error(of_evidence),
        weight_ess=weight_ess,
        ess=weight_ess * min(1.0, efficiency, of_ratio),
        rhat=rhat,
        log_ratios=np.asarray(log_ratios, np.float64),
        log_weights=log_weights,
    )


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
    return None if num_draws is None else at_least("num_draws", num_draws, MIN_DRAWS)


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
