"""What the benchmarks share: data and their models, timing, and results as table and JSON."""

import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import jaxcoreset as jc
from jaxcoreset.weighting.laplace import laplace_approximation

SIX = (
    "synth_lr_500",
    "phishing_500",
    "ds1_500",
    "synth_poiss_500",
    "biketrips_500",
    "airportdelays_500",
)
_COUNTS = ("synth_poiss", "biketrips", "airportdelays")


def logistic(z: Any, y: Any = None) -> None:
    """The papers' logistic regression: y ~ Bernoulli(sigmoid(z·θ)), θ ~ N(0, I)."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([z.shape[1]]).to_event(1))
    with numpyro.plate("data", z.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=z @ theta), obs=y)


def poisson(z: Any, y: Any = None) -> None:
    """The papers' Poisson regression: y ~ Poisson(log(1 + exp(z·θ))), θ ~ N(0, I)."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0).expand([z.shape[1]]).to_event(1))
    with numpyro.plate("data", z.shape[0]):
        numpyro.sample("y", dist.Poisson(jax.nn.softplus(z @ theta)), obs=y)


def load(name: str, data_dir: Path | None) -> tuple[Callable, np.ndarray, np.ndarray] | None:
    """The model of a data set and its two arguments, or None, with a message, where it is missing.

    Args:
        name: a file's name without its ending.
        data_dir: the folder; that of the environment variable JAXCORESET_DATA if left out.
    """
    folder = data_dir or os.environ.get("JAXCORESET_DATA")
    path = Path(folder) / f"{name}.npz" if folder else None
    if path is None or not path.is_file():
        print(f"{name} is skipped: no {name}.npz in --data-dir or JAXCORESET_DATA")
        return None
    with np.load(path, allow_pickle=False) as contents:
        x, y = contents["X"], contents["y"]
    z = np.hstack([x, np.ones((len(x), 1))]).astype(np.float32)
    counts = name.startswith(_COUNTS)
    return (poisson, z, y.astype(np.int32)) if counts else (logistic, z, (y > 0).astype(np.int32))


def each_trial(
    model: Callable, z: np.ndarray, y: np.ndarray, num_draws: int, num_trials: int
) -> Iterator[jc.CoresetProblem]:
    """Problems of one model and data, each with draws of its own, one after the other."""
    likelihood = jc.model_likelihood(model, (z, y))
    approximation = laplace_approximation(likelihood)
    for key in jax.random.split(jax.random.key(0), num_trials):
        draws = approximation.draws(key, num_draws)
        yield jc.embed(likelihood.log_likelihood, draws, likelihood.data)


def trials(
    model: Callable, z: np.ndarray, y: np.ndarray, num_draws: int, num_trials: int
) -> jc.CoresetProblem:
    """A batch of problems of one model and data, each with draws of its own."""
    batch = each_trial(model, z, y, num_draws, num_trials)
    return jax.tree.map(lambda *parts: jnp.stack(parts), *batch)


def problems(
    name: str, data_dir: Path | None, num_draws: int, num_trials: int
) -> jc.CoresetProblem | None:
    """`num_trials` problems of one data set, with other draws of the Laplace approximation each."""
    found = load(name, data_dir)
    if found is None:
        return None
    model, z, y = found
    return trials(model, z, y, num_draws, num_trials)


def synthetic_problems(n: int, num_draws: int, num_trials: int) -> jc.CoresetProblem:
    """Logistic regression on Gaussian data with eleven parameters, for want of real data."""
    rng = np.random.default_rng(0)
    z = np.hstack([rng.normal(size=(n, 10)), np.ones((n, 1))]).astype(np.float32)
    y = (rng.random(n) < 1 / (1 + np.exp(-z @ rng.normal(size=11)))).astype(np.int32)
    return trials(logistic, z, y, num_draws, num_trials)


def seconds(
    function: Callable[[], Any], repeats: int, at_least: float = 0.0
) -> tuple[float, float, Any]:
    """Wall time of the first call, median of the further ones, and what the last one returned.

    Args:
        function: what is called.
        repeats: how many further calls there are.
        at_least: seconds that these are to take together; short ones are repeated more often.
    """
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    cold = time.perf_counter() - start
    warm = []
    while len(warm) < repeats or 0 < sum(warm) < at_least:
        start = time.perf_counter()
        result = jax.block_until_ready(function())
        warm.append(time.perf_counter() - start)
    return cold, statistics.median(warm) if warm else cold, result


def cores(environment: Mapping[str, Any]) -> str:
    """How many cores a result was measured on, in words."""
    count = environment["cores"]
    return f"{count} core" if count == 1 else f"{count} cores"


def num_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_every_core() -> None:
    """Let each core be a device of its own, which a batch can be shared out among."""
    jax.config.update("jax_num_cpu_devices", num_cores())


def environment() -> dict[str, Any]:
    """Date, versions and device, for the head of a result."""
    packages = ["jax", "jaxlib", "numpyro", "numpy", "scipy"]
    if importlib.util.find_spec("coreax") is not None:
        packages.append("coreax")
    device = jax.devices()[0]
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {
            "jaxcoreset": jc.__version__,
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "device": f"{device.platform}: {device.device_kind}, {len(jax.devices())} of them",
        "cores": num_cores(),
        "float": str(jnp.zeros(()).dtype),
    }


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows of values as aligned text."""
    text = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *text, strict=True)]
    lines = [columns, ["-" * width for width in widths], *text]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows of values as a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(text_of(row.get(c)) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def text_of(value: Any) -> str:
    """A value as text, with three digits; None is empty."""
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def dumps(result: Mapping[str, Any], *, allow_nan: bool = True) -> str:
    """JSON with every innermost list on one line."""
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=allow_nan, default=float)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: _on_a_line(found[0]), text) + "\n"


def _on_a_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("[ ", "[").replace(" ]", "]")


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result as JSON, whole or not at all."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(dumps(result))
    temporary.replace(path)
    print(f"\nwrote {path}")


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
