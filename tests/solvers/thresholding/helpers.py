"""A small point, the batches of a run, and the iterates that they lead to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoreset as jc
from jaxcoreset.solvers.thresholding.hard import Task, zero_iterate

KEY = jax.random.key(7)


def objective(atoms, weights):
    residual = atoms.sum(0) - weights @ atoms
    return residual @ residual


def point(n=8, s=5, seed=1):
    """A small problem, a sparse point on it, and the exact correlations there."""
    rng = np.random.default_rng(seed)
    atoms, weights = rng.normal(size=(n, s)), np.zeros(n)
    weights[[1, 4, 6]] = [1.5, 2.0, 0.5]
    residual = atoms.sum(0) - weights @ atoms
    return atoms, weights, residual, atoms @ residual


def batches_of(solver, n, count, key=KEY):
    """The first batches of a run, by epoch, and the keys that the method gets with them."""
    num_batches, epochs, keys = solver.num_batches(n), [], []
    for epoch in range(-(-count // num_batches)):
        epoch_key = jax.random.fold_in(key, epoch)
        order = solver.shuffle(jax.random.fold_in(epoch_key, num_batches), n)
        epochs.append([])
        for position in range(min(num_batches, count - epoch * num_batches)):
            batch_key, method_key = jax.random.split(jax.random.fold_in(epoch_key, position))
            epochs[-1].append(solver.draw(batch_key, order, jnp.int32(position)))
            keys.append(method_key)
    return epochs, keys


def rows_of(batch):
    return np.asarray(batch.rows)[np.asarray(batch.present)]


def device_iterates(solver, atoms, k, epochs, keys):
    """The iterates for given batches, the iteration compiled and the loop that of Python."""
    with jax.enable_x64(True):
        problem = jc.CoresetProblem(atoms)
        task = Task.of(problem, jnp.int32(k), k)
        advance = jax.jit(functools.partial(solver._advance, task))
        state, keys, iterates = solver._start(task, zero_iterate(problem, k)), iter(keys), []
        for epoch in epochs:
            state = solver._begin_epoch(problem, state)
            for batch in epoch:
                state = advance(state, batch, next(keys))
                iterates.append(np.asarray(state.current.weights.dense(len(atoms))))
    return iterates


def assert_same(found, expected):
    """Equal iterates, one by one."""
    assert len(found) == len(expected)
    for weights, reference_weights in zip(found, expected, strict=True):
        # The order of sums differs; momentum multiplies rounding errors from iterate to iterate.
        scale = reference_weights.max()
        np.testing.assert_allclose(weights, reference_weights, rtol=1e-7, atol=1e-7 * scale)
