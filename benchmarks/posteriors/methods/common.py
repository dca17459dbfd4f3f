"""What several methods share: rows of a model's arguments, Gaussians, importance weights."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.handlers import block, trace
from numpyro.infer import MCMC, NUTS

import jaxcoreset as jc
from benchmarks.posteriors.case import Case
from benchmarks.posteriors.outcome import Missing, Outcome
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.totals import log_likelihood_totals
from jaxcoreset.weighting.errors import UnusableWeightingError
from jaxcoreset.weighting.psis import pareto_smooth

# A dense matrix of so many parameters, or of their derivatives by rows, is too large.
MOST_PARAMETERS = 1500
NUM_WARMUP = 1000


def likelihood_of(case: Case, args: tuple, kwargs: Mapping[str, Any]) -> jc.ModelLikelihood:
    """The case's model as one log-likelihood per row, with all effects of groups as parameters."""
    try:
        return jc.model_likelihood(case.model, args, dict(kwargs))
    except ModelError as error:
        raise Missing(f"the rows of this model are not found: {error}") from error


def refuse_many_parameters(likelihood: jc.ModelLikelihood) -> None:
    """Raise `Missing` where a dense matrix of all parameters would be too large."""
    if likelihood.num_params > MOST_PARAMETERS:
        raise Missing(
            f"it keeps a dense matrix of all {likelihood.num_params:,} parameters, "
            f"of which the benchmark allows {MOST_PARAMETERS:,}"
        )


def with_laplace(
    case: Case,
    args: tuple,
    kwargs: Mapping[str, Any],
    key: Any,
    finish: Callable[[jc.ModelLikelihood, jc.LaplaceApproximation], Outcome],
) -> Outcome:
    """What is made of the Laplace approximation, which is fitted in float64 if float32 fails."""

    def fit() -> Outcome:
        likelihood = likelihood_of(case, args, kwargs)
        refuse_many_parameters(likelihood)
        return finish(likelihood, jc.laplace_approximation(likelihood, key=key))

    try:
        return fit()
    except UnusableWeightingError:
        pass
    try:
        with jax.enable_x64(True):
            return fit()
    except UnusableWeightingError as error:
        raise Missing(f"there is no Laplace approximation: {error}") from error


def numpy_draws(draws: Mapping[str, Any], names: Any) -> dict[str, np.ndarray]:
    """The draws of some sites in float64."""
    return {name: np.asarray(draws[name], np.float64) for name in names}


def constrained(likelihood: jc.ModelLikelihood, draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Constrained values of unconstrained draws with one leading axis."""
    found = jax.jit(jax.vmap(likelihood.constrain))(dict(draws))
    return numpy_draws(found, likelihood.init_params)


def gaussian_outcome(
    case: Case,
    likelihood: jc.ModelLikelihood,
    mean: Any,
    scale: Any,
    key: Any,
    num_draws: int,
    **info: Any,
) -> Outcome:
    """The outcome of a normal distribution of the flat unconstrained parameters.

    Its log-density is that of all of them, or, of a case with groups, of the compared ones.

    Args:
        case: the case.
        likelihood: the model's likelihood, which knows the order of the parameters.
        mean: shape (D,).
        scale: the standard deviations (D,), or a matrix (D, D) whose product with its transpose is
            the covariance.
        key: a JAX random key.
        num_draws: the number of draws.
        **info: see `Outcome`.
    """
    mean, scale = np.asarray(mean, np.float64), np.asarray(scale, np.float64)
    normal = np.asarray(jax.random.normal(key, (num_draws, mean.size)), np.float64)
    flat = mean + (normal * scale if scale.ndim == 1 else normal @ scale.T)
    unconstrained = likelihood.unravel.all(jnp.asarray(flat, jnp.zeros(()).dtype))
    names = sorted(case.parameters if case.groups else likelihood.init_params)
    numbered = likelihood.unravel(np.arange(mean.size, dtype=np.float32))
    kept = np.concatenate([np.ravel(numbered[name]) for name in names]).astype(int)
    root = scale[kept]
    covariance = np.diag(root**2) if scale.ndim == 1 else root @ root.T
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))

    def log_density(params: Mapping[str, Any]) -> Any:
        found = jnp.concatenate([jnp.ravel(jnp.asarray(params[name])) for name in names])
        standard = jnp.matmul(whiten, found - mean[kept], precision="highest")
        return -0.5 * jnp.sum(standard**2)

    return Outcome(
        constrained(likelihood, unconstrained),
        log_density,
        numpy_draws(unconstrained, unconstrained),
        info=info,
    )


def log_posterior(likelihood: jc.ModelLikelihood, draws: Mapping[str, Any]) -> np.ndarray:
    """The log-density of the full posterior at unconstrained draws, summed in float64."""
    rows = log_likelihood_totals(likelihood.program.log_likelihood, dict(draws), likelihood.rows)
    prior = jax.jit(jax.vmap(likelihood.program.log_prior))(dict(draws))
    return rows + np.asarray(prior, np.float64)


def resampled(
    likelihood: jc.ModelLikelihood,
    unconstrained: Mapping[str, Any],
    log_ratios: np.ndarray,
    key: Any,
    num_draws: int,
    **info: Any,
) -> Outcome:
    """Draws in proportion to Pareto-smoothed weights (Vehtari et al. 2024), with repetitions."""
    finite = np.where(np.isfinite(log_ratios), log_ratios, -np.inf)
    log_weights, khat = pareto_smooth(finite)
    weights = np.exp(log_weights - np.max(log_weights))
    weights /= weights.sum()
    # Systematic resampling has the least noise.
    points = (np.arange(num_draws) + float(jax.random.uniform(key))) / num_draws
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), points), weights.size - 1)
    # Neighbours are copies, which an estimate from the order of the draws would take for a chain.
    chosen = np.asarray(jax.random.permutation(jax.random.fold_in(key, 1), chosen))
    kept = {name: np.asarray(x)[chosen] for name, x in unconstrained.items()}
    info |= {"k-hat": khat, "distinct draws": int(np.unique(chosen).size)}
    info["effective draws"] = float(1 / np.sum(weights**2))
    return Outcome(constrained(likelihood, kept), None, numpy_draws(kept, kept), info=info)


def subsampled_model(
    likelihood: jc.ModelLikelihood, size: int, *, by_plate: bool = False
) -> Callable[[tuple], None]:
    """The model with the likelihood of a random part of its rows, scaled up to all of them.

    The latent sites are those of the case's model. The sites in the data axis are replaced by one
    `numpyro.factor` with an entry for each row of the part.

    Args:
        likelihood: the model's likelihood.
        size: the number of rows of a part.
        by_plate: whether a plate with a `subsample_size` draws the rows, as HMCECS needs it.
            Otherwise they are drawn with replacement at each call, which takes a time that does not
            grow with n, as the plate's does.

    Returns:
        A NumPyro model of the data leaves, `likelihood.data`.
    """
    n = likelihood.num_data
    two_rows = likelihood.assemble(likelihood.two_rows)

    def is_of_rows(site: Mapping) -> bool:
        is_data = site["type"] == "sample" and site["name"] in likelihood.data_dims
        return is_data or site["type"] == "deterministic"

    def model(rows: tuple) -> None:
        with block(hide_fn=is_of_rows), trace() as sites:
            likelihood.model(*two_rows[0], **two_rows[1])
        latent = {name: sites[name]["value"] for name in likelihood.init_params}

        def values(indices: Any) -> Any:
            part = tuple(jnp.take(leaf, indices, axis=0) for leaf in rows)
            with block():
                return likelihood.log_likelihood_constrained(latent, part)

        if by_plate:
            with numpyro.plate("minibatch", n, subsample_size=size) as indices:
                numpyro.factor("minibatch_rows", values(indices))
            return
        key: Any = numpyro.prng_key()
        key = jax.random.key(0) if key is None else key
        indices = jax.random.randint(key, (size,), 0, n)
        numpyro.factor("minibatch_rows", n / size * jnp.sum(values(indices)))

    return model


def device_rows(likelihood: jc.ModelLikelihood) -> tuple:
    """The data leaves on the device."""
    return tuple(map(jnp.asarray, likelihood.data))


def nuts(
    model: Callable,
    args: tuple,
    kwargs: Mapping[str, Any],
    key: Any,
    num_draws: int,
    *,
    one_program: bool = False,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One chain of NumPyro's NUTS with its default settings: the draws, and what it says of itself.

    Args:
        model: a NumPyro model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        key: a JAX random key.
        num_draws: the number of draws after 1,000 steps of warmup.
        one_program: whether the chain is compiled as one program. Otherwise NumPyro starts it
            operation by operation.
    """

    def run(key: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        mcmc = MCMC(NUTS(model), num_warmup=NUM_WARMUP, num_samples=num_draws, progress_bar=False)
        mcmc.run(key, *args, extra_fields=("num_steps", "diverging"), **kwargs)
        return mcmc.get_samples(), mcmc.get_extra_fields()

    samples, extra = jax.jit(run)(key) if one_program else run(key)
    steps, diverging = np.asarray(extra["num_steps"]), np.asarray(extra["diverging"])
    info = {"gradients per draw": float(steps.mean()), "divergences": int(diverging.sum())}
    return samples, info
