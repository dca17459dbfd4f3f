"""Part `calibration`: are ranks of the parameters uniform over data sets drawn from the prior?

Simulation-based calibration (Talts et al. 2018, arXiv 1804.06788): each data set is simulated with
parameters drawn from the prior, a coreset of groups is built, NUTS samples its posterior, and the
rank of the parameters among the draws is noted; so are the ranks of the effects of a small, a
middling and a large group among the draws of `group_effects`. The ranks' distribution function is
compared with simultaneous bands that hold it with a probability of 95 % if ranks are uniform
(Säilynoja, Bürkner and Vehtari 2022, Statistics and Computing 32(32)).

The data sets have one design, so that compiled programs serve all of them; NUTS is one program with
the coreset's groups and weights as arguments.
"""

import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import jaxcoreset as jc
from benchmarks.calibration.bands import p_value
from benchmarks.calibration.sampler import Sampler

NUM_GROUPS, SIZE, NUM_RANKS = 200, 40, 99
_WARMUP, _THIN = 300, 8
_LEVEL = 0.95
# The groups whose effects are ranked, by their number of rows.
_GROUPS = {"effect, 3 rows": 0, "effect, 12 rows": 99, "effect, 40 rows": 199}


def visits(X: Any, group: Any, num_groups: int, y: Any = None) -> None:
    """Logistic regression with normal intercepts, and a prior from which data are simulated."""
    beta: Any = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    tau = numpyro.sample("tau", dist.LogNormal(-0.5, 0.4))
    with numpyro.plate("groups", num_groups):
        effect: Any = numpyro.sample("effect", dist.Normal(0.0, tau))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta + effect[group]), obs=y)


def design() -> tuple[np.ndarray, np.ndarray]:
    """Predictors and groups; the groups have 3 to 40 rows, the later ones more."""
    rng = np.random.default_rng(1)
    sizes = np.round(np.geomspace(3, 40, NUM_GROUPS)).astype(int)
    sizes[NUM_GROUPS // 2 - 1] = 12
    group = np.repeat(np.arange(NUM_GROUPS, dtype=np.int32), sizes)
    X = np.column_stack([np.ones(group.size), rng.normal(size=(group.size, 2))])
    return X.astype(np.float32), group


def simulate(rng: np.random.Generator) -> tuple[tuple, dict[str, np.ndarray], np.ndarray]:
    """The model's arguments, the shared parameters and the effects behind them."""
    X, group = design()
    truth = {"beta": rng.normal(size=3), "tau": np.exp(np.array(rng.normal(-0.5, 0.4)))}
    effect = truth["tau"] * rng.normal(size=NUM_GROUPS)
    eta = X @ truth["beta"] + effect[group]
    y = (rng.random(group.size) < 1 / (1 + np.exp(-eta))).astype(np.float32)
    return (X, group, NUM_GROUPS, y), truth, effect


def run(path: Path, first: int, last: int) -> None:
    """The ranks of data sets `first` to `last` - 1, which are appended to a file as they come."""
    sampler = None
    for number in range(first, last):
        args, truth, effect = simulate(np.random.default_rng(1000 + number))
        begin, cpu = time.perf_counter(), time.process_time()
        keys = jax.random.split(jax.random.key(number), 3)
        builder = jc.CoresetBuilder(
            visits, SIZE, groups="group", proxy=None, num_held_out=200, progress_bar=False
        )
        coreset = builder.run(keys[0], *args)
        assert coreset.likelihood is not None
        built = time.process_time() - cpu
        sampler = sampler or Sampler(coreset.likelihood.program, _WARMUP, NUM_RANKS, _THIN)
        draws = sampler(keys[1], coreset)
        sampled = time.process_time() - cpu
        effects = coreset.group_effects(keys[2], draws, num_draws=NUM_RANKS)["effect"]
        ranks = {
            f"beta[{i}]": int(np.sum(draws["beta"][:, i] < truth["beta"][i])) for i in range(3)
        }
        ranks["tau"] = int(np.sum(draws["tau"] < truth["tau"]))
        for name, at in _GROUPS.items():
            ranks[name] = int(np.sum(effects[:, at] < effect[at]))
        facts = {
            "number": number,
            "KL": coreset.report.kl,
            "groups": len(coreset.indices),
            "seconds": time.perf_counter() - begin,
            "CPU seconds": time.process_time() - cpu,
            "of which build": built,
            "of which NUTS": sampled - built,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(facts | {"ranks": ranks}) + "\n")
        print(facts, flush=True)


def summary(path: Path) -> dict[str, Any]:
    """What the page tells of the data sets in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = list(lines[0]["ranks"])
    ranks = {name: np.array([one["ranks"][name] for one in lines]) for name in names}
    p = {name: p_value(x, NUM_RANKS + 1) for name, x in ranks.items()}
    return {
        "data sets": len(lines),
        "groups": NUM_GROUPS,
        "size": SIZE,
        "median KL": float(np.median([one["KL"] for one in lines])),
        "largest KL": max(one["KL"] for one in lines),
        "median CPU seconds": float(np.median([one["CPU seconds"] for one in lines])),
        "largest rank": NUM_RANKS,
        "quantities": [
            {
                "quantity": name,
                "p": p[name],
                "within the bands": "yes" if p[name] > 1 - _LEVEL else "no",
                "mean rank": float(ranks[name].mean() / NUM_RANKS),
                "ranks": ranks[name].tolist(),
            }
            for name in names
        ],
    }
