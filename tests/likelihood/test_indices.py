"""Numbers without an entry in an array that a model indexes by them."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.likelihood import index_check, indices
from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from jaxcoreset.likelihood.index_check import check_indices, check_new_indices
from jaxcoreset.likelihood.indices import find_unknown_indices

ENTRIES = np.linspace(-1, 1, 5)
NUMBERS = np.array([0, 1, 2, 3, 4, 5, -1, 0, 1, 2, 7, -7])
BEYOND, FROM_END = [5, 10, 11], [6]


def unknown(read, numbers=NUMBERS):
    """The rows with a number beyond the end, and with a negative one."""
    chunks = [((numbers[:8],), 0), ((numbers[4:],), 4)]
    found = find_unknown_indices(lambda e, rows: read(e, *rows), jnp.asarray(ENTRIES), chunks)
    return tuple(None if one is None else one.rows.tolist() for one in found)


READS = {
    "brackets": lambda e, g: e[g],
    "vmap": lambda e, g: jax.vmap(lambda i: e[i])(g),
    "jit": lambda e, g: jax.jit(lambda i: e[i])(g),
    "remat": lambda e, g: jax.checkpoint(lambda i: e[i])(g),
    "map": lambda e, g: jax.lax.map(lambda i: e[i], g, batch_size=4),
    "matrix": lambda e, g: jnp.outer(e, e)[jnp.arange(g.size) % 5, g],
    "rows of a matrix": lambda e, g: jnp.outer(e, e)[g],
    "several": lambda e, g: e[jnp.stack([g, 0 * g], 1)].sum(1),
    "truth": lambda e, g: jnp.where((e > 0)[g], 1.0, 2.0),
    "square": lambda e, g: e[g] ** 2,
}


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_rows_without_an_entry_are_found(read):
    assert unknown(read) == (BEYOND, FROM_END)
    assert unknown(read, np.abs(NUMBERS) % 5) == (None, None)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.float32])
def test_numbers_of_any_type_are_looked_at(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = NUMBERS.astype(kind)
    # -1 in 8 bits without a sign is 255.
    expected = ([5, 6, 10, 11], None) if kind is np.uint8 else (BEYOND, FROM_END)
    assert unknown(lambda e, g: e[g.astype(g.dtype if g.dtype != kind else int)], given) == expected


PROVIDED_FOR = {
    "clip": (lambda e, g: jnp.take(e, g, mode="clip"), None),
    "wrap": (lambda e, g: jnp.take(e, g, mode="wrap"), None),
    "clip, from the end": (lambda e, g: e.at[g].get(mode="clip"), FROM_END),
    "fill, from the end": (lambda e, g: e.at[g].get(mode="fill", fill_value=0), FROM_END),
    "not used": (lambda e, g: jnp.where((g >= 0) & (g < 5), e[g], 0.0), None),
    "times zero": (lambda e, g: ((g >= 0) & (g < 5)) * e[g], None),
    "one hot": (lambda e, g: jax.nn.one_hot(g, 5) @ e, None),
    "interpolated": (lambda e, g: jnp.interp(1.0 * g, jnp.arange(5.0), e), None),
    "slices": (lambda e, g: jax.vmap(lambda i: jax.lax.dynamic_slice(e, (i,), (2,)))(g), None),
    "of a parameter": (lambda e, g: e[(g * jnp.exp(e[0])).astype(int)], None),
}


@pytest.mark.parametrize(("read", "negative"), PROVIDED_FOR.values(), ids=list(PROVIDED_FOR))
def test_what_a_model_provides_for_is_not_reported(read, negative):
    assert unknown(read) == (None, negative)


def test_shifted_numbers_and_numbers_counted_from_the_end_by_hand():
    assert unknown(lambda e, g: e[g + 1]) == ([4, 5, 10, 11], None)
    by_hand = unknown(lambda e, g: e[jnp.where(g < 0, g + 5, g)])
    assert by_hand == ([5, 10], [11])  # -7 + 5 is still negative
    # An entry of the first array may lead beyond the second one.
    assert unknown(lambda e, g: e[jnp.array([0, 1, 2, 3, 9])[jnp.clip(g, 0, 4)]])[0] == [4, 5, 10]


def test_the_index_that_matters_is_named():
    first, second = np.array([0, 4, 1, 9]), np.array([0, 1, 6, 2])

    def found(read):
        pairs = [((first, second), 0)]
        return find_unknown_indices(lambda e, rows: read(e, *rows), jnp.asarray(ENTRIES), pairs)[0]

    entries = jnp.outer(ENTRIES, np.arange(1.0, 4.0))
    of_matrix = found(lambda e, g, h: jnp.sum(e) * 0 + entries[g, jnp.clip(h, 0, 2)])
    assert (of_matrix.rows.tolist(), of_matrix.size) == ([3], 5)
    guarded = found(lambda e, g, h: jnp.where(g < 4, e[:4][g], 0.0) + e[h])
    assert (guarded.rows.tolist(), guarded.leaves, guarded.size) == ([2], (1,), 5)


def test_rows_that_another_row_changes_are_not_named():
    assert unknown(lambda e, g: e[g] + jnp.sum(e[g])) == (BEYOND, FROM_END)


def test_missing_numbers_have_no_entry():
    """NaN becomes 0 as a whole number."""
    numbers = np.array([0.0, np.nan, 4.0, -1.0])

    def rows(read):
        found = find_unknown_indices(lambda e, rows: read(e, *rows), ENTRIES, [((numbers,), 0)])
        return None if found[0] is None else found[0].rows.tolist()

    assert rows(lambda e, g: jnp.asarray(e)[g.astype(int)]) == [1]
    assert rows(lambda e, g: jnp.asarray(e)[g.astype(int) + 1]) == [1, 2]
    guarded = lambda e, g: jnp.where(jnp.isnan(g), 0.0, jnp.asarray(e)[g.astype(int)])  # noqa: E731
    assert rows(guarded) is None


def test_a_build_does_without_the_check_of_a_program_that_is_not_interpreted(monkeypatch):
    likelihood = jc.model_likelihood(model, (X, BAD, Y))
    monkeypatch.setattr(indices, "_bind", lambda eqn, values: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check_indices(likelihood)
    monkeypatch.setattr(index_check, "RAISES", False)
    check_indices(likelihood)


NUM_GROUPS = 4


def model(x, group, y=None):
    with numpyro.plate("groups", NUM_GROUPS):
        effects = numpyro.sample("effects", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0]):
        mean = x + effects[group.astype(int)]
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


RNG = np.random.default_rng(0)
X, GROUP = RNG.normal(size=400), RNG.integers(0, NUM_GROUPS, 400)
Y = X + 0.3 * GROUP + RNG.normal(size=400)
BAD = np.where(np.isin(np.arange(400), [3, 50]), NUM_GROUPS, GROUP)
FROM_LAST = np.where(np.isin(np.arange(400), [3, 50]), -1, GROUP)


def built(group):
    return jc.CoresetBuilder(model, 8, progress_bar=False).run(0, X, group, Y)


@pytest.mark.parametrize("kind", [int, float])
def test_a_build_refuses_numbers_beyond_the_end_and_names_the_rows(kind):
    with pytest.raises(
        ModelError, match=r"argument group is 4(\.0)? in rows 3, 50, .*of 4 entries"
    ):
        built(BAD.astype(kind))
    with pytest.raises(ModelError, match=r"from 0 to 3\. If they are counted from 1, subtract 1"):
        built((GROUP + 1).astype(kind))


def test_a_build_warns_of_negative_numbers_and_an_update_refuses_new_ones():
    with pytest.warns(UserWarning, match="argument group is -1 in rows 3, 50, .*-1 is the last"):
        from_last = built(FROM_LAST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        coreset = built(GROUP)
    new = slice(0, 100)
    for bad, message in (
        (BAD, "argument group is 4 in new rows 3, 50,"),
        (BAD.astype(float), "argument group is 4.0 in new rows 3, 50,"),
        (FROM_LAST, "argument group is -1 in new rows 3, 50, .*no negative numbers there"),
    ):
        with pytest.raises(ModelError, match=message):
            coreset.update(1, X[new], bad[new], Y[new])
    assert coreset.update(1, X[new], GROUP[new], Y[new]).report.num_data == 500
    # The candidates of this one have negative numbers, so that they are meant.
    assert from_last.update(1, X[new], FROM_LAST[new], Y[new]).report.num_data == 500


def answers(person, item, num_persons, y=None):
    hard = numpyro.sample("hard", dist.Normal(0, 1).expand([NUM_GROUPS]).to_event(1))
    with numpyro.plate("persons", num_persons):
        able = numpyro.sample("able", dist.Normal(0, 1))
    with numpyro.plate("rows", person.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=able[person] - hard[item]), obs=y)


def test_groups_of_rows_are_looked_at_too():
    person, y = np.repeat(np.arange(50), 8), RNG.integers(0, 2, 400)

    def likelihood(item):
        return group_likelihood(answers, (person, item, 50, y), groups="person")

    good = likelihood(GROUP)
    check_indices(good)
    check_new_indices(good, tuple(leaf[:10] for leaf in good.data))
    with pytest.raises(ModelError, match=r"argument item has a number .* in groups 0, 6,"):
        check_indices(likelihood(BAD))
