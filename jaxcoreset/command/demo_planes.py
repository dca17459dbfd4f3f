"""The command ``jaxcoreset demo planes``: an effect of each of 4,000 aircraft, integrated out."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float, Int
from numpyro.infer import MCMC, NUTS

from jaxcoreset.builders.builder import CoresetBuilder
from jaxcoreset.command.demo import closing_text, columns_of, new_figure, printed_table, save_figure
from jaxcoreset.command.flights import late_by_plane, load_planes

if TYPE_CHECKING:
    import pandas as pd

_NUM_WARMUP, _NUM_SAMPLES = 500, 1000
_NUM_HELD_OUT, _NUM_EFFECTS = 250, 200
_NUM_EXTREME = 20
_TOL = 0.05
# Intervals hold this part of the posterior.
_COVERAGE = 0.9


def run_planes_demo(
    *,
    size: int | None = None,
    seed: int = 0,
    out: Path = Path("jaxcoreset-demo"),
    show_progress: bool = True,
) -> dict[str, Any]:
    """Build a coreset of aircraft, run NUTS on it, and draw the effects of all aircraft.

    Args:
        size: the maximum number of aircraft of the coreset; by default the fewest that keep to
            0.05 nats.
        seed: the seed of all random numbers.
        out: the directory of the figure and the coreset; created if missing.
        show_progress: whether to show progress bars on a terminal.

    Returns:
        A dictionary: "shared", by name the draws of the shared parameters, and "effects", draws of
        all effects, shape (200, number of aircraft).

    Raises:
        ModuleNotFoundError: if a package of the extra ``demo`` is missing.
        FileExistsError: if `out` is a file.
    """
    out.mkdir(parents=True, exist_ok=True)
    build_key, nuts_key, effects_key = jax.random.split(jax.random.key(seed), 3)
    seconds, start = {}, time.perf_counter()

    def lap(stage: str) -> float:
        seconds[stage] = time.perf_counter() - start - sum(seconds.values())
        return seconds[stage]

    print("Reading the flights, their weather and their aircraft ...")
    features, plane, late, names, planes = load_planes()
    num_planes = len(planes)
    lap("data")
    print(
        f"{len(late):,} flights of {num_planes:,} aircraft, {late.mean():.1%} late. "
        f"{features.shape[1] + 1} shared parameters, and an effect of each aircraft.\n"
    )

    settings: dict[str, Any] = {"tol": _TOL} if size is None else {"size": size}
    settings |= {"num_held_out": _NUM_HELD_OUT, "progress_bar": show_progress}
    builder = CoresetBuilder(late_by_plane, groups="plane", **settings)
    coreset = builder.run(build_key, features, plane, num_planes, late)
    lap("build")
    print(f"{coreset.report}\n")

    print(f"NUTS on the {len(coreset)} aircraft, {_NUM_WARMUP} warm-up and {_NUM_SAMPLES} kept ...")
    mcmc = MCMC(
        NUTS(coreset.model),
        num_warmup=_NUM_WARMUP,
        num_samples=_NUM_SAMPLES,
        progress_bar=False,
    )
    mcmc.run(nuts_key, *coreset.args, **coreset.kwargs, init_params=coreset.init_params())
    shared = {name: np.asarray(x) for name, x in mcmc.get_samples().items()}
    print(f"done in {lap('NUTS'):.1f} s, compilation included.\n")
    draws = np.column_stack([shared["beta"], shared["sd_planes"]])
    columns = {"coreset, NUTS": columns_of(draws)}
    print(printed_table([*names, "sd between aircraft"], columns))

    print(f"{_NUM_EFFECTS} draws of the effects of all {num_planes:,} aircraft ...")
    effects = coreset.group_effects(effects_key, mcmc, num_draws=_NUM_EFFECTS)["effect"]
    print(f"done in {lap('effects'):.1f} s.\n")
    table = _planes_table(planes, plane, late, effects)
    low, middle, high = _interval(shared["sd_planes"])
    print(
        f"The sd between aircraft is {middle:.3f} on the scale of log-odds, {_COVERAGE:.0%} "
        f"interval {low:.3f} to {high:.3f}.\n\nThe {_NUM_EXTREME} best aircraft:\n"
        f"{table.head(_NUM_EXTREME).to_string()}\n\nThe {_NUM_EXTREME} worst aircraft:\n"
        f"{table.tail(_NUM_EXTREME)[::-1].to_string()}\n"
    )

    figure = _figure(out / "planes.png", table, (low, middle, high))
    saved = coreset.save(out / "planes.npz")
    lap("figure")
    print(closing_text(figure, saved, sum(seconds.values())))
    return {"shared": shared, "effects": effects}


def _interval(draws: Float[np.ndarray, " s"]) -> tuple[float, float, float]:
    """The lower end of an interval, the mean, and the upper end."""
    low, high = np.quantile(draws, [(1 - _COVERAGE) / 2, (1 + _COVERAGE) / 2])
    return float(low), float(draws.mean()), float(high)


def _planes_table(
    planes: list[str],
    plane: Int[np.ndarray, " n"],
    late: Int[np.ndarray, " n"],
    effects: Float[np.ndarray, "s g"],
) -> "pd.DataFrame":
    """A row for each aircraft, from the most punctual one on."""
    import pandas as pd

    num = np.bincount(plane, minlength=len(planes))
    tails = (1 - _COVERAGE) / 2
    columns = {
        "flights": num,
        "late": np.bincount(plane, late, minlength=len(planes)) / num,
        "effect": effects.mean(axis=0),
        "low": np.quantile(effects, tails, axis=0),
        "high": np.quantile(effects, 1 - tails, axis=0),
    }
    table = pd.DataFrame(columns, index=pd.Index(planes, name="aircraft")).round(3)
    return table.sort_values("effect")


def _figure(path: Path, table: "pd.DataFrame", spread: tuple[float, float, float]) -> Path:
    """A caterpillar plot: all aircraft, and the best and the worst ones by name."""
    from jaxcoreset.plotting.style import CORESET, FULL, GREY, literal, tidy

    figure = new_figure(11.0, 7.0)
    grid = figure.add_gridspec(2, 2, width_ratios=[1.5, 1])
    whole = figure.add_subplot(grid[:, 0])
    places = np.arange(len(table))
    whole.vlines(places, table["low"], table["high"], color=FULL, alpha=0.15, lw=0.5)
    whole.plot(places, table["effect"], color=FULL, lw=1.5)
    low, middle, high = spread
    for sign in (-1, 1):
        whole.axhspan(sign * low, sign * high, color=CORESET, alpha=0.4, lw=0)
        whole.text(
            0 if sign > 0 else len(table),
            sign * high + (0.01 if sign > 0 else -0.01),
            f"{'+' if sign > 0 else '−'} one sd between aircraft, {middle:.2f}",
            color=CORESET,
            ha="left" if sign > 0 else "right",
            va="bottom" if sign > 0 else "top",
            bbox={"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 1},
        )
    whole.set_title(f"Effects of all {len(table):,} aircraft, with {_COVERAGE:.0%} intervals")
    whole.set(
        xlabel="aircraft, from the best one", ylabel="effect on the log-odds of a late arrival"
    )
    tidy(whole)
    worst, best = table.tail(_NUM_EXTREME), table.head(_NUM_EXTREME)[::-1]
    limits = table[["low", "high"]].to_numpy()
    for ax, part, title in zip(
        (figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])),
        (worst, best),
        ("worst", "best"),
        strict=True,
    ):
        own = np.arange(len(part))
        ax.hlines(own, part["low"], part["high"], color=FULL, lw=1.5)
        ax.plot(part["effect"], own, "o", color=FULL, ms=4)
        ax.axvline(0, color=GREY, lw=0.8)
        ax.set_yticks(own, [literal(str(name)) for name in part.index], fontsize=7)
        ax.set_xlim(limits.min() - 0.05, limits.max() + 0.05)
        ax.set_title(f"The {len(part)} {title}")
        ax.set_xlabel("effect")
        tidy(ax)
    return save_figure(path, figure)
