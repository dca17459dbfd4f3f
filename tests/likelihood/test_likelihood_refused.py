"""Models and data that are refused, and what the errors say.

The commonest faults of models are in `tests/users_models/refusals.py` and not here.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from jaxcoreset.likelihood import ModelError, model_likelihood
from jaxcoreset.likelihood.checks import (
    check_log_likelihood,
    disjoint_subsets,
    refuse_changed_datum,
)
from jaxcoreset.likelihood.likelihood import draw_uniform
from jaxcoreset.likelihood.verification import check_alone, check_subsets
from tests.models import normal_data, normal_model


def refused(model, args, message, **options):
    with pytest.raises(ModelError, match=message) as caught:
        model_likelihood(model, args, **options)
    return caught.value


CHANGES = "of a datum at site 'y' changes when other rows are dropped"
MODELS: dict[str, Callable] = {
    "site 'z' does not grow with the rows, though its value does": lambda X, y: (
        normal_model(X, y),
        numpyro.sample("z", dist.Normal(0.0, 1.0).expand(X.shape).to_event(1), obs=X),
    ),
    "site 'c', which is outside the data axis, changes when rows": lambda X, y: (
        normal_model(X, y),
        numpyro.sample("c", dist.Normal(0.0, 1.0 / X.shape[0])),
    ),
    "the log prior is nan at a starting point": lambda X, y: (
        normal_model(X, y),
        numpyro.factor("penalty", jnp.nan),
    ),
}


@pytest.mark.parametrize("message", MODELS)
def test_models_whose_sites_do_not_fit_are_refused(message):
    refused(MODELS[message], normal_data(), message)


def test_a_support_that_depends_on_parameters_is_no_fault_of_the_rows():
    def model(y):
        top = numpyro.sample("top", dist.Pareto(1.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Uniform(0, top), obs=y)

    y = np.linspace(0.1, 500, 40).astype(np.float32)
    error = refused(model, (y,), "support of Uniform at the starting point.* depends on the param")
    assert "drop" not in str(error)


def test_numbers_taken_for_the_number_of_rows_are_named():
    def model(y, num, trials):
        share = numpyro.sample("share", dist.Beta(1, 1))
        with numpyro.plate("rows", num):
            numpyro.sample("y", dist.Binomial(trials, share), obs=y)

    y = np.random.default_rng(0).binomial(60, 0.3, 60)
    error = refused(model, (y, 60, 60), CHANGES)
    assert any("since they are 60: num, trials" in note for note in error.__notes__)


@pytest.mark.parametrize("latent", [dist.Normal, dist.Bernoulli])
def test_latent_sites_of_rows_are_refused(latent):
    def model(X, y):
        with numpyro.plate("data", X.shape[0]):
            z = numpyro.sample("z", latent(0.5))
        normal_model(X, y - z)

    refused(model, normal_data(), "latent site 'z' grows with the rows")


def test_a_model_whose_sites_are_the_rows_is_refused():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        for i in range(y.shape[0]):
            numpyro.sample(f"y_{i}", dist.Normal(m, 1.0), obs=y[i])

    refused(model, (np.ones(3),), "come and go with the number of rows", data_axes=(0,))


def test_no_latent_site_is_refused():
    refused(lambda y: numpyro.sample("y", dist.Normal(0, 1), obs=y), (np.ones(3),), "no latent")


def refused_for_any_key(model, args, message, monkeypatch):
    """Assert that the checks refuse a model, whatever rows and points they look at."""
    with monkeypatch.context() as patch:
        patch.setattr("jaxcoreset.likelihood.from_model.check_subsets", lambda *given: None)
        likelihood = model_likelihood(model, args)
    shapes = {name: value.shape for name, value in likelihood.init_params.items()}
    for seed in range(8):
        generator = np.random.default_rng(seed)
        points = [draw_uniform(shapes, radius, generator) for radius in (1.0, 0.1)]
        with pytest.raises(ModelError, match=message):
            check_subsets(likelihood, likelihood.program.compiled, points, generator)


def test_rows_that_see_the_one_before_are_refused_though_it_is_mostly_zero(monkeypatch):
    """Did it rain yesterday? One day in eight it did."""
    random = np.random.default_rng(5)
    rain = (random.random(3000) < 0.125).astype(np.float32)

    def model(y):
        a = numpyro.sample("a", dist.Normal(0.0, 2.0))
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
        before = jnp.concatenate([jnp.zeros(1), y[:-1]])
        with numpyro.plate("days", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=a + b * before), obs=y)

    refused_for_any_key(model, (rain,), CHANGES, monkeypatch)


RATINGS = np.random.default_rng(0).choice(5, p=[0.05, 0.2, 0.5, 0.2, 0.05], size=5000) + 1.0


@pytest.mark.parametrize("kind", ["range", "maximum", "clip", "unique", "prior"])
def test_what_is_alike_in_most_subsets_and_not_in_all_is_refused(kind, monkeypatch):
    """Of 61 ratings one is a 1 and one a 5; of few that need not be so."""

    def model(rating, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        high, low = rating.max(), rating.min()
        mean = {
            "range": b[0] * (rating - low) / (high - low),
            "maximum": b[0] * rating / high,
            "clip": b[0] * jnp.clip(rating, low + 1.0, high),
            "unique": b[jnp.unique(rating, return_inverse=True, size=5)[1]],
            "prior": b[0] * rating,
        }[kind]
        if kind == "prior":
            numpyro.sample("c", dist.Normal(0.0, high))
        with numpyro.plate("data", rating.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    message = "site 'c', which is outside" if kind == "prior" else CHANGES
    refused_for_any_key(model, (RATINGS, RATINGS), message, monkeypatch)


def test_rows_alike_are_no_reason_to_refuse():
    """A model that does not run with one row, and one with masked entries, run with 61 alike."""

    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        seen = ~jnp.isnan(y)
        filled = jnp.where(seen, y, jnp.nanmean(y))
        mean = b * jnp.squeeze(x)
        assert mean.ndim == 1
        # A summary that the data do not depend on.
        numpyro.deterministic("r", jnp.linalg.solve(x.T @ x, x.T @ filled))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1.0).mask(seen), obs=filled)

    X, y = normal_data(400)
    y = np.where(np.arange(400) % 7, y, np.nan)
    likelihood = model_likelihood(model, (X[:, None], y))
    values = likelihood.log_likelihood(likelihood.init_params, likelihood.data)
    assert (np.asarray(values)[::7] == 0).all()


def test_rounding_of_large_counts_is_no_reason_to_refuse():
    """A log-likelihood of some nats that is a difference of a hundred thousand of them."""
    random = np.random.default_rng(0)
    y = random.poisson(20_000, size=3000)

    def model(y):
        b = numpyro.sample("b", dist.Normal(9.9, 1e-3))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(b)), obs=y)

    likelihood = model_likelihood(model, (y,))
    draws = {"b": jnp.asarray(np.log(20_000) + 1e-4 * random.normal(size=50), float)}
    kept = likelihood.take(np.arange(0, 3000, 77))
    values = jnp.stack([likelihood.log_likelihood({"b": b}, kept) for b in draws["b"]], axis=1)
    check_alone(likelihood, draws, kept, values)


def test_value_that_is_no_number_without_the_others_has_changed():
    before = np.array([-1.0, -np.inf, -2.0])
    refuse_changed_datum("y", before, np.array([-1.0, np.nan, -2.0]))
    with pytest.raises(ModelError, match=r"\(-2 before, nan after"):
        refuse_changed_datum("y", before, np.array([-1.0, -np.inf, np.nan]))


@pytest.mark.parametrize("data_axes", [None, (0, 0)])
def test_arguments_without_rows_or_of_unequal_length_are_refused(data_axes):
    X, y = normal_data()
    refused(normal_model, (X, y[:-1]), "X has 40 rows and y has 39 rows", data_axes=data_axes)
    refused(normal_model, (X[:0], y[:0]), "argument X has 0 rows", data_axes=data_axes)


def test_structured_arrays_are_named():
    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(b * jnp.asarray(x["x"]), 1.0), obs=jnp.asarray(x["y"]))

    X, y = normal_data()
    table = np.zeros(40, [("x", float), ("y", float)])
    table["x"], table["y"] = X, y
    message = r"x is a structured array, .* columns, {'x': x\['x'\], 'y': x\['y'\]}"
    refused(model, (table,), message)
    model_likelihood(model, ({name: table[name] for name in ("x", "y")},))


ANSWERS = np.zeros(100), np.zeros((20, 100))


def answered(shape_of):
    """Answers of persons to items, of which there are more, and a covariate of the items."""

    def model(easiness, answers):
        skill = numpyro.sample("skill", dist.Normal(0.0, 1.0))
        num_persons, num_items = shape_of(answers)
        with numpyro.plate("persons", num_persons, dim=-2), numpyro.plate("items", num_items):
            numpyro.sample("y", dist.Normal(skill + easiness, 1.0), obs=answers)

    return model


def test_shorter_plate_is_the_data_where_the_longest_cannot_be():
    likelihood = model_likelihood(answered(np.shape), ANSWERS)
    assert (likelihood.num_data, likelihood.data_dims) == (20, {"y": -2})
    assert list(likelihood.arguments.data_names) == ["answers"]


def test_taken_for_the_data_is_said_where_an_observed_site_has_several_plates():
    message = "taken to be easiness, with 100 rows, .*axes have 100 and 20.* with data_axes, or"
    error = refused(answered(lambda _: (20, 100)), ANSWERS, message)
    assert error.__cause__ is not None


def test_data_with_rows_along_another_axis_are_refused():
    def model(Y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", Y.shape[1]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=Y[0])

    refused(model, (np.ones((2, 30)),), "no argument has a leading axis as long")


def test_rows_without_a_finite_log_likelihood_are_named_with_their_causes(monkeypatch):
    X, y = normal_data()
    X[[5, 7]], y[3] = np.nan, np.inf
    message = "is NaN in rows 5, 7, -inf in row 3; .* not finite, X in rows 5, 7 and y in row 3:"
    refused(normal_model, (X, y), message)
    # Of many rows some are evaluated at a time.
    monkeypatch.setattr("jaxcoreset.likelihood.verification._CHUNK_ROWS", 16)
    X, y = normal_data()
    X[37] = np.nan
    refused(normal_model, (X, y), "is NaN in row 37;")
    values = np.where(np.arange(8) == 5, np.inf, 0.0)
    with pytest.raises(ModelError, match=r"is \+inf in row 105"):
        check_log_likelihood(values, np.arange(100, 108))


def test_masked_entries_are_refused():
    X, y = normal_data()
    masked = np.ma.masked_array(y, mask=np.arange(len(y)) == 5)
    refused(normal_model, (X, masked), "argument y has masked entries, the first of them in row 5")
    arguments = model_likelihood(normal_model, (X, np.ma.masked_array(y))).arguments
    assert not np.ma.isMaskedArray(arguments.data[1])


def test_text_for_numbers_is_refused_though_the_model_does_not_read_it():
    X, y = normal_data()
    text = np.where(np.arange(X.size) % 2, "AA", "UA").astype(object)
    message = "argument group has as many rows as the data and dtype"
    refused(lambda X, y, group: normal_model(X, y), (X, y, text), message)


def test_subsets_for_the_check_are_disjoint_and_cannot_keep_the_mean_of_a_binary_column():
    for num_rows in (*range(2, 60), 122, 123, 256):
        first, second = disjoint_subsets(num_rows)
        assert len(first) == len(second) >= 1
        assert not set(first) & set(second)
        assert max(*first, *second) < num_rows
        assert np.gcd(len(first), num_rows) == 1
        assert min(np.diff(kept).min(initial=2) for kept in (first, second)) >= 2


def test_exception_of_the_model_surfaces_with_a_note():
    class Unrelated(Exception):
        pass

    def model(X, y):
        raise Unrelated("mine")

    with pytest.raises(Unrelated, match="mine") as caught:
        model_likelihood(model, normal_data())
    assert "X (40,), y (40,)" in "".join(caught.value.__notes__)
