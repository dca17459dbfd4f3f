"""Rounds: where π̂ is off, the coreset's own posterior is the next one.

A coreset built under a π̂ that is off is still a better idea of the posterior than π̂ was. So its
posterior is sampled by NUTS, the log-likelihoods are evaluated at those draws, and the coreset is
built again. The same draws tell when to stop. With L and L_w the log-likelihoods of all rows and of
the coreset, the variance of L − L_w estimates the symmetrised KL divergence under π̂, and under the
coreset posterior π_w as well: since π/π_w ∝ exp(L − L_w), it is then a statement about π that does
not lean on π̂. Where both say the same, the estimate is right. That does not make the coreset as
good as can be: where the draws of π̂ are worth little, it is built once more, at the draws of its
own posterior, which are there.

A coreset built far from the posterior is sure of a wrong place: its log-likelihood is right where
π̂ was, and off by v = Var(L − L_w) ≫ 1 nat² where its own posterior is. Taken as the next π̂ it can
wander. So the next π̂ is then the posterior of L_w/√v, which is wider by v^¼.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.selection.draws import DrawPool, Use
from jaxcoreset.selection.estimate import KLEstimate, estimate_at
from jaxcoreset.selection.tolerance import Selection
from jaxcoreset.weighting.laplace import LaplaceApproximation
from jaxcoreset.weighting.nuts import ChainDraws, CoresetSampler

# Builds at most with rounds="auto"; five are what a start from the prior can take.
MOST_ROUNDS = 5
# Of 100 draws of π̂, so many must be worth a draw of the full posterior for π̂ to pass unrepaired.
MIN_RELATIVE_ESS = 0.1
# Estimates agree within this part of the smaller one, beside their standard errors. Under two
# posteriors that are near, the variances differ by this much even without Monte Carlo error.
_SLACK = 0.25
# Above, an estimate in nats is a lower bound only, and agreement may be chance.
_TRUSTED = 0.3
# Above, in nats, a coreset's posterior is too sure of the wrong place, and is widened.
_TEMPERED = 1.0
# Below, in nats, it does not matter whether two estimates agree.
_NEGLIGIBLE = 1e-4
# Doublings of a trajectory. The chains move in coordinates in which π̂ is round; where that is not
# enough there is something to be lost in, and it is to end.
_MAX_TREE_DEPTH = 6


@dataclass(frozen=True)
class Round:
    """One build, as ``Report.rounds`` has it.

    Attributes:
        weighting: the weighting that the build used; after the first one "coreset posterior".
        num_used: rows of the coreset.
        kl: the estimate of the symmetrised KL divergence under that weighting, in nats.
        kl_standard_error: its standard error.
        own_kl: the estimate under the coreset's own posterior; None where it was not sampled.
        own_kl_standard_error: its standard error.
        agrees: whether the two agree; None where there is one only.
        r_hat: the largest split R-hat of the chains on the coreset posterior.
        num_divergent: their divergent transitions.
        next_temperature: what the coreset's log-likelihood is divided by in the posterior that is
            the next π̂; 1 where the own estimate is at most one nat.
        efficiency: what fraction of the weighting's draws is worth a draw of the full posterior,
            by importance weights under a Gaussian of the draws' mean and covariance, or under the
            Laplace approximation where the draws are its own; None where it was not asked for.
    """

    weighting: str
    num_used: int
    kl: float
    kl_standard_error: float
    own_kl: float | None = None
    own_kl_standard_error: float | None = None
    agrees: bool | None = None
    r_hat: float | None = None
    num_divergent: int | None = None
    next_temperature: float | None = None
    relative_ess: float | None = None

    @classmethod
    def of(cls, weighting: str, selection: Selection, relative_ess: float | None = None) -> "Round":
        """A build whose own posterior was not looked at."""
        return cls(
            weighting,
            selection.weights.size,
            selection.estimate.kl,
            selection.estimate.standard_error,
            relative_ess=relative_ess,
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and strings."""
        return dataclasses.asdict(self)


class Checker:
    """Looks at the posteriors of the coresets of one run.

    Args:
        likelihood: the model's likelihood and data.
        tol: the tolerance, in nats, or None.
        num_draws: draws of a coreset's posterior by which it is judged.

    Attributes:
        is_settled: whether the estimate under π̂ is known to be right.
        is_final: whether another build would not improve the coreset.
    """

    def __init__(self, likelihood: ModelLikelihood, tol: float | None, num_draws: int):
        self.likelihood, self.tol, self.num_draws = likelihood, tol, num_draws
        self.is_settled = self.is_final = False
        self._were_alike = False
        self._sampler: CoresetSampler | None = None

    def needs_check(self, pool: DrawPool) -> tuple[bool, float]:
        """Whether the coreset posterior has to be sampled, and the relative ESS of π̂'s draws.

        It has to be if that effective sample size is too small to trust the estimate under π̂.
        """
        relative_ess = relative_ess_of(pool)
        self.is_settled = relative_ess >= MIN_RELATIVE_ESS
        return not self.is_settled, relative_ess

    def look(
        self, pool: DrawPool, selection: Selection, outcome: Round, key: PRNGKeyArray
    ) -> tuple[DrawPool, Round]:
        """Sample a coreset's posterior, and compare the estimate under it with that under π̂.

        Args:
            pool: the draws that the coreset was built at.
            selection: the coreset.
            outcome: what is known of the round.
            key: a JAX random key.

        Returns:
            A pool of draws of the coreset posterior, and the round with all that it showed.
        """
        if self._sampler is None:
            self._sampler = CoresetSampler(
                self.likelihood, num_samples=self.num_draws, max_tree_depth=_MAX_TREE_DEPTH
            )
        keys = jax.random.split(key, 4)
        source = sample_coreset_posterior(self._sampler, pool, selection, keys[0])
        own_pool = pool.on(source, keys[1])
        own_pool.ensure_draws(selection=self.num_draws)
        own = estimate_at(own_pool, selection.path, selection.at, "selection")
        self.is_settled, self._were_alike = agree(
            selection.estimate, own, self._were_alike, self.tol
        )
        # Where π̂'s draws are worth little, those at hand are better ones. A tolerance that is kept
        # to asks for no more.
        poor = outcome.relative_ess is not None and outcome.relative_ess < MIN_RELATIVE_ESS
        improves = poor and self.tol is None and own.kl > _NEGLIGIBLE
        self.is_final = self.is_settled and not improves
        temperature = 1.0
        if own.kl > _TEMPERED and not self.is_settled:
            temperature = float(np.sqrt(own.kl / _TEMPERED))
            wide = sample_coreset_posterior(
                self._sampler,
                own_pool,
                selection,
                keys[2],
                temperature=temperature,
                use="selection",
            )
            own_pool = pool.on(wide, keys[3])
        return own_pool, dataclasses.replace(
            outcome,
            own_kl=own.kl,
            own_kl_standard_error=own.standard_error,
            agrees=self.is_settled,
            r_hat=source.r_hat,
            num_divergent=source.num_divergent,
            next_temperature=temperature,
        )


def agree(
    under_weighting: KLEstimate, own: KLEstimate, before: bool, tol: float | None = None
) -> tuple[bool, bool]:
    """Whether the estimates under π̂ and under the coreset's own posterior agree.

    They do where they differ by no more than a quarter of the smaller one and two of their joint
    standard errors, which count up to the smaller one itself: an estimate that could be anything
    agrees with nothing. Or both are negligible: below 1e-4 nats, or a tenth of `tol`. With `tol`,
    the coreset's own estimate must not be above it, two standard errors allowed. Above 0.3 nats an
    estimate is a lower bound only, and two must be alike in two rounds running.

    Args:
        under_weighting: the estimate under π̂.
        own: the estimate under the coreset's posterior.
        before: whether they were alike in the round before.
        tol: the tolerance, in nats.

    Returns:
        Whether to stop, and whether the two were alike.
    """
    negligible = _NEGLIGIBLE if tol is None else tol / 10
    error = np.hypot(own.standard_error, under_weighting.standard_error)
    smaller = min(own.kl, under_weighting.kl)
    difference = abs(own.kl - under_weighting.kl)
    alike = bool(
        difference <= _SLACK * smaller + min(2 * error, smaller)
        or max(own.upper, under_weighting.upper) <= negligible
    )
    if tol is not None and own.lower > tol:
        return False, alike
    return alike and (before or own.kl <= _TRUSTED), alike


def relative_ess_of(pool: DrawPool) -> float:
    """The effective sample size of π̂'s draws for the full posterior, as a fraction of them.

    Kish's size of the importance weights π(θ)/q(θ), where log π(θ) = L(θ) + log p(θ) is known up to
    a constant from the pass over the data, and q is the Laplace approximation, or for other draws
    the Gaussian of their mean and covariance: a stand-in, which can only make a good π̂ look worse.
    0 where there are fewer than five draws per parameter.
    """
    parts = [
        *pool.parts("solver")[:1],
        *pool.parts("selection")[:1],
        *pool.parts("confirmation")[:1],
    ]
    flat, prior = _flat_and_prior(pool.likelihood, parts)
    total = np.concatenate([np.asarray(part.total, np.float64) for part in parts])
    log_weights = total + prior - _log_density(flat, pool.source.approximation)
    if not np.isfinite(log_weights).all():
        return 0.0
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights**2).sum() / weights.size)


def sample_coreset_posterior(
    sampler: CoresetSampler,
    pool: DrawPool,
    selection: Selection,
    key: PRNGKeyArray,
    *,
    temperature: float = 1.0,
    use: Use = "solver",
) -> ChainDraws:
    """NUTS on a coreset, from the likeliest of some draws.

    Args:
        sampler: the model's sampler; compiled once for coresets of one length.
        pool: the draws, and the candidates' log-likelihoods at them.
        selection: the coreset.
        key: a JAX random key.
        temperature: what the coreset's log-likelihood is divided by.
        use: which of the pool's draws to start from.
    """
    # All slots, unused ones with weight 0 too, so that coresets of one size have one shape.
    positions = np.asarray(selection.path.indices[selection.at], np.int64)
    weights = np.asarray(selection.path.weights[selection.at]) / temperature
    part = pool.parts(use)[0]
    flat, prior = _flat_and_prior(pool.likelihood, [part])
    density = weights @ np.asarray(part.values[positions]) + prior
    density[~np.isfinite(density)] = -np.inf
    best = np.argsort(-density)[: sampler.num_chains]
    starts = flat[np.resize(best, sampler.num_chains)]
    indices = pool.indices_of(positions)
    return sampler.run(key, indices, weights, starts, temperature * _covariance(flat))


def _flat_and_prior(likelihood: ModelLikelihood, parts: list) -> tuple[np.ndarray, np.ndarray]:
    """The parts' draws, flat, of shape (s, D), and the log prior at each."""
    draws = jax.tree.map(lambda *x: jnp.concatenate(x), *(part.draws for part in parts))

    @jax.jit
    def evaluate(draws: Any) -> tuple[Array, Array]:
        return (
            jax.vmap(lambda one: ravel_pytree(one)[0])(draws),
            jax.vmap(likelihood.log_prior)(draws),
        )

    flat, prior = evaluate(draws)
    return np.asarray(flat, np.float64), np.asarray(prior, np.float64)


def _covariance(flat: np.ndarray) -> np.ndarray:
    """The draws' covariance, or its diagonal where they are few; positive definite."""
    num, width = flat.shape
    covariance = np.atleast_2d(np.cov(flat, rowvar=False))
    variances = np.maximum(np.diag(covariance), 1e-12)
    # A little of the diagonal, which float32 needs where parameters go together closely.
    kept = 0.99 if num >= 5 * width else 0.0
    return kept * covariance + np.diag((1 - kept) * variances)


def _log_density(flat: np.ndarray, approximation: LaplaceApproximation | None) -> np.ndarray:
    num, width = flat.shape
    if approximation is not None:
        mean, covariance = approximation.mode, approximation.covariance
    elif num >= 5 * width:
        mean, covariance = flat.mean(0), np.atleast_2d(np.cov(flat, rowvar=False))
    else:
        return np.full(num, np.inf)
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return np.full(num, np.inf)
    return -0.5 * np.sum(np.linalg.solve(factor, (flat - mean).T) ** 2, axis=0)
