"""A regression on 301 radial basis functions of a place: both divergences, and surfaces."""

import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks.common import markdown
from benchmarks.paper import charts, methods
from benchmarks.paper.exact_vi import LinearRegression, sparse_vi
from benchmarks.paper.runner import Settings, significant

TITLE = "Radial basis function regression (Zhang et al. 2021, section 5.2; Figures 1b, 2 and 7)"
_SCALES = (0.2, 0.4, 0.8, 1.2, 1.6, 2.0)
_CONSTANT = 100.0
# The first one that is there. The paper's own are the UK prices.
_FILES = ("uk_prices", "california_housing")
_GRID = 45


def prices(data_dir: Path | None) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Name, coordinates (N, 2) in degrees and logarithms of the prices; None where missing."""
    folder = data_dir or os.environ.get("JAXCORESET_DATA")
    for name in _FILES:
        path = Path(folder) / f"{name}.npz" if folder else None
        if path is not None and path.is_file():
            with np.load(path, allow_pickle=False) as contents:
                place, price = contents["X"], contents["y"]
            return name, np.asarray(place, float), np.log10(np.asarray(price, float))
    print(f"no {' or '.join(_FILES)}.npz in --data-dir or JAXCORESET_DATA")
    return None


class Basis:
    """Radial basis functions around random data, and one that is nearly constant."""

    def __init__(self, random: np.random.Generator, place: np.ndarray, per_scale: int):
        centres = [place[random.choice(len(place), per_scale, replace=False)] for _ in _SCALES]
        self.centres = np.vstack([*centres, place.mean(axis=0)[None]])
        self.scales = np.append(np.repeat(_SCALES, per_scale), _CONSTANT)

    def __call__(self, place: np.ndarray) -> np.ndarray:
        """Their values at places of shape (m, 2): shape (m, D)."""
        squared = ((place[:, None, :] - self.centres) ** 2).sum(axis=2)
        return np.exp(-squared / (2 * self.scales**2))


def generate(
    seed: int, place: np.ndarray, price: np.ndarray, n: int, per_scale: int
) -> tuple[LinearRegression, Basis, np.ndarray]:
    """The model of n random rows, its basis, and the rows."""
    random = np.random.default_rng(seed)
    rows = random.choice(len(place), n, replace=False)
    basis = Basis(random, place[rows], per_scale)
    y = price[rows]
    spread = y.std()
    model = LinearRegression(
        basis(place[rows]) / spread, y / spread, float(y.mean()), float(np.mean(y**2))
    )
    return model, basis, rows


def run(settings: Settings) -> dict[str, Any] | None:
    """See `runner`."""
    found = prices(settings.data_dir)
    if found is None:
        return None
    name, place, price = found
    n, per_scale = settings.of((60, 3), (200, 8), (1000, 50))
    num_trials = settings.num_trials(2, 2, 10)
    slow_trials = settings.num_slow(num_trials)
    ks = settings.of(
        [2, 10, 20],
        [5, 10, 20, 30, 40, 50],
        [1, 5, 10, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220, 240, 260, 280, 300],
    )
    surface_ks = settings.of([10], [30, 50], [220, 260, 300])
    surface_trials = settings.of(1, 1, min(4, slow_trials))
    data = [generate(seed, place, price, n, per_scale) for seed in range(num_trials)]
    cells: list[dict[str, Any]] = []
    surfaces: dict[str, list] = {}
    start = time.perf_counter()

    def note(method: str, ks: list[int], weights: np.ndarray) -> None:
        found = [[data[t][0].divergence(w) for w in row] for t, row in enumerate(weights)]
        cells.append(
            {
                "method": method,
                "ks": ks,
                "forward": significant([[one.forward for one in row] for row in found]),
                "reverse": significant([[one.reverse for one in row] for row in found]),
            }
        )
        if method in (methods.AIHT2.name, methods.SPARSE_VI, methods.DEFAULT.name):
            surfaces[method] = [
                {"trial": t, "k": k} | _coreset(weights[t, ks.index(k)])
                for t in range(surface_trials)
                for k in (surface_ks if t == 0 else surface_ks[-1:])
            ]
        print(f"  {method}, after {time.perf_counter() - start:.0f} s", flush=True)

    atoms = [model.atoms() for model, _, _ in data]
    width = max(one.shape[1] for one in atoms)
    padded = np.stack([np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in atoms])
    with jax.enable_x64(True):
        problems = jax.vmap(jc.CoresetProblem)(padded)
        for method in (*methods.PAPER, *methods.OURS):
            some = ks[1::4] if method.is_slow else ks
            part = methods.take(problems, slice(slow_trials if method.is_slow else None))
            note(method.name, some, methods.dense(methods.solve_all(part, some, method)[0], n))
    paths = np.stack([sparse_vi(one[0], max(ks)) for one in data[:slow_trials]])
    note(methods.SPARSE_VI, ks, paths[:, np.array(ks) - 1])
    pictures = [_surfaces(data[t], place, t, surfaces) for t in range(surface_trials)]
    return {
        "settings": {
            "data": name,
            "rows": n,
            "basis functions": len(data[0][1].scales),
            "trials": num_trials,
            "trials of SubspacePursuit, Recombination and SparseVI": slow_trials,
            "k": ks,
            "atoms": "exact, under the true posterior",
            "float": "float64",
        },
        "cells": cells,
        "surfaces": pictures,
    }


def _coreset(weights: np.ndarray) -> dict[str, Any]:
    rows = np.flatnonzero(weights)
    return {"rows": rows.tolist(), "weights": significant(weights[rows], 3)}


def _surfaces(
    data: tuple[LinearRegression, Basis, np.ndarray],
    place: np.ndarray,
    trial: int,
    surfaces: dict[str, list],
) -> dict[str, Any]:
    """The posterior mean of the log-price over a grid, of all rows and of each coreset."""
    model, basis, rows = data
    low, high = place.min(axis=0), place.max(axis=0)
    latitude, longitude = (np.linspace(a, b, _GRID) for a, b in zip(low, high, strict=True))
    grid = np.stack(np.meshgrid(latitude, longitude, indexing="ij"), axis=-1).reshape(-1, 2)
    values = basis(grid)

    def surface(weights: np.ndarray) -> list:
        return significant((values @ model.posterior(weights)[0]).reshape(_GRID, _GRID), 3)

    found = []
    for method, coresets in surfaces.items():
        for one in coresets:
            if one["trial"] == trial:
                weights = np.zeros(model.num_data)
                weights[one["rows"]] = one["weights"]
                found.append(one | {"method": method, "surface": surface(weights)})
    return {
        "latitude": significant(latitude),
        "longitude": significant(longitude),
        "places": significant(place[rows]),
        "full": surface(np.ones(model.num_data)),
        "coresets": found,
    }


def table(result: dict[str, Any]) -> str:
    """See `runner`."""
    ks = [k for k in (5, 20, 60, 100, 140, 180, 220, 260, 300) if k in result["settings"]["k"]]
    ks = ks or result["settings"]["k"]
    columns = ["method", *(f"k = {k}" for k in ks)]
    return "\n\n".join(
        f"Median {measure} KL in nats:\n\n"
        + markdown(charts.medians(result["cells"], measure, ks), columns)
        for measure in ("forward", "reverse")
    )


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """See `runner`."""
    figure, axes = charts.panels(1, 2, 5.2, 4.2)
    for ax, measure in zip(axes[0], ("forward", "reverse"), strict=True):
        for i, cell in enumerate(result["cells"]):
            charts.curve(ax, cell["ks"], cell[measure], cell["method"], (25, 75), i, floor=1e-12)
        ax.set(yscale="log", xlabel="coreset size k", ylabel=f"{measure} KL (nats)")
        ax.set_title("Figure 1b", fontsize=10)
    pictures = result["surfaces"]
    last = max(one["k"] for one in pictures[0]["coresets"])
    ks = sorted({one["k"] for one in pictures[0]["coresets"]})
    return {
        "": charts.finish(figure, axes),
        "surfaces": _grid([(pictures[0], k) for k in ks]),
        "trials": _grid([(picture, last) for picture in pictures]),
    }


def _grid(rows: list[tuple[dict[str, Any], int]]) -> Any:
    """A row of surfaces each: A-IHT II, the true posterior, SparseVI, and our default."""
    from jaxcoreset.plotting import plot_surface

    columns = [methods.AIHT2.name, "true posterior", methods.SPARSE_VI, methods.DEFAULT.name]
    figure, axes = charts.panels(len(rows), len(columns), 2.7, 2.8)
    for row, (picture, k) in enumerate(rows):
        full = np.array(picture["full"])
        places = np.array(picture["places"])
        near = _near(picture, places)
        low, high = np.percentile(full[near], (1, 99))
        limits = (float(low), float(high))
        longitude, latitude = (np.array(picture[name]) for name in ("longitude", "latitude"))
        for ax, name in zip(axes[row], columns, strict=True):
            matching = [c for c in picture["coresets"] if c["method"] == name and c["k"] == k]
            surface = np.array(matching[0]["surface"]) if matching else full
            shown = np.where(near, surface, np.nan)
            plot_surface(longitude, latitude, shown, ax, limits=limits)
            if matching:
                weights = np.array(matching[0]["weights"], float)
                at = places[matching[0]["rows"]]
                size = 25 * weights / weights.max(initial=1e-9)
                ax.scatter(at[:, 1], at[:, 0], s=size, color="black", lw=0, alpha=0.7)
            ax.set(xticks=[], yticks=[], aspect="equal")
            ax.set_title(f"{name}, k = {k}" if matching else name, fontsize=8)
    return figure


def _near(picture: dict[str, Any], places: np.ndarray, degrees: float = 0.6) -> np.ndarray:
    """Where on the grid there are data: elsewhere the surface is the prior's affair."""
    latitude, longitude = np.array(picture["latitude"]), np.array(picture["longitude"])
    squared = (latitude[:, None, None] - places[:, 0]) ** 2
    squared = squared + (longitude[None, :, None] - places[:, 1]) ** 2
    return squared.min(axis=2) < degrees**2
