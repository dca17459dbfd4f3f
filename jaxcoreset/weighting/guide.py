"""π̂ as a variational guide, fitted on minibatches of rows."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoGuide, AutoMultivariateNormal
from numpyro.infer.initialization import init_to_value

from jaxcoreset.data.utils import check_int, host_generator, progress_bar
from jaxcoreset.likelihood.likelihood import ModelLikelihood, Params
from jaxcoreset.likelihood.weighted import weighted_model
from jaxcoreset.weighting.base import DrawSource, Weighting

# Steps in one compiled call; their rows are gathered on the host.
_STEPS_PER_CALL = 50


# The compiled steps of recent fits, by all that they depend on.
_COMPILED: "OrderedDict[Any, Callable]" = OrderedDict()
_MOST_COMPILED = 8


class Guide(Weighting):
    """π̂ as a NumPyro autoguide, fitted by stochastic variational inference on minibatches.

    Each step uses `batch_size` new rows, each counted n / `batch_size` times, so its gradient is an
    unbiased estimate of the gradient of all rows' evidence lower bound (Hoffman et al. 2013,
    section 2.4; Kucukelbir et al. 2017, section 2.6).

    Args:
        autoguide: a class of ``numpyro.infer.autoguide``, or a function from a model to an
            autoguide. A guide without spread, such as ``AutoDelta``, is refused.
        num_steps: steps of the optimiser.
        batch_size: rows per step; all rows if there are fewer.
        learning_rate: the initial learning rate of Adam; it decays to zero along a cosine.
        optimizer: another optax transformation to use instead.
        num_particles: draws of the guide per step.
    """

    autoguide: Callable[..., Any] = AutoMultivariateNormal
    num_steps: int = 4000
    batch_size: int = 500
    learning_rate: float = 0.02
    optimizer: optax.GradientTransformation | None = None
    num_particles: int = 8

    def __check_init__(self):
        for name in ("num_steps", "batch_size", "num_particles"):
            check_int(name, getattr(self, name), 1)
        if not self.learning_rate > 0:
            raise ValueError(
                f"learning_rate is {self.learning_rate!r}; expected a positive number, such as "
                "0.02."
            )

    def fit(
        self, likelihood: ModelLikelihood, key: PRNGKeyArray, *, show_progress: bool = False
    ) -> "_GuideDraws":
        """See `Weighting.fit`.

        Raises:
            TypeError: if `autoguide` does not make an autoguide.
            ValueError: if the fit ends at values that are not finite, or the guide has no spread.
        """
        rows_key, start_key, check_key = jax.random.split(key, 3)
        generator = host_generator(rows_key)
        n = likelihood.num_data
        size = min(self.batch_size, n)
        svi = self._inference(likelihood, size)

        def batches(num: int) -> tuple:
            """The rows of `num` steps, with that leading axis."""
            if size == n:
                return ()
            indices = np.stack([generator.choice(n, size, replace=False) for _ in range(num)])
            data = likelihood.take(indices.ravel())
            return tuple(jnp.reshape(x, (num, size, *x.shape[1:])) for x in data)

        everything = tuple(jnp.asarray(leaf) for leaf in likelihood.data) if size == n else ()

        args, kwargs = likelihood.assemble(likelihood.take(np.arange(size)))
        state = svi.init(start_key, *args, **kwargs)
        settings = self.num_steps, float(self.learning_rate), self.num_particles
        advance = _compiled(likelihood.program, self.autoguide, self.optimizer, settings, size, svi)
        with progress_bar(self.num_steps, "SVI", show=show_progress, unit="steps") as bar:
            for done in range(0, self.num_steps, _STEPS_PER_CALL):
                mask = np.arange(done, done + _STEPS_PER_CALL) < self.num_steps
                state, _ = advance(state, everything, batches(_STEPS_PER_CALL), mask)
                bar.update(int(mask.sum()))
        source = _GuideDraws(likelihood, svi.guide, svi.get_params(state), args, kwargs)
        self._check(source.take(check_key, 0, 16), svi.guide)
        return source

    def _inference(self, likelihood: ModelLikelihood, size: int) -> SVI:
        """Stochastic variational inference on batches of rows of that size."""
        weights = np.full(size, likelihood.num_data / size, np.float32)
        # The program holds no rows, so that compiled steps may be kept.
        model = weighted_model(likelihood.program, weights)
        guide = self._make(model, likelihood)
        schedule = optax.cosine_decay_schedule(self.learning_rate, self.num_steps)
        optimizer = self.optimizer or optax.adam(schedule)
        return SVI(model, guide, optimizer, Trace_ELBO(self.num_particles))

    def _make(self, model: Callable, likelihood: ModelLikelihood) -> AutoGuide:
        if not callable(self.autoguide) or isinstance(self.autoguide, AutoGuide):
            raise TypeError(
                f"autoguide is {self.autoguide!r}; expected a class, such as AutoNormal, or a "
                "function of the model, such as lambda model: AutoNormal(model)."
            )
        if isinstance(self.autoguide, type):
            start = init_to_value(values=likelihood.constrain(likelihood.init_params))
            return self.autoguide(model, init_loc_fn=start)
        guide = self.autoguide(model)
        if not isinstance(guide, AutoGuide):
            raise TypeError(
                f"autoguide returned a {type(guide).__name__}; expected an AutoGuide of the model."
            )
        return guide

    def _check(self, draws: Params, guide: AutoGuide) -> None:
        values = [np.asarray(value) for value in draws.values()]
        if not all(np.isfinite(value).all() for value in values):
            raise ValueError(
                f"the guide's fit ended at values that are not finite after {self.num_steps} "
                "steps; lower learning_rate, raise batch_size or num_particles, or pass a factory "
                "with an init_loc_fn of its own."
            )
        if not any((np.ptp(value, axis=0) > 0).any() for value in values):
            raise ValueError(
                f"autoguide is {type(guide).__name__}, whose draws are all the same; expected one "
                "with spread, for instance AutoMultivariateNormal."
            )


def _compiled(
    program: ModelLikelihood,
    autoguide: Any,
    optimizer: Any,
    settings: tuple,
    size: int,
    svi: SVI,
) -> Callable:
    """Several steps as one compiled function; that of an earlier fit where it does the same."""
    key = program, autoguide, optimizer, settings, size
    try:
        advance = _COMPILED.pop(key, None) or jax.jit(functools.partial(_advance, program, svi))
    except TypeError:  # an optimiser or a guide that cannot be compared
        return jax.jit(functools.partial(_advance, program, svi))
    _COMPILED[key] = advance
    while len(_COMPILED) > _MOST_COMPILED:
        _COMPILED.popitem(last=False)
    return advance


def _advance(
    program: ModelLikelihood, svi: SVI, state: Any, everything: tuple, rows: tuple, mask: Any
) -> tuple:
    def step(state: Any, inputs: tuple) -> tuple:
        batch, counted = inputs
        args, kwargs = program.assemble(batch or everything)
        new, loss = svi.update(state, *args, **kwargs)
        return jax.tree.map(lambda a, b: jnp.where(counted, a, b), new, state), loss

    return jax.lax.scan(step, state, (rows, mask))


class _GuideDraws(DrawSource):
    """Draws of a fitted guide."""

    def __init__(
        self, likelihood: ModelLikelihood, guide: AutoGuide, params: Any, args: tuple, kwargs: dict
    ):
        self._likelihood, self._guide, self._params = likelihood, guide, params
        self._args, self._kwargs = args, kwargs

    def take(self, key: PRNGKeyArray, start: int, num: int) -> Params:
        key, shape = jax.random.fold_in(key, start), (num,)
        sites = self._guide.sample_posterior(
            key, self._params, *self._args, sample_shape=shape, **self._kwargs
        )
        latent = {name: sites[name] for name in self._likelihood.init_params}
        return self._likelihood.unconstrain_draws(latent)
