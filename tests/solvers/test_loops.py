"""No loop of a solver decides by what it rounds, so that none runs forever in a batch."""

import jax
import jax.numpy as jnp
import pytest

import jaxcoreset as jc
from tests.loops import rounding_conditions
from tests.solvers.helpers import KEY, PROBLEMS, SOLVERS

ATOMS, TARGET = (jnp.asarray(part, jnp.float32) for part in PROBLEMS["correlated"])
# The sizes of a batch are traced, and another line search has a loop of its own.
ALL = {name: (case.solver, case.loose) for name, case in SOLVERS.items()} | {
    f"{solver.__name__}, backtracking": (solver(line_search="backtracking"), 12)
    for solver in (jc.IHT, jc.AIHT, jc.AIHT2)
}


def test_a_condition_that_rounds_is_found():
    def halve(x):
        return jax.lax.while_loop(lambda y: y * y > 2, lambda y: y / 2, x)

    assert "mul" in rounding_conditions(halve, 8.0)[0]
    assert not rounding_conditions(
        lambda x: jax.lax.while_loop(lambda y: jnp.abs(y) > 2, lambda y: y / 2, x), 8.0
    )


@pytest.mark.parametrize("name", ALL)
def test_conditions_of_loops_do_not_round(name):
    solver, max_k = ALL[name]

    def solve(atoms, target, k):
        return jc.solve(jc.CoresetProblem(atoms, target), k, solver, KEY, max_k=max_k)

    assert not rounding_conditions(solve, ATOMS, TARGET, jnp.array(2))
