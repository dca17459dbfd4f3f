"""Stan through R: rstan with Stan's functions for generalised linear models, and brms.

Both need Rscript and R's packages, and compile a program for each model, which the first run's time
includes. Data and draws go through binary files.
"""

import functools
import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.posteriors.case import Case
from benchmarks.posteriors.methods.common import NUM_WARMUP
from benchmarks.posteriors.methods.regressions import Regression, regression_of
from benchmarks.posteriors.outcome import Missing, Outcome

_READ = """
suppressPackageStartupMessages({library(rstan); library(jsonlite)})
rstan_options(auto_write = TRUE)
# Debian's package of Boost has no headers of its own.
if (!nzchar(system.file("include", package = "BH"))) rstan_options(boost_lib = "/usr/include")
folder <- commandArgs(TRUE)[1]
at <- function(name) file.path(folder, name)
given <- fromJSON(at("given.json"))
read <- function(name, n) readBin(at(name), "double", n)
X <- matrix(read("X", given$N * given$K), given$N, given$K)
y <- as.integer(read("y", given$N))
off <- if (given$offset_by_row) read("offset", given$N) else given$offset
group <- if (given$G > 0) as.integer(read("group", given$N)) + 1L else NULL
"""
_WRITE = """
writeBin(as.numeric(draws), at("draws"))
write(toJSON(list(names = colnames(draws), rows = nrow(draws))), at("drawn.json"))
"""
_RSTAN = """
model <- stan_model(at("model.stan"))
data <- list(N = given$N, K = given$K, X = X, y = y, off = off, scales = as.array(given$scales),
             G = given$G, P = given$P,
             mixing = matrix(as.numeric(unlist(given$mixing)), given$P, given$K))
if (given$G > 0) data$group <- group
fit <- sampling(model, data, chains = 1, warmup = given$warmup, seed = given$seed, refresh = 0,
                iter = given$warmup + given$draws, pars = given$keep)
draws <- as.matrix(fit, pars = given$keep)
"""
_BRMS = """
suppressPackageStartupMessages(library(brms))
d <- as.data.frame(X)
names(d) <- paste0("x", seq_len(given$K))
text <- paste("y ~ 0 +", paste(names(d), collapse = " + "), "+ offset(off)")
d$y <- y
d$off <- off
if (given$G > 0) { d$g <- group; text <- paste(text, "+ (1 | g)") }
families <- list("bernoulli" = bernoulli(), "poisson" = poisson(),
                 "negative binomial" = negbinomial())
scales <- given$scales
prior <- if (length(unique(scales)) == 1) {
  set_prior(sprintf("normal(0, %g)", scales[1]), class = "b")
} else {
  do.call(c, lapply(seq_along(scales), function(i)
    set_prior(sprintf("normal(0, %g)", scales[i]), class = "b", coef = paste0("x", i))))
}
if (given$G > 0) prior <- c(prior, set_prior("normal(0, 1)", class = "sd"))
if (given$family == "negative binomial")
  prior <- c(prior, set_prior("gamma(1, 0.2)", class = "shape"))
fit <- brm(as.formula(text), d, families[[given$family]], prior, chains = 1, backend = "rstan",
           warmup = given$warmup, iter = given$warmup + given$draws, seed = given$seed,
           refresh = 0, silent = 2)
draws <- as.matrix(fit)
wanted <- c(paste0("b_x", seq_len(given$K)), "shape", "sd_g__Intercept")
draws <- draws[, intersect(wanted, colnames(draws)), drop = FALSE]
colnames(draws) <- sub("sd_g__Intercept", "tau", sub("shape", "concentration", colnames(draws)))
"""


def stan_glm(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """NUTS by rstan, with Stan's `bernoulli_logit_glm`, `poisson_log_glm` or their like.

    One chain, 1,000 steps of warmup, all other settings Stan's own; effects of groups are
    standardised. In a second run the compiled model is found again.
    """
    found = regression_of(case, args)
    _require("rstan")
    keep = [name for name in _parameters(found) if name != "z"]
    draws = _run(case, found, _RSTAN, key, num_draws, keep, _program(found))
    return _outcome(found, draws, "theta" if found.mixing is not None else "beta")


def brms(case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int) -> Outcome:
    """R's brms (Bürkner, Journal of Statistical Software 2017) with the model's own priors.

    One chain, 1,000 steps of warmup, else the settings of `brm` and rstan; it compiles each time.
    """
    found = regression_of(case, args)
    if found.mixing is not None:
        raise Missing("a formula of brms does not have coefficients that are sums of parameters")
    _require("brms")
    return _outcome(found, _run(case, found, _BRMS, key, num_draws, [], ""), "b_x")


@functools.cache
def _version(package: str) -> str | None:
    if shutil.which("Rscript") is None:
        return None
    command = ["Rscript", "-e", f"cat(as.character(packageVersion('{package}')))"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def _require(package: str) -> None:
    for name in (package, "rstan", "jsonlite"):
        if _version(name) is None:
            raise Missing(f"Rscript with R's package {name} is not installed")


@functools.cache
def _folder(case: str) -> tempfile.TemporaryDirectory:
    """A folder that is kept for as long as this program runs, with its compiled model."""
    return tempfile.TemporaryDirectory(prefix=f"{case}-")


def _parameters(found: Regression) -> dict[str, str]:
    """Stan's declarations by name."""
    names = {"beta": "vector[K] beta;"}
    if found.mixing is not None:
        names = {"theta": "vector[P] theta;"}
    if found.family == "negative binomial":
        names["concentration"] = "real<lower=0> concentration;"
    if found.group is not None:
        names |= {"tau": "real<lower=0> tau;", "z": "vector[G] z;"}
    return names


def _program(found: Regression) -> str:
    """The model in Stan's language."""
    by_row = found.group is not None or np.ndim(found.offset) > 0
    group, lines = "", ["beta ~ normal(0, scales);"]
    if found.mixing is not None:
        lines = ["vector[K] beta = mixing' * theta;", "theta ~ cauchy(0, 1);"]
    if found.family == "negative binomial":
        lines.append("concentration ~ gamma(1, 0.2);")
    alpha = "off"
    if found.group is not None:
        group, alpha = "int group[N];", "off + tau * z[group]"
        lines += ["tau ~ normal(0, 1);", "z ~ std_normal();"]
    likelihood = {
        "bernoulli": f"bernoulli_logit_glm(X, {alpha}, beta)",
        "poisson": f"poisson_log_glm(X, {alpha}, beta)",
        "negative binomial": f"neg_binomial_2_log_glm(X, {alpha}, beta, concentration)",
    }[found.family]
    off = "vector[N] off;" if by_row and np.ndim(found.offset) else "real off;"
    return f"""
data {{
  int N; int K; int G; int P;
  matrix[N, K] X; int y[N]; {off} vector[K] scales; matrix[P, K] mixing; {group}
}}
parameters {{ {" ".join(_parameters(found).values())} }}
model {{
  {" ".join(lines)}
  y ~ {likelihood};
}}
"""


def _run(
    case: Case,
    found: Regression,
    script: str,
    key: Any,
    num_draws: int,
    keep: list[str],
    program: str,
) -> dict[str, np.ndarray]:
    """The columns of draws that a script of R makes of a regression."""
    folder = Path(_folder(case.name).name)
    n, count = found.X.shape
    mixing = np.zeros((0, count)) if found.mixing is None else found.mixing
    arrays = {"X": found.X.T, "y": found.y}
    if isinstance(found.offset, np.ndarray):
        arrays["offset"] = found.offset
    if found.group is not None:
        arrays["group"] = found.group
    for name, values in arrays.items():
        np.ascontiguousarray(values, np.float64).tofile(folder / name)
    given = {
        "N": n,
        "K": count,
        "G": found.num_groups,
        "P": len(mixing),
        "mixing": mixing.tolist(),
        "scales": found.scales.tolist(),
        "family": found.family,
        "offset_by_row": bool(np.ndim(found.offset)),
        "offset": None if np.ndim(found.offset) else found.offset,
        "warmup": NUM_WARMUP,
        "draws": num_draws,
        "seed": int(jax.random.randint(key, (), 1, 2**30)),
        "keep": keep,
    }
    (folder / "given.json").write_text(json.dumps(given))
    # A file that is not written again keeps its compiled model.
    model = folder / "model.stan"
    if program and not (model.is_file() and model.read_text() == program):
        model.write_text(program)
    (folder / "run.R").write_text(_READ + script + _WRITE)
    command = ["Rscript", str(folder / "run.R"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
        raise Missing("R was ended at the limit of processor time")
    if done.returncode != 0:
        raise RuntimeError(f"Rscript failed: {done.stderr[-2000:]}")
    drawn = json.loads((folder / "drawn.json").read_text())
    values = np.fromfile(folder / "draws").reshape(-1, drawn["rows"][0])
    return dict(zip(drawn["names"], values, strict=True))


def _outcome(found: Regression, columns: Mapping[str, np.ndarray], prefix: str) -> Outcome:
    """The draws by site, from columns by the names of Stan's parameters."""
    scalars = {"concentration", "tau"} & set(columns)
    rest = [values for name, values in columns.items() if name.startswith(prefix)]
    if found.mixing is None:
        draws = found.split(np.column_stack(rest))
    else:
        draws = {"theta": np.column_stack(rest)}
    return Outcome(draws | {name: columns[name] for name in scalars})
