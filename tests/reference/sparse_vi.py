"""SparseVI in plain NumPy for a Gaussian mean, where every covariance has a closed form.

Data x_n ~ N(θ, Σ), prior θ ~ N(μ0, Σ0). Written from Campbell and Beronov (2019): the weighted
posterior and the covariances of log-likelihoods under it from the appendix on this model, the
choice and the steps from Algorithm 1, with the authors' Adam. Dense weights of length n.
"""

import numpy as np


def posterior(mu0, sigma0, sigma, x, w):
    """Mean and covariance of the posterior with weights w."""
    precision0, precision = np.linalg.inv(sigma0), np.linalg.inv(sigma)
    covariance = np.linalg.inv(precision0 + w.sum() * precision)
    return covariance @ (precision0 @ mu0 + precision @ (w @ x)), covariance


def log_likelihood_covariance(mu0, sigma0, sigma, x, w):
    """Cov_{π_w}[f_m, f_n], shape (n, n): ν_m'Ψν_n + tr(Ψ²)/2."""
    mean, covariance = posterior(mu0, sigma0, sigma, x, w)
    whiten = np.linalg.inv(np.linalg.cholesky(sigma))
    nu = (x - mean) @ whiten.T
    psi = whiten @ covariance @ whiten.T
    return nu @ psi @ nu.T + np.trace(psi @ psi) / 2


def adam(gradient, w, num_iters, learning_rate, b1=0.9, b2=0.999, eps=1e-8):
    """Projected Adam on the entries of w where the gradient is not masked."""
    first, second = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, num_iters + 1):
        g = gradient(w)
        first = b1 * first + (1 - b1) * g
        second = b2 * second + (1 - b2) * g**2
        scaled = first / (1 - b1**t) / (np.sqrt(second / (1 - b2**t)) + eps)
        w = np.maximum(w - learning_rate(t) * scaled, 0)
    return w


def sgd(gradient, w, num_iters, learning_rate):
    """Projected gradient steps."""
    for t in range(1, num_iters + 1):
        w = np.maximum(w - learning_rate(t) * gradient(w), 0)
    return w


def sparse_vi(covariance, n, size, num_iters, learning_rate, descend=adam):
    """The weights after each of `size` iterations, shape (size, n).

    `covariance(w)` is Cov_{π_w}[f_m, f_n], exact or over draws.
    """
    w, taken, path = np.zeros(n), np.zeros(n, bool), []
    for _ in range(size):
        cov = covariance(w)
        correlations = cov @ (1 - w) / np.sqrt(np.diag(cov))
        scores = np.where(w > 0, np.abs(correlations), correlations)
        taken[np.argmax(scores)] = True

        w = descend(
            lambda w: np.where(taken, -covariance(w) @ (1 - w), 0), w, num_iters, learning_rate
        )
        path.append(w)
    return np.array(path)


def kl(mean0, covariance0, mean1, covariance1):
    """KL(N0‖N1) in nats."""
    precision1 = np.linalg.inv(covariance1)
    difference = mean1 - mean0
    return 0.5 * (
        np.trace(precision1 @ covariance0)
        - len(mean0)
        + difference @ precision1 @ difference
        + np.linalg.slogdet(covariance1)[1]
        - np.linalg.slogdet(covariance0)[1]
    )


def quasi_newton(covariance, n, support, num_iters, tau):
    """The weights after regularised Newton steps from n/k, of Naik et al. (2022), Algorithm 1.

    The first step's length is the first of 1, 1/1.5, … (ten at most) at whose end the slope along
    the step is less than 0.9 of that at its start, and not negative.
    """
    w = np.zeros(n)
    w[support] = n / len(support)

    def descent(w):
        return covariance(w)[support] @ (1 - w)

    for turn in range(num_iters):
        gram = covariance(w)[np.ix_(support, support)] + tau * np.eye(len(support))
        g = descent(w)
        step, length, ends = np.linalg.solve(gram, g), 1.0, []
        for _ in range(10 if turn == 0 else 1):
            end = w.copy()
            end[support] = np.maximum(w[support] + length * step, 0)
            ends.append(end)
            if 0 < descent(end) @ step < 0.9 * (g @ step):
                break
            length /= 1.5
        w = ends[-1]
    return w
