"""Regressions of counts, classes and answers: one likelihood each."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

from tests.users_models.case import NUM_ROWS, Case, covariates
from tests.users_models.regressions import coefficients, in_float32


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def bernoulli_logits() -> Case:
    rng, x = covariates(100)
    y = (rng.random(NUM_ROWS) < sigmoid(x @ [-0.5, 1, -0.5])).astype(int)

    def model(X, y=None):
        logits = X @ coefficients(X)
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return Case(model, (x, y))


def bernoulli_probs() -> Case:
    """Probit regression, with labels that are boolean."""
    rng, x = covariates(101)
    y = x @ [-0.5, 1, -0.5] + rng.normal(size=NUM_ROWS) > 0

    def model(X, y=None):
        p = jax.scipy.stats.norm.cdf(X @ coefficients(X))
        p = jnp.clip(p, 1e-6, 1 - 1e-6)
        numpyro.sample("y", dist.Bernoulli(probs=p), obs=y)

    return Case(model, (x, y))


def binomial() -> Case:
    rng, x = covariates(102)
    trials = rng.integers(1, 30, size=NUM_ROWS)
    y = rng.binomial(trials, sigmoid(x @ [-0.5, 0.6, -0.3]))

    def model(x, trials, y=None):
        beta = coefficients(x)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Binomial(trials, logits=x @ beta), obs=y)

    return Case(model, (x, trials, y))


def beta_binomial() -> Case:
    rng, x = covariates(103)
    trials = rng.integers(5, 30, size=NUM_ROWS)
    mean = sigmoid(x @ [-0.5, 0.6, -0.3])
    y = rng.binomial(trials, rng.beta(8 * mean, 8 * (1 - mean)))

    def model(x, trials, y=None):
        mean = jax.nn.sigmoid(x @ coefficients(x))
        phi = numpyro.sample("phi", dist.LogNormal(2, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.BetaBinomial(mean * phi, (1 - mean) * phi, trials), obs=y)

    return Case(model, (x, trials, y))


def poisson_exposure() -> Case:
    """An offset of the logarithm of the exposure, given by keyword."""
    rng, x = covariates(104)
    exposure = rng.uniform(0.5, 5, size=NUM_ROWS).astype(np.float32)
    y = rng.poisson(exposure * np.exp(x @ [0.3, 0.4, -0.3]))

    def model(x, exposure=None, y=None):
        log_rate = x @ coefficients(x) + jnp.log(exposure)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("claims", dist.Poisson(jnp.exp(log_rate)), obs=y)

    return Case(model, (x,), {"exposure": exposure, "y": y})


def negative_binomial() -> Case:
    rng, x = covariates(105)
    y = rng.poisson(np.exp(x @ [1, 0.4, -0.3]) * rng.gamma(3, 1 / 3, NUM_ROWS))

    def model(x, y=None):
        beta, phi = coefficients(x), numpyro.sample("phi", dist.Exponential(0.1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ beta), phi), obs=y)

    return Case(model, (x, y))


def geometric() -> Case:
    rng, x = covariates(106)
    y = rng.geometric(sigmoid(x @ [-1, 0.4, -0.3])) - 1

    def model(x, y=None):
        beta = coefficients(x)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Geometric(logits=x @ beta), obs=y)

    return Case(model, (x, y))


def zero_inflated_poisson() -> Case:
    rng, x = covariates(107)
    y = rng.poisson(np.exp(x @ [1, 0.4, -0.3])) * (rng.random(NUM_ROWS) < 0.7)

    def model(x, y=None):
        beta, gate = coefficients(x), numpyro.sample("gate", dist.Beta(1, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(x @ beta)), obs=y)

    return Case(model, (x, y))


def zero_inflated_negative_binomial() -> Case:
    """The share of extra zeros depends on a covariate too."""
    rng, x = covariates(108)
    y = rng.poisson(np.exp(x @ [1.5, 0.4, -0.3]) * rng.gamma(4, 1 / 4, NUM_ROWS))
    y = y * (rng.random(NUM_ROWS) < sigmoid(x @ [1.0, 0.8, 0]))

    def model(x, y=None):
        beta, phi = coefficients(x), numpyro.sample("phi", dist.Gamma(2, 0.5))
        gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([2]).to_event(1))
        counts = dist.NegativeBinomial2(jnp.exp(x @ beta), phi)
        inflated = dist.ZeroInflatedDistribution(counts, gate_logits=x[:, :2] @ gamma)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", inflated, obs=y)

    return Case(model, (x, y))


def hurdle_poisson() -> Case:
    """Whether there are any, and how many, in two parts of one factor for each row."""
    rng, x = covariates(109)
    rate = np.exp(x @ [0.8, 0.4, -0.3])
    positive = np.maximum(rng.poisson(rate), 1)
    y = positive * (rng.random(NUM_ROWS) < sigmoid(x @ [0.5, -0.6, 0]))

    def model(x, y):
        beta = coefficients(x)
        gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([2]).to_event(1))
        rate = jnp.exp(x @ beta)
        is_zero = dist.Bernoulli(logits=x[:, :2] @ gamma).log_prob(y == 0)
        counts = dist.Poisson(rate).log_prob(y) - jnp.log(-jnp.expm1(-rate))
        with numpyro.plate("data", x.shape[0]):
            numpyro.factor("hurdle", is_zero + jnp.where(y > 0, counts, 0.0))

    return Case(model, (x, y))


def hurdle_lognormal() -> Case:
    """Costs that are zero for many, by NumPyro's own distribution."""
    rng, x = covariates(110)
    y = np.exp(x @ [1, 0.4, -0.3] + 0.7 * rng.normal(size=NUM_ROWS)) * (rng.random(NUM_ROWS) < 0.6)

    def model(x, y=None):
        beta, gate = coefficients(x), numpyro.sample("gate", dist.Uniform(0, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.HurdleLogNormal(gate=gate, loc=x @ beta, scale=sigma), obs=y)

    return Case(model, (x, *in_float32(y)))


def ordered_logistic() -> Case:
    rng, x = covariates(111)
    latent = x[:, 1:] @ [1, -0.5] + rng.logistic(size=NUM_ROWS)
    y = np.digitize(latent, [-1.5, 0, 1.5])

    def model(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([2]).to_event(1))
        ordered = dist.transforms.OrderedTransform()
        cuts = numpyro.sample(
            "cuts", dist.TransformedDistribution(dist.Normal(0, 2).expand([3]).to_event(1), ordered)
        )
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("rating", dist.OrderedLogistic(x[:, 1:] @ beta, cuts), obs=y)

    return Case(model, (x, y))


def categorical() -> Case:
    """Three classes; the first one's scores are zero."""
    rng, x = covariates(112)
    scores = np.hstack([np.zeros((NUM_ROWS, 1)), x @ [[0.3, -0.2], [1, -1], [0.5, 0.5]]])
    y = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)

    def model(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([3, 2]).to_event(2))
        logits = jnp.concatenate([jnp.zeros((x.shape[0], 1)), x @ beta], axis=1)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return Case(model, (x, y))


def multinomial() -> Case:
    """Votes of a precinct for three parties."""
    rng, x = covariates(113, 1)
    shares = np.exp(x @ np.array([[0.5, 0.2, 0], [0.4, -0.4, 0]]))
    shares /= shares.sum(1, keepdims=True)
    total = rng.integers(20, 80, size=NUM_ROWS)
    y = rng.multinomial(total, shares)

    def model(x, total, votes=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2, 2]).to_event(2))
        logits = jnp.concatenate([x @ beta, jnp.zeros((x.shape[0], 1))], -1)
        with numpyro.plate("precincts", x.shape[0]):
            counts = dist.Multinomial(total, logits=logits, total_count_max=80)
            numpyro.sample("votes", counts, obs=votes)

    return Case(model, (x, total), {"votes": y})


def bradley_terry() -> Case:
    """Matches between eight players, whose strengths add up to zero."""
    rng = np.random.default_rng(114)
    strength = np.linspace(-1, 1, 8)
    home = rng.integers(8, size=NUM_ROWS)
    away = (home + rng.integers(1, 8, size=NUM_ROWS)) % 8
    won = (rng.random(NUM_ROWS) < sigmoid(0.3 + strength[home] - strength[away])).astype(int)

    def model(home, away, won=None):
        advantage = numpyro.sample("advantage", dist.Normal(0, 1))
        strength = numpyro.sample("strength", dist.ZeroSumNormal(1.0, event_shape=(8,)))
        with numpyro.plate("matches", home.shape[0]):
            logits = advantage + strength[home] - strength[away]
            numpyro.sample("won", dist.Bernoulli(logits=logits), obs=won)

    return Case(model, (home, away), {"won": won})


def item_response() -> Case:
    """The Rasch model in long form: who answered which item, and whether the answer was right."""
    rng = np.random.default_rng(115)
    person, item = rng.integers(12, size=5000), rng.integers(6, size=5000)
    ability, difficulty = rng.normal(size=12), np.linspace(-1.5, 1.5, 6)
    right = (rng.random(5000) < sigmoid(ability[person] - difficulty[item])).astype(int)

    def model(person, item, right=None):
        with numpyro.plate("persons", 12):
            ability = numpyro.sample("ability", dist.Normal(0, 1))
        with numpyro.plate("items", 6):
            difficulty = numpyro.sample("difficulty", dist.Normal(0, 2))
        with numpyro.plate("answers", person.shape[0]):
            logits = ability[person] - difficulty[item]
            numpyro.sample("right", dist.Bernoulli(logits=logits), obs=right)

    return Case(model, (person, item, right))


def item_response_integrated() -> Case:
    """Two parameters an item; the ability of a person, a row of answers, is summed out."""
    rng = np.random.default_rng(116)
    slope, difficulty = np.array([0.8, 1.2, 1.6, 1.0]), np.array([-1.0, -0.3, 0.4, 1.0])
    ability = rng.normal(size=(NUM_ROWS, 1))
    answers = (rng.random((NUM_ROWS, 4)) < sigmoid(slope * ability - difficulty)).astype(int)
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    nodes, log_weights = in_float32(nodes, np.log(weights / weights.sum()))

    def model(answers):
        slope = numpyro.sample("slope", dist.LogNormal(0, 0.5).expand([4]).to_event(1))
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 2).expand([4]).to_event(1))
        logits = slope * nodes[:, None] - difficulty
        with numpyro.plate("persons", answers.shape[0]):
            each = dist.Bernoulli(logits=logits).log_prob(answers[:, None, :]).sum(-1)
            numpyro.factor("answers", logsumexp(each + log_weights, axis=-1))

    return Case(model, (answers,))


POSTERIORS = [
    bernoulli_logits,
    bernoulli_probs,
    binomial,
    beta_binomial,
    poisson_exposure,
    negative_binomial,
    geometric,
    zero_inflated_poisson,
    zero_inflated_negative_binomial,
    hurdle_poisson,
    hurdle_lognormal,
    ordered_logistic,
    categorical,
    multinomial,
    bradley_terry,
    item_response,
    item_response_integrated,
]
