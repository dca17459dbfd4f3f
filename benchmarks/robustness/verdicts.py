"""How often the certificate says "good" where it should not, in closed form in one dimension.

    python -m benchmarks.robustness.verdicts

Log-ratios of known posteriors to a standard normal, added over independent coordinates, go through
the certificate. The true divergence is an integral over a grid. In the second table a small part of
the posterior is elsewhere, which no certificate can see if there are almost no draws of it.
"""

from collections.abc import Callable

import numpy as np
from scipy import stats

from benchmarks.common import markdown
from jaxcoreset.coreset.report import GOOD_KL
from jaxcoreset.diagnostics.measurement import certificate_of

LogRatio = Callable[[np.ndarray], np.ndarray]
_GRID = np.linspace(-30, 30, 600_001)


def _student(nu: int) -> LogRatio:
    scale = np.sqrt((nu - 2) / nu)
    return lambda x: stats.t.logpdf(x / scale, nu) - np.log(scale) - stats.norm.logpdf(x)


def _cubic(size: float) -> LogRatio:
    return lambda x: size * (np.clip(x, -6, 6) ** 3 - 3 * np.clip(x, -6, 6))


def _exponential(size: float) -> LogRatio:
    return lambda x: size * np.expm1(np.clip(x, -9, 9) - 0.5)


def _wider(sd: float) -> LogRatio:
    return lambda x: stats.norm.logpdf(x, 0, sd) - stats.norm.logpdf(x)


def _elsewhere(part: float, distance: int, sd: int) -> LogRatio:
    def log_ratio(x: np.ndarray) -> np.ndarray:
        near = np.log1p(-part) + stats.norm.logpdf(x)
        return np.logaddexp(near, np.log(part) + stats.norm.logpdf(x, distance, sd)) - near

    return log_ratio


PLAIN = [
    *map(_student, (6, 10, 15, 20, 30, 50, 100)),
    *map(_cubic, (0.0005, 0.001, 0.002, 0.004, 0.008, 0.012, 0.02)),
    *map(_exponential, (0.001, 0.003, 0.01, 0.03)),
    *map(_wider, (1.01, 1.02, 1.05, 1.1, 1.2)),
]
ELSEWHERE = [
    _elsewhere(part, distance, sd)
    for part in (1e-5, 1e-4, 1e-3, 1e-2)
    for distance in (3, 4, 5)
    for sd in (1, 2, 5, 10)
]


def trial(families: list[LogRatio], dimensions: tuple[int, ...], repeats: int = 8) -> list[dict]:
    """Verdicts "good" by the reason that k-hat was not in the way, and how many are wrong."""
    generator, mass = np.random.default_rng(0), stats.norm.pdf(_GRID)
    mass = mass / mass.sum()
    rows: dict[str, dict] = {}
    for log_ratio in families:
        on_grid = log_ratio(_GRID)
        full = mass * np.exp(on_grid)
        kl = float((full / full.sum() - mass) @ on_grid)
        for dim in dimensions:
            for num in (400, 1000, 4000) * repeats:
                draws = log_ratio(generator.normal(size=(num, dim))).sum(axis=1)
                found = certificate_of(draws.reshape(4, -1), num_data=10, num_rows=2)
                if found.verdict != "good":
                    continue
                is_low = found.khat <= found.khat_limit
                name = "k-hat within its limit" if is_low else "nearly equal weights"
                row = rows.setdefault(name, {"verdict by": name, "good": 0, "wrong": 0, "KL": 0.0})
                row["good"] += 1
                row["wrong"] += dim * kl > GOOD_KL
                row["KL"] = max(row["KL"], dim * kl)
    return list(rows.values())


if __name__ == "__main__":
    for title, rows in {
        "polynomial, exponential, Student-t and wider": trial(PLAIN, (1, 5, 10)),
        "a small part elsewhere": trial(ELSEWHERE, (1,)),
    }.items():
        print(f"\n{title}:\n\n{markdown(rows, list(rows[0]))}")
