"""Arguments as people have them: tables, columns, lists, seeds, counts, and settings of JAX."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pyarrow as pa
import pytest
from numpyro.infer.util import log_density
from scipy import sparse

import jaxcoreset as jc
from jaxcoreset.likelihood import model_likelihood
from jaxcoreset.likelihood.arguments import arguments_by_length, flatten, plain_call
from jaxcoreset.likelihood.from_model import _remedy, _whole_limits
from tests import models

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = (RNG.random(N) < 0.5).astype(np.int32)


model = models.logistic()[0]


def sized(X, y, size):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", size):
        numpyro.sample("y", dist.Bernoulli(logits=X @ b), obs=y)


class Column(list):
    """What all packages' columns have in common."""

    def to_numpy(self):
        return np.asarray(list(self))


class Frame:
    """What all packages' data frames have in common."""

    columns = ("a", "b")

    def __getitem__(self, name):
        return Column(X[:, self.columns.index(name)])

    def __len__(self):
        return N

    def to_numpy(self):
        return X


GIVEN = {
    "pandas": lambda: (pd.DataFrame(X, columns=["a", "b"]), pd.Series(Y)),
    "nullable": lambda: (pd.DataFrame(X).astype("Float64"), pd.Series(Y).astype("boolean")),
    "arrow": lambda: (pa.table({"a": X[:, 0], "b": X[:, 1]}), pa.array(Y)),
    "any frame": lambda: (Frame(), Column(Y)),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "list of y": lambda: (X, tuple(Y.tolist())),
    "objects": lambda: (X.astype(object), Y.astype(object)),
    "booleans": lambda: (X, Y.astype(bool)),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_what_holds_numbers_becomes_arrays(kind):
    (x, y), _ = plain_call(model, GIVEN[kind](), {})
    assert isinstance(x, np.ndarray)
    assert isinstance(y, np.ndarray)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)


def test_two_lists_of_numbers_are_two_columns():
    (x, y), _ = plain_call(model, (X[:, 0].tolist(), Y.tolist()), {})
    np.testing.assert_array_equal(x, X[:, 0])
    np.testing.assert_array_equal(y, Y)


def test_a_table_and_a_column_give_the_likelihood_of_arrays():
    found = model_likelihood(model, GIVEN["nullable"]())
    at = {"b": jnp.array([0.5, -1.0])}
    logits = X @ np.array([0.5, -1.0])
    expected = np.where(Y, -np.log1p(np.exp(-logits)), -np.log1p(np.exp(logits)))
    data = found.arguments.data
    np.testing.assert_allclose(found.log_likelihood(at, data), expected, rtol=1e-5)
    assert all(isinstance(leaf, np.ndarray) for leaf in data)


@pytest.mark.parametrize("size", [jnp.array(N), np.array(N), np.int64(N)])
def test_a_number_of_rows_in_an_array_follows_them(size):
    arguments = arguments_by_length(sized, (X, Y, size), {}, N)
    assert arguments.with_data((X[:7], Y[:7])).call[0][2] == 7


def test_short_lists_stay_lists():
    arguments = flatten(sized, (X, Y, [1.0, 2.0]), {})
    assert arguments.names[-1] == "size[1]"
    assert arguments.call[0][2] == [1.0, 2.0]


def bound(X, y, size=N):
    return sized(X, y, size)


def classes(X, y):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=X @ b), obs=y)


class ChunkedArray:
    """An array whose values are in a file, as other packages have it."""

    chunks, shape, ndim, dtype = (10, 2), X.shape, 2, X.dtype

    def __getitem__(self, rows):
        return X[rows]

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("it is not read whole")


BOUND = functools.partial(bound, size=N)
NAMES = np.where(Y, "a", "b")
LAZY_ARRAY = ChunkedArray()
LAZY = SimpleNamespace(columns=["a"], collect=None)
TEXT = pd.DataFrame({"a": X[:, 0], "carrier": "AA"})
REFUSED = {
    "signs": (
        model,
        (X, 2 * Y - 1),
        r"y. is -1 in .* of BernoulliLogits.* -1 and 1, and 0 and 1 .* pass \(y \+ 1\) // 2",
    ),
    "sparse": (model, (sparse.csr_matrix(X), Y), r"X is a sparse matrix .* pass X.toarray\(\)"),
    "labels": (classes, (X, Y + Y[::-1] + 1), r"are 1 to 3, and 0 to 2 are .* pass y - 1 \(labels"),
    "column": (model, (X, Y[:, None]), r'y has shape \(n, 1\): pass y\[:, 0\], .* y\["name"\]\.\n'),
    "names": (model, (X, NAMES), r"y has as many .*return_inverse=True\)\[1\]\.$"),
    "list of names": (model, (X, NAMES.tolist()), "dtype <U1; numbers are expected"),
    "list with names": (model, (X, ["a", *Y[1:].tolist()]), "dtype object; numbers are"),
    "list with gaps": (model, (X, [None, *Y[1:].tolist()]), "y has missing values.* in row 0"),
    "chunked": (model, (LAZY_ARRAY, Y), r"pass a source, jaxcoreset\.sources\.array\(X\)\.arrays"),
    "float": (sized, (X, Y, float(N)), r"Argument size is 60.0; .* pass int\(size\)"),
    "partial": (BOUND, (X, Y), "take sizes from .* The partial binds size=60: pass it"),
    "text": (model, (TEXT, Y), r"a table whose column 'carrier' holds no numbers.*X\['carrier'\]"),
    "missing": (model, (X, pd.Series([None, *Y[1:]], dtype=object)), "y has missing .* in row 0"),
    "lazy": (model, (LAZY, Y), r"X is a SimpleNamespace, a query .* pass X.collect\(\)"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_messages_name_the_argument_and_the_remedy(kind):
    refused, args, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message):
        model_likelihood(refused, args)


@pytest.mark.parametrize(
    ("kind", "parameters", "values", "remedy"),
    [
        (dist.BernoulliLogits, (0.0,), Y + 1, "values are 1 and 2, and 0 and 1 are .* pass y - 1"),
        (dist.BernoulliLogits, (0.0,), 3 * Y, "^0 and 1 are expected"),
        (dist.BinomialLogits, (0.0, 1), 2 * Y - 1, r"0 and 1 are expected.* pass \(y \+ 1\) // 2"),
        (dist.BinomialLogits, (0.0, 1), 3 * Y, "^0 and 1 are expected"),
        (dist.CategoricalLogits, (np.zeros(3),), 3 * Y, "^fix or drop such rows"),
    ],
)
def test_a_remedy_fits_the_values_outside_the_support(kind, parameters, values, remedy):
    low, high = _whole_limits(kind(*parameters))
    assert re.search(remedy, _remedy(kind, (int(low), int(high)), values))


def test_the_remedy_for_an_array_in_a_file_works():
    arguments = model_likelihood(model, (jc.sources.array(LAZY_ARRAY).arrays, Y)).arguments
    np.testing.assert_array_equal(arguments.arrays["X"], X.shape)


def test_columns_taken_by_name_are_explained():
    def by_name(table):
        b = numpyro.sample("b", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(b * table["a"], 1), obs=table["b"])

    table = pd.DataFrame(X, columns=["a", "b"])
    with pytest.raises(TypeError) as caught:
        model_likelihood(by_name, (table,))
    assert "pass a dictionary" in caught.value.__notes__[-1]
    (columns,), _ = plain_call(by_name, ({name: table[name] for name in table.columns},), {})
    np.testing.assert_array_equal(columns["b"], X[:, 1])


def test_a_build_from_a_seed_and_a_frame_is_that_from_arrays_whatever_jax_checks():
    builder = jc.CoresetBuilder(model, size=4, num_draws=40, num_held_out=40, proxy=None)
    before = builder.run(jax.random.key(3), X, Y)
    with jax.numpy_rank_promotion("raise"), jax.debug_nans(True):
        coreset = builder.run(3, pd.DataFrame(X), y=pd.Series(Y))
        density = log_density(coreset.model, coreset.args, coreset.kwargs, {"b": jnp.ones(2)})[0]
    np.testing.assert_array_equal(coreset.indices, before.indices)
    np.testing.assert_allclose(coreset.weights, before.weights, rtol=1e-5)
    expected = log_density(before.model, before.args, before.kwargs, {"b": jnp.ones(2)})[0]
    np.testing.assert_allclose(density, expected, rtol=1e-5)


def test_data_in_place_of_the_key_are_named(untyped):
    with pytest.raises(TypeError, match=r"key is of shape \(60, 2\)"):
        jc.CoresetBuilder(model, size=4).run(X, Y)
    problem = jc.CoresetProblem(X)
    one, other = (jc.solve(problem, 3, jc.UniformSampling(), k) for k in (5, jax.random.key(5)))
    np.testing.assert_array_equal(one.indices, other.indices)
