"""How many rows a coreset needs as the model widens and as the table shrinks, and what that costs.

    python -m benchmarks.builds.limits [--quick] [--data-dir DIR] [--output FILE.json]

Logistic regression on Gaussian columns with an intercept, D parameters in all. "parameters": n
fixed, D growing, the rows that the builder takes for a tolerance. "rows": D fixed, n shrinking,
with the seconds of the build and of NUTS on the coreset, compilation included, beside those of NUTS
on all rows. "coordinates" is how many directions the atoms have above a thousandth of the
largest: D (D + 3)/2 for a log-likelihood that is a quadratic where the posterior is. "wide" is the
estimated divergence by size on the papers' phishing data, 69 parameters.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from benchmarks import common

_PARAMETERS = (2, 5, 10, 20, 40)
_ROWS = (100, 300, 1_000, 3_000, 10_000, 100_000)
_NUM_PARAMETERS = 10
_NUM_ROWS = 20_000
_WIDE = "phishing"
_WIDE_SIZE = 1000
_CUT = 1e-3
_COLUMNS = ("n", "parameters", "D(D+3)/2", "coordinates", "tol", "rows", "estimated KL")
_TIMES = ("seconds to build", "seconds of NUTS on the coreset", "seconds of NUTS on all rows")


def data(n: int, num_parameters: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian columns and an intercept, and responses from moderate coefficients."""
    rng = np.random.default_rng([n, num_parameters])
    z = np.hstack([rng.normal(size=(n, num_parameters - 1)), np.ones((n, 1))])
    theta = rng.normal(size=num_parameters) / np.sqrt(num_parameters)
    y = rng.random(n) < 1 / (1 + np.exp(-z @ theta))
    return z.astype(np.float32), y.astype(np.int32)


def needed(z: np.ndarray, y: np.ndarray, tol: float) -> tuple[dict[str, Any], jc.Coreset]:
    """The rows that the builder takes for a tolerance."""
    n, num_parameters = z.shape
    start = time.perf_counter()
    builder = jc.CoresetBuilder(
        common.logistic, tol=jc.Tolerance(tol, throw=False), progress_bar=False, proxy=None
    )
    coreset = builder.run(jax.random.key(0), z, y)
    spent = time.perf_counter() - start
    row = {
        "n": n,
        "parameters": num_parameters,
        "D(D+3)/2": num_parameters * (num_parameters + 3) // 2,
        "coordinates": coordinates(z[:2000], y[:2000]),
        "tol": tol,
        "rows": len(coreset),
        "estimated KL": coreset.report.kl,
        "its standard error": coreset.report.kl_standard_error,
        "within tol": coreset.report.is_within_tol,
        "seconds to build": spent,
    }
    print(f"n = {n:,}, D = {num_parameters}: {len(coreset)} rows, {spent:.1f} s", flush=True)
    return row, coreset


def coordinates(z: np.ndarray, y: np.ndarray) -> int:
    """How many singular values of 2,000 draws' atoms are above a thousandth of the largest."""
    likelihood = jc.model_likelihood(common.logistic, (z, y))
    draws = jc.laplace_approximation(likelihood).draws(jax.random.key(1), 2000)
    atoms = jc.embed(likelihood.log_likelihood, draws, likelihood.data).atoms
    values = np.linalg.svd(np.asarray(atoms, np.float64), compute_uv=False)
    return int(np.sum(values > _CUT * values[0]))


def nuts_seconds(model: Any, args: tuple) -> float:
    """Wall time of one NUTS chain of 500 warm-up and 500 draws, compilation included."""
    start = time.perf_counter()
    mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=500, progress_bar=False)
    mcmc.run(jax.random.key(2), *args)
    jax.block_until_ready(mcmc.get_samples())
    return time.perf_counter() - start


def by_rows(ns: tuple[int, ...], tol: float) -> list[dict[str, Any]]:
    """One line a number of rows, with times."""
    lines = []
    for n in ns:
        z, y = data(n, _NUM_PARAMETERS)
        line, coreset = needed(z, y, tol)
        line["seconds of NUTS on the coreset"] = nuts_seconds(coreset.model, coreset.args)
        line["seconds of NUTS on all rows"] = nuts_seconds(common.logistic, (z, y))
        lines.append(line)
    return lines


def wide(data_dir: Path | None, size: int) -> list[dict[str, Any]]:
    """The estimate along the path of one build on a wide model."""
    found = common.load(_WIDE, data_dir)
    if found is None:
        return []
    model, z, y = found
    report = (
        jc.CoresetBuilder(model, size, progress_bar=False, proxy=None)
        .run(jax.random.key(0), z, y)
        .report
    )
    num_parameters = z.shape[1]
    head = {"data": _WIDE, "n": len(z), "parameters": num_parameters}
    head["D(D+3)/2"] = num_parameters * (num_parameters + 3) // 2
    columns = {"size": "k", "held_out_error": "held-out error", "kl": "estimated KL"}
    columns["kl_standard_error"] = "standard error"
    return [
        head | {columns[name]: report.curve[name][i].item() for name in columns}
        for i in range(len(report.curve["size"]))
        if report.curve["size"][i] >= size / 20
    ]


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only what takes seconds")
    parser.add_argument("--tol", type=float, default=0.01, help="in nats (0.01)")
    parser.add_argument("--data-dir", type=Path, help="folder of the papers' data sets")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    num_rows = 2000 if options.quick else _NUM_ROWS
    widths = _PARAMETERS[:3] if options.quick else _PARAMETERS
    # The first build compiles what the others share.
    needed(*data(500, 3), options.tol)
    result = {
        "benchmark": "limits",
        "quick": options.quick,
        "environment": common.environment(),
        "parameters": [needed(*data(num_rows, d), options.tol)[0] for d in widths],
        "rows": by_rows(_ROWS[:3] if options.quick else _ROWS, options.tol),
        "wide": wide(options.data_dir, 100 if options.quick else _WIDE_SIZE),
    }
    print("\n" + common.table(result["parameters"], _COLUMNS))
    print("\n" + common.table(result["rows"], (*_COLUMNS, *_TIMES)))
    if result["wide"]:
        print("\n" + common.table(result["wide"], tuple(result["wide"][0])))
    common.write(options.output, result)


if __name__ == "__main__":
    main()
