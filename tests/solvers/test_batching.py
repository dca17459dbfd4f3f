"""Lanes that take turns give what lanes side by side give, and are as many as were said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoreset.solvers import batching as lanes
from jaxcoreset.solvers.batching import few_at_a_time
from jaxcoreset.solvers.exchange.pursuit import ExchangePursuit
from jaxcoreset.solvers.matching_pursuit import MatchingPursuit
from jaxcoreset.solvers.problem import CoresetProblem
from jaxcoreset.solvers.solve import solve, sweep


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(lanes.jax, "default_backend", lambda: "cpu")


def doubled(tree, y):
    return {"sum": tree["x"].sum() + y, "outer": jnp.outer(tree["x"], tree["x"])}


def batch(size):
    return {"x": jnp.arange(3.0 * size).reshape(size, 3)}


def lengths(function, *args):
    """How often the body of each loop runs."""
    found = []

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "scan":
                found.append(equation.params["length"])
            for value in equation.params.values():
                for inner in value if isinstance(value, tuple | list) else [value]:
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        walk(inner)

    walk(jax.make_jaxpr(function)(*args).jaxpr)
    return found


@pytest.mark.parametrize(
    ("size", "at_once", "wanted"),
    [
        (6, 6, []),
        (12, 6, [2]),
        (13, 4, [4]),
        (10, 6, [2]),
        (7, 3, [7]),
        (7, 1, [7]),
        (2, 2, []),
        (1, 1, [1]),
    ],
)
def test_so_many_lanes_at_a_time_as_were_said(monkeypatch, size, at_once, wanted):
    monkeypatch.setattr(lanes, "_CACHE", 10 * at_once)
    few = jax.vmap(few_at_a_time(doubled, 10), in_axes=(0, None))
    assert lengths(few, batch(size), jnp.ones(())) == wanted
    expected = jax.vmap(doubled, in_axes=(0, None))(batch(size), 2.0)
    jax.tree.map(np.testing.assert_array_equal, few(batch(size), 2.0), expected)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(few)(batch(size), 2.0), expected)


def test_lanes_within_lanes_are_counted_together(monkeypatch):
    monkeypatch.setattr(lanes, "_CACHE", 10 * 4)
    few = few_at_a_time(doubled, 10)
    both = jax.vmap(jax.vmap(few, in_axes=(None, 0)), in_axes=(0, None))
    wanted = jax.vmap(jax.vmap(doubled, in_axes=(None, 0)), in_axes=(0, None))
    ys = jnp.arange(8.0)
    assert sorted(lengths(both, batch(3), ys)) == [2, 3]
    jax.tree.map(np.testing.assert_array_equal, both(batch(3), ys), wanted(batch(3), ys))


def test_on_other_devices_lanes_are_side_by_side(monkeypatch):
    monkeypatch.setattr(lanes, "_CACHE", 1)
    monkeypatch.setattr(lanes.jax, "default_backend", lambda: "gpu")
    few = jax.vmap(few_at_a_time(doubled, 10))
    assert lengths(few, batch(4), jnp.ones(4)) == []


def test_a_lane_larger_than_the_cache_goes_alone():
    few = jax.vmap(few_at_a_time(doubled, 10 * lanes._CACHE))
    assert lengths(few, batch(4), jnp.ones(4)) == [4]


@pytest.mark.parametrize("solver", [MatchingPursuit(), ExchangePursuit()])
def test_pursuits_in_turn_find_what_they_find_alone(monkeypatch, solver):
    monkeypatch.setattr(lanes, "_CACHE", 1)
    atoms = np.random.default_rng(0).normal(size=(3, 20, 12)).astype(np.float32)
    problems = jax.vmap(CoresetProblem)(jnp.asarray(atoms))
    ks = np.array([1, 4])
    together = jax.vmap(lambda p: sweep(p, ks, solver))(problems)
    over_k = jax.vmap(lambda k: solve(CoresetProblem(atoms[1]), k, solver, max_k=4))(ks)
    for i in range(3):
        alone = sweep(CoresetProblem(atoms[i]), ks, solver)
        np.testing.assert_allclose(together.objective[i], alone.objective, rtol=1e-4)
        np.testing.assert_array_equal(together.indices[i], alone.indices)
    np.testing.assert_allclose(over_k.objective, together.objective[1], rtol=1e-4)


@pytest.mark.parametrize("at_once", [7, 5, 1])
def test_what_is_traced_for_one_lane_serves_for_all(at_once):
    traced = []

    def function(x):
        traced.append(x.shape)
        return jnp.cumsum(x)

    call = few_at_a_time(function, lanes._CACHE // at_once)
    found = jax.jit(jax.vmap(call))(jnp.ones((7, 3)))
    np.testing.assert_array_equal(found, np.tile([1, 2, 3], (7, 1)))
    assert traced == [(3,)]
