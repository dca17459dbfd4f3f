"""A NumPyro model in which datum i counts w_i times."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.core import Tracer
from jaxtyping import Array
from numpyro.distributions.transforms import biject_to
from numpyro.infer import MCMC
from numpyro.primitives import Messenger

from jaxcoreset.data.dtypes import check_held, default_float, is_number, widened
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.expansion import Proxy
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.trace import log_prob

# The name of the site that stands for the rows that are not in the coreset.
PROXY_SITE = "proxy"


class WeightedModel:
    """A NumPyro model whose observed sites in the data axis are weighted datum by datum.

    Call it as the model, with one row for each weight. With another number of rows the sites in the
    data axis must not be observed, as in `Predictive` on new rows, where weights do not matter. Two
    weighted models with the same model and weights are equal, so that compiled functions are found
    again. A weighted model can be pickled if the model can.

    With a proxy, the site ``proxy``, a `numpyro.factor`, has the approximation of all rows that the
    weighted rows correct. A single row of weight 0 then means that there are no rows.
    """

    def __init__(
        self,
        model: Callable,
        weights: Any,
        data_dims: Mapping[str, int],
        proxy: Proxy | None = None,
    ):
        if not isinstance(weights, Tracer):
            weights = np.array(weights)
            _check_weights(weights)
            weights.flags.writeable = False
        self.model, self.weights, self.data_dims = model, weights, dict(data_dims)
        self.proxy = proxy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model under the weights, with the model's own arguments.

        Where JAX's x64 is on, the arguments are in float64 and int64.
        """
        for leaf in jax.tree.leaves((args, kwargs)):
            check_held(leaf, "an argument of the model")
        if default_float() == np.float64:
            args, kwargs = jax.tree.map(_exact, (args, kwargs))
        weighed = _Weigh(self.weights, self.data_dims, self.proxy)
        with weighed:
            found = self.model(*args, **kwargs)
        weighed.refuse_other_sites()
        if self.proxy is not None and weighed.observed:
            numpyro.factor(PROXY_SITE, weighed.rest(self.proxy))
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightedModel) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        name = getattr(self.model, "__name__", type(self.model).__name__)
        return f"WeightedModel({name}, {self.weights.shape[0]} weights)"

    def weighs_as(self, other: object) -> bool:
        """True if another weighted model has the same weights and the same proxy."""
        if not isinstance(other, WeightedModel):
            return False
        own, theirs = (jax.tree.leaves((one.weights, one.proxy)) for one in (self, other))
        return len(own) == len(theirs) and all(map(np.array_equal, own, theirs))

    def _identity(self) -> tuple:
        arrays = [self.weights, *jax.tree.leaves(self.proxy)]
        return self.model, tuple(self.data_dims.items()), tuple(map(_mark, arrays))


def check_ran_on(model: Callable, mcmc: Any) -> None:
    """Check that an MCMC ran on a weighted model, if its sampler has a model that tells.

    Raises:
        ValueError: if it ran on the model without weights, or with those of another coreset.
    """
    if not (isinstance(mcmc, MCMC) and isinstance(model, WeightedModel)):
        return
    ran = getattr(mcmc.sampler, "model", None)
    while isinstance(ran, Messenger):  # such as a reparametrisation
        ran = ran.fn
    expected = "run NUTS on coreset.model, with coreset.args and coreset.kwargs."
    if ran is model.model:
        raise ValueError(f"mcmc has run on the model without weights; {expected}")
    if isinstance(ran, WeightedModel) and not ran.weighs_as(model):
        raise ValueError(
            f"mcmc has run on the model of another coreset, of {ran.weights.size:,} rows, with "
            f"other weights or another proxy than this one of {model.weights.size:,}; {expected}"
        )


def _mark(array: Any) -> Any:
    """What arrays with the same type and entries have in common; one that is traced is alone."""
    return (
        id(array) if isinstance(array, Tracer) else (array.dtype.str, np.asarray(array).tobytes())
    )


def weighted_model(
    model: ModelLikelihood | Callable,
    weights: Any,
    data_dims: Mapping[str, int] | None = None,
    *,
    proxy: Proxy | None = None,
) -> WeightedModel:
    """The model with the log-probability of datum i multiplied by weight i.

    Args:
        model: a `ModelLikelihood`, or a NumPyro model together with `data_dims`.
        weights: shape (m,), finite and not negative; traced values are taken as they are.
        data_dims: `ModelLikelihood.data_dims`, needed for a bare model.
        proxy: the approximation of all rows that the weighted rows correct, if there is one.

    Returns:
        A NumPyro model, to be called with m rows.

    Raises:
        ValueError: the weights are not a vector, are negative or not finite, or a bare model is
            given without `data_dims`.
        ModelError: when the model runs, if it observes sites and none of them is in `data_dims`.
    """
    if isinstance(model, ModelLikelihood):
        return WeightedModel(model.model, weights, model.data_dims, proxy)
    if not data_dims:
        raise ValueError(
            "a model was given without data_dims; the dimension of the data axis of each observed "
            "site is expected: pass ModelLikelihood.data_dims, or the likelihood itself."
        )
    return WeightedModel(model, weights, data_dims, proxy)


def _exact(leaf: Any) -> Any:
    if not (isinstance(leaf, jax.Array | np.ndarray) and is_number(leaf.dtype)):
        return leaf
    # A copy, since JAX remembers a type for each NumPy array, that without x64 too.
    return np.array(widened(leaf)) if isinstance(leaf, np.ndarray) else widened(leaf)


def _check_weights(weights: np.ndarray) -> None:
    if weights.ndim != 1 or not np.issubdtype(weights.dtype, np.number):
        raise ValueError(
            f"weights has the shape {weights.shape} and dtype {weights.dtype}; numbers of shape "
            "(m,) are expected, one per row."
        )
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        raise ValueError(
            f"weights[{wrong[0]}] is {weights[wrong[0]]}; expected finite weights of at least 0."
        )


class _Weigh(Messenger):
    """Multiply the scale of sites in the data axis by the weights, along that axis."""

    def __init__(self, weights: Any, data_dims: Mapping[str, int], proxy: Proxy | None = None):
        super().__init__()
        self.weights, self.data_dims = weights, data_dims
        # What `rest` needs, where there is a proxy: the latent values and the weighted sites.
        names = () if proxy is None else (name for name, _ in proxy.unravel.shapes)
        self._latent = frozenset(names)
        self._has_rows = isinstance(weights, Tracer) or bool(np.any(weights))
        self.values: dict[str, Any] = {}
        self.observed: list[Any] = []
        self._is_met = False
        self._others: list[str] = []

    def refuse_other_sites(self) -> None:
        """Raise a ModelError if the model has observed sites, none of which has been weighted."""
        if self._others and not self._is_met:
            raise ModelError(
                f"the weights are for the sites {sorted(self.data_dims)}, and the model observes "
                f"{sorted(self._others)}; expected data_dims with the names of the model's own "
                "observed sites, as ModelLikelihood.data_dims has them."
            )

    def rest(self, proxy: Proxy) -> Array:
        """What the proxy adds to the weighted rows."""
        missing = self._latent - set(self.values)
        if missing:
            raise ModelError(
                f"the model has no latent sites {sorted(missing)}, of which the coreset's proxy is "
                "a function; expected the model that the coreset was built for."
            )
        weighted = None
        if self._has_rows:
            weighted = sum(jnp.sum(log_prob(site)) for site in self.observed)
        return proxy.rest(proxy.flat(self.values), weighted)

    def process_message(self, msg: Any) -> None:
        if self._concerns(msg) and not self._has_rows:
            msg["fn"] = msg["fn"].mask(False)
            return
        # Weigh sites that are not observed too: a condition handler outside this one acts later,
        # and the scale of a sampled site has no effect. For the same reason one row may become
        # more: a scalar distribution whose value is not set yet.
        if self._concerns(msg) and self._rows(msg) in (1, self.weights.shape[0]):
            weights = jnp.reshape(self.weights, (-1,) + (1,) * (-self.data_dims[msg["name"]] - 1))
            msg["scale"] = weights if msg["scale"] is None else weights * msg["scale"]

    def postprocess_message(self, msg: Any) -> None:
        if self._concerns(msg):
            self._is_met = True
        elif msg["type"] == "sample" and msg["is_observed"]:
            self._others.append(msg["name"])
        if self._concerns(msg) and msg["is_observed"] and self._rows(msg) != self.weights.shape[0]:
            raise ModelError(
                f"site {msg['name']!r} is observed with {self._rows(msg)} rows, but the model has "
                f"weights for {self.weights.shape[0]}; the coreset's own rows are expected: pass "
                "its args and kwargs, None for the observations to predict new rows, or use the "
                "original model."
            )
        if msg["type"] == "sample" and msg["name"] in self._latent:
            self.values[msg["name"]] = biject_to(msg["fn"].support).inv(msg["value"])
        elif self._latent and self._concerns(msg) and msg["is_observed"]:
            self.observed.append(dict(msg))

    def _concerns(self, msg: Any) -> bool:
        return msg["type"] == "sample" and msg["name"] in self.data_dims

    def _rows(self, msg: Any) -> int:
        """The length of the site's log-probability along the data axis."""
        shape = tuple(msg["fn"].batch_shape)
        if msg["value"] is not None:
            of_value = jnp.shape(msg["value"])
            shape = jnp.broadcast_shapes(shape, of_value[: len(of_value) - msg["fn"].event_dim])
        dim = self.data_dims[msg["name"]]
        return shape[dim] if len(shape) >= -dim else 1
