"""The error of weighted rows at draws that the algorithm did not see, for its report."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxcoreset.builders.posterior_sampler import PosteriorSampler
from jaxcoreset.likelihood.embedding import centre, log_likelihood_matrix, log_likelihood_sum
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.verification import check_alone
from jaxcoreset.selection.estimate import kl_of_residuals


@eqx.filter_jit
def own_draws(
    sampler: PosteriorSampler,
    program: ModelLikelihood,
    state: PyTree,
    weights: Float[Array, " k"],
    rows: PyTree,
    key: PRNGKeyArray,
    num: int,
) -> Params:
    """Draws of the coreset posterior, for a report without a weighting; see `PosteriorSampler`."""
    place_key, draws_key = jax.random.split(key)
    state = sampler.place(program, state, weights, rows, place_key)
    return sampler.draw(program, state, weights, rows, draws_key, num)[0]


def held_out_curve(
    likelihood: ModelLikelihood,
    draws: Params,
    indices: np.ndarray,
    weights: Float[np.ndarray, "t k"],
) -> tuple[dict[str, np.ndarray], int]:
    """The error and the divergence of several weights of the same rows, and the number of draws.

    Raises:
        ModelError: if a row's log-likelihood depends on other rows.
    """
    evaluate = likelihood.program.log_likelihood
    chosen = likelihood.take(indices)
    values = log_likelihood_matrix(evaluate, draws, chosen)
    check_alone(likelihood, draws, chosen, values)
    atoms = centre(values)
    target = np.asarray(centre(jnp.asarray(log_likelihood_sum(evaluate, draws, likelihood.data))))
    residuals = target - weights @ np.asarray(atoms)
    kl, standard_error = kl_of_residuals(residuals.astype(np.float64))
    curve = {
        "num_used": np.count_nonzero(weights, axis=1),
        "held_out_error": np.sqrt(kl) / np.linalg.norm(target),
        "kl": kl,
        "kl_standard_error": standard_error,
    }
    return curve, target.size
