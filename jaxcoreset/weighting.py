"""How π̂ is found, the weighting distribution whose draws the log-likelihoods are compared at.

A `Weighting` is given the model's likelihood and hands back a `DrawSource`, which splits what it
has into draws for the solver and draws that no solver sees, for the held-out error. Draws are
dictionaries of *unconstrained* parameters with a leading axis.
"""

import abc
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from jaxcoreset.host import progress_bar
from jaxcoreset.laplace import LaplaceApproximation, Params, laplace_approximation
from jaxcoreset.likelihood import ModelLikelihood


class DrawSource(abc.ABC):
    """Draws from a weighting distribution that has been found."""

    @property
    def approximation(self) -> LaplaceApproximation | None:
        """The Laplace approximation that they are draws of; None for other draws."""
        return None

    @abc.abstractmethod
    def split(self, key: PRNGKeyArray, num_draws: int, num_held_out: int) -> tuple[Params, Params]:
        """Draws for the solver, and others that it does not see.

        Args:
            key: a JAX random key.
            num_draws: how many draws the solver is to have.
            num_held_out: how many are to be held out.

        Returns:
            Two dictionaries of unconstrained parameters with leading axes `num_draws` and
            `num_held_out`; a source with a fixed stock of draws may return fewer.
        """


class Weighting(eqx.Module):
    """A way to find the weighting distribution π̂ of a model."""

    @abc.abstractmethod
    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> DrawSource:
        """Find π̂.

        Args:
            likelihood: the model's likelihood and data.
            key: a JAX random key.
            show_progress: whether to show a progress bar on a terminal.
        """


class Laplace(Weighting):
    """π̂ as the Laplace approximation of the full posterior; see `laplace_approximation`.

    Args:
        max_iters: at most so many Newton steps on all the data.
    """

    max_iters: int = 50

    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> "_FreshDraws":
        """See `Weighting.fit`.

        Raises:
            ValueError: if the mode is not reached or the Hessian there is not positive definite;
                the message names the directions.
        """
        with progress_bar(self.max_iters, "Laplace", show=show_progress, unit="passes") as bar:
            approximation = laplace_approximation(
                likelihood, key=key, max_iters=self.max_iters, on_pass=lambda: bar.update(1)
            )
        return _FreshDraws(approximation)


class _FreshDraws(DrawSource):
    """Draws made when they are asked for."""

    def __init__(self, approximation: LaplaceApproximation):
        self._approximation = approximation

    @property
    def approximation(self) -> LaplaceApproximation:
        """See `DrawSource.approximation`."""
        return self._approximation

    def split(self, key: PRNGKeyArray, num_draws: int, num_held_out: int) -> tuple[Params, Params]:
        """See `DrawSource.split`; every call draws anew."""
        solver_key, held_out_key = jax.random.split(key)
        return (
            self.approximation.draws(solver_key, num_draws),
            self.approximation.draws(held_out_key, num_held_out),
        )


class Draws(Weighting):
    """π̂ as draws that the user brings, for instance of a NUTS run on part of the data.

    They are shuffled, and divided between solver and held-out error.

    Args:
        samples: dictionary from latent site to array with a leading axis of draws, *constrained*,
            as ``mcmc.get_samples()`` gives it. Other sites in it are ignored.
    """

    samples: Mapping[str, ArrayLike]

    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> "_DrawStock":
        """See `Weighting.fit`.

        Raises:
            ValueError: if a latent site is missing, shapes do not fit, or a draw is outside the
                support of the prior.
        """
        missing = [name for name in likelihood.init_params if name not in self.samples]
        if missing:
            raise ValueError(
                f"samples has no {', '.join(missing)}; wanted draws of every latent site of the "
                f"model: {', '.join(likelihood.init_params)}."
            )
        sites = {name: jnp.asarray(self.samples[name]) for name in likelihood.init_params}
        lengths = {name: value.shape[:1] for name, value in sites.items()}
        if len(set(lengths.values())) != 1 or () in lengths.values():
            raise ValueError(f"samples have leading axes {lengths}; wanted one number of draws.")
        expected = likelihood.constrain(likelihood.init_params)
        for name, value in sites.items():
            if value.shape[1:] != expected[name].shape:
                raise ValueError(
                    f"samples[{name!r}] has shape {value.shape}; wanted (draws, "
                    f"*{expected[name].shape}), as mcmc.get_samples() gives it."
                )
        stock = jax.vmap(likelihood.unconstrain)(sites)
        for name, value in stock.items():
            if not bool(jnp.isfinite(value).all()):
                raise ValueError(
                    f"samples[{name!r}] has draws outside the support of its prior or not finite; "
                    "wanted constrained draws, as mcmc.get_samples() gives them."
                )
        return _DrawStock(stock)


class _DrawStock(DrawSource):
    """A fixed stock of draws, shuffled and divided."""

    def __init__(self, stock: Params):
        self.stock = stock

    def split(self, key: PRNGKeyArray, num_draws: int, num_held_out: int) -> tuple[Params, Params]:
        """See `DrawSource.split`; both parts shrink alike where the stock is too small."""
        total = next(iter(self.stock.values())).shape[0]
        if total < 8:
            raise ValueError(f"samples has {total} draws; wanted at least 8, better 1000.")
        wanted = num_draws + num_held_out
        if total < wanted:
            num_draws = min(max(4, total * num_draws // wanted), total - 4)
            num_held_out = total - num_draws
        order = jax.random.permutation(key, total)
        seen, held_out = order[:num_draws], order[num_draws : num_draws + num_held_out]
        return (
            {name: value[seen] for name, value in self.stock.items()},
            {name: value[held_out] for name, value in self.stock.items()},
        )
