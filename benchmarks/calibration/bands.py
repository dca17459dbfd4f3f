"""Are ranks uniform? Simultaneous bands for the distribution function of a sample of ranks.

The bands are those of Säilynoja, Bürkner and Vehtari (2022, Statistics and Computing 32(32)): at
each value the number of ranks below it is binomial, and the pointwise level is chosen by simulation
such that uniform ranks leave the bands nowhere with the stated probability.
"""

import functools

import numpy as np
from scipy.stats import beta, binom, norm

_SIMULATIONS = 4000


def band_statistic(ranks: np.ndarray, num_values: int) -> np.ndarray:
    """The smallest tail probability of the ranks' distribution function at any value, by set.

    Args:
        ranks: shape (sets, n), integers from 0 to `num_values` - 1.
        num_values: the number of values that a rank can have.
    """
    num = ranks.shape[-1]
    values = np.arange(1, num_values)
    sorted_ranks = np.sort(ranks, axis=-1)
    below = np.stack([np.searchsorted(one, values) for one in sorted_ranks])
    chance = values / num_values
    lower, upper = binom.cdf(below, num, chance), binom.sf(below - 1, num, chance)
    return 2 * np.minimum(lower, upper).min(axis=-1)


@functools.cache
def _null(num: int, num_values: int) -> np.ndarray:
    """The statistic of sets of uniform ranks."""
    uniform = np.random.default_rng(0).integers(0, num_values, (_SIMULATIONS, num))
    return band_statistic(uniform, num_values)


def p_value(ranks: np.ndarray, num_values: int) -> float:
    """How often uniform ranks leave the bands as far, by simulation.

    Args:
        ranks: shape (n,).
        num_values: see `band_statistic`.
    """
    found = band_statistic(np.asarray(ranks)[None], num_values)[0]
    # Rounding does not decide between equal statistics.
    return float(np.mean(_null(len(ranks), num_values) <= found * (1 + 1e-9)))


def detection_rate(
    shift: float, num: int, num_values: int, num_quantities: int = 1, num_sets: int = 400
) -> float:
    """How often the test finds a normal posterior whose mean is off, by simulation.

    Args:
        shift: how far the mean is off, in standard deviations.
        num: the number of ranks in a set.
        num_values: see `band_statistic`.
        num_quantities: the number of quantities by which the p-value is multiplied.
        num_sets: the number of simulated sets.
    """
    rng = np.random.default_rng(0)
    chance = norm.cdf(rng.normal(shift, 1.0, (num_sets, num)))
    ranks = rng.binomial(num_values - 1, chance)
    return float(np.mean([num_quantities * p_value(one, num_values) < 0.05 for one in ranks]))


def limits(num: int, num_values: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """The bands, as numbers of ranks below 1, …, `num_values` - 1 that are still inside."""
    tail = np.quantile(_null(num, num_values), 1 - level)
    chance = np.arange(1, num_values) / num_values
    # The first count whose tail is not below the limit, on either side.
    return binom.ppf(tail / 2, num, chance), binom.isf(tail / 2, num, chance)


def coverage_interval(inside: int, num: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's exact interval for a probability with `inside` hits among `num`."""
    tail = (1 - level) / 2
    low = beta.ppf(tail, inside, num - inside + 1) if inside else 0.0
    high = beta.isf(tail, inside + 1, num - inside) if inside < num else 1.0
    return float(low), float(high)
