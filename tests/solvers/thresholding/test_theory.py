"""The convergence theory of Zhang et al. (2021) as tests: Theorem 1 and Corollary 1 for `AIHT`.

The restricted isometry constants α_s and β_s are the extreme eigenvalues of Φ_XᵀΦ_X over all
supports X of size s, found by enumeration. The theorem is stated for Algorithm 2 as printed: the
step is the exact minimiser (``step_fraction=1``; the authors' code takes half of it, which lies
outside the bounds that the proof uses), the momentum half the exact minimiser
(``momentum_fraction=0.5``). Its proof never looks at how τ_t was found, so it is also held against
the whole exact minimiser, our default. τ_t is computed here from the iterates.

Two things differ from the print:

- The error term. The proof bounds 4 μ_t √β_2k ‖ε‖, and μ_t ≤ 1/(2 α_3k) gives 2 √β_2k ‖ε‖ / α_3k.
  Printed is 2 β_3k √β_2k ‖ε‖, which does not scale as the other terms do and is too small where
  α_3k β_3k < 1; a counterexample stands below.
- Corollary 1 is printed with φ^t on the objective, though its proof has φ^t on the distance, whose
  square bounds the objective. Both are tested.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls

import jaxcoreset as jc

NUM_DATA, NUM_DRAWS, NUM_ITERS = 9, 12, 7


def isometry(phi, size):
    """α_size and β_size."""
    gram = phi.T @ phi
    size = min(size, phi.shape[1])
    eigenvalues = [
        np.linalg.eigvalsh(gram[np.ix_(support, support)])[[0, -1]]
        for support in itertools.combinations(range(phi.shape[1]), size)
    ]
    low, high = np.transpose(eigenvalues)
    return low.min(), high.max()


def contraction(phi, k):
    """ρ = 2 max(β_2k/α_3k − 1, 1 − α_2k/β_3k) + (β_4k − α_4k)/α_3k."""
    (a2, b2), (a3, b3), (a4, b4) = (isometry(phi, m * k) for m in (2, 3, 4))
    return 2 * max(b2 / a3 - 1, 1 - a2 / b3) + (b4 - a4) / a3


def best_subset(phi, y, k):
    """w* by trying every support."""
    best, lowest = np.zeros(phi.shape[1]), np.linalg.norm(y)
    for support in itertools.combinations(range(phi.shape[1]), k):
        weights, error = nnls(phi[:, list(support)], y)
        if error < lowest:
            best, lowest = np.zeros(phi.shape[1]), error
            best[list(support)] = weights
    return best


def near_orthonormal(rng, noise):
    """A matrix Φ of shape (S, n) with columns that are orthonormal but for some noise."""
    q, _ = np.linalg.qr(rng.normal(size=(NUM_DRAWS, NUM_DATA)))
    return q + noise * rng.normal(size=q.shape) / np.sqrt(NUM_DRAWS)


def iterates(phis, ys, k, momentum_fraction):
    """w_0, w_1, … of each problem, shape (problems, T + 1, n), and how many iterations it did."""

    def stopped_after(problem, num_iters):
        # As arrays, what differs is traced, so that one program serves all tests.
        solver = eqx.tree_at(
            lambda s: (s.max_iters, s.momentum_fraction),
            jc.AIHT(tol=0.0),
            (num_iters, jnp.asarray(momentum_fraction)),
        )
        return jc.solve(problem, jnp.asarray(k), solver, max_k=2)

    with jax.enable_x64(True):
        problems = jax.vmap(jc.CoresetProblem)(jnp.asarray(phis).mT, jnp.asarray(ys))
        over_limits = jax.vmap(stopped_after, in_axes=(None, 0))
        found = jax.vmap(over_limits, in_axes=(0, None))(problems, jnp.arange(1, NUM_ITERS + 1))
        weights = np.asarray(found.dense(phis.shape[2]))
    return np.pad(weights, ((0, 0), (1, 0), (0, 0))), np.asarray(found.num_iters[:, -1])


def momentum(phi, y, w, t, fraction):
    """τ_t, which makes z_t of w_t and w_{t−1}; τ_0 = 0."""
    if t == 0:
        return 0.0
    change = phi @ (w[t] - w[t - 1])
    return fraction * (y - phi @ w[t]) @ change / (change @ change)


@pytest.mark.parametrize("momentum_fraction", [0.5, 1.0])
@pytest.mark.parametrize("k", [1, 2])
def test_theorem_1_holds_at_every_iteration(k, momentum_fraction):
    rng = np.random.default_rng(k)
    noises = np.repeat([0.02, 0.1, 0.4, 1.5], 5)
    scales = np.tile([0.3, 1, 2, 5], 5)
    phis = np.stack([s * near_orthonormal(rng, e) for e, s in zip(noises, scales, strict=True)])
    ys = phis.sum(axis=2)
    ys[::2] += rng.normal(size=ys[::2].shape)
    paths, num_iters = iterates(phis, ys, k, momentum_fraction)

    steps_that_say_something = 0
    for phi, y, w, done in zip(phis, ys, paths, num_iters, strict=True):
        rho, optimum = contraction(phi, k), best_subset(phi, y, k)
        beta_2k = isometry(phi, 2 * k)[1]
        alpha_3k, beta_3k = isometry(phi, 3 * k)
        error = np.sqrt(beta_2k) * np.linalg.norm(y - phi @ optimum)
        distance = np.linalg.norm(w - optimum, axis=1)
        for t in range(done):
            tau = momentum(phi, y, w, t, momentum_fraction)
            before = distance[t - 1] if t > 0 else 0.0
            bound = rho * (abs(1 + tau) * distance[t] + abs(tau) * before)
            assert distance[t + 1] <= bound + 2 / alpha_3k * error + 1e-12
            if alpha_3k * beta_3k >= 1:
                assert distance[t + 1] <= bound + 2 * beta_3k * error + 1e-12
            steps_that_say_something += rho < 1
    assert steps_that_say_something >= 10


def test_theorem_1s_printed_error_term_is_too_small_for_small_atoms():
    # Of two atoms the longer has the larger inner product with y, the shorter is the better one.
    # From w_0 = 0 the method takes the longer one, and the distance to w* grows by more than ρ.
    phi, y = 0.5 * np.diag([1.0, 0.9]), 0.5 * np.array([1.0, 1.02])
    optimum = best_subset(phi, y, 1)
    with jax.enable_x64(True):
        problem = jc.CoresetProblem(phi.T, y)
        first = np.asarray(jc.solve(problem, 1, jc.AIHT(max_iters=1)).dense(2))
    alpha, beta = isometry(phi, 2)
    error = np.sqrt(beta) * np.linalg.norm(y - phi @ optimum)
    bound = contraction(phi, 1) * np.linalg.norm(optimum)
    assert np.linalg.norm(first - optimum) > bound + 2 * beta * error
    assert np.linalg.norm(first - optimum) <= bound + 2 / alpha * error


@pytest.mark.parametrize("momentum_fraction", [0.5, 1.0])
def test_objective_falls_at_least_as_fast_as_corollary_1_says(momentum_fraction):
    k = 2
    rng = np.random.default_rng(5)
    phis = np.stack([near_orthonormal(rng, noise) for noise in np.repeat([0.002, 0.01, 0.03], 4)])
    optima = np.zeros((len(phis), NUM_DATA))
    for optimum in optima:
        optimum[rng.choice(NUM_DATA, k, replace=False)] = rng.uniform(0.5, 2, k)
    ys = np.einsum("psn,pn->ps", phis, optima)  # so that f(w*) = 0, as the corollary assumes
    paths, num_iters = iterates(phis, ys, k, momentum_fraction)

    for phi, y, optimum, w, done in zip(phis, ys, optima, paths, num_iters, strict=True):
        rho = contraction(phi, k)
        alpha_k, (alpha_2k, beta_2k) = isometry(phi, k)[0], isometry(phi, 2 * k)
        objective = np.sum((y - w @ phi.T) ** 2, axis=1)
        distance = np.linalg.norm(w - optimum, axis=1)
        for t in range(1, done):
            if objective[t] < 1e-24:  # below it, τ_t is a quotient of rounding errors
                break
            tau = max(abs(momentum(phi, y, w, i, momentum_fraction)) for i in range(1, t + 1))
            phi_rate = (rho * (1 + tau) + np.sqrt((rho * (1 + tau)) ** 2 + 4 * rho * tau)) / 2
            assert phi_rate < 1
            rest = rho * tau / phi_rate
            printed = beta_2k * (objective[1] / alpha_2k + rest * objective[0] / alpha_k)
            assert objective[t + 1] <= phi_rate**t * printed + 1e-28
            assert distance[t + 1] <= phi_rate**t * (distance[1] + rest * distance[0]) + 1e-14
        assert t >= 2
