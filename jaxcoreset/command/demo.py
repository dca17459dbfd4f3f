"""The command ``jaxcoreset demo``: 20 weighted rows with the posterior of 325,000 flights."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

from jaxcoreset.builders.builder import CoresetBuilder
from jaxcoreset.command.flights import flights_table, late_arrival, load_flights
from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.utils import peak_memory, write_whole
from jaxcoreset.diagnostics.log_ratio import log_ratios
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.weighting.jit_chains import jit_chains
from jaxcoreset.weighting.laplace import LaplaceApproximation, laplace_approximation

_NUM_CHAINS, _NUM_WARMUP, _NUM_SAMPLES = 4, 1000, 1000


def run_demo(
    *,
    size: int = 20,
    seed: int = 0,
    full_nuts: bool = False,
    out: Path = Path("jaxcoreset-demo"),
    show_progress: bool = True,
) -> dict[str, Any]:
    """Build a coreset of the flights, run NUTS on it, and compare with the posterior of all rows.

    Args:
        size: the maximum number of rows of the coreset.
        seed: the seed of all random numbers.
        full_nuts: whether to run NUTS on all rows as well, which takes minutes to hours.
        out: the directory of the figure and the coreset; created if missing.
        show_progress: whether to show progress bars on a terminal.

    Returns:
        A dictionary: "coreset"; "mean_error", the largest error of a mean in posterior standard
        deviations; "sd_ratio", the smallest and largest ratio of the standard deviations; and
        "figure", its path.

    Raises:
        ModuleNotFoundError: if a package of the extra ``demo`` is missing.
        FileExistsError: if `out` is a file.
    """
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    build_key, nuts_key, full_key = jax.random.split(jax.random.key(seed), 3)
    print("Reading the flights and their weather ...")
    features, late, names = load_flights()
    print(
        f"{features.shape[0]:,} flights, {features.shape[1]} parameters, {late.mean():.1%} late.\n"
    )

    builder = CoresetBuilder(late_arrival, size, progress_bar=show_progress)
    coreset = builder.run(build_key, features, late)
    print(f"{coreset.report}\n")

    print(
        f"NUTS on the {len(coreset)} rows, {_NUM_CHAINS} chains of {_NUM_WARMUP} warm-up steps, "
        f"{_NUM_SAMPLES} draws in all ..."
    )
    draws, nuts_seconds = _nuts(
        nuts_key,
        coreset.model,
        coreset.args,
        init_params=coreset.init_params(_NUM_CHAINS),
        num_samples=_NUM_SAMPLES // _NUM_CHAINS,
        num_chains=_NUM_CHAINS,
        chain_method=jit_chains,
    )
    print(f"done in {nuts_seconds:.1f} s, compilation included.\n")

    full = coreset.approximation
    if full is None:  # a coreset of all the rows needs no weighting
        full = laplace_approximation(model_likelihood(late_arrival, (features, late)))
    likelihood = coreset.likelihood
    assert likelihood is not None  # the coreset was just built
    log_ratio = log_ratios(coreset, likelihood, {"beta": draws})
    mean, sd = _weighted_moments(draws, np.exp(log_ratio - log_ratio.max()))
    print(_table(names, draws, (mean, sd), full))
    largest = float(np.abs((draws.mean(0) - mean) / sd).max())
    ratios = float((draws.std(0) / sd).min()), float((draws.std(0) / sd).max())
    print(
        "Compared with the same draws reweighted to the posterior of all rows, which have the "
        f"same Monte Carlo error, the largest error of a posterior mean is {largest:.4f} sd, and "
        f"the ratios of the standard deviations are {ratios[0]:.3f} to {ratios[1]:.3f}.\n"
    )
    if full_nuts:
        print("NUTS on all rows; this takes a while ...")
        show = show_progress and sys.stderr.isatty()
        all_draws, seconds = _nuts(full_key, late_arrival, (features, late), progress_bar=show)
        print(f"done in {seconds:.0f} s.\n{_nuts_table(names, draws, all_draws)}")

    figure = _figure(out / "flights.png", coreset, names, draws, full)
    saved = coreset.save(out / "coreset.npz")
    print(closing_text(figure, saved, time.perf_counter() - start))
    return {"coreset": coreset, "mean_error": largest, "sd_ratio": ratios, "figure": figure}


def write_flights(path: Path) -> None:
    """Write the flights as a CSV file, for `jaxcoreset build`.

    Raises:
        ModuleNotFoundError: if a package of the extra ``demo`` is missing.
    """
    table = flights_table()
    written = write_whole(path, lambda file: table.to_csv(file, index=False, encoding="utf-8"))
    print(f"Wrote {written}: {len(table):,} flights, {', '.join(table.columns)}.")


def _nuts(
    key: Any,
    model: Callable,
    args: tuple,
    *,
    init_params: Any = None,
    num_samples: int = _NUM_SAMPLES,
    progress_bar: bool = False,
    **settings: Any,
) -> tuple[np.ndarray, float]:
    start = time.perf_counter()
    mcmc = MCMC(
        NUTS(model),
        num_warmup=_NUM_WARMUP,
        num_samples=num_samples,
        progress_bar=progress_bar,
        **settings,
    )
    mcmc.run(key, *args, init_params=init_params)
    draws = np.asarray(mcmc.get_samples()["beta"])
    return draws, time.perf_counter() - start


def _weighted_moments(draws: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means and standard deviations of weighted draws."""
    mean = np.average(draws, axis=0, weights=weights)
    return mean, np.sqrt(np.average((draws - mean) ** 2, axis=0, weights=weights))


def _table(
    names: list[str],
    draws: np.ndarray,
    weighted: tuple[np.ndarray, np.ndarray],
    full: LaplaceApproximation,
) -> str:
    """Means and sds of NUTS on the coreset, of its draws weighted, and by Laplace."""
    columns = {
        "coreset, NUTS": columns_of(draws),
        "all rows, these draws weighted": {"mean": weighted[0], "sd": weighted[1]},
        "all rows, Laplace": {"mean": full.mode, "sd": full.sd},
    }
    return printed_table(names, columns)


def _nuts_table(names: list[str], draws: np.ndarray, all_draws: np.ndarray) -> str:
    difference = (draws.mean(0) - all_draws.mean(0)) / all_draws.std(0)
    columns = {
        "coreset, NUTS": {"mean": draws.mean(0), "sd": draws.std(0)},
        "all rows, NUTS": {"mean": all_draws.mean(0), "sd": all_draws.std(0)},
        "difference": {"in sd": difference},
    }
    return printed_table(names, columns)


def columns_of(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Means of draws with their Monte Carlo errors, and standard deviations."""
    error = draws.std(0) / np.sqrt(effective_sample_size(draws[None]))
    return {"mean": draws.mean(0), "± MC": error, "sd": draws.std(0)}


def printed_table(names: list[str], columns: dict[str, dict[str, np.ndarray]]) -> str:
    """Columns of numbers as text, by title and name, with a row for each of the names."""
    import pandas as pd

    parts = {title: pd.DataFrame(values, index=names) for title, values in columns.items()}
    return pd.concat(parts, axis=1).to_string(float_format="{:.4f}".format) + "\n"


def closing_text(figure: Path, saved: Path, seconds: float) -> str:
    """What was written, how long it all took, and how much memory."""
    memory = peak_memory()
    held = "" if memory is None else f" Peak memory {memory / 2**30:.2f} GiB."
    return f"Wrote {figure} and {saved}. {seconds:.0f} s in all.{held}"


def new_figure(*size: float) -> Any:
    """A figure that is shown nowhere."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.figure(figsize=size, layout="constrained")


def save_figure(path: Path, figure: Any) -> Path:
    """Write a figure and close it."""
    import matplotlib.pyplot as plt

    write_whole(path, lambda file: figure.savefig(file, dpi=130))
    plt.close(figure)
    return path


def _figure(
    path: Path, coreset: Coreset, names: list[str], draws: np.ndarray, full: LaplaceApproximation
) -> Path:
    """Marginals laid over each other, and error against the number of rows."""
    from jaxcoreset.plotting import plot_kl, plot_marginals
    from jaxcoreset.plotting.style import legend_below

    figure = new_figure(12.0, 5.6)
    parts = figure.subfigures(1, 2, width_ratios=[2.1, 1], squeeze=False)
    left, right = parts[0]
    labels = ("coreset, NUTS", "all rows, Laplace")
    grid = left.subplots(4, 5).flat
    axes = plot_marginals(draws, full.mode, full.sd, names, grid, labels=labels)
    legend_below(left, axes[0])
    report = coreset.report
    rows = f"{report.num_used} weighted rows"
    if report.proxy is not None:
        rows += " and a proxy"
    left.suptitle(f"Posterior from {rows} over that of all {report.num_data:,}")
    ax = plot_kl(report, right.subplots())
    ax.set_title("Error against coreset size")
    return save_figure(path, figure)
