"""One cell: data sets of one model through one setting of the builder, NUTS, and the correction."""

import functools
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks.calibration.models import MODELS, Model
from benchmarks.calibration.sampler import Sampler
from jaxcoreset.diagnostics import CorrectionError

# Ranks are from 0 to NUM_RANKS; NUTS keeps four draws for each of them, of which the correction
# takes one.
NUM_RANKS, FOLD = 99, 4
_WARMUP, _THIN = 300, 2
# What `correct` says of a chain that is stuck, or of draws that all rows give no probability.
_SPIKES = ("never moved", "has no mass")
# What the builder is told. "too small" is rows alone, since with a proxy no size is too small here.
_SHOWN = ("number", "KL", "rows", "verdict", "k-hat", "seconds", "CPU seconds", "of which build")
SETTINGS = ("0.1", "small", "0.01")


@functools.cache
def _log_likelihood(program: jc.ModelLikelihood) -> Any:
    """Sums over all rows at many constrained draws, compiled once for a model."""

    def at(draws: Any, data: Any) -> Any:
        return jax.lax.map(
            lambda one: program.log_likelihood_constrained(one, data).sum(), draws, batch_size=50
        )

    return jax.jit(at)


def builder_of(model: Model, setting: str) -> jc.CoresetBuilder:
    """The builder for a setting: a tolerance, or the model's size that is too small."""
    told: dict[str, Any] = {"size": model.small, "proxy": None}
    if setting != "small":
        told = {"tol": jc.Tolerance(float(setting), throw=False)}
    return jc.CoresetBuilder(model.model, groups=model.groups, progress_bar=False, **told)


def run(name: str, setting: str, path: Path, num: int) -> None:
    """Data sets up to the number `num`, after those that are in the file of the cell."""
    model, compiled = MODELS[name], _compiled()
    first = len(path.read_text().splitlines()) if path.is_file() else 0
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(first, num):
        args, truth = model.simulate(np.random.default_rng(1000 + number))
        keys = jax.random.split(jax.random.key(number), 3)
        wall, cpu = time.perf_counter(), time.process_time()
        compiled.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            coreset = builder_of(model, setting).run(keys[0], *args)
        built, programs = time.process_time() - cpu, list(compiled)
        likelihood = coreset.likelihood
        assert likelihood is not None
        draws = _sampler(likelihood.program)(keys[1], coreset)
        sampled = time.process_time() - cpu
        plain = {site: values[::FOLD] for site, values in draws.items()}
        fair, khat = _corrected(coreset, draws, keys[2])
        report = coreset.report
        line = {
            "number": number,
            "KL": report.kl,
            "rows": len(coreset),
            "proxy": report.proxy,
            "Gaussian KL": report.gaussian_kl,
            "verdict": report.verdict.partition(":")[0],
            "k-hat": khat,
            "seconds": time.perf_counter() - wall,
            "CPU seconds": time.process_time() - cpu,
            "programs compiled": programs,
            "of which build": built,
            "of which NUTS": sampled - built,
            "plain": _ranks(model, likelihood, plain, truth),
            "corrected": None if fair is None else _ranks(model, likelihood, fair, truth),
        }
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print({key: line[key] for key in _SHOWN}, flush=True)


@functools.cache
def _sampler(program: jc.ModelLikelihood) -> Sampler:
    """The sampler of all coresets of a model."""
    return Sampler(program, _WARMUP, FOLD * NUM_RANKS, _THIN)


@functools.cache
def _compiled() -> list[str]:
    """The names of the programs that are compiled from now on."""
    names: list[str] = []

    def note(event: str, duration_secs: float, **about: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    return names


def _corrected(
    coreset: jc.Coreset, draws: dict[str, np.ndarray], key: Any
) -> tuple[dict[str, np.ndarray] | None, float]:
    """As many of the corrected draws as there are ranks, or None if they were refused; k-hat."""
    try:
        data = jc.correct(coreset, draws, resample=True, key=key, progress_bar=False)
    except CorrectionError as error:
        return None, float(error.certificate.khat)
    except ValueError as error:  # the chain is where a coreset of too few rows has a spike
        if not any(reason in str(error) for reason in _SPIKES):
            raise
        return None, math.inf
    posterior = data["posterior"]
    fair = {name: np.asarray(posterior[name])[0, ::FOLD] for name in draws}
    return fair, float(data.attrs["khat"])


def _ranks(
    model: Model, likelihood: jc.ModelLikelihood, draws: dict, truth: dict
) -> dict[str, int]:
    """How many draws are below the truth, for each quantity, and the log-likelihood of all rows."""
    data = tuple(np.asarray(leaf) for leaf in likelihood.data)
    both = {name: np.concatenate([truth[name][None], draws[name]]) for name in draws}
    both = {name: values.astype(np.float32) for name, values in both.items()}
    log_likelihood = np.asarray(_log_likelihood(likelihood.program)(both, data))
    ranked = model.quantities(both) | {"log-likelihood": log_likelihood}
    return {name: int(np.sum(values[1:] < values[0])) for name, values in ranked.items()}
