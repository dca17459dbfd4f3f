"""Estimates by R's lme4 (Bates et al. 2015), where Rscript and lme4 are installed."""

import functools
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.groups.models import FORMULAS, Data

_SCRIPT = """
suppressPackageStartupMessages(library(lme4))
given <- commandArgs(TRUE)
d <- read.csv(given[1])
begin <- proc.time()[["user.self"]]
formula <- as.formula(given[2])
if (given[3] == "gaussian") {
  fit <- lmer(formula, d, REML = FALSE, control = lmerControl(calc.derivs = FALSE))
} else {
  fit <- glmer(formula, d, family = given[3], nAGQ = as.integer(given[4]),
               control = glmerControl(calc.derivs = FALSE))
}
cat("seconds", proc.time()[["user.self"]] - begin, "\\n")
cat("beta", fixef(fit), "\\n")
cat("tau", as.data.frame(VarCorr(fit))$sdcor, "\\n")
"""
_FAMILIES = {"normal": "gaussian", "Poisson": "poisson"}


@functools.cache
def version() -> str | None:
    """The version of lme4; None, with a message, where it is missing."""
    if shutil.which("Rscript") is not None:
        command = ["Rscript", "-e", "cat(as.character(packageVersion('lme4')))"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    print("lme4 is skipped: expected Rscript and R's package lme4")
    return None


def within(command: list[str], limit: float | None) -> str | None:
    """What a program prints; None if it takes more than `limit` seconds of processor time."""
    if limit is not None:
        command = ["sh", "-c", f'ulimit -t {int(limit)}; exec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True)
    if limit is not None and -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
        return None
    if done.returncode != 0:
        raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
    return done.stdout


def estimate(data: Data, limit: float) -> dict[str, Any] | None:
    """The estimates of the shared parameters, in the order of the model's sites, and the seconds.

    Args:
        data: the data.
        limit: the seconds of processor time after which lme4 is ended; None is returned then.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        columns = np.column_stack([data.X[:, 1:], data.group, data.y])
        header, form = "x1,x2,g,y", ["%.7g", "%.7g", "%d", "%.7g"]
        np.savetxt(path, columns, fmt=form, delimiter=",", header=header, comments="")
        family = _FAMILIES.get(data.kind, "binomial")
        nodes = "1" if data.kind == "slopes" else "9"
        command = ["Rscript", "-e", _SCRIPT, str(path), FORMULAS[data.kind], family, nodes]
        printed = within(command, limit)
    if printed is None:
        return None
    found = {name: values for name, *values in map(str.split, printed.splitlines())}
    numbers = {name: [float(value) for value in values] for name, values in found.items()}
    beta, tau = numbers["beta"], numbers["tau"]
    names = {f"beta[{i}]": value for i, value in enumerate(beta)}
    if data.kind == "normal":
        names["sigma"] = tau.pop()
    names |= {f"tau[{i}]" if len(tau) > 1 else "tau": value for i, value in enumerate(tau)}
    return {"seconds": numbers["seconds"][0], "estimates": names}
