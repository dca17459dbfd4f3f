"""Draws of a posterior by chain, from an `MCMC` object or from a dictionary of samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC

from jaxcoreset.data.arviz import corrected, posterior_of

# Above it the chains differ too much to be used (Gelman and Rubin 1992).
MAX_RHAT = 1.1
# Chains are not used as π̂ either if more than this fraction of their transitions diverge, or if
# their energies change by less than this fraction of their variance (the estimated fraction of
# missing information of Betancourt 2016; Stan warns below 0.2).
_MAX_DIVERGENT, _MIN_ENERGY_CHANGE = 0.25, 0.1
# The fraction of draws that differ from the one before, below which a chain hardly moves.
_MIN_MOVES = 0.05
# Different draws that a posterior has at least; the smallest eigenvalue of their correlations, and
# the rounding of one.
_MIN_DISTINCT, _MIN_EIGENVALUE, _EIGENVALUE_ERROR = 20, 1e-9, 1e-14
# Minimum number of draws: of fewer, neither a tail nor an autocorrelation can be estimated.
MIN_DRAWS = 50


@dataclass(frozen=True)
class ChainSamples:
    """Constrained draws of a model's sites.

    Attributes:
        sites: an array of shape (chains, draws, …) for every site, deterministic ones included.
        latent: the names of the latent sites, a subset of `sites`.
    """

    sites: dict[str, np.ndarray]
    latent: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of chains and of draws in each."""
        chains, draws = self.sites[self.latent[0]].shape[:2]
        return chains, draws

    def flat(self) -> dict[str, np.ndarray]:
        """The latent sites with one leading axis, the draws of all chains one after another."""
        values = {name: self.sites[name] for name in self.latent}
        return {name: x.reshape(-1, *x.shape[2:]) for name, x in values.items()}

    def stuck_chains(self) -> list[int]:
        """The chains in which every draw is the same."""
        latent = [self.sites[name] for name in self.latent]
        still = [(x == x[:, :1]).all(axis=tuple(range(1, x.ndim))) for x in latent]
        return [int(chain) for chain in np.flatnonzero(np.all(still, axis=0))]

    def thin(self, num_draws: int | None) -> tuple["ChainSamples", np.ndarray]:
        """At least `num_draws` draws, evenly spaced and equally many per chain; their positions.

        All the draws if there are fewer, or if `num_draws` is None.
        """
        chains, draws = self.shape
        kept = draws if num_draws is None else min(draws, -(-num_draws // chains))
        positions = np.linspace(0, draws - 1, kept).round().astype(int)
        sites = {name: values[:, positions] for name, values in self.sites.items()}
        return ChainSamples(sites, self.latent), positions

    def least_effective_size(self) -> float:
        """The smallest effective sample size of a coordinate, among those that move."""
        sizes = [effective_size(self.sites[name]) for name in self.latent]
        return float(np.nanmin(np.concatenate([np.ravel(size) for size in sizes])))

    def rhat(self) -> float:
        """The largest split-R̂ of a coordinate (Gelman et al., Bayesian Data Analysis, 11.4)."""
        with np.errstate(all="ignore"):
            found = [np.ravel(split_gelman_rubin(self.sites[name])) for name in self.latent]
        found = np.concatenate(found)
        return float(np.nanmax(found)) if not np.isnan(found).all() else 1.0


@dataclass(frozen=True)
class Transitions:
    """How chains moved.

    Attributes:
        num_divergent: the number of divergent transitions.
        energy: the Hamiltonian of each draw, shape (chains, draws).
    """

    num_divergent: int
    energy: Float[np.ndarray, "chains draws"]


def mixing_trouble(
    draws: Float[np.ndarray, "chains draws d"], transitions: Transitions
) -> str | None:
    """What shows that chains have not mixed, in a few words; None if nothing does."""
    moves = (np.diff(draws, axis=1) != 0).any(axis=2).mean(axis=1)
    if (stuck := np.flatnonzero(moves == 0)).size:
        return f"every draw of chain {', '.join(map(str, stuck))} of {len(draws)} is the same"
    if (moves < _MIN_MOVES).any():
        return f"only {moves.min():.1%} of the draws of a chain differ from the one before"
    count = transitions.energy.size
    if transitions.num_divergent > _MAX_DIVERGENT * count:
        return f"{transitions.num_divergent:,} of {count:,} transitions diverged"
    with np.errstate(all="ignore"):
        r_hat = float(np.max(split_gelman_rubin(draws)))
        energy = np.asarray(transitions.energy, np.float64)
        change = float(np.min((np.diff(energy, axis=1) ** 2).mean(1) / energy.var(axis=1)))
    if not r_hat <= MAX_RHAT:
        return f"R-hat is {r_hat:.2f}, above {MAX_RHAT}"
    if not change >= _MIN_ENERGY_CHANGE:
        return f"their energies hardly change (E-BFMI {change:.2f}, below {_MIN_ENERGY_CHANGE})"
    return None


def too_few_directions(flat: Float[np.ndarray, "s d"]) -> str | None:
    """What shows that draws do not tell of a density in all directions; None if nothing does.

    Along a direction in which the draws do not vary any error of a coreset is invisible.

    Args:
        flat: unconstrained parameters, of the type in which they were drawn.
    """
    num, num_params = flat.shape
    distinct = np.unique(flat, axis=0).astype(np.float64)
    if len(distinct) < min(num, _MIN_DISTINCT):
        return f"only {len(distinct)} of the {num:,} draws are different"
    if len(distinct) <= num_params:
        return None
    centred = distinct - distinct.mean(axis=0)
    scale = centred.std(axis=0)
    num_varied = num_params
    if scale.all():
        # Draws along a line are so up to the rounding of their type.
        rounding = 4 * np.finfo(flat.dtype).eps * np.abs(distinct).max() / scale.min()
        values = np.linalg.eigvalsh(np.corrcoef(centred, rowvar=False).reshape(num_params, -1))
        least = max(min(_MIN_EIGENVALUE, num_params * rounding**2), num_params * _EIGENVALUE_ERROR)
        num_varied = int((values > least).sum())
    else:
        num_varied = int((scale > 0).sum())
    if num_varied == num_params:
        return None
    return f"the draws vary in {num_varied} of {num_params} directions only"


def effective_size(values: Float[np.ndarray, "chains draws *shape"]) -> np.ndarray:
    """The effective sample size for the mean, at most the number of draws; NaN for a constant."""
    values = np.asarray(values, np.float64)
    count = values.shape[0] * values.shape[1]
    with np.errstate(all="ignore"):
        found = np.asarray(effective_sample_size(values))
    constant = np.ptp(values, axis=(0, 1)) == 0
    # Alternating draws can be worth more than independent ones for a mean, but not for a tail.
    usable = np.isfinite(found) & (found > 0)
    return np.where(constant, np.nan, np.where(usable, np.minimum(found, count), count))


def chain_samples(
    mcmc: MCMC | Mapping[str, Any], latent_shapes: Mapping[str, tuple[int, ...]]
) -> ChainSamples:
    """The draws in `mcmc`, checked against the model's latent sites.

    Args:
        mcmc: an `MCMC` object that has run, or a dictionary from site to constrained samples with
            leading axes (draws,) or (chains, draws), or these in a container of ArviZ.
        latent_shapes: the shape of a value of each latent site.

    Raises:
        TypeError: if `mcmc` is none of these.
        ValueError: if `mcmc` has not run, a latent site is missing, or shapes do not fit; or if it
            is what `correct` returned, whose draws are no longer those of the coreset's posterior.
    """
    if corrected(mcmc) is not None:
        raise ValueError(
            "mcmc is what correct returned, whose draws are corrected already; expected draws of "
            "the coreset's own posterior: pass the mcmc, or the dictionary of samples, that "
            "correct was called with."
        )
    if isinstance(mcmc, MCMC):
        if mcmc.last_state is None:
            raise ValueError(
                "mcmc has no samples yet; expected an MCMC that has run: mcmc.run(key, "
                "*coreset.args, **coreset.kwargs)."
            )
        found = mcmc.get_samples(group_by_chain=True)
    else:
        inner = posterior_of(mcmc)
        found = mcmc if inner is None else inner
    if not isinstance(found, Mapping):
        raise TypeError(
            f"mcmc is or holds a {type(found).__name__}; expected a numpyro.infer.MCMC run on "
            "coreset.model, or a dictionary from latent site to constrained samples."
        )
    missing = [name for name in latent_shapes if name not in found]
    if missing:
        raise ValueError(
            f"mcmc has no samples of {', '.join(missing)}; expected every latent site of the "
            f"model: {', '.join(latent_shapes)}."
        )
    arrays = {name: np.asarray(value) for name, value in jax.device_get(dict(found)).items()}
    name, shape = next(iter(latent_shapes.items()))
    by_chain = arrays[name].ndim == len(shape) + 2
    leading = arrays[name].shape[: 2 if by_chain else 1]
    for name, shape in latent_shapes.items():
        if arrays[name].shape != leading + shape or not leading:
            raise ValueError(
                f"mcmc's samples of {name!r} have shape {arrays[name].shape}; expected (draws, *s) "
                f"or (chains, draws, *s) with s = {shape}, with the same draws of every site."
            )
        if not np.isfinite(arrays[name]).all():
            raise ValueError(
                f"mcmc's samples of {name!r} are not all finite; expected finite numbers."
            )
    fitting = {
        name: value if by_chain else value[None]
        for name, value in arrays.items()
        if value.shape[: len(leading)] == leading
    }
    return ChainSamples(fitting, tuple(latent_shapes))


def samples_of_full(
    mcmc: MCMC | Mapping[str, Any],
    latent_shapes: Mapping[str, tuple[int, ...]],
    generator: np.random.Generator,
) -> ChainSamples:
    """The draws that are nearest to the posterior of all rows.

    Of what `correct` returned, they are resampled by their weights, so that copies of a draw are
    adjacent. If it has no weights, they were resampled before.

    Args:
        mcmc: as in `chain_samples`, or what `correct` returned.
        latent_shapes: as in `chain_samples`, with its errors.
        generator: of the random numbers.
    """
    found = corrected(mcmc)
    if found is None:
        return chain_samples(mcmc, latent_shapes)
    sites, stats = found
    samples = chain_samples(sites, latent_shapes)
    if "log_weight" not in stats:
        return samples
    chosen = systematic_resample(np.asarray(stats["log_weight"], np.float64), generator)
    pooled = {name: x.reshape(-1, *x.shape[2:])[chosen] for name, x in samples.sites.items()}
    resampled = {name: x.reshape(samples.sites[name].shape) for name, x in pooled.items()}
    return ChainSamples(resampled, samples.latent)


def systematic_resample(
    log_weights: Float[np.ndarray, "chains draws"], generator: np.random.Generator
) -> Int[np.ndarray, " s"]:
    """Positions of draws in increasing order, each as often as its weight times S, rounded."""
    ends = np.cumsum(np.exp(log_weights.ravel()))
    points = (generator.random() + np.arange(log_weights.size)) / log_weights.size
    return np.minimum(np.searchsorted(ends / ends[-1], points), log_weights.size - 1)
