"""A batch in chunks gives what `vmap` gives, in chunks of the expected size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers import batching
from jaxcoreset.solvers.batching import chunked_vmap
from jaxcoreset.solvers.exchange import slot_matrix
from jaxcoreset.solvers.exchange.pursuit import ExchangePursuit
from jaxcoreset.solvers.matching_pursuit import MatchingPursuit
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solve import sweep
from tests.loops import operations


def doubled(tree, y):
    return {"sum": tree["x"].sum() + y, "outer": jnp.outer(tree["x"], tree["x"])}


def batch(size):
    return {"x": jnp.arange(3.0 * size).reshape(size, 3)}


def lengths(function, *args):
    """How often the body of each loop runs."""
    found = operations(jax.make_jaxpr(function)(*args).jaxpr, nested=True)
    return [one.params["length"] for one in found if one.primitive.name == "scan"]


@pytest.mark.parametrize(
    ("size", "at_once", "expected"),
    [(6, 6, []), (12, 6, [2]), (13, 4, [4]), (10, 6, [2]), (7, 3, [7]), (1, 1, [1]), (4, 0, [4])],
)
def test_chunks_fill_the_cache(monkeypatch, size, at_once, expected):
    monkeypatch.setattr(batching, "_CACHE", 10 * at_once)
    few = jax.vmap(chunked_vmap(doubled, 10), in_axes=(0, None))
    assert lengths(few, batch(size), jnp.ones(())) == expected
    together = jax.vmap(doubled, in_axes=(0, None))(batch(size), 2.0)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(few)(batch(size), 2.0), together)


def test_nested_batches_share_the_cache(monkeypatch):
    monkeypatch.setattr(batching, "_CACHE", 10 * 4)
    few = chunked_vmap(doubled, 10)
    both = jax.vmap(jax.vmap(few, in_axes=(None, 0)), in_axes=(0, None))
    expected = jax.vmap(jax.vmap(doubled, in_axes=(None, 0)), in_axes=(0, None))
    ys = jnp.arange(8.0)
    assert sorted(lengths(both, batch(3), ys)) == [2, 3]
    jax.tree.map(np.testing.assert_array_equal, both(batch(3), ys), expected(batch(3), ys))


def lowered(platform, function, *args):
    traced = jax.jit(function).trace(*args)
    return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.fixture
def beside_a_gpu(monkeypatch):
    monkeypatch.setattr(batching, "platforms", lambda: {"cpu", "cuda"})


@pytest.mark.usefixtures("beside_a_gpu")
def test_the_platform_of_the_program_decides_not_that_of_the_process(monkeypatch):
    monkeypatch.setattr(batching, "_CACHE", 1)
    few = jax.vmap(chunked_vmap(doubled, 10, lambda tree, y: doubled(tree, jnp.cos(y))))
    on_cpu, on_gpu = (lowered(p, few, batch(4), jnp.ones(4)) for p in ("cpu", "cuda"))
    assert "stablehlo.while" in on_cpu
    assert "stablehlo.cosine" not in on_cpu
    assert "stablehlo.while" not in on_gpu
    assert "stablehlo.cosine" in on_gpu


@pytest.mark.usefixtures("beside_a_gpu")
def test_the_default_solver_is_lowered_for_each_platform(monkeypatch):
    monkeypatch.setattr(slot_matrix, "_MIN_ENTRIES", 0)
    problem = CoresetProblem(np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32))
    solver = ExchangePursuit(exchanges_down=0, num_starts=0)

    def run(problem):
        return solver.run(problem, jnp.asarray(10), 10, None)

    # Only the CPU's program has its matrices in parts, here of 4 and 16 slots.
    on_cpu, on_gpu = (lowered(platform, run, problem) for platform in ("cpu", "cuda"))
    assert "tensor<16x50xf32>" in on_cpu
    assert "tensor<16x50xf32>" not in on_gpu
    assert "tensor<20x50xf32>" in on_gpu


@pytest.mark.parametrize("solver", [MatchingPursuit(), ExchangePursuit(num_starts=0)])
def test_pursuits_in_turn_find_what_they_find_alone(monkeypatch, solver):
    monkeypatch.setattr(batching, "_CACHE", 1)
    atoms = np.random.default_rng(0).normal(size=(3, 20, 12)).astype(np.float32)
    ks = np.array([1, 4])
    together = jax.vmap(lambda a: sweep(CoresetProblem(a), ks, solver))(jnp.asarray(atoms))
    for i in range(3):
        alone = sweep(CoresetProblem(atoms[i]), ks, solver)
        np.testing.assert_allclose(together.objective[i], alone.objective, rtol=1e-4)
        np.testing.assert_array_equal(together.indices[i], alone.indices)


@pytest.mark.parametrize("at_once", [7, 5, 1])
def test_a_function_is_traced_once(at_once):
    traced = []

    def function(x):
        traced.append(x.shape)
        return jnp.cumsum(x)

    call = chunked_vmap(function, batching._CACHE // at_once)
    found = jax.jit(jax.vmap(call))(jnp.ones((7, 3)))
    np.testing.assert_array_equal(found, np.tile([1, 2, 3], (7, 1)))
    assert traced == [(3,)]
