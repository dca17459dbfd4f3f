"""Which arguments count the groups, and hierarchies whose groups are not independent."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from jaxcoreset.likelihood.arguments import ModelError
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from tests.likelihood.group_models import effects, rows

G, N = 30, 200
RNG = np.random.default_rng(0)
GROUP = np.concatenate([np.arange(G), RNG.integers(0, G, N - G)]).astype(np.int32)
REGION = RNG.integers(0, 50, N).astype(np.int32)
# Of groups that are numbered district by district, whose first ones are alike.
DISTRICT = np.repeat(np.arange(3.0), 10)
LONGER = np.append(DISTRICT, np.full(40, 3.0))
X, Y = RNG.normal(size=(2, N)).astype(np.float32)


class FoundError(Exception):
    """Raised with the marginal model in place of making its likelihood, which takes seconds."""


@pytest.fixture(autouse=True)
def _only_checked(monkeypatch):
    def stop(marginal, layout, **_):
        raise FoundError(marginal)

    monkeypatch.setattr("jaxcoreset.likelihood.group_likelihood.likelihood_of_layout", stop)


def crossed(group, num, region, num_regions, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("regions", num_regions):
        other = numpyro.sample("other", dist.Normal(0, 1))
    rows(group, effects(num, scale=tau)[group] + other[region], y)


@pytest.mark.parametrize(
    ("num", "num_regions"),
    [(30, 50), (100, 50), (30, 30)],
    ids=["of its own number", "after a smaller one", "of the same number"],
)
def test_another_factor_stays_a_parameter(num, num_regions):
    args = (GROUP, num, REGION % num_regions, num_regions, Y)
    with pytest.raises(FoundError) as error:
        group_likelihood(crossed, args, groups="group")
    (found,) = error.value.args
    assert set(found.structure.local) == {"effect"}
    assert set(found.structure.shared) == {"other", "tau"}
    assert found.positions.group_counts == (1,)


def means_of(group, num, x):
    return jnp.bincount(group, x, length=num) / jnp.bincount(group, length=num)


def prior_of_rows_of_a_group(group, num, x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    rows(group, effects(num, slope * means_of(group, num, x))[group], y)


def prior_of_other_groups(group, x, y=None):
    rows(group, effects(x.size, x - x.mean())[group], y)


def size_in_prior(group, num, y=None):
    count = jnp.bincount(group, length=num)
    rows(group, effects(num, scale=1 / jnp.sqrt(1e-6 * count + 1))[group], y)


def prior_of_rows(group, num, y=None):
    scale = numpyro.sample("scale", dist.Exponential(1 / (1 + 1e-6 * jnp.std(y))))
    rows(group, effects(num, scale=scale)[group], y)


def centred_by_group(group, num, x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    rows(group, effects(num)[group] + slope * (x - means_of(group, num, x)[group]), y)


def before(group, num, y=None):
    rho = numpyro.sample("rho", dist.Uniform(-1, 1))
    last = jnp.concatenate([jnp.zeros(1), y[:-1]])
    rows(group, effects(num)[group] + rho * last, y)


def sum_of_all(group, num, y=None):
    values = effects(num)
    rows(group, values[group] + 0.005 * values.sum(), y)


def crossed_within(group, num, y=None):
    values = effects(num)
    rows(group, values[group] - values[(group + 1) % num], y)


def random_walk(group, num, y=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    rows(group, numpyro.sample("effect", dist.GaussianRandomWalk(scale, num))[group], y)


def soft_sum_to_zero(group, num, y=None):
    values = effects(num)
    numpyro.factor("sum", dist.Normal(0, 0.01).log_prob(jnp.sum(values)))
    rows(group, values[group], y)


def number_in_a_shared_prior(group, num, y=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1 / num))
    rows(group, effects(num, scale=scale)[group], y)


def kinds_without_end(group, num, y=None):
    with numpyro.plate("groups", num):
        kind = numpyro.sample("kind", dist.Poisson(2.0))
    rows(group, kind[group], y)


def summed_rows(group, num, y=None):
    values = dist.Normal(effects(num)[group], 1.0).log_prob(y)
    numpyro.factor("summed", jax.ops.segment_sum(values, group, num))


def by_number(group, num, y=None):
    rows(group, effects(num)[group] + 2.0 * (group < 20), y)


def of_one_number(group, num, y=None):
    rows(group, effects(num)[group] + 2.0 * (group == 17), y)


def by_table(group, num, table, y=None):
    rows(group, effects(num)[group] + table[group], y)


def by_table_of_the_module(group, num, y=None):
    by_table(group, num, jnp.asarray(DISTRICT), y)


def prior_by_number(group, num, y=None):
    rows(group, effects(num, jnp.arange(num) / 10)[group], y)


@pytest.mark.parametrize("table", [np.asarray, jnp.asarray])
def test_a_table_with_one_entry_for_each_group_may_be_indexed_by_labels(table):
    with pytest.raises(FoundError) as error:
        group_likelihood(by_table, (GROUP, G, table(DISTRICT), Y), groups="group")
    assert error.value.args[0].positions.groups == (2,)


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (by_number, (GROUP, G, Y), "'y' changes if its group gets another number"),
        (of_one_number, (GROUP, G, Y), "'y' changes if its group gets another number"),
        (by_table_of_the_module, (GROUP, G, Y), "'y' changes if.* an argument with 30 entries"),
        (by_table, (GROUP, G, LONGER, Y), "'y' changes if.*longer than the groups"),
        (by_table, (GROUP, G, jnp.asarray(LONGER), Y), "'y' changes if.*longer than the groups"),
        (prior_by_number, (GROUP, G, Y), "density of site 'effect' of a group depends"),
        (prior_of_rows_of_a_group, (GROUP, G, X, Y), "density of site 'effect' of a group depends"),
        (prior_of_other_groups, (GROUP, X[:G], Y), "density of site 'effect' of a group depends"),
        (size_in_prior, (GROUP, G, Y), "with a prior that does not use rows"),
        (prior_of_rows, (GROUP, G, Y), "'scale', which all groups share, depends on"),
        (centred_by_group, (GROUP, G, X, Y), "depends on other rows, or on how many"),
        (before, (np.sort(GROUP), G, Y), "depends on other rows, or on how many"),
        (sum_of_all, (GROUP, G, Y), "the effect of a group that it is not in"),
        (crossed_within, (GROUP, G, Y), "the effect of a group that it is not in"),
        (random_walk, (GROUP, G, Y), "'effect' grows with the groups and is not one independent"),
        (soft_sum_to_zero, (GROUP, G, Y), "'sum', which all groups share, depends on the effects"),
        (number_in_a_shared_prior, (GROUP, G, Y), "'scale', which all groups share, depends on"),
        (kinds_without_end, (GROUP, G, Y), r"latent site 'kind' is discrete \(Poisson\)"),
        (summed_rows, (GROUP, G, Y), "do not sum rows by group"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_groups_that_are_not_independent_are_refused_by_what_they_see(model, args, message):
    with pytest.raises(ModelError, match=message):
        group_likelihood(model, args, groups="group")


def plain(group, num, y=None):
    rows(group, effects(num)[group], y)


@pytest.mark.parametrize(
    ("labels", "num", "message"),
    [
        (GROUP, 20, r"num = 20.*labels, 30, or a number above 29"),
        (np.array([f"N{i:02d}" for i in GROUP]), 31, r"num = 31.*different labels, 30, or name"),
    ],
    ids=["too small", "not that of names"],
)
def test_a_number_that_does_not_fit_the_labels_is_named(labels, num, message):
    with pytest.raises(ModelError, match=message):
        group_likelihood(plain, (labels, num, Y), groups="group")


@pytest.mark.parametrize("is_of_rows", [True, False])
def test_effects_that_obs_mask_makes_are_refused(is_of_rows):
    """They have no density where the response is observed."""

    def of_rows(noisy, seen, y):
        slope = numpyro.sample("slope", dist.Normal())
        with numpyro.plate("rows", len(noisy)):
            true = numpyro.sample("true", dist.Normal())
            numpyro.sample("noisy", dist.Normal(true, 0.3), obs=noisy)
            numpyro.sample("y", dist.Normal(slope * true, 1), obs=y, obs_mask=seen)

    def of_groups(group, measured, seen, y):
        mu = numpyro.sample("mu", dist.Normal())
        with numpyro.plate("groups", len(measured)):
            effect = numpyro.sample("effect", dist.Normal(mu, 1))
            numpyro.sample("measured", dist.Normal(effect, 0.3), obs=measured, obs_mask=seen)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(effect[group], 1), obs=y)

    rng = np.random.default_rng(0)
    if is_of_rows:
        model, groups = of_rows, None
        args = rng.normal(size=40), rng.random(40) < 0.8, rng.normal(size=40)
    else:
        model, groups = of_groups, "group"
        args = np.repeat(np.arange(8), 5), rng.normal(size=8), rng.random(8) < 0.6
        args = *args, rng.normal(size=40)
    with pytest.raises(ModelError, match=r"obs_mask.*handlers\.mask"):
        group_likelihood(model, args, groups=groups)
