"""Named regressions for tables: the NumPyro models, and checks of their responses.

All of them have a linear predictor η = intercept + x β with the priors β ~ Normal(0, s) and
intercept ~ Normal(0, 4 s), where s is `prior_scale`. The default of 2.5, which rstanarm uses too,
is a wide prior for standardised columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num

from jaxcoreset.command.tables import Table, TableError
from jaxcoreset.data.messages import did_you_mean, listed

Matrix = Float[ArrayLike, "n d"]
Response = Num[ArrayLike, " n"] | None

PRIOR_SCALE = 2.5
_MAX_CLASSES = 50
_MAX_COUNT = 2**31 - 1  # JAX converts counts to int32


def logistic(x: Matrix, y: Response = None, prior_scale: float = PRIOR_SCALE) -> None:
    """Logistic: y ~ Bernoulli(1/(1 + exp(−η)))."""
    _regress(x, y, prior_scale, lambda eta: dist.Bernoulli(logits=eta))


def poisson(x: Matrix, y: Response = None, prior_scale: float = PRIOR_SCALE) -> None:
    """Counts: y ~ Poisson(exp(η))."""
    _regress(x, y, prior_scale, lambda eta: dist.Poisson(jnp.exp(eta)))


def normal(x: Matrix, y: Response = None, prior_scale: float = PRIOR_SCALE) -> None:
    """Linear: y ~ Normal(η, sigma), with sigma ~ HalfNormal(s)."""
    _regress(x, y, prior_scale, lambda eta: dist.Normal(eta, _sigma(prior_scale)))


def student_t(x: Matrix, y: Response = None, prior_scale: float = PRIOR_SCALE) -> None:
    """Robust: y ~ StudentT(nu, η, sigma), with sigma ~ HalfNormal(s) and nu ~ Gamma(2, 0.1)."""

    def likelihood(eta: Array) -> dist.Distribution:
        sigma = _sigma(prior_scale)
        return dist.StudentT(numpyro.sample("nu", dist.Gamma(2.0, 0.1)), eta, sigma)

    _regress(x, y, prior_scale, likelihood)


def negative_binomial(x: Matrix, y: Response = None, prior_scale: float = PRIOR_SCALE) -> None:
    """Counts with mean m = exp(η) and variance m + m²/phi, with phi ~ LogNormal(0, 2)."""

    def likelihood(eta: Array) -> dist.Distribution:
        phi = numpyro.sample("phi", dist.LogNormal(0.0, 2.0))
        return dist.NegativeBinomial2(jnp.exp(eta), phi)

    _regress(x, y, prior_scale, likelihood)


def categorical(
    x: Matrix, y: Response = None, num_classes: int = 2, prior_scale: float = PRIOR_SCALE
) -> None:
    """Classes: y ~ Categorical(softmax(η)), with a column of η for each class, 0 for the first."""

    def likelihood(eta: Array) -> dist.Distribution:
        logits = jnp.concatenate([jnp.zeros((eta.shape[0], 1), eta.dtype), eta], axis=1)
        return dist.CategoricalLogits(logits=logits)

    _regress(x, y, prior_scale, likelihood, (num_classes - 1,))


def _regress(
    x: ArrayLike,
    y: ArrayLike | None,
    prior_scale: float,
    likelihood: Callable[[Array], dist.Distribution],
    predictors: tuple[int, ...] = (),
) -> None:
    """A response that depends on one linear predictor, or on a vector of them."""
    x = jnp.asarray(x)
    intercept = dist.Normal(0.0, 4 * prior_scale).expand(predictors).to_event()
    beta = dist.Normal(0.0, prior_scale).expand((x.shape[1], *predictors)).to_event()
    offset = jnp.asarray(numpyro.sample("intercept", intercept))
    family = likelihood(offset + x @ jnp.asarray(numpyro.sample("beta", beta)))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", family, obs=y)


def _sigma(prior_scale: float) -> Array:
    return jnp.asarray(numpyro.sample("sigma", dist.HalfNormal(prior_scale)))


@dataclass(frozen=True)
class Regression:
    """A regression that the command knows by name.

    Attributes:
        title: its name in a sentence.
        model: the NumPyro model.
        scales_response: whether to standardise the response as well as the columns.
        read_response: function from a table and a column name to the response and further keyword
            arguments of the model.
    """

    title: str
    model: Callable[..., None]
    scales_response: bool
    read_response: Callable[[Table, str], tuple[np.ndarray, dict[str, Any]]]


def _binary(table: Table, name: str) -> tuple[np.ndarray, dict[str, Any]]:
    expected = (
        "Expected for --likelihood logistic: 0 and 1, or true and false; recode the column, or "
        "name the value that counts as 1: --positive VALUE."
    )
    values = table.numbers(name, expected)
    bad = (values != 0) & (values != 1)
    table.refuse(name, bad, f"found {_first(values, bad)}", expected)
    return values.astype(np.int64), {}


def _counts(title: str) -> Callable[[Table, str], tuple[np.ndarray, dict[str, Any]]]:
    def read(table: Table, name: str) -> tuple[np.ndarray, dict[str, Any]]:
        expected = f"Expected for --likelihood {title}: counts"
        values = table.numbers(name, f"{expected}, 0 or larger.")
        bad = (values < 0) | (values != np.floor(values))
        table.refuse(name, bad, f"found {_first(values, bad)}", f"{expected}, 0 or larger.")
        bad = values > _MAX_COUNT
        limit = f"{expected} up to {_MAX_COUNT:,}."
        advice = "Count in a larger unit, or use --likelihood normal."
        table.refuse(name, bad, f"found {_first(values, bad)}", f"{limit} {advice}")
        return values.astype(np.int64), {}

    return read


def _real(table: Table, name: str) -> tuple[np.ndarray, dict[str, Any]]:
    return table.numbers(name, "The response of this likelihood is a number.").astype(float), {}


def _classes(table: Table, name: str) -> tuple[np.ndarray, dict[str, Any]]:
    codes, levels = table.labels(name)
    if not 2 <= len(levels) <= _MAX_CLASSES:
        raise TableError(
            f"{table.path}, column {name!r} has {len(levels):,} different values; --likelihood "
            f"categorical expects from 2 to {_MAX_CLASSES} classes. If it is a number, use "
            "--likelihood normal or poisson."
        )
    return codes, {"num_classes": len(levels)}


def _first(values: np.ndarray, bad: np.ndarray) -> str:
    return f"{values[bad][0]:g}" if bad.any() else ""


def read_response(
    likelihood: str, table: Table, name: str, positive: str | None
) -> tuple[np.ndarray, dict[str, Any], list[str]]:
    """The response, further arguments of the model, and the two outcomes that `positive` tells.

    A response of two values is 1 where it is `positive`, which is the second of the outcomes.

    Raises:
        TableError: if the response does not fit the likelihood, or `positive` is given and there
            are not two values, or it is none of them.
    """
    if positive is None:
        return *REGRESSIONS[likelihood].read_response(table, name), []
    codes, levels = table.labels(name)
    if len(levels) != 2 or positive not in levels:
        raise TableError(
            f"{table.path}, column {name!r} has {len(levels):,} different values, "
            f"{listed(levels)}; --positive {positive} expects two, one of which it names"
            f"{did_you_mean(positive, levels)}"
        )
    at = levels.index(positive)
    return (codes == at).astype(np.int64), {}, [levels[1 - at], positive]


REGRESSIONS = {
    "logistic": Regression("logistic regression", logistic, False, _binary),
    "poisson": Regression("Poisson regression", poisson, False, _counts("poisson")),
    "normal": Regression("normal linear regression", normal, True, _real),
    "student_t": Regression("Student-t linear regression", student_t, True, _real),
    "negative_binomial": Regression(
        "negative binomial regression", negative_binomial, False, _counts("negative_binomial")
    ),
    "categorical": Regression("categorical regression", categorical, False, _classes),
}
