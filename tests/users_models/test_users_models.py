"""Models as users write them: the reported divergence is the true one, and the means are right."""

import jax
import pytest

import jaxcoreset as jc
from tests.users_models.models import POSTERIORS, REFUSALS
from tests.users_models.truth import Distance, distance, truths

# How each model's coreset is built, but for the settings that its user must give.
SETTINGS = {"tol": 0.01, "progress_bar": False}
# The reported divergence is between these times the true one.
RATIOS = 0.5, 2.0
# Smaller divergences than this one are compared as if they were as large. A float32 sum over 2,000
# rows, of a few thousand nats, is off by some 1e-3 nats, and its variance by 1e-6.
FLOOR = 1e-5
# No posterior mean is off by more standard deviations.
MEAN_ERROR = 0.05


def is_calibrated(coreset: jc.Coreset, found: Distance) -> bool:
    """True if the reported divergence is near the true one, and the means are right."""
    ratio = max(coreset.report.kl, FLOOR) / max(found.kl, FLOOR)
    return RATIOS[0] <= ratio <= RATIOS[1] and found.mean_error <= MEAN_ERROR


@pytest.mark.parametrize("name", POSTERIORS)
@pytest.mark.filterwarnings("ignore:the density of the weighted rows has a mode")
@pytest.mark.filterwarnings("ignore:the coreset's log-density")
def test_reported_divergence_is_the_true_one_and_means_are_right(name):
    case, truth = POSTERIORS[name](), truths()[name]
    builder = jc.CoresetBuilder(case.model, **(SETTINGS | case.settings))
    coreset = builder.run(jax.random.key(0), *case.args, **case.kwargs)
    found = distance(case, coreset, truth)
    # The draws are worth enough, and are of the posterior that the file tells of.
    assert found.khat < 0.5
    assert found.ess > 500
    assert found.displacement < 5 / found.ess**0.5
    assert is_calibrated(coreset, found), (coreset.report.kl, found)


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_says_what_is_wrong(name):
    case = REFUSALS[name]()
    builder = jc.CoresetBuilder(case.model, **(SETTINGS | case.settings))
    with pytest.raises(ValueError, match=case.refusal):
        builder.run(jax.random.key(0), *case.args, **case.kwargs)


def test_every_truth_is_of_a_model():
    assert set(truths()) == set(POSTERIORS)
