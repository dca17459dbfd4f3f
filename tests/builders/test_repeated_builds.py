"""Many builds in one process: none keeps its data in memory, and threads may build at once."""

import concurrent.futures
import gc
import weakref

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from tests.builders.conftest import nuts
from tests.models import regression_model as model

NUM_ROWS = 1000


def table(seed):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(NUM_ROWS, 2)).astype(np.float32)
    return x, (x @ np.ones(2) + 0.5 * generator.normal(size=NUM_ROWS)).astype(np.float32)


def build(seed, *data, **settings):
    settings = {"size": 5, "num_draws": 60, "num_held_out": 60, "candidates": 200} | settings
    builder = jc.CoresetBuilder(model, progress_bar=False, **settings, proxy=None)
    return builder.run(jax.random.key(seed), *data)


def use(coreset, x, y):
    """What a user does with a coreset, which evaluates all rows once more."""
    jc.certify(coreset, nuts(coreset, num_warmup=50), progress_bar=False)


def sparse_vi(x, y):
    return jc.SparseVI(model, size=2, num_iters=5, progress_bar=False).run(jax.random.key(0), x, y)


def on_uniform_rows(solver):
    return lambda x, y: solver(model, 4, num_iters=5, progress_bar=False).run(0, x, y)


def hierarchy(x, group, num_groups, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("groups", num_groups):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slopes + effect[group]), obs=y)


def groups(x, y):
    settings = {"size": 5, "num_draws": 60, "num_held_out": 60, "proxy": None}
    builder = jc.CoresetBuilder(hierarchy, groups="group", progress_bar=False, **settings)
    group = np.arange(NUM_ROWS, dtype=np.int32) // 10
    y = (y > 0).astype(np.float32)
    coreset = builder.run(jax.random.key(0), x, group, NUM_ROWS // 10, y)
    coreset.group_effects(jax.random.key(1), {"slopes": np.ones((8, 2), np.float32)})


BUILDS = {
    "rounds": lambda x, y: build(0, x, y, rounds=2, candidates=jc.Candidates(200, extra_passes=1)),
    "SubsampleNUTS": lambda x, y: build(
        0, x, y, weighting=jc.SubsampleNUTS(num_samples=60, num_warmup=50)
    ),
    "SparseVI": sparse_vi,
    "QuasiNewton": on_uniform_rows(jc.QuasiNewton),
    "CoresetMCMC": on_uniform_rows(jc.CoresetMCMC),
    "Guide": lambda x, y: build(0, x, y, weighting=jc.Guide(num_steps=100)),
    "groups": groups,
    "certify": lambda x, y: use(build(0, x, y), x, y),
}
# NumPyro compiles loops each time that it looks for values that a guide can start from.
COMPILED_BY_NUMPYRO = {"Guide": {"jit(scan)"}}


SLOW = {"groups": [pytest.mark.slow, pytest.mark.unoptimised]}


@pytest.mark.parametrize("name", [pytest.param(one, marks=SLOW.get(one, ())) for one in BUILDS])
def test_a_build_leaves_no_data_in_memory_and_the_next_one_compiles_nothing(name):
    make, compiled = BUILDS[name], []
    x, y = table(0)
    kept = weakref.ref(x), weakref.ref(y)
    make(x, y)
    del x, y
    gc.collect()
    assert [one() is None for one in kept] == [True, True]
    if name == "certify":  # a new MCMC compiles its own programs
        return

    def listen(event, duration_secs, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        make(*table(1))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert set(compiled) <= COMPILED_BY_NUMPYRO.get(name, set())


def test_builds_in_threads_are_those_of_one():
    tables = [table(seed) for seed in range(4)]
    alone = [build(seed, *data) for seed, data in enumerate(tables)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(build, seed, *data) for seed, data in enumerate(tables)]
        together = [future.result() for future in futures]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.weights, other.weights)
