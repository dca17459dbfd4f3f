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
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.hmc import hmc
from scipy.stats import binom

import jaxcoreset as jc

NUM_GROUPS, SIZE, NUM_RANKS = 200, 40, 99
_WARMUP, _THIN = 300, 8
_LEVEL, _SIMULATIONS = 0.95, 4000
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


class Sampler:
    """NUTS on coresets of one model and one design, compiled once.

    The density is that of `Coreset.model`: the prior and the weighted log-likelihoods of groups.
    """

    def __init__(self, likelihood: jc.ModelLikelihood):
        program = likelihood.program

        def potential_of(data: tuple, weights: Any) -> Any:
            def potential(params: Any) -> Any:
                total = jnp.sum(weights * program.log_likelihood(params, data))
                return -(program.log_prior(params) + total)

            return potential

        def draws(key: Any, data: tuple, weights: Any, start: Any) -> Any:
            init, kernel = hmc(potential_fn_gen=potential_of, algo="NUTS")
            given: Any = {"model_args": (data, weights)}
            state = init(start, _WARMUP, rng_key=key, dense_mass=True, **given)

            def step(state: Any, _: Any) -> tuple[Any, None]:
                return kernel(state, **given), None

            def kept(state: Any, _: Any) -> tuple[Any, Any]:
                state, _ = jax.lax.scan(step, state, None, length=_THIN)
                return state, program.constrain(state.z)

            state, _ = jax.lax.scan(step, state, None, length=_WARMUP)
            return jax.lax.scan(kept, state, None, length=NUM_RANKS)[1]

        self.draws = jax.jit(draws)

    def __call__(self, key: Any, coreset: jc.Coreset, likelihood: jc.ModelLikelihood) -> Any:
        """Draws of the coreset's posterior."""
        spare = SIZE - len(coreset.indices)
        indices = np.concatenate([coreset.indices, np.zeros(spare, np.int64)])
        weights = np.concatenate([coreset.weights, np.zeros(spare)]).astype(np.float32)
        data = tuple(np.asarray(leaf) for leaf in likelihood.take(indices))
        return self.draws(key, data, weights, coreset.init_params())


def run(path: Path, first: int, last: int) -> None:
    """The ranks of data sets `first` to `last` - 1, which are appended to a file as they come."""
    X, group = design()
    sampler = None
    for number in range(first, last):
        rng = np.random.default_rng(1000 + number)
        truth = {"beta": rng.normal(size=3), "tau": float(np.exp(rng.normal(-0.5, 0.4)))}
        effect = truth["tau"] * rng.normal(size=NUM_GROUPS)
        eta = X @ truth["beta"] + effect[group]
        y = (rng.random(group.size) < 1 / (1 + np.exp(-eta))).astype(np.float32)
        begin, cpu = time.perf_counter(), time.process_time()
        keys = jax.random.split(jax.random.key(number), 3)
        builder = jc.CoresetBuilder(
            visits, SIZE, groups="group", proxy=None, num_held_out=200, progress_bar=False
        )
        coreset = builder.run(keys[0], X, group, NUM_GROUPS, y)
        assert coreset.likelihood is not None
        built = time.process_time() - cpu
        sampler = sampler or Sampler(coreset.likelihood)
        draws = jax.block_until_ready(sampler(keys[1], coreset, coreset.likelihood))
        sampled = time.process_time() - cpu
        effects = coreset.group_effects(keys[2], draws, num_draws=NUM_RANKS)["effect"]
        ranks = {
            f"beta[{i}]": int(np.sum(np.asarray(draws["beta"])[:, i] < truth["beta"][i]))
            for i in range(3)
        }
        ranks["tau"] = int(np.sum(np.asarray(draws["tau"]) < truth["tau"]))
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


def band_statistic(ranks: np.ndarray, num_values: int) -> np.ndarray:
    """The smallest tail probability of the ranks' distribution function at any value, by set.

    Args:
        ranks: shape (sets, n), integers from 0 to `num_values` - 1.
        num_values: the number of values that a rank can have.
    """
    num = ranks.shape[-1]
    values = np.arange(1, num_values)
    sorted_ranks = np.sort(ranks, axis=-1)
    below = np.stack([np.searchsorted(one, values) for one in sorted_ranks])
    chance = values / num_values
    lower, upper = binom.cdf(below, num, chance), binom.sf(below - 1, num, chance)
    return 2 * np.minimum(lower, upper).min(axis=-1)


def p_values(ranks: dict[str, np.ndarray]) -> dict[str, float]:
    """By name, how often uniform ranks leave the bands as far, by simulation."""
    num = len(next(iter(ranks.values())))
    rng = np.random.default_rng(0)
    uniform = rng.integers(0, NUM_RANKS + 1, (_SIMULATIONS, num))
    null = band_statistic(uniform, NUM_RANKS + 1)
    found = {name: band_statistic(x[None], NUM_RANKS + 1)[0] for name, x in ranks.items()}
    return {name: float(np.mean(null <= one)) for name, one in found.items()}


def summary(path: Path) -> dict[str, Any]:
    """What the page tells of the data sets in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = list(lines[0]["ranks"])
    ranks = {name: np.array([one["ranks"][name] for one in lines]) for name in names}
    p = p_values(ranks)
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
