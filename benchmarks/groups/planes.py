"""Part `planes`: the demonstration of the aircraft in a fresh process, against `planes-truth`."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpyro.diagnostics import effective_sample_size

from jaxcoreset.data.utils import write_whole

IMAGES = Path(__file__).parents[2] / "docs" / "images"
# Draws of a longer run of NUTS on the same coreset, whose Monte Carlo error is small.
_NUM_SAMPLES = 10_000
_DEMO = """
import json, resource, sys, time
from pathlib import Path
import jax
import numpy as np
from numpyro.infer import MCMC, NUTS
from jaxcoreset.command.demo_planes import run_planes_demo
from jaxcoreset.data.utils import peak_memory
found = run_planes_demo(out=Path(sys.argv[1]), show_progress=False)
used = resource.getrusage(resource.RUSAGE_SELF)
coreset, report = found["coreset"], found["coreset"].report
print(json.dumps({
    "groups kept": len(coreset.indices), "KL": report.kl,
    "KL of a Gaussian": report.gaussian_kl, "integrals": report.integration,
    "KL of the integrals": report.integral_kl, "stages": found["seconds"],
    "build stages": report.seconds, "seconds": time.time() - float(sys.argv[2]),
    "CPU s": used.ru_utime + used.ru_stime, "peak MB": (peak_memory() or 0) / 2**20,
    "draws": int(sys.argv[3]),
}))
mcmc = MCMC(NUTS(coreset.model), num_warmup=500, num_samples=int(sys.argv[3]), progress_bar=False)
start = coreset.init_params()
mcmc.run(jax.random.key(11), *coreset.args, **coreset.kwargs, init_params=start)
np.savez(Path(sys.argv[1]) / "draws.npz", effects=found["effects"], **mcmc.get_samples())
"""


def measure(truth: dict[str, Any]) -> dict[str, Any]:
    """The demonstration's seconds, memory and errors.

    Args:
        truth: the result of part `planes-truth`.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _DEMO, folder, str(time.time()), str(_NUM_SAMPLES)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"the demonstration failed: {done.stderr[-2000:]}")
        print(done.stdout)
        with np.load(Path(folder) / "draws.npz") as draws:
            shared = np.column_stack([draws["beta"], draws["sd_planes"]]).astype(float)
            effects = draws["effects"].astype(float)
        (IMAGES / "planes.png").write_bytes((Path(folder) / "planes.png").read_bytes())
    return {**json.loads(done.stdout.splitlines()[-1]), **compare(shared, effects, truth)}


def compare(shared: np.ndarray, effects: np.ndarray, truth: dict[str, Any]) -> dict[str, Any]:
    """Errors of means in posterior standard deviations, ratios of these, and a figure.

    Args:
        shared: draws of the shared parameters, shape (s, 21).
        effects: draws of all effects, shape (t, number of aircraft).
        truth: the result of part `planes-truth`.
    """
    mean, sd = np.array(truth["mean"]), np.array(truth["sd"])
    errors = (shared.mean(axis=0) - mean) / sd
    ratios = shared.std(axis=0) / sd
    own = 1 / np.sqrt(effective_sample_size(shared[None]))
    monte_carlo = np.hypot(own, np.array(truth["error of the mean, sd"]))
    effect_mean, effect_sd = np.array(truth["effect mean"]), np.array(truth["effect sd"])
    shifts = (effects.mean(axis=0) - effect_mean) / effect_sd
    spreads = effects.std(axis=0) / effect_sd
    _figure(IMAGES / "planes_truth.png", (shared, effects), truth)
    return {
        "largest error of a shared mean, sd": float(np.abs(errors).max()),
        "Monte Carlo error there, sd": float(monte_carlo[np.abs(errors).argmax()]),
        "sd ratios of the shared": [float(ratios.min()), float(ratios.max())],
        "sd between aircraft": [float(shared[:, -1].mean()), float(mean[-1])],
        "sd of it": [float(shared[:, -1].std()), float(sd[-1])],
        "effects, root mean square error of a mean, sd": float(np.sqrt(np.mean(shifts**2))),
        "effects, median sd ratio": float(np.median(spreads)),
        "effects, correlation of means": float(
            np.corrcoef(effects.mean(axis=0), effect_mean)[0, 1]
        ),
        "shared": [
            {
                "parameter": name,
                "mean, coreset": float(shared[:, i].mean()),
                "mean, NUTS on all": float(mean[i]),
                "error, sd": float(errors[i]),
                "±": float(monte_carlo[i]),
                "sd ratio": float(ratios[i]),
            }
            for i, name in enumerate(truth["names"])
        ],
    }


def _figure(path: Path, draws: tuple[np.ndarray, np.ndarray], truth: dict[str, Any]) -> None:
    """Means and standard deviations of all effects against those of NUTS on all rows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, effects = draws
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    pairs = [
        ("mean", effects.mean(axis=0), truth["effect mean"]),
        ("standard deviation", effects.std(axis=0), truth["effect sd"]),
    ]
    for ax, (name, own, other) in zip(axes, pairs, strict=True):
        ends = min(np.min(own), np.min(other)), max(np.max(own), np.max(other))
        ax.plot(ends, ends, color="0.6", lw=1)
        ax.plot(other, own, ".", color="#0072B2", ms=3, alpha=0.4)
        ax.set(xlabel="NUTS on all rows with all effects", ylabel="coreset and group_effects")
        ax.set_title(f"Posterior {name} of each effect")
        ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: figure.savefig(file, dpi=120))
    plt.close(figure)
