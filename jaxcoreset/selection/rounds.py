"""Rounds: if π̂ is inaccurate, the posterior of the coreset is the next π̂.

A coreset that was built under an inaccurate π̂ is still closer to the posterior than π̂ was. So its
posterior is sampled by NUTS, the log-likelihoods are evaluated at those draws, and the coreset is
built again. The same draws say when to stop. With L and L_w the log-likelihoods of all rows and of
the coreset, the variance of L − L_w estimates the symmetrised KL divergence under π̂, and under the
coreset posterior π_w as well: since π/π_w ∝ exp(L − L_w), the latter does not depend on π̂. If both
agree, the estimate is right. The coreset may still be improved: if the draws of π̂ have a small
effective sample size, it is built once more, with the draws of its own posterior.

The posterior of a coreset that was built far from the full posterior is narrow and misplaced: its
log-likelihood is right where π̂ was, and off by v = Var(L − L_w) ≫ 1 nat² where its own posterior
is. As the next π̂ it could lead further away. So the next π̂ is then the posterior of L_w/√v, which
is wider by v^¼.

With a tolerance, estimates that differ are accepted if both are within it, and if the draws of π̂
are from a coreset posterior whose own error was small. In the first round a difference is often
from tails of the posterior where π̂ has no draws, and then both estimates are too low.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from jaxcoreset.data.arrays import power_of_two
from jaxcoreset.data.blocks import are_wide, few_places
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.selection.baseline import flat_and_prior, relative_ess_of
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.estimate import LOWER_BOUND_KL, KLEstimate, estimate_at
from jaxcoreset.selection.parts import Use
from jaxcoreset.selection.tolerance import Selection
from jaxcoreset.weighting.nuts import ChainDraws, CoresetSampler

# The maximum number of builds with rounds="auto"; a start from the prior can take five.
MOST_ROUNDS = 5
# The relative effective sample size below which the draws of π̂ are poor: others give a better
# coreset.
MIN_RELATIVE_ESS = 0.1
# The one from which the estimate under π̂ needs no check. The coreset is most accurate where π̂ has
# its draws, so that the estimate is too low if π̂ is misplaced.
CHECKED_ESS = 0.5
# Estimates agree within this fraction of the smaller one, besides their standard errors. Under two
# similar posteriors the variances differ by this much even without Monte Carlo error.
_SLACK = 0.25
# Above it, in nats, the posterior of a coreset is too narrow, and is widened.
_TEMPERED = 1.0
# Below it, in nats, it does not matter whether two estimates agree.
_NEGLIGIBLE = 1e-4
# Doublings of a trajectory. The chains move in coordinates in which π̂ is isotropic, so that few are
# enough. Chains that have not mixed with them start again with NumPyro's number of doublings and
# this number of steps of adaptation.
_MAX_TREE_DEPTH, _LONG_WARMUP = 6, 1000


@dataclass(frozen=True)
class Round:
    """One build, as ``Report.rounds`` has it.

    Attributes:
        weighting: the weighting that the build used; after the first one "coreset posterior".
        num_used: the number of rows of the coreset.
        kl: the estimate of the symmetrised KL divergence under that weighting, in nats.
        kl_standard_error: its standard error.
        own_kl: the estimate under the coreset's own posterior; None if that was not sampled.
        own_kl_standard_error: its standard error.
        own_mean_shift: the largest shift of a posterior mean under it, in standard deviations; None
            if unknown.
        own_mean_shift_standard_error: the standard error of a shift.
        agrees: whether the two agree, or are both within the tolerance; None if there is only one.
        alike: whether they are similar, even if they are too large to be trusted or above the
            tolerance; None if there is only one.
        r_hat: the largest split R-hat of the chains on the coreset posterior.
        num_divergent: the number of their divergent transitions.
        trouble: the reason why these chains count as not mixed, so that there is no `own_kl`; None
            if they have mixed.
        next_temperature: the divisor of the coreset's log-likelihood in the posterior that is the
            next π̂; 1 if `own_kl` is at most one nat.
        relative_ess: the effective sample size of the weighting's draws for the full posterior, as
            a fraction of their number. The importance weights use a Gaussian with the draws' mean
            and covariance, or the Laplace approximation if the draws come from it. None if it was
            not measured.
        has_repeats: whether held-out draws of the weighting are not new, see `DrawSource`.
    """

    weighting: str
    num_used: int
    kl: float
    kl_standard_error: float
    own_kl: float | None = None
    own_kl_standard_error: float | None = None
    own_mean_shift: float | None = None
    own_mean_shift_standard_error: float = 0.0
    agrees: bool | None = None
    alike: bool | None = None
    r_hat: float | None = None
    num_divergent: int | None = None
    trouble: str | None = None
    next_temperature: float | None = None
    relative_ess: float | None = None
    has_repeats: bool = False

    @classmethod
    def of(cls, weighting: str, selection: Selection, relative_ess: float | None = None) -> "Round":
        """A build whose own posterior was not sampled."""
        return cls(
            weighting,
            selection.weights.size,
            selection.estimate.kl,
            selection.estimate.standard_error,
            relative_ess=relative_ess,
        )

    def to_dict(self) -> dict[str, Any]:
        """The round as plain numbers and strings."""
        return dataclasses.asdict(self)


class Checker:
    """Checks coresets of one run by draws of their own posteriors.

    Args:
        likelihood: the model's likelihood and data.
        tol: the tolerance, in nats, or None.
        num_draws: the number of draws of a coreset's posterior.
        max_shift: the largest shift of a posterior mean, in standard deviations.

    Attributes:
        is_settled: whether the estimate under π̂ needs no check, or was accepted by one.
        is_final: whether another build would not improve the coreset.
        were_alike: whether the last two estimates were similar, however large they are.
    """

    def __init__(
        self,
        likelihood: ModelLikelihood,
        tol: float | None,
        num_draws: int,
        max_shift: float = np.inf,
    ):
        self.likelihood, self.tol, self.num_draws = likelihood, tol, num_draws
        self.max_shift = max_shift
        self.is_settled = self.is_final = False
        self.were_alike = False
        self._is_patient = False
        self._own_kl_before = np.inf
        self._sampler: CoresetSampler | None = None

    def _sampler_of(self, **settings: int) -> CoresetSampler:
        return CoresetSampler(self.likelihood, num_samples=self.num_draws, **settings)

    def needs_check(self, pool: DrawPool) -> tuple[bool, float]:
        """Return whether the coreset posterior has to be sampled, and the relative ESS under π̂.

        It has to be sampled if that effective sample size of the draws of π̂ is too small to trust
        the estimate under π̂, if held-out draws are mostly those that the solver sees, or if the
        posterior is so skewed in some direction that it reaches where π̂ has no draw.
        """
        relative_ess = relative_ess_of(pool)
        is_skewed = pool.expansion is not None and pool.expansion.metric is not None
        is_covered = not (pool.source.has_repeats or is_skewed)
        self.is_settled = relative_ess >= CHECKED_ESS and is_covered
        return not self.is_settled, relative_ess

    def look(
        self, pool: DrawPool, selection: Selection, outcome: Round, key: PRNGKeyArray
    ) -> tuple[DrawPool | None, Round]:
        """Sample a coreset's posterior, and compare the estimate under it with that under π̂.

        Args:
            pool: the draws that the coreset was built with.
            selection: the coreset.
            outcome: what is known of the round.
            key: a JAX random key.

        Returns:
            A pool of draws of the coreset posterior, or None if the chains have not mixed, and the
            round with the results.
        """
        if self._sampler is None:
            self._sampler = self._sampler_of(max_tree_depth=_MAX_TREE_DEPTH)
        keys = jax.random.split(key, 4)
        source = sample_coreset_posterior(self._sampler, pool, selection, keys[0])
        if source.trouble is not None and not self._is_patient:
            self._is_patient, self._sampler = True, self._sampler_of(num_warmup=_LONG_WARMUP)
            source = sample_coreset_posterior(self._sampler, pool, selection, keys[0])
        outcome = dataclasses.replace(
            outcome, r_hat=source.r_hat, num_divergent=source.num_divergent, trouble=source.trouble
        )
        if source.trouble is not None:
            return None, outcome
        own_pool = pool.on(source, keys[1])
        own_pool.ensure_draws(selection=self.num_draws)
        own = estimate_at(own_pool, selection.path, selection.at, "selection", selection.approach)
        self.is_settled, self.were_alike = agree(
            selection.estimate,
            own,
            self.were_alike,
            self.tol,
            was_near=self._own_kl_before <= LOWER_BOUND_KL,
        )
        self._own_kl_before = own.kl
        # If the draws of π̂ are poor, the new ones are better. A met tolerance needs no more.
        poor = outcome.relative_ess is not None and outcome.relative_ess < MIN_RELATIVE_ESS
        improves = poor and self.tol is None and own.kl > _NEGLIGIBLE
        shifts = own.mean_shift is not None and own.mean_shift > self.max_shift
        if not self.were_alike and (shifts or not selection.is_within):
            self.is_settled = False  # the next coreset is looked at too
        self.is_final = self.is_settled and not improves and not shifts
        temperature = 1.0
        if own.kl > _TEMPERED and not self.is_settled:
            temperature = float(np.sqrt(own.kl / _TEMPERED))
            given = self._sampler, own_pool, selection, keys[2]
            wide = sample_coreset_posterior(*given, temperature=temperature, use="selection")
            own_pool = pool.on(wide, keys[3]) if wide.trouble is None else None
        return own_pool, dataclasses.replace(
            outcome,
            own_kl=own.kl,
            own_kl_standard_error=own.standard_error,
            own_mean_shift=own.mean_shift,
            own_mean_shift_standard_error=own.mean_shift_standard_error,
            agrees=self.is_settled,
            alike=self.were_alike,
            next_temperature=temperature,
            has_repeats=pool.source.has_repeats,
        )


def agree(
    under_weighting: KLEstimate,
    own: KLEstimate,
    before: bool,
    tol: float | None = None,
    *,
    was_near: bool = True,
) -> tuple[bool, bool]:
    """Return whether the estimates under π̂ and under the coreset's own posterior agree.

    They agree if they differ by at most a quarter of the smaller one plus two of their joint
    standard errors, which count only up to the smaller one itself, because an estimate with a
    larger error could agree with anything. They also agree if both are negligible: below 1e-4 nats,
    or a tenth of `tol`. With `tol`, the coreset's own estimate must not be above it. Above 0.3 nats
    an estimate is a lower bound only, and the two must be similar in two consecutive rounds. They
    need not be similar if both, plus two standard errors, are within `tol` and below 0.3 nats, and
    π̂ was near the posterior.

    Args:
        under_weighting: the estimate under π̂.
        own: the estimate under the coreset's posterior.
        before: whether they were similar in the round before.
        tol: the tolerance, in nats.
        was_near: whether π̂ is a coreset posterior with an error of at most 0.3 nats under itself.

    Returns:
        Whether they are accepted, and whether they are similar.
    """
    negligible = _NEGLIGIBLE if tol is None else tol / 10
    error = np.hypot(own.standard_error, under_weighting.standard_error)
    smaller = min(own.kl, under_weighting.kl)
    difference = abs(own.kl - under_weighting.kl)
    upper = np.maximum(own.upper, under_weighting.upper)  # NaN if either is
    alike = bool(difference <= _SLACK * smaller + min(2 * error, smaller) or upper <= negligible)
    if tol is not None and own.kl > tol:
        return False, alike
    if tol is not None and upper <= min(tol, LOWER_BOUND_KL) and was_near:
        return True, alike
    return alike and (before or own.kl <= LOWER_BOUND_KL), alike


def sample_coreset_posterior(
    sampler: CoresetSampler,
    pool: DrawPool,
    selection: Selection,
    key: PRNGKeyArray,
    *,
    temperature: float = 1.0,
    use: Use = "solver",
) -> ChainDraws:
    """Run NUTS on a coreset, starting at the likeliest of the pool's draws.

    Args:
        sampler: the model's sampler, which is compiled once for all coresets of one length.
        pool: the draws, and the candidates' log-likelihoods at them.
        selection: the coreset.
        key: a JAX random key.
        temperature: the divisor of the coreset's log-likelihood.
        use: the use of the draws to start from.
    """
    positions, weights = _slots(pool, selection)
    weights = weights / temperature
    proxy = pool.proxy_of(selection.positions, selection.weights, selection.approach)
    proxy = None if proxy is None else proxy.scaled(1 / temperature)
    part = pool.parts(use)[0]
    flat, prior = flat_and_prior(pool, [part])
    values = (
        weights @ np.asarray(part.values[positions]) if proxy is None else part.total / temperature
    )
    density = np.asarray(values, np.float64) + prior
    density[~np.isfinite(density)] = -np.inf
    best = np.argsort(-density)[: sampler.num_chains]
    starts = flat[np.resize(best, sampler.num_chains)]
    indices = pool.indices_of(positions)
    covariance = temperature * _covariance(flat)
    return sampler.run(key, indices, weights, starts, covariance, proxy)


def _slots(
    pool: DrawPool, selection: Selection
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """The positions and weights of a coreset's rows, and of rows of weight 0.

    Coresets of one size, or of a similar number of groups, then share a program. The program
    evaluates the rows of weight 0 too, so there are few of them where a row is expensive.
    """
    positions = np.asarray(selection.path.indices[selection.at], np.int64)
    weights = np.asarray(selection.path.weights[selection.at])
    data = pool.data_of(selection.positions if selection.num_rows else positions[:1])
    if not are_wide(data):
        return positions, weights
    used_first = np.argsort(weights <= 0, kind="stable")
    kept = np.sort(used_first[: power_of_two(selection.num_rows, few_places(data))])
    return positions[kept], weights[kept]


def _covariance(flat: np.ndarray) -> np.ndarray:
    """The covariance of the draws, or its diagonal if they are few; positive definite."""
    num, width = flat.shape
    covariance = np.atleast_2d(np.cov(flat, rowvar=False))
    variances = np.maximum(np.diag(covariance), 1e-12)
    # Float32 needs a little extra diagonal if parameters are strongly correlated.
    kept = 0.99 if num >= 5 * width else 0.0
    return kept * covariance + np.diag((1 - kept) * variances)
