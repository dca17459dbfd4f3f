"""The schedule of a run of `ExchangePursuit`, by the sizes that it goes through."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcoreset as jc
from jaxcoreset.solvers.exchange import pursuit
from tests.problems import low_rank_atoms

NUM_DATA, MAX_K, NUM_STARTS = 40, 8, 2
ORTHOGONAL = np.diag(1.1 ** -np.arange(NUM_DATA))


@pytest.fixture(scope="module")
def sizes_of():
    """The number of atoms in use at each move of a run for k, of atoms of one shape."""
    moves, programs = [], {}

    def decide_move(progress, limits, fit, *found):
        jax.debug.callback(lambda *move: moves.append(move), progress.num_moves, fit.size)
        return original(progress, limits, fit, *found)

    original, pursuit.decide_move = pursuit.decide_move, decide_move

    def run(atoms, k, exchanges_down=5):
        if exchanges_down not in programs:
            solver = jc.ExchangePursuit(exchanges_down=exchanges_down, num_starts=NUM_STARTS)
            programs[exchanges_down] = jax.jit(lambda p, k: solver.run(p, k, MAX_K, None))
        moves.clear()
        problem = jc.CoresetProblem(np.asarray(atoms, np.float32))
        solution = programs[exchanges_down](problem, jnp.asarray(k))
        jax.block_until_ready(solution)
        jax.effects_barrier()
        assert solution.converged
        return [int(size) for _, size in sorted(moves)]

    yield run
    pursuit.decide_move = original


def starts_of(sizes):
    """The sizes of each start, which begins without atoms."""
    begins = [i for i, size in enumerate(sizes) if size == 0]
    return [sizes[a:b] for a, b in itertools.pairwise([*begins, len(sizes)])]


def grow_and_shrink(top, bottom):
    return [*range(top + 1), *range(top - 1, bottom - 1, -1)]


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_run_grows_beyond_k_and_shrinks_to_it_and_further_starts_are_short(sizes_of, k):
    # The second start is matching pursuit.
    expected = [grow_and_shrink(top, k) for top in (k + 10, k + 2, k + 4)]
    assert starts_of(sizes_of(ORTHOGONAL, k)) == expected


def test_a_run_turns_where_no_atom_is_useful(sizes_of):
    atoms = ORTHOGONAL * (np.arange(NUM_DATA) < 5)
    for sizes in starts_of(sizes_of(atoms, 3)):
        assert sizes == grow_and_shrink(5, 3)


def test_a_weight_that_is_blocked_lets_its_atom_go_and_the_run_grows_on(sizes_of):
    first, *_ = starts_of(sizes_of(low_rank_atoms(NUM_DATA, NUM_DATA), 8))
    top = first.index(18)
    assert max(first) == 18
    assert min(np.diff(first[:top])) == -1
    assert first[-1] == 8


@pytest.mark.parametrize("exchanges_down", [0, 5])
def test_atoms_are_exchanged_on_the_way_down_and_only_so_often_at_a_size(sizes_of, exchanges_down):
    stays = []
    for seed in range(2):
        atoms = low_rank_atoms(NUM_DATA, NUM_DATA, seed)
        for sizes in starts_of(sizes_of(atoms, 8, exchanges_down)):
            top = sizes.index(max(sizes))
            assert 0 not in np.diff(sizes[: top + 1])
            stays += [len(list(group)) - 1 for _, group in itertools.groupby(sizes[top:])]
    # A weight that is blocked brings the run to the next size with exchanges that it has left.
    assert max(stays) <= exchanges_down
    assert (max(stays) > 0) == (exchanges_down > 0)
