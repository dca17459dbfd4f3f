"""Models and data that are refused, and what the errors say."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan

from jaxcoreset.likelihood import ModelError, model_likelihood
from jaxcoreset.likelihood.checks import (
    alike_subsets,
    check_log_likelihood,
    disjoint_subsets,
    refuse_changed_datum,
)
from jaxcoreset.likelihood.verification import check_alone
from tests import models
from tests.models import normal_data, normal_model


def refused(model, args, message, **options):
    with pytest.raises(ModelError, match=message) as caught:
        model_likelihood(model, args, **options)
    return caught.value


def test_no_observed_site_is_refused():
    X, _ = normal_data()
    refused(normal_model, (X,), "the model has no observed site")


def test_no_latent_site_is_refused():
    refused(lambda y: numpyro.sample("y", dist.Normal(0, 1), obs=y), (np.ones(3),), "no latent")


def test_subsampling_plate_is_refused():
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", X.shape[0], subsample_size=10) as rows:
            numpyro.sample("y", dist.Normal(b * X[rows], 1.0), obs=y[rows])

    refused(model, normal_data(), "plate 'data' subsamples 10 of 40 rows")


@pytest.mark.parametrize("kind", ["joint", "event", "factor"])
def test_observations_without_a_data_axis_are_refused(kind):
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        if kind == "joint":
            joint = dist.MultivariateNormal(b * X, covariance_matrix=jnp.eye(X.shape[0]))
            numpyro.sample("y", joint, obs=y)
        elif kind == "event":
            numpyro.sample("y", dist.Normal(b * X, 1.0).to_event(1), obs=y)
        else:
            numpyro.factor("y", dist.Normal(b * X, 1.0).log_prob(y).sum())

    refused(model, normal_data(), "log-probability of observed site 'y'.*one entry per datum")


def test_joint_site_beside_an_independent_one_is_refused():
    def model(X, y):
        normal_model(X, y)
        numpyro.sample("z", dist.Normal(0.0, 1.0).expand(X.shape).to_event(1), obs=X)

    refused(model, normal_data(), "site 'z' does not grow with the rows, though its value does")


def test_column_against_vector_is_refused_where_it_would_broadcast():
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(b * X[:, None], 1.0), obs=y)

    refused(model, normal_data(), "grows with the rows in two axes")


@pytest.mark.parametrize("discrete", [False, True])
def test_per_datum_latent_site_is_refused(discrete):
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", X.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(0.5) if discrete else dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(b * X + z, 1.0), obs=y)

    message = "'z' grows with the rows"
    refused(model, normal_data(), f"latent site {message}")


def test_imputation_by_obs_mask_is_refused():
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y, obs_mask=y > 0)

    refused(model, normal_data(), "'y_unobserved' grows with the rows.*obs_mask")


def test_discrete_global_latent_site_is_refused():
    def model(X, y):
        k = numpyro.sample("k", dist.Poisson(3.0))
        numpyro.sample("y", dist.Normal(k * X, 1.0), obs=y)

    refused(model, normal_data(), r"latent site 'k' is discrete \(Poisson")


def test_param_site_is_refused():
    def model(X, y):
        normal_model(X, y)
        numpyro.param("w", 1.0)

    refused(model, normal_data(), "site 'w' is a numpyro.param")


@pytest.mark.parametrize("uses", ["mean", "count", "maximum"])
def test_prior_that_uses_the_data_is_refused(uses):
    def model(X, y):
        prior = {
            "mean": dist.Normal(y.mean(), 10.0),
            "count": dist.Normal(0.0, 1.0 / X.shape[0]),
            "maximum": dist.Uniform(-9.0, y.max()),
        }[uses]
        b = numpyro.sample("b", prior)
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y)

    refused(model, normal_data(), "site 'b', which is outside the data axis, changes when rows")


def test_standardisation_inside_the_model_is_refused():
    def model(X, y):
        normal_model((X - X.mean()) / X.std(), y)

    refused(model, normal_data(), "of a datum at site 'y' changes when other rows are dropped")


@pytest.mark.parametrize("key", range(8))
def test_rows_that_see_the_one_before_are_refused_though_it_is_mostly_zero(key):
    """Did it rain yesterday? One day in eight it did."""
    random = np.random.default_rng(5)
    rain = (random.random(3000) < 0.125).astype(np.float32)

    def model(y):
        a = numpyro.sample("a", dist.Normal(0.0, 2.0))
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
        before = jnp.concatenate([jnp.zeros(1), y[:-1]])
        with numpyro.plate("days", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=a + b * before), obs=y)

    message = "of a datum at site 'y' changes when other rows are dropped"
    refused(model, (rain,), message, key=jax.random.key(key))


RATINGS = np.random.default_rng(0).choice(5, p=[0.05, 0.2, 0.5, 0.2, 0.05], size=5000) + 1.0


@pytest.mark.parametrize("kind", ["range", "maximum", "clip", "unique", "prior"])
@pytest.mark.parametrize("key", range(3))
def test_what_is_alike_in_most_subsets_and_not_in_all_is_refused(kind, key):
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

    message = "site 'c', which is outside" if kind == "prior" else "of a datum at site 'y' changes"
    refused(model, (RATINGS, RATINGS), message, key=jax.random.key(key))


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


def test_subsets_of_rows_alike_have_one_row_or_two():
    for num_rows in (1, 2, 3, 61):
        subsets = list(alike_subsets(num_rows))
        assert all(subset.shape == (num_rows,) for subset in subsets)
        assert all(subset.min() >= 0 and subset.max() < num_rows for subset in subsets)
        assert {np.unique(subset).size for subset in subsets} <= {1, 2}
        assert any(np.unique(subset).size == 1 for subset in subsets)


def test_value_that_is_no_number_without_the_others_has_changed():
    before = np.array([-1.0, -np.inf, -2.0])
    refuse_changed_datum("y", before, np.array([-1.0, np.nan, -2.0]))
    with pytest.raises(ModelError, match=r"\(-2 before, nan after"):
        refuse_changed_datum("y", before, np.array([-1.0, -np.inf, np.nan]))


def test_time_series_is_refused():
    def model(y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))

        def step(previous, value):
            numpyro.sample("y", dist.Normal(b * previous, 1.0), obs=value)
            return value, None

        scan(step, 0.0, y)

    refused(model, normal_data()[:1], "of a datum at site 'y' changes when other rows are dropped")


def test_sites_in_a_python_loop_over_rows_are_refused():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        for i in range(y.shape[0]):
            numpyro.sample(f"y_{i}", dist.Normal(m, 1.0), obs=y[i])

    refused(model, (np.ones(3),), "single number")
    refused(model, (np.ones(3),), "come and go with the number of rows", data_axes=(0,))


def test_plate_of_fixed_size_is_refused():
    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", 40):
            numpyro.sample("y", dist.Normal(b * X, 1.0), obs=y)

    error = refused(model, normal_data(), "take sizes from the data arguments")
    assert error.__cause__ is not None


def test_group_count_computed_from_the_data_is_refused():
    def model(group, y):
        with numpyro.plate("groups", int(group.max()) + 1):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", group.shape[0]):
            numpyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)

    _, (group, y), _ = models.hierarchical()
    refused(model, (group, y), "reads values of a data argument")


@pytest.mark.parametrize("data_axes", [None, (0, 0)])
def test_arguments_of_unequal_length_are_refused(data_axes):
    X, y = normal_data()
    refused(normal_model, (X, y[:-1]), "X has 40 rows and y has 39 rows", data_axes=data_axes)


@pytest.mark.parametrize("data_axes", [None, (0, 0)])
def test_no_rows_are_refused(data_axes):
    refused(normal_model, (np.ones(0), np.ones(0)), "argument X has 0 rows", data_axes=data_axes)


def test_model_without_data_arguments_is_refused():
    refused(lambda: normal_model(*normal_data()), (), "no argument of the model is an array")


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


def test_shorter_plate_is_the_data_where_the_longest_cannot_be():
    """More items than persons, and a covariate of the items."""

    def model(easiness, answers):
        skill = numpyro.sample("skill", dist.Normal(0.0, 1.0))
        num_persons, num_items = answers.shape
        with numpyro.plate("persons", num_persons, dim=-2), numpyro.plate("items", num_items):
            numpyro.sample("y", dist.Normal(skill + easiness, 1.0), obs=answers)

    likelihood = model_likelihood(model, (np.zeros(100), np.zeros((20, 100))))
    assert (likelihood.num_data, likelihood.data_dims) == (20, {"y": -2})
    assert list(likelihood.arguments.data_names) == ["answers"]


def test_taken_for_the_data_is_said_where_an_observed_site_has_several_plates():
    def model(easiness, answers):
        skill = numpyro.sample("skill", dist.Normal(0.0, 1.0))
        with numpyro.plate("persons", 20, dim=-2), numpyro.plate("items", 100, dim=-1):
            numpyro.sample("y", dist.Normal(skill + easiness, 1.0), obs=answers)

    message = "taken to be easiness, with 100 rows, .*axes have 100 and 20.* with data_axes, or"
    error = refused(model, (np.zeros(100), np.zeros((20, 100))), message)
    assert error.__cause__ is not None


def test_data_with_rows_along_another_axis_are_refused():
    def model(Y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", Y.shape[1]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=Y[0])

    refused(model, (np.ones((2, 30)),), "no argument has a leading axis as long")


def test_text_is_refused_as_data():
    def model(X, label):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal()), 1.0), obs=X)

    refused(model, (np.ones(3), np.array(["a", "b", "c"])), "argument label .* dtype")


@pytest.mark.parametrize(
    ("column", "value", "kind"), [(0, np.nan, "NaN"), (1, np.inf, "-inf")], ids=["nan", "infinity"]
)
def test_rows_without_a_finite_log_likelihood_are_named(column, value, kind):
    data = X, y = normal_data()
    data[column][[7, 31]] = value
    refused(normal_model, (X, y), rf"is {kind} in rows 7, 31; a finite one is expected")


def test_rows_are_named_by_their_number_in_all_the_data(monkeypatch):
    monkeypatch.setattr("jaxcoreset.likelihood.verification._CHUNK_ROWS", 16)
    X, y = normal_data()
    X[37] = np.nan
    refused(normal_model, (X, y), "is NaN in row 37;")


def test_prior_that_is_never_finite_is_refused():
    def model(X, y):
        normal_model(X, y)
        numpyro.factor("penalty", jnp.nan)

    refused(model, normal_data(), "the log prior is nan at a starting point")


def test_check_log_likelihood_names_rows_and_kinds():
    values = np.zeros(8)
    check_log_likelihood(values, np.arange(8))
    values[2], values[5], values[6] = np.nan, np.inf, -np.inf
    message = r"is NaN in row 102, \+inf in row 105, -inf in row 106"
    with pytest.raises(ModelError, match=message):
        check_log_likelihood(values, np.arange(100, 108))


def test_data_that_are_not_finite_are_named():
    X, y = normal_data()
    y, X = np.array(y), np.array(X)
    y[3] = np.nan
    refused(normal_model, (X, y), r"not finite, y in row 3: fill in or drop")
    X[[5, 7]] = np.inf
    refused(normal_model, (X, y), r"not finite, X in rows 5, 7 and y in row 3: fill in")


def test_masked_entries_are_refused():
    X, y = normal_data()
    masked = np.ma.masked_array(y, mask=np.arange(len(y)) == 5)
    refused(normal_model, (X, masked), "argument y has masked entries, the first of them in row 5")
    model_likelihood(normal_model, (X, np.ma.masked_array(y)))


@pytest.mark.parametrize("is_read", [True, False])
def test_text_for_numbers_is_refused(is_read):
    def model(X, y, group):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]))
        mean = b[group] if is_read else b[0]
        numpyro.sample("y", dist.Normal(mean * X, 1.0), obs=y)

    X, y = normal_data()
    text = np.where(np.arange(X.size) % 2, "AA", "UA")
    for group in (text, text.astype(object)):
        refused(model, (X, y, group), "argument group has as many rows as the data and dtype")
    model_likelihood(model, (X, y, np.unique(text, return_inverse=True)[1]))


@pytest.mark.parametrize("num_rows", [*range(2, 60), 122, 123, 256])
def test_subsets_for_the_check_are_disjoint_and_cannot_keep_the_mean_of_a_binary_column(num_rows):
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


def test_missing_parameter_is_refused():
    likelihood = model_likelihood(*models.linear())
    with pytest.raises(ModelError, match=r"params lacks the latent sites \['b', 's'\]"):
        likelihood.log_likelihood({"a": 0.0}, likelihood.data)
