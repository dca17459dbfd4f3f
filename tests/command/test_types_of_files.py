"""Types of columns: the model gets the numbers of the file, and the output keeps its values."""

import numpy as np
import pandas as pd
import pytest
from numpyro.infer.util import log_density

import jaxcoreset as jc
from jaxcoreset.command import main as cli
from jaxcoreset.command.inputs import model_inputs
from jaxcoreset.command.tables import read_table

RNG = np.random.default_rng(0)

SURVIVAL = """
import numpyro
import numpyro.distributions as dist

def survival(t, censored):
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", t.shape[0]):
        with numpyro.handlers.mask(mask=~censored):
            numpyro.sample("t", dist.Exponential(rate), obs=t)
        with numpyro.handlers.mask(mask=censored):
            numpyro.factor("later", -rate * t)

def matrix(X, t):
    pass
"""


def build(*arguments):
    return cli.main(["build", *map(str, arguments), "--no-progress"])


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_model_may_negate_a_column_of_true_and_false(suffix, tmp_path):
    """The log density of censored times has a closed form: d log(rate) - rate sum(t)."""
    t = RNG.exponential(1.0, 64)
    frame = pd.DataFrame({"t": np.minimum(t, 1.0), "censored": t > 1.0})
    model, file = tmp_path / f"survival_{suffix[1:]}.py", tmp_path / f"times{suffix}"
    model.write_text(SURVIVAL, encoding="utf-8")
    if suffix == ".npz":
        np.savez(file, **{name: frame[name].to_numpy() for name in frame})
    else:
        getattr(frame, f"to_{suffix[1:]}")(file, index=False)
    out = tmp_path / "coreset.npz"
    assert build(file, "--model", f"{model}:survival", "--size", 64, "--out", out) == 0
    coreset = jc.load(out, trust=True)
    at = [float(log_density(coreset.model, (), coreset.kwargs, {"rate": r})[0]) for r in (0.5, 2.0)]
    likelihood = np.log(4.0) * (t <= 1.0).sum() - 1.5 * frame["t"].sum()
    # The normal densities of log 2 and log 1/2 are equal, so the prior's differ by log 4.
    assert at[1] - at[0] == pytest.approx(likelihood - np.log(4.0), rel=1e-5)
    numbers = model_inputs(read_table(file), f"{model}:matrix", columns=["censored"])
    np.testing.assert_array_equal(numbers.arguments["X"][:, 0], (t > 1.0).astype(int))
    assert numbers.arguments["X"].dtype == np.int64
