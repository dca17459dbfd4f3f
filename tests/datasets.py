"""Atoms of the papers' six small experiments, for tests: plain NumPy and SciPy, in float64.

The files are not part of the project. ``JAXCORESET_DATA`` names the folder that holds them.
"""

import functools
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.special

NAMES = (
    "synth_lr_500",
    "phishing_500",
    "ds1_500",
    "synth_poiss_500",
    "biketrips_500",
    "airportdelays_500",
)
_COUNTS = ("synth_poiss", "biketrips", "airportdelays")


def _load(name: str) -> tuple[np.ndarray, np.ndarray]:
    folder = os.environ.get("JAXCORESET_DATA")
    if not folder:
        pytest.skip("JAXCORESET_DATA is not set; it names the folder of the papers' data sets")
    path = Path(folder) / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in the folder that JAXCORESET_DATA names")
    with np.load(path, allow_pickle=False) as data:
        features, response = data["X"], data["y"]
    ones = np.ones((len(features), 1))
    return np.hstack([features, ones]).astype(np.float64), response.astype(np.float64)


def _log_likelihood(eta: np.ndarray, y: np.ndarray, counts: bool) -> np.ndarray:
    if not counts:
        return -np.logaddexp(0, -y * eta)
    rate = np.logaddexp(0, eta)
    return y * np.log(rate) - rate - scipy.special.gammaln(y + 1)


def _derivatives(eta: np.ndarray, y: np.ndarray, counts: bool) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivative of the log-likelihood in η."""
    sigmoid = scipy.special.expit(eta)
    if not counts:
        return y * scipy.special.expit(-y * eta), -sigmoid * (1 - sigmoid)
    rate = np.logaddexp(0, eta)
    slope = y / rate - 1
    return slope * sigmoid, slope * sigmoid * (1 - sigmoid) - y * (sigmoid / rate) ** 2


def _laplace(z: np.ndarray, y: np.ndarray, counts: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mode and precision of the posterior under θ ~ N(0, I), by damped Newton steps."""

    def log_posterior(theta: np.ndarray) -> float:
        return _log_likelihood(z @ theta, y, counts).sum() - 0.5 * theta @ theta

    theta = np.zeros(z.shape[1])
    precision = np.eye(len(theta))
    for _ in range(200):
        first, second = _derivatives(z @ theta, y, counts)
        gradient = z.T @ first - theta
        precision = np.eye(len(theta)) - (z.T * second) @ z
        step = np.linalg.solve(precision, gradient)
        size = 1.0
        while size > 1e-10 and not log_posterior(theta + size * step) > log_posterior(theta):
            size /= 2
        if size <= 1e-10 or gradient @ step < 1e-20:
            break
        theta = theta + size * step
    return theta, precision


@functools.cache
def atoms_of(name: str, num_draws: int = 500, seed: int = 0) -> np.ndarray:
    """The atoms of one data set at draws from its Laplace approximation.

    Args:
        name: the name of a file without its ending, such as one of `NAMES`. Logistic or, for the
            counts, Poisson with a softplus rate, on ``z = [x, 1]`` with prior θ ~ N(0, I).
        num_draws: how many draws, S.
        seed: of the draws.

    Returns:
        A read-only float64 array of shape (n, S): each row centred and divided by √S. Skips the
        test that asks where the data are missing.
    """
    z, y = _load(name)
    counts = name.startswith(_COUNTS)
    mode, precision = _laplace(z, y, counts)
    noise = np.random.default_rng(seed).standard_normal((len(mode), num_draws))
    draws = mode[:, None] + np.linalg.solve(np.linalg.cholesky(precision).T, noise)
    values = _log_likelihood(z @ draws, y[:, None], counts)
    atoms = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(num_draws)
    atoms.setflags(write=False)
    return atoms
