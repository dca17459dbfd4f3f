"""Pareto-smoothed importance sampling: smoothed weights, and when they can be trusted.

The shape k-hat of the tail of importance ratios says whether averages by the ratios are reliable
(Vehtari, Simpson, Gelman, Yao and Gabry, JMLR 25(72), 2024).
"""

import numpy as np
from jaxtyping import Float

from jaxcoreset.data.arviz import psislw

# Vehtari et al. (2024), section 3.2.4, equation 13: above 0.7 no practical number of draws is
# enough; below it, S draws are enough if k-hat < 1 − 1/log10(S).
MAX_KHAT = 0.7
# Log-ratios within this range may differ by float32 rounding only, whose tail means nothing.
NEGLIGIBLE = 1e-4


def pareto_smooth(
    log_ratios: Float[np.ndarray, " s"], relative_efficiency: float = 1.0
) -> tuple[Float[np.ndarray, " s"], float]:
    """Pareto-smoothed importance sampling (Vehtari et al. 2024).

    Args:
        log_ratios: log importance ratios, up to a constant; −inf for a ratio of zero.
        relative_efficiency: effective sample size of the ratios over their number, in (0, 1].

    Returns:
        Smoothed log weights, whose exponentials add up to one, and k-hat, the estimated shape of
        the tail of the ratios: 0 if all ratios are equal within 1e-4, infinite if no tail can be
        fitted.
    """
    log_ratios = np.asarray(log_ratios, np.float64)
    if np.ptp(log_ratios) < NEGLIGIBLE:
        return log_ratios - log_sum_exp(log_ratios), 0.0
    try:
        weights, khat = psislw(log_ratios, relative_efficiency)
    except ValueError:  # The tail consists of copies of one draw.
        weights, khat = log_ratios - log_sum_exp(log_ratios), np.inf
    return weights, khat if np.isfinite(khat) else np.inf


def unseen_tail_contribution(top: float, khat: float, size: float) -> dict[str, float]:
    """The contribution to each estimate of weights above the largest one drawn, by the fitted tail.

    With S draws the largest weight W is exceeded with a probability of about 1/S, and the tail
    continues as 1 + (W − 1) t^−k with t uniform in (0, 1). Because no such weight was drawn, the
    estimates are too low, which the spread of the drawn weights does not show. From k = 1 on that
    tail has no mean; it then ends where draws are a thousand times rarer than one in S.

    Args:
        top: the largest weight, relative to the mean weight.
        khat: the shape of the tail.
        size: the effective sample size of the weights.
    """
    if not top > 1:
        return {}
    shape = max(khat, 0.0)
    # Integrate over u = −log t, in which the integrands fall like exp(−(1 − k) u).
    u = np.linspace(0, 40 / (1 - shape) if shape < 1 else np.log(_RAREST), 4001)
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


# Beyond, a tail without a mean is not followed.
_RAREST = 1000.0


def khat_limit(num_draws: int) -> float:
    """The largest k-hat with which draws can be reweighted (Vehtari et al. 2024, equation 13)."""
    return float(min(1 - 1 / np.log10(num_draws), MAX_KHAT))


def log_sum_exp(values: Float[np.ndarray, "..."]) -> float:
    """The logarithm of the sum of exponentials."""
    top = np.max(values)
    return float(top + np.log(np.sum(np.exp(values - top))))
