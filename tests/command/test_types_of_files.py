"""Types of columns: the model gets the numbers of the file, and the output keeps its values."""

import numpy as np
import pandas as pd
import pytest
from numpyro.infer.util import log_density

import jaxcoreset as jc
from jaxcoreset.command import main as cli
from jaxcoreset.command.inputs import formula_inputs, model_inputs
from jaxcoreset.command.tables import TableError, read_table

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
        np.savez(file, t=frame["t"].to_numpy(), censored=frame["censored"].to_numpy())
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


A, B = RNG.integers(-128, 128, (2, 60))
SMALL = pd.DataFrame({"a": A, "b": B, "half": RNG.normal(0, 8, 60).astype(np.float16)})
SMALL["late"] = RNG.integers(0, 2, 60)
EXPECTED = {
    "I(a ** 2)": A.astype(float) ** 2,
    "a - b": (A - B).astype(float),
    "a:b": (A * B).astype(float),
    "I(half ** 2)": SMALL["half"].astype(float).to_numpy() ** 2,
    "C(c)[T.3]": (np.abs(A) % 4 == 3).astype(float),
    "C(c // 2)[T.1]": (np.abs(A) % 4 >= 2).astype(float),
    "a:C(short)[1.5]": np.where(B > 0, A, 0.0),
    "huge:b": 2**50 * A.astype(float) * B,
}


@pytest.mark.parametrize("dtype", ["int8", "int16", "Int8", "float32", "int64"])
def test_a_formula_does_not_compute_in_the_types_of_the_file(dtype, tmp_path):
    """Compared with the same terms in float64. Categories keep the names of the file."""
    pytest.importorskip("formulaic")
    path = tmp_path / "small.parquet"
    written = SMALL.astype({"a": dtype, "b": dtype}).assign(huge=2**50 * A)
    written["c"] = (np.abs(A) % 4).astype(np.uint8)
    written["short"] = np.where(B > 0, 1.5, 0.5).astype(np.float32)
    written["id"] = 2**60 + np.arange(60) % 3
    written.to_parquet(path)
    terms = "I(a**2) + {a - b} + a:b + I(half**2) + C(c) + C(c // 2) + a:C(short) + huge:b + C(id)"
    found = formula_inputs(read_table(path), "logistic", f"late ~ {terms}", scale_columns=False)
    x = dict(zip(found.coefficients, found.arguments["x"].T, strict=True))
    for name, values in EXPECTED.items():
        np.testing.assert_allclose(x[name], values, rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(x[f"C(id)[T.{2**60 + 1}]"], np.arange(60) % 3 == 1)
    with pytest.raises(TableError, match=r"column 'id': float64 cannot tell 1152921504606846977"):
        formula_inputs(read_table(path), "logistic", "late ~ C(id) + I(id - 1)")
