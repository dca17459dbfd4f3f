"""Programs that use a coreset outside of jaxcoreset: brms, Stan, PyMC and NumPyro.

In all of them row i's log-likelihood is multiplied by its weight. The columns are scaled by the
means and standard deviations of *all* rows, as when the coreset was built: those of the few rows
are other numbers.
"""

import json
import re
from pathlib import Path

from jaxcoreset.command.inputs import Inputs
from jaxcoreset.command.tables import MIDNIGHT


def programs(inputs: Inputs, path: Path, weight: str = "weight") -> dict[str, str]:
    """Complete programs for a regression by name, by the tool's name.

    Args:
        inputs: of `regression_inputs`.
        path: the coreset's file; ``.csv`` or ``.parquet``, with the table's own columns.
        weight: the name of the weights' column.
    """
    assert inputs.likelihood is not None
    scale = float(inputs.arguments["prior_scale"])
    prepared = _prepare_python(inputs, path, weight)
    return {
        "R, with brms": _brms(inputs, path, weight, scale),
        "Stan": _stan(inputs, scale),
        "Python, to run the Stan program": prepared + _CMDSTANPY.replace("CLASSES", _k(inputs)),
        "Python, with PyMC": prepared + _pymc(inputs, scale),
        "Python, with NumPyro": prepared + _numpyro(inputs, scale),
    }


def _k(inputs: Inputs) -> str:
    return f', "K": {len(inputs.classes)}' if inputs.classes else ""


def _prepare_python(inputs: Inputs, path: Path, weight: str) -> str:
    reader = "read_parquet" if path.suffix == ".parquet" else "read_csv"
    response = str(inputs.response)
    factors = _factors(inputs)
    # as text, or the category 01 would be read as 1, and NA as a missing value
    as_text = ", ".join(f"{_text(name)}: str" for name in factors)
    more = f", dtype={{{as_text}}}, keep_default_na=False" if factors else ""
    lines = ["import pandas as pd", ""]
    lines += _CODES if factors else []
    lines.append(f"d = pd.{reader}({_text(path.name)}{more if reader == 'read_csv' else ''})")
    if inputs.scaling:
        lines.append("# the means and standard deviations of all rows, not of the coreset")
    for name, (mean, sd) in inputs.scaling.items():
        column = f"d[{_text(name)}]"
        lines.append(f"{column} = ({column} - {mean!r}) / {sd!r}")
    plain = [name for name in inputs.columns if name not in inputs.levels]
    lines.append(f"x = d[[{', '.join(map(_text, plain))}]].astype(float)")
    for name, levels in inputs.levels.items():
        lines.append(f"code = {_coded(inputs, name, levels)}")
        for place, level in enumerate(levels[1:], start=1):
            lines.append(f"x[{_text(f'{name} = {level}')}] = (code == {place}).astype(float)")
    if inputs.levels:
        lines.append(f"x = x[[{', '.join(map(_text, inputs.coefficients))}]]")
    if inputs.classes:
        lines.append(f"y = {_coded(inputs, response, inputs.classes)}")
    else:
        kind = "float" if inputs.likelihood in ("normal", "student_t") else "int"
        lines.append(f"y = d[{_text(response)}].astype({kind}).to_numpy()")
    lines += ["x = x.to_numpy()", f"weight = d[{_text(weight)}].to_numpy()", ""]
    return "\n".join(lines) + "\n"


_CODES = """\
def codes(values, levels):
    found = pd.Index(levels).get_indexer(values)
    if (found < 0).any():
        raise ValueError(f"{values.name} has a value that is none of {levels}")
    return found

""".splitlines()


def _factors(inputs: Inputs) -> dict[str, list[str]]:
    """The columns of categories, a categorical response last, with their categories."""
    return inputs.levels | ({str(inputs.response): inputs.classes} if inputs.classes else {})


def _coded(inputs: Inputs, name: str, levels: list[str]) -> str:
    """An expression for a column's categories as numbers from 0."""
    values = f"d[{_text(name)}]"
    if inputs.kinds.get(name) == "date":  # how pandas writes one depends on the others
        values = f'pd.to_datetime({values}, format="ISO8601").map(str)'
        values += f".str.removesuffix({_text(MIDNIGHT)})"
    else:
        values += ".astype(str)"
    return f"codes({values}, [{', '.join(map(_text, levels))}])"


_CMDSTANPY = """from cmdstanpy import CmdStanModel

data = {"N": len(y), "D": x.shape[1], "x": x, "y": y, "weight": weightCLASSES}
fit = CmdStanModel(stan_file="model.stan").sample(data, seed=1)
print(fit.summary())
"""

# By likelihood: further parameters, their priors, and the log-likelihood of row n.
_STAN_TERMS = {
    "logistic": ((), (), "bernoulli_logit_lpmf(y[n] | eta[n])"),
    "poisson": ((), (), "poisson_log_lpmf(y[n] | eta[n])"),
    "normal": (
        ("real<lower=0> sigma;",),
        ("sigma ~ normal(0, SCALE);",),
        "normal_lpdf(y[n] | eta[n], sigma)",
    ),
    "student_t": (
        ("real<lower=0> sigma;", "real<lower=0> nu;"),
        ("sigma ~ normal(0, SCALE);", "nu ~ gamma(2, 0.1);"),
        "student_t_lpdf(y[n] | nu, eta[n], sigma)",
    ),
    "negative_binomial": (
        ("real<lower=0> phi;",),
        ("phi ~ lognormal(0, 2);",),
        "neg_binomial_2_log_lpmf(y[n] | eta[n], phi)",
    ),
}
_STAN_RESPONSE = {
    "logistic": "array[N] int<lower=0, upper=1> y;",
    "poisson": "array[N] int<lower=0> y;",
    "normal": "vector[N] y;",
    "student_t": "vector[N] y;",
    "negative_binomial": "array[N] int<lower=0> y;",
}


def _stan(inputs: Inputs, scale: float) -> str:
    likelihood = str(inputs.likelihood)
    if likelihood == "categorical":
        return _STAN_CATEGORICAL.replace("SCALE", f"{scale:g}").replace("WIDE", f"{4 * scale:g}")
    parameters, priors, term = _STAN_TERMS[likelihood]
    lines = [
        "// model.stan",
        "data {",
        "  int<lower=1> N;",
        "  int<lower=1> D;",
        "  matrix[N, D] x;",
        f"  {_STAN_RESPONSE[likelihood]}",
        "  vector<lower=0>[N] weight;",
        "}",
        "parameters {",
        "  real intercept;",
        "  vector[D] beta;",
        *(f"  {line}" for line in parameters),
        "}",
        "model {",
        "  vector[N] eta = intercept + x * beta;",
        f"  intercept ~ normal(0, {4 * scale:g});",
        f"  beta ~ normal(0, {scale:g});",
        *(f"  {line}" for line in priors),
        "  for (n in 1:N) {",
        f"    target += weight[n] * {term};",
        "  }",
        "}",
    ]
    return "\n".join(lines).replace("SCALE", f"{scale:g}") + "\n"


_STAN_CATEGORICAL = """// model.stan; y counts the classes from 0, as Python does
data {
  int<lower=1> N;
  int<lower=1> D;
  int<lower=2> K;
  matrix[N, D] x;
  array[N] int<lower=0, upper=K - 1> y;
  vector<lower=0>[N] weight;
}
parameters {
  vector[K - 1] intercept;
  matrix[D, K - 1] beta;
}
model {
  intercept ~ normal(0, WIDE);
  to_vector(beta) ~ normal(0, SCALE);
  for (n in 1:N) {
    vector[K] eta = append_row(0, intercept + (x[n] * beta)');
    target += weight[n] * categorical_logit_lpmf(y[n] + 1 | eta);
  }
}
"""

_PYMC_TERMS = {
    "logistic": ((), "pm.Bernoulli.dist(logit_p=eta)"),
    "poisson": ((), "pm.Poisson.dist(mu=pm.math.exp(eta))"),
    "normal": (
        ('sigma = pm.HalfNormal("sigma", SCALE)',),
        "pm.Normal.dist(mu=eta, sigma=sigma)",
    ),
    "student_t": (
        ('sigma = pm.HalfNormal("sigma", SCALE)', 'nu = pm.Gamma("nu", alpha=2, beta=0.1)'),
        "pm.StudentT.dist(nu=nu, mu=eta, sigma=sigma)",
    ),
    "negative_binomial": (
        ('phi = pm.LogNormal("phi", 0, 2)',),
        "pm.NegativeBinomial.dist(mu=pm.math.exp(eta), alpha=phi)",
    ),
    "categorical": ((), "pm.Categorical.dist(logit_p=eta)"),
}


def _pymc(inputs: Inputs, scale: float) -> str:
    priors, distribution = _PYMC_TERMS[str(inputs.likelihood)]
    if inputs.classes:
        others = len(inputs.classes) - 1
        shape, wide = f"shape=(x.shape[1], {others})", f", shape={others}"
    else:
        shape, wide = "shape=x.shape[1]", ""
    lines = [
        "import pymc as pm",
        "",
        "with pm.Model():",
        f'    intercept = pm.Normal("intercept", 0, {4 * scale:g}{wide})',
        f'    beta = pm.Normal("beta", 0, {scale:g}, {shape})',
        *(f"    {line}".replace("SCALE", f"{scale:g}") for line in priors),
        "    eta = intercept + pm.math.dot(x, beta)",
    ]
    if inputs.classes:
        lines.append("    eta = pm.math.concatenate([pm.math.zeros_like(eta[:, :1]), eta], axis=1)")
    lines += [
        f"    log_likelihood = pm.logp({distribution}, y)",
        '    pm.Potential("weighted", pm.math.sum(weight * log_likelihood))',
        "    trace = pm.sample(random_seed=1)",
    ]
    return "\n".join(lines) + "\n"


def _numpyro(inputs: Inputs, scale: float) -> str:
    classes = f"num_classes={len(inputs.classes)}, " if inputs.classes else ""
    return f"""import jax
import jaxcoreset as jc
from jaxcoreset.command.regressions import {inputs.likelihood}
from numpyro.infer import MCMC, NUTS

model = jc.weighted_model({inputs.likelihood}, weight, data_dims={{"y": -1}})
mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=1000)
mcmc.run(jax.random.key(1), x, y, {classes}prior_scale={scale!r})
mcmc.print_summary()
"""


_BRMS_FAMILIES = {
    "logistic": "bernoulli()",
    "poisson": "poisson()",
    "normal": "gaussian()",
    "student_t": "student()",
    "negative_binomial": "negbinomial()",
    "categorical": "categorical(refcat = REFERENCE)",
}
_BRMS_PRIORS = {
    "normal": ['set_prior("normal(0, SCALE)", class = "sigma")'],
    "student_t": [
        'set_prior("normal(0, SCALE)", class = "sigma")',
        'set_prior("gamma(2, 0.1)", class = "nu")',
    ],
    "negative_binomial": ['set_prior("lognormal(0, 2)", class = "shape")'],
}


def _brms(inputs: Inputs, path: Path, weight: str, scale: float) -> str:
    likelihood = str(inputs.likelihood)
    response = str(inputs.response)
    factors = _factors(inputs)
    read = (
        f"d <- as.data.frame(arrow::read_parquet({_text(path.name)}))"
        if path.suffix == ".parquet"
        else f"d <- read.csv({_text(path.name)}, check.names = FALSE{_r_as_text(factors)})"
    )
    lines = ["library(brms)", "", read]
    if inputs.scaling:
        lines.append("# the means and standard deviations of all rows, not of the coreset")
    for name, (mean, sd) in inputs.scaling.items():
        column = f"d[[{_text(name)}]]"
        lines.append(f"{column} <- ({column} - {mean!r}) / {sd!r}")
    for name, levels in factors.items():
        column = f"d[[{_text(name)}]]"
        values = _r_values(column, inputs.kinds.get(name, "text"), path.suffix == ".parquet")
        lines.append(f"{column} <- factor({values}, levels = c({', '.join(map(_text, levels))}))")
        lines.append(f"stopifnot(!anyNA({column}))")
    if likelihood == "logistic":
        lines.append(f"d[[{_text(response)}]] <- as.integer(as.logical(d[[{_text(response)}]]))")
    # 0 + Intercept: otherwise brms puts the prior on the intercept of centred columns.
    terms = " + ".join(["0", "Intercept", *map(_r_name, inputs.columns)])
    priors = []
    for part in _brms_parts(inputs.classes):
        priors.append(f'set_prior("normal(0, {scale:g})", class = "b"{part})')
        priors.append(
            f'set_prior("normal(0, {4 * scale:g})", class = "b", coef = "Intercept"{part})'
        )
    priors += [line.replace("SCALE", f"{scale:g}") for line in _BRMS_PRIORS.get(likelihood, [])]
    family = _BRMS_FAMILIES[likelihood]
    if inputs.classes:
        family = family.replace("REFERENCE", _text(inputs.classes[0]))
    lines += [
        "",
        "fit <- brm(",
        f"  {_r_name(response)} | weights({_r_name(weight)}) ~ {terms},",
        f"  data = d, family = {family}, seed = 1,",
        "  prior = c(",
        ",\n".join(f"    {prior}" for prior in priors),
        "  )",
        ")",
        "summary(fit)",
    ]
    return "\n".join(lines) + "\n"


def _brms_parts(classes: list[str]) -> list[str]:
    """Of a categorical response every class but the first has coefficients of its own."""
    return [f', dpar = "mu{re.sub("[^A-Za-z0-9]", "", name)}"' for name in classes[1:]] or [""]


def _r_as_text(factors: dict[str, list[str]]) -> str:
    if not factors:
        return ""
    columns = ", ".join(f'{_text(name)} = "character"' for name in factors)
    return f", colClasses = c({columns}), na.strings = character()"


def _r_values(column: str, kind: str, parquet: bool) -> str:
    """An expression for a column's values, written as Python writes them."""
    if kind == "date":
        values = f'format({column}, "%Y-%m-%d %H:%M:%S", tz = "UTC")' if parquet else column
        return f'sub("{MIDNIGHT}([.]0+)?$", "", {values})'
    if kind == "truth" and parquet:
        return f'ifelse({column}, "True", "False")'
    if kind == "number" and parquet:
        return f'sub("^(-?[0-9]+)$", "\\\\1.0", as.character({column}))'
    return column


def _r_name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z.][A-Za-z0-9._]*", name) else f"`{name}`"


def _text(text: str) -> str:
    """A string as Python and R both write it."""
    return json.dumps(text, ensure_ascii=False)
