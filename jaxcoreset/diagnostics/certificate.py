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

from jaxcoreset.coreset.report import GOOD_KL
from jaxcoreset.data.messages import ShownAsTable, text_table
from jaxcoreset.likelihood.precision import needs_float64
from jaxcoreset.weighting.chains import MAX_RHAT

# Below it the variance of the ratios is finite, and their plain means have the usual errors.
FINITE_VARIANCE_KHAT = 0.5
# With this number a mean has an error of a tenth of a standard deviation.
_FEW_EFFECTIVE_DRAWS = 100
# Chains of NUTS should be below it (Vehtari et al., Bayesian Analysis 16(2), 2021).
_FINE_RHAT = 1.01
# In nats. k-hat has no scale: weights that are nearly equal may have any shape of tail. If the
# log-ratios of all draws are within this range, and the effective sample size of the weights is at
# least this fraction of the draws, the tail beyond the largest weight contributes far less than
# `GOOD_KL` to the KL; see "What the error bars mean" in the documentation.
_NARROW, _NEARLY_ALL = 0.5, 0.997
# If the weights leave this part of the draws, only their tail is in doubt.
_MOST_DRAWS = 0.5
# If more of the transitions diverge, NUTS may have missed a part of the coreset's posterior.
_MAX_DIVERGENT = 0.01
# Draws whose density is overrated by more nats than this are not where the coreset was built.
_ELSEWHERE = 20.0


@dataclass(frozen=True, eq=False)
class Certificate(ShownAsTable):
    """How far a coreset posterior π_w is from the full posterior π, at draws of π_w.

    Every ``…_standard_error`` is a Monte Carlo error. It includes the autocorrelation of the chains
    and the contribution of the fitted tail beyond the largest weight. Two standard errors cover the
    truth in 95 of 100 runs if k-hat is near 0, and in 82 to 88 if the true shape of the tail is
    0.5. The divergences are then too low by a tenth or more, because draws that are too rare to be
    in the sample contribute much to them.

    Attributes:
        num_data: the number of rows of the data; of a coreset of groups, the number of groups.
        num_rows: the number of rows of the coreset, or of its groups.
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
        separated: whether the coreset's density has a trough between that point and the draws; None
            if the excess is small, or this is not known.
        unit: what a datum is, "rows" or "groups".
        rounding: the rounding error of the coreset's log-density, in nats, if it is too large for
            NUTS in float32 and the draws are in float32; None otherwise.
        divergent: the fraction of divergent transitions of NUTS; None if not known.
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
    separated: bool | None = None
    unit: str = "rows"
    rounding: float | None = None
    divergent: float | None = None

    @property
    def verdict(self) -> str:
        """What to do with the draws of the coreset posterior, in words for programs.

        "good" (use them as they are): the symmetrised KL plus two standard errors is at most 0.02
        nats, and the draws `can_be_reweighted`. "usable with correction" (use them through
        `correct`): the KL may be larger, but the draws can be reweighted. "don't use": they cannot
        be reweighted, or the chains have not converged, or many of their transitions diverged.

        `summary` is a sentence that judges the coreset and the chains separately.
        """
        usable = self.chains_verdict in ("converged", "short")
        known = self.coreset_verdict != "not known"
        return self.coreset_verdict if usable and known else "don't use"

    @property
    def coreset_verdict(self) -> str:
        """The verdict on the coreset alone, at the draws that there are, as in `verdict`.

        It is "not known" if the chains are in a mode that only the weighted density has, or if the
        weights are nearly equal and there are too few effective draws to ignore k-hat.
        """
        if self._is_elsewhere or self._has_too_few_to_judge:
            return "not known"
        if not self.can_be_reweighted:
            return "don't use"
        close = self.kl + 2 * self.kl_standard_error <= GOOD_KL
        return "good" if close else "usable with correction"

    @property
    def chains_verdict(self) -> str:
        """The verdict on the chains alone.

        "converged"; "short", with fewer than 100 effective draws; "not converged", with an R̂ above
        1.1; "divergent", with more than one divergent transition in a hundred; or "elsewhere", in a
        mode that only the weighted density has.
        """
        if self._is_elsewhere:
            return "elsewhere"
        if not self.rhat <= MAX_RHAT:
            return "not converged"
        if self.divergent is not None and self.divergent > _MAX_DIVERGENT:
            return "divergent"
        # Draws may also be few because the weights differ, which longer chains do not change.
        by_chains = self.can_be_reweighted or self._has_too_few_to_judge
        return "short" if by_chains and self._has_few else "converged"

    @property
    def summary(self) -> str:
        """The verdicts on the coreset and on the chains, in a sentence."""
        khat = f"k-hat {self.khat:.2f}"
        coreset = {
            "don't use": f"{self.distance} ({khat}, limit {self.khat_limit:.2f})",
            "not known": "not judged" if self._is_elsewhere else f"not judged ({khat})",
        }.get(
            self.coreset_verdict,
            f"{self.coreset_verdict} ({self.kl:.2g} ± {self.kl_standard_error:.1g} nats, {khat})",
        )
        rhat, longer = f"R-hat {self.rhat:.2f}", "run them longer"
        rounded = "" if self.rounding is None else f", but {needs_float64(self.rounding)}"
        if self.rounding is not None:
            longer = needs_float64(self.rounding)
        chains = {
            "converged": f"converged ({rhat}){rounded}",
            "short": f"short ({rhat}, {self.ess:.0f} effective draws): {longer}",
            "not converged": f"not converged ({rhat}): {longer}",
            "divergent": f"{self._diverged}: {self._against_divergence}",
            "elsewhere": "in a mode that only the weighted density has: start them with "
            "init_params=coreset.init_params(num_chains)",
        }[self.chains_verdict]
        is_partial = self.chains_verdict in ("not converged", "divergent")
        where = " where the chains have been" if is_partial else ""
        return f"coreset {coreset}{where}; chains {chains}"

    @property
    def _diverged(self) -> str:
        return f"with {100 * (self.divergent or 0):.2g}% divergent transitions"

    @property
    def _against_divergence(self) -> str:
        return _SMALLER_STEPS if self.rounding is None else needs_float64(self.rounding)

    @property
    def _is_elsewhere(self) -> bool:
        """True if the chains are in a mode where the full posterior has no mass."""
        return is_elsewhere(self.excess) and self.separated is not False

    @property
    def can_be_reweighted(self) -> bool:
        """True if weighted averages can be trusted.

        They can be trusted if k-hat is at most `khat_limit`, or if all log-ratios are within 0.5
        nats of one another, `weight_ess` is at least 99.7 per cent of the draws, and there are at
        least 100 effective draws. If the weights are nearly equal, the shape of their tail says
        little.
        """
        return self.khat <= self.khat_limit or (self._is_equal and not self._has_few)

    @property
    def _has_too_few_to_judge(self) -> bool:
        """True if k-hat is too large, and could be ignored if the chains were longer."""
        return self._is_equal and self._has_few and not self.khat <= self.khat_limit

    @property
    def _is_equal(self) -> bool:
        """True if the weights are nearly equal, and a tail can be fitted to them."""
        equal = self._range <= _NARROW and self.weight_ess >= _NEARLY_ALL * self.num_draws
        return bool(equal and np.isfinite(self.khat))

    @property
    def _range(self) -> float:
        """The range of the log-ratios in nats, infinite if one of them is −∞."""
        return float(np.max(self.log_ratios) - np.min(self.log_ratios))

    @property
    def _within(self) -> str:
        """How far the weights are from one another, in words."""
        return f"within {100 * np.expm1(self._range):.1g}% of one another"

    @property
    def reason(self) -> str:
        """The reason for the verdict in a sentence or two, and what to do."""
        if self._is_elsewhere:
            return (
                "The chains are in a mode that only the weighted density has: it is "
                f"{self.excess:.3g} nats too high there, compared with the point where the coreset "
                "was built. Start the chains at that point: "
                "init_params=coreset.init_params(num_chains)."
            )
        if self.chains_verdict == "not converged":
            disagree = f"The coreset's chains disagree (R-hat {self.rhat:.3g}, limit {MAX_RHAT})"
            if self.rounding is not None:
                return f"{disagree}: {needs_float64(self.rounding)}, and certify again."
            return (
                f"{disagree}: run them longer from init_params=coreset.init_params(num_chains), "
                "and certify again."
            )
        if self.chains_verdict == "divergent":
            return (
                f"NUTS ran {self._diverged}, so it may have missed a part of the coreset's "
                f"posterior: {self._against_divergence}, and certify again."
            )
        if self._has_too_few_to_judge:
            remedy = (
                "run NUTS for longer, and certify again"
                if self.rounding is None
                else needs_float64(self.rounding)
            )
            return (
                f"k-hat is {self.khat:.2f}, above the limit {self.khat_limit:.2f}. All weights are "
                f"{self._within}, so their tail would matter little, but {self.ess:.0f} effective "
                f"draws are too few to rely on that: {remedy}."
            )
        if not self.can_be_reweighted:
            return (
                f"k-hat is {self.khat:.2f}, above the limit {self.khat_limit:.2f}: the tail of the "
                "weights is so long that a few draws dominate the averages, and the numbers above "
                f"cannot be trusted. {self.remedy}"
            )
        tail = f"k-hat is at most {self.khat_limit:.2f}"
        if not self.khat <= self.khat_limit:
            tail = (
                f"k-hat is {self.khat:.2f}, above {self.khat_limit:.2f}, but all weights are "
                f"{self._within}, so their tail matters little"
            )
        if self.coreset_verdict == "good":
            return f"{tail}, and the KL is at most {GOOD_KL} nats.{self._few}"
        return (
            f"The KL may be above {GOOD_KL} nats. {tail}, so you can reweight the draws with "
            f"jaxcoreset.correct.{self._few}"
        )

    @property
    def distance(self) -> str:
        """Where the coreset posterior is if its draws cannot be reweighted, in a clause."""
        if self._has_long_tail:
            return f"{self.kl:.2g} nats from the full posterior, but with a long tail"
        return "too far from the full posterior"

    @property
    def _has_long_tail(self) -> bool:
        """True if the draws are near the full posterior, but for a few of them."""
        is_near = self.kl <= GOOD_KL and self.weight_ess >= _MOST_DRAWS * self.num_draws
        return bool(is_near and np.isfinite(self.khat) and not self.khat <= self.khat_limit)

    @property
    def remedy(self) -> str:
        """What to do if the draws cannot be reweighted, in a sentence or two."""
        if self.rounding is not None:
            return f"The reason may be that {needs_float64(self.rounding)}. {REMEDY}"
        return LONG_TAIL_REMEDY if self._has_long_tail else REMEDY

    @property
    def _has_few(self) -> bool:
        return self.ess < _FEW_EFFECTIVE_DRAWS

    @property
    def _few(self) -> str:
        """A sentence that the chains are too short or rounded, if they are."""
        if self.rounding is not None:
            return f" But {needs_float64(self.rounding)}."
        if not self._has_few:
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

        chains = f"{self.num_chains} chain{'s' if self.num_chains > 1 else ''}"
        ratio, error = self.log_evidence_ratio, self.log_evidence_ratio_standard_error
        diverged = f", {self._diverged}" if self.divergent else ""
        rows = [
            (self.unit, f"{self.num_rows:,} of {self.num_data:,}"),
            ("draws", f"{self.num_draws:,} in {chains}, R-hat {self.rhat:.3f}{diverged}"),
            ("k-hat", f"{self.khat:.2f} (limit {self.khat_limit:.2f})"),
            ("KL(full ‖ coreset)", nats("kl_forward")),
            ("KL(coreset ‖ full)", nats("kl_reverse")),
            ("their sum", nats("kl")),
            ("log Z / Z_coreset", f"{ratio:.3f} ± {error:.1g} nats"),
            ("effective draws", f"{self.ess:,.0f} ({self.weight_ess:,.0f} by the weights alone)"),
            ("verdict", f"{self.summary}."),
            ("reason", self.reason),
        ]
        return text_table("Coreset certificate", rows)


def is_elsewhere(excess: float | None) -> bool:
    """Return whether draws with this excess are not where the coreset was built."""
    return excess is not None and excess > _ELSEWHERE


_SMALLER_STEPS = (
    "use smaller steps, for example NUTS(coreset.model, target_accept_prob=0.99), or "
    "reparametrise the model, for example with LocScaleReparam"
)
LONG_TAIL_REMEDY = (
    "A few draws in a tail may be much likelier than the coreset says. Run longer chains, since "
    "the limit rises with the number of draws, up to 0.7; or build with a smaller tol, or with "
    "proxy=None."
)
REMEDY = (
    "Build a larger coreset (size, or a smaller tol), or use better draws (weighting, rounds), or "
    "run NUTS on all rows from coreset.warm_start(mcmc)."
)
