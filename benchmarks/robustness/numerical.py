"""48 builds in hard numbers, whose posteriors are known in closed form: the reported KL is right.

    python -m benchmarks.robustness.numerical [--quick] [--only CASE ...] [--json FILE.json]

Every model is conjugate, so NumPy computes the exact posterior of all rows, and that of the
coreset's weighted rows, in float64. The cases have units from 1e-6 to 1e6, large offsets, outliers,
large counts and weights, columns that are collinear or of very different scale, 10 to a million
rows, and integers, bools, float32 and float64. Each coreset is built with tol = 0.01.

A case is held if `report.kl` is between half and twice the exact symmetrised divergence, or if both
are below `FLOOR`, a hundredth of the tolerance. It is also held if the build refuses with a
`ValueError`, or if the report says not to use a coreset that is indeed more than half a nat off.
"""

import argparse
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import jaxcoreset as jc
from benchmarks import common
from benchmarks.robustness import conjugate
from jaxcoreset.coreset.report import MAX_KL

COLUMNS = ("case", "held", "outcome", "rows", "exact KL", "reported KL", "ratio", "seconds")
TOL = 0.01
FLOOR = TOL / 100
_QUICK = ("normal: plain", "Poisson: counts of 60,000", "binomial: bools")

Exact = Callable[[np.ndarray], conjugate.Posterior]


@dataclass(frozen=True)
class Case:
    """A model, its arguments, and its posterior where row i counts counts[i] times."""

    model: Callable
    arguments: tuple
    exact: Exact
    num_rows: int
    x64: bool = False


def _slopes(x: Any, y: Any, offset: Any, noise: Any, prior: Any) -> None:
    """Linear regression with known noise."""
    slopes = numpyro.sample("slopes", dist.Normal(0.0, prior).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes + offset, noise), obs=y)


def _weighted_slopes(x: Any, y: Any, weights: Any, noise: Any, prior: Any) -> None:
    """Linear regression with known noise and survey weights."""
    slopes = numpyro.sample("slopes", dist.Normal(0.0, prior).to_event(1))
    with numpyro.plate("rows", x.shape[0]), numpyro.handlers.scale(scale=weights):
        numpyro.sample("y", dist.Normal(x @ slopes, noise), obs=y)


def _group_means(group: Any, y: Any, noise: Any) -> None:
    with numpyro.plate("groups", 4):
        means: Any = numpyro.sample("means", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.asarray(means)[group], noise), obs=y)


def _mean_of_vectors(y: Any, covariance: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.MultivariateNormal(mean, covariance), obs=y)


def _poisson(y: Any, exposure: Any, rate: Any) -> None:
    intensity = numpyro.sample("intensity", dist.Gamma(1.0, rate))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(intensity * exposure), obs=y)


def _poisson_groups(group: Any, y: Any) -> None:
    with numpyro.plate("groups", 4):
        intensity: Any = numpyro.sample("intensity", dist.Gamma(1.0, 0.001))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.asarray(intensity)[group]), obs=y)


def _exponential(y: Any, rate: Any) -> None:
    intensity = numpyro.sample("intensity", dist.Gamma(1.0, rate))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Exponential(intensity), obs=y)


def _precision(y: Any, rate: Any) -> None:
    precision = numpyro.sample("precision", dist.Gamma(1.0, rate))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, precision**-0.5), obs=y)


def _pareto(y: Any) -> None:
    power = numpyro.sample("power", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Pareto(1.0, power), obs=y)


def _bernoulli(y: Any) -> None:
    chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(chance), obs=y)


def _binomial(y: Any, trials: Any) -> None:
    chance = numpyro.sample("chance", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Binomial(trials, chance), obs=y)


def _negative_binomial(y: Any) -> None:
    chance = numpyro.sample("chance", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.NegativeBinomialProbs(3.0, chance), obs=y)


def _multinomial(y: Any, total: Any) -> None:
    chances = numpyro.sample("chances", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Multinomial(total, chances), obs=y)


# Cases ------------------------------------------------------------------------------------------


def _random() -> np.random.Generator:
    return np.random.default_rng(0)


def _linear(
    n: int = 2000,
    dimension: int = 3,
    *,
    units: Any = 1.0,
    shift: float = 0.0,
    offset: float = 0.0,
    level: float = 0.0,
    noise: float = 1.0,
    prior: Any = 2.0,
    clip: float = 0.0,
    intercept: bool = False,
    weights: float = 0.0,
    change: Callable[[np.ndarray], np.ndarray] | None = None,
    x64: bool = False,
) -> Case:
    """A regression on normal columns.

    Args:
        n: the number of rows.
        dimension: the number of columns, without the intercept's.
        units: the scale of the columns.
        shift: what is added to every covariate.
        offset: a known offset of the responses, which the model is given.
        level: what is added to the responses without the model being told.
        noise: the standard deviation of the responses.
        prior: the standard deviation of the slopes.
        clip: the limit of Cauchy noise; 0 for normal noise.
        intercept: whether the last column is 1.
        weights: the sum of the survey weights; 0 for none.
        change: what becomes of the covariates at last.
        x64: whether arrays are float64 and JAX's x64 is on.
    """
    rng, dtype = _random(), np.float64 if x64 else np.float32
    x = rng.normal(size=(n, dimension)) * units + shift
    if intercept:
        x = np.hstack([x, np.ones((n, 1))])
    x = x.astype(dtype) if change is None else change(x)
    prior = np.broadcast_to(np.asarray(prior, dtype), x.shape[1:]).copy()
    signal = x @ (prior * np.linspace(0.5, -0.5, x.shape[1]) / 2)
    error = np.clip(rng.standard_cauchy(n), -clip, clip) if clip else rng.normal(size=n)
    y = (signal + noise * error + level + offset).astype(dtype)
    told, scale = np.full(n, offset, dtype), dtype(noise)
    if weights:
        counts = rng.gamma(1.0, size=n)
        counts = (counts * weights / counts.sum()).astype(dtype)
        arguments, model = (x, y, counts, scale, prior), _weighted_slopes
    else:
        counts, arguments, model = np.ones(n), (x, y, told, scale, prior), _slopes
    left = y.astype(np.float64) - told

    def exact(times: np.ndarray) -> conjugate.Posterior:
        return conjugate.regression(x, left, float(scale), prior, times * counts)

    return Case(model, arguments, exact, n, x64)


def _gamma(
    model: Callable,
    arguments: tuple,
    rate: float,
    shapes: np.ndarray,
    rates: np.ndarray,
    x64: bool = False,
) -> Case:
    def exact(times: np.ndarray) -> conjugate.Posterior:
        return conjugate.gamma(1.0, rate, shapes, rates, times)

    return Case(model, arguments, exact, len(shapes), x64)


def _counts(
    mean: float, exposure: Any = 1.0, n: int = 2000, dtype: Any = np.int32, x64: bool = False
) -> Case:
    exposure = np.broadcast_to(np.asarray(exposure, np.float32), n).copy()
    y = _random().poisson(mean * exposure.astype(np.float64)).astype(dtype)
    return _gamma(_poisson, (y, exposure, 1 / mean), 1 / mean, y, exposure, x64)


def _durations(unit: float) -> Case:
    y = (unit * _random().exponential(size=2000)).astype(np.float32)
    return _gamma(_exponential, (y, unit), unit, np.ones(len(y)), y)


def _squares(y: np.ndarray, rate: float) -> Case:
    y = y.astype(np.float32)
    return _gamma(_precision, (y, rate), rate, np.full(len(y), 0.5), 0.5 * y.astype(float) ** 2)


def _powers(n: int = 2000) -> Case:
    y = (1 + _random().pareto(0.3, size=n)).clip(max=1e30).astype(np.float32)
    return _gamma(_pareto, (y,), 1.0, np.ones(n), np.log(y.astype(np.float64)))


def _count_groups() -> Case:
    rng, chosen = _random(), np.eye(4)
    group = rng.integers(4, size=2000).astype(np.int32)
    y = rng.poisson(np.array([0.01, 1, 100, 60_000])[group]).astype(np.int32)
    return _gamma(_poisson_groups, (group, y), 0.001, chosen[group] * y[:, None], chosen[group])


def _normal_groups(dtype: Any) -> Case:
    rng = _random()
    group = rng.integers(4, size=2000).astype(dtype)
    y = (np.array([0.0, 1, 10, 100])[group] + rng.normal(size=2000)).astype(np.float32)
    prior = np.full(4, 10.0)

    def exact(times: np.ndarray) -> conjugate.Posterior:
        return conjugate.regression(np.eye(4)[group], y, 1.0, prior, times)

    return Case(_group_means, (group, y, np.float32(1)), exact, 2000)


def _vectors(correlation: float) -> Case:
    covariance = np.array([[1.0, correlation], [correlation, 1.0]], np.float32)
    y = _random().multivariate_normal([1.0, -1.0], covariance, size=2000).astype(np.float32)

    def exact(times: np.ndarray) -> conjugate.Posterior:
        return conjugate.mean_of_vectors(y, covariance.astype(np.float64), 10.0, times)

    return Case(_mean_of_vectors, (y, covariance), exact, 2000)


def _classes(
    model: Callable, arguments: tuple, prior: np.ndarray, rows: np.ndarray, x64: bool = False
) -> Case:
    def exact(times: np.ndarray) -> conjugate.Posterior:
        return conjugate.dirichlet(prior, rows, times)

    return Case(model, arguments, exact, len(rows), x64)


def _coins(dtype: Any, chance: float = 0.3, n: int = 2000) -> Case:
    y = _random().random(n) < chance
    return _classes(_bernoulli, (y.astype(dtype),), np.full(2, 2.0), np.stack([y, ~y], axis=1))


def _trials(trials: int, chance: float, dtype: Any = np.int32, x64: bool = False) -> Case:
    y = _random().binomial(trials, chance, size=2000).astype(dtype)
    total = np.full(2000, trials, dtype)
    return _classes(_binomial, (y, total), np.ones(2), np.stack([y, total - y], axis=1), x64)


def _failures() -> Case:
    # NumPyro's `probs` is that of what is counted, NumPy's that of what ends the counting.
    y = _random().negative_binomial(3, 0.001, size=2000).astype(np.int32)
    return _classes(_negative_binomial, (y,), np.ones(2), np.stack([y, np.full(2000, 3)], axis=1))


def _tables() -> Case:
    y = _random().multinomial(60_000, [0.5, 0.3, 0.15, 0.05], size=2000).astype(np.int32)
    return _classes(_multinomial, (y, 60_000), np.ones(4), y)


def _outlier(size: float) -> Case:
    y = _random().normal(size=2000)
    y[7] = size
    return _squares(y, 1.0)


def _doubled(apart: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(x: np.ndarray) -> np.ndarray:
        return np.hstack([x, x[:, :1] + apart * x[:, 1:2]]).astype(np.float32)

    return change


def _mostly_zero(x: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(x))[:, None] % 20 == 0, x, 0).astype(np.float32)


_UNEQUAL = np.array([1e-6, 1.0, 1e6])

CASES: dict[str, Callable[[], Case]] = {
    "normal: plain": _linear,
    "normal: float64": lambda: _linear(x64=True),
    "normal: responses of 1e6": lambda: _linear(noise=1e6, prior=2e6),
    "normal: responses of 1e-6": lambda: _linear(noise=1e-6, prior=2e-6),
    "normal: covariates of 1e6": lambda: _linear(units=1e6, prior=2e-6),
    "normal: covariates of 1e-6": lambda: _linear(units=1e-6, prior=2e6),
    "normal: columns of 1e-6, 1 and 1e6": lambda: _linear(units=_UNEQUAL),
    "normal: such columns, and slopes": lambda: _linear(units=_UNEQUAL, prior=2 / _UNEQUAL),
    "normal: known offset of 1e4": lambda: _linear(offset=1e4),
    "normal: level of 1e4 that no column has": lambda: _linear(level=1e4),
    "normal: intercept of 1e4": lambda: _linear(level=1e4, intercept=True, prior=[2, 2, 2, 1e4]),
    "normal: intercept of 1e6, float64": lambda: _linear(
        level=1e6, intercept=True, prior=[2, 2, 2, 1e6], x64=True
    ),
    "normal: covariates around 1e4, and an intercept": lambda: _linear(
        shift=1e4, intercept=True, prior=[2, 2, 2, 1e4]
    ),
    "normal: Cauchy noise up to 1e3": lambda: _linear(clip=1e3),
    "normal: Cauchy noise up to 1e4": lambda: _linear(clip=1e4),
    "normal: Cauchy noise up to 1e4, 20,000 rows": lambda: _linear(20_000, 4, clip=1e4),
    "normal: Cauchy noise up to 1e4, float64": lambda: _linear(clip=1e4, x64=True),
    "normal: two equal columns": lambda: _linear(change=_doubled(0.0)),
    "normal: columns that differ by 1e-3": lambda: _linear(change=_doubled(1e-3)),
    "normal: columns that differ by 1e-5": lambda: _linear(change=_doubled(1e-5)),
    "normal: prior of 1e-6": lambda: _linear(prior=1e-6),
    "normal: priors of 1e-3, 1 and 1e3": lambda: _linear(prior=[1e-3, 1, 1e3]),
    "normal: noise of 1e-4": lambda: _linear(noise=1e-4),
    "normal: 10 rows": lambda: _linear(10),
    "normal: 100 rows": lambda: _linear(100),
    "normal: 100,000 rows": lambda: _linear(100_000),
    "normal: 1,000,000 rows": lambda: _linear(1_000_000),
    "normal: 10 columns": lambda: _linear(dimension=10),
    "normal: int32 covariates": lambda: _linear(change=lambda x: np.round(10 * x).astype(np.int32)),
    "normal: bool covariates": lambda: _linear(change=lambda x: x > 0),
    "normal: 19 of 20 rows are zero": lambda: _linear(change=_mostly_zero),
    "normal: weights that sum to 2.4e8": lambda: _linear(weights=2.4e8),
    "normal: such weights, float64": lambda: _linear(weights=2.4e8, x64=True),
    "normal: groups of int8": lambda: _normal_groups(np.int8),
    "normal: vectors correlated by 0.9999": lambda: _vectors(0.9999),
    "normal: precision, with an outlier of 1e3": lambda: _outlier(1e3),
    "Poisson: counts of 60,000": lambda: _counts(6e4),
    "Poisson: int64 counts of 60,000, float64": lambda: _counts(6e4, dtype=np.int64, x64=True),
    "Poisson: 999 of 1000 counts are zero": lambda: _counts(1e-3, n=20_000),
    "Poisson: exposures from 1e-3 to 1e3": lambda: _counts(2.0, 10.0 ** np.linspace(-3, 3, 2000)),
    "Poisson: groups of 0.01 to 60,000": _count_groups,
    "exponential: durations of 1e6": lambda: _durations(1e6),
    "exponential: durations of 1e-6": lambda: _durations(1e-6),
    "Pareto: values up to 1e30": _powers,
    "binomial: bools": lambda: _coins(np.bool_),
    "binomial: 60,000 trials": lambda: _trials(60_000, 0.3),
    "negative binomial: counts of 3,000": _failures,
    "multinomial: 60,000 in four classes": _tables,
}


# Judging ----------------------------------------------------------------------------------------


def measure(name: str) -> dict[str, Any]:
    """Build the coreset of one case, and judge its report."""
    case, start = CASES[name](), time.perf_counter()
    found: dict[str, Any] = {"case": name, "n": case.num_rows, "x64": case.x64}
    with jax.enable_x64(case.x64), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            builder = jc.CoresetBuilder(case.model, tol=TOL, progress_bar=False, proxy=None)
            coreset = builder.run(jax.random.key(0), *case.arguments)
        except ValueError as error:
            found |= {"held": True, "outcome": "refused", "said": str(error)[:300]}
        except Exception:  # whatever else is raised is a violation
            found |= {"held": False, "outcome": "failed", "said": traceback.format_exc()[-2000:]}
        else:
            found |= judge(case, coreset)
    found["warnings"] = [str(one.message)[:200] for one in warned]
    return found | {"seconds": time.perf_counter() - start}


def judge(case: Case, coreset: jc.Coreset) -> dict[str, Any]:
    """The exact divergence of a coreset's posterior beside the reported one."""
    times = np.zeros(case.num_rows)
    np.add.at(times, np.asarray(coreset.indices), np.asarray(coreset.weights, np.float64))
    exact = conjugate.divergence(case.exact(np.ones(case.num_rows)), case.exact(times))
    report, held, outcome = coreset.report, False, "violated"
    if abs(exact) < FLOOR and report.kl < FLOOR:
        held, outcome = True, "both below the floor"
    elif 0.5 * exact <= report.kl <= 2 * exact:
        held, outcome = True, "within a factor of two"
    elif report.kl > MAX_KL and exact > MAX_KL / 2:
        held, outcome = True, "told not to use"
    return {
        "held": held,
        "outcome": outcome,
        "rows": len(coreset.indices),
        "exact KL": exact,
        "reported KL": report.kl,
        "ratio": report.kl / exact if exact > FLOOR else None,
        "precision": report.precision,
        "verdict": report.verdict,
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three cases")
    parser.add_argument("--only", nargs="+", choices=list(CASES), help="some cases")
    parser.add_argument("--json", "--output", type=Path, dest="output", help="where the JSON goes")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.only or (_QUICK if options.quick else CASES):
        rows.append(measure(name))
        print(f"{len(rows)}: {name}: {rows[-1]['outcome']}", flush=True)
    print("\n" + common.table(rows, COLUMNS))
    held = sum(row["held"] for row in rows)
    print(f"\n{held} of {len(rows)} held")
    for row in rows:
        if not row["held"]:
            print(f"not held: {row['case']}: {row.get('said') or row['verdict']}")
    result: dict[str, Any] = {
        "benchmark": "robustness: numerical",
        "environment": common.environment(),
        "tol": TOL,
        "floor": FLOOR,
    }
    common.write(options.output, result | {"num_cases": len(rows), "num_held": held, "rows": rows})


if __name__ == "__main__":
    main()
