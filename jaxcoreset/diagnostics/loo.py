"""`loo`: leave-one-out cross-validation over all rows, from the draws of a coreset posterior."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpyro.infer import MCMC

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.arviz import elpd_data
from jaxcoreset.data.bad_rows import NUM_BAD_ROWS_SHOWN
from jaxcoreset.data.messages import warn_user
from jaxcoreset.data.processes import SINGLE_PROCESS
from jaxcoreset.data.rows import Rows, State
from jaxcoreset.data.utils import check_int, host_generator
from jaxcoreset.data.utils import progress_bar as bar_of
from jaxcoreset.diagnostics.leave_one_out import LeaveOneOut, block
from jaxcoreset.diagnostics.log_ratio import full_likelihood
from jaxcoreset.diagnostics.reweighted import reweighted_draws
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.observed import are_observed
from jaxcoreset.likelihood.trace import one_at_a_time
from jaxcoreset.solvers.numerics import as_key
from jaxcoreset.weighting.psis import khat_limit

# The numbers that a row becomes for each draw, beside its log-likelihood.
_WIDTH = 4


@one_at_a_time
def loo(
    coreset: Coreset,
    mcmc: MCMC | Mapping[str, Any],
    *args: Any,
    subsample: int | None = None,
    key: PRNGKeyArray | int | None = None,
    num_draws: int | None = 1000,
    likelihood: ModelLikelihood | None = None,
    batch_size: int | None = None,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Any:
    """Estimate how well the posterior of the other rows predicts each row that is left out.

    This is PSIS-LOO (Vehtari, Gelman and Gabry, Statistics and Computing 27, 2017) with draws of an
    approximation of the posterior (Magnusson, Andersen, Jonasson and Vehtari, ICML 2019): the
    importance weights are those from the coreset posterior to that of all rows but one. *All* rows
    are left out in turn, not only those of the coreset. It takes two passes over the rows: one for
    the weights, which is not needed if you pass a result of `correct`, and one that evaluates,
    smooths and reduces a block of rows at a time. It stores no array of size draws × rows.

    A row that the model masks entirely, by `numpyro.handlers.mask` or ``Distribution.mask``, is not
    an observation. As in ArviZ, it is in none of the results, and a model to compare with must mask
    the same rows. Of groups, those are left out that have no observed row.

    With a coreset of groups (``groups=``) the unit that is left out is a whole group: its effect is
    integrated out, and the result says how well a *new* group is predicted. It cannot be compared
    with the result of a model whose unit is a row.

    Args:
        coreset: the coreset.
        mcmc: see `certify`; or what `correct` returned, whose weights are then used.
        *args: see `certify`.
        subsample: how many rows to evaluate at all draws, chosen at random. All other rows are
            evaluated at one point only, the posterior mean of the unconstrained parameters, and the
            *difference estimator* corrects their sum (Magnusson, Vehtari, Jonasson and Andersen,
            AISTATS 2020). If None, all rows.
        key: a JAX random key or an integer seed, for `subsample`; use the same one for all models
            that you compare, so that they have the same rows.
        num_draws: see `certify`.
        likelihood: see `certify`.
        batch_size: see `certify`.
        progress_bar: see `certify`.
        **kwargs: see `certify`.

    Returns:
        ArviZ's `ELPDData`, in nats (scale "log"), for `arviz.compare`. It has one value per row in
        `loo_i` (ArviZ 0.23) or `elpd_i` (ArviZ 1), whose coordinates are the numbers of the rows,
        Pareto's k per row in `pareto_k`, and in `bad_rows` the numbers of the rows whose k is above
        `good_k`. With `subsample`, `subsampling_se` is the standard error due to the choice of the
        rows, `loo_subsample_observations` the positions of the rows chosen in these arrays, and
        `elpd_loo_approx` the approximation of each row. `pareto_k` is then NaN for rows that were
        not chosen, and their values are the approximation plus the mean correction, so that all
        values add up to the estimate.

    Raises:
        CorrectionError: if the draws cannot be reweighted; see `correct`.
        ValueError: see `certify`; or if there is no key and `subsample` needs one, `subsample` is
            below 2 or above the number of rows, or the model masks all rows.
        RuntimeError: see `certify`.
        ModuleNotFoundError: if ArviZ is not installed.
    """
    full = full_likelihood(coreset, args, kwargs, likelihood)
    n = full.num_data
    if subsample is not None:
        if check_int("subsample", subsample, 2) > n:
            raise ValueError(
                f"subsample is {subsample}; expected at most the {n} rows of the data."
            )
        if key is None:
            raise ValueError("key is missing; subsample is random: pass key=jax.random.key(seed).")
    draws = reweighted_draws(coreset, mcmc, full, num_draws, batch_size, progress_bar)
    num, unit = draws.log_ratios.size, "row" if coreset.grouping is None else "group"
    cost = n if subsample is None else n + subsample
    with (
        full.rows.context.precision(),
        bar_of(cost, f"{num:,} draws, leave one out", show=progress_bar, unit=f"{unit}s") as bar,
    ):
        leave = LeaveOneOut.of(draws.log_ratios, draws.log_weights, draws.efficiency)
        flat = {name: jnp.asarray(x) for name, x in draws.samples.flat().items()}
        if subsample is None:
            found = _leave_out(full, full.rows, flat, leave, bar.update)
            rows = _observed_rows(found, unit)
            found = {name: values[rows] for name, values in found.items()}
            used, extra = np.arange(rows.size), {}
            elpd_i, total = found["elpd"], float(found["elpd"].sum())
            variance = rows.size * float(np.var(elpd_i))
        else:
            assert key is not None
            at_mean = _at_the_mean(full, flat, leave, bar.update)
            rows = _observed_rows(at_mean, unit)
            if subsample > rows.size:
                raise ValueError(
                    f"subsample is {subsample}; expected at most the {rows.size} {unit}s that the "
                    "model does not mask."
                )
            approximation = at_mean["values"][rows]
            generator = host_generator(as_key(key))
            used = np.sort(generator.choice(rows.size, subsample, replace=False))
            found = _leave_out(full, _rows_of(full, rows[used]), flat, leave, bar.update)
            elpd_i, estimate = difference_estimate(found["elpd"], approximation, used)
            total, variance = estimate["elpd"], estimate["variance"]
            extra = {
                "subsample_size": subsample,
                "subsampling_se": estimate["subsampling_se"],
                "loo_subsample_observations": used,
                "elpd_loo_approx": approximation,
            }
    good, pareto_k = khat_limit(num), np.full(rows.size, np.nan)
    pareto_k[used] = found["khat"]
    bad = rows[used[found["khat"] > good]]
    _warn(bad, used.size, good, unit)
    elpd = {
        "elpd": total,
        "se": float(np.sqrt(max(variance, 0.0))),
        "p": float((found["lpd"] - found["elpd"]).mean() * rows.size),
        "n_samples": num,
        "n_data_points": rows.size,
        "warning": bool(bad.size),
        "good_k": good,
    }
    arrays = {"elpd_i": elpd_i, "pareto_k": pareto_k}
    return elpd_data(elpd, arrays, unit, rows, {**extra, "bad_rows": bad})


def _observed_rows(found: Mapping[str, np.ndarray], unit: str) -> Int[np.ndarray, " o"]:
    """The numbers of the rows that are observations."""
    rows = np.flatnonzero(found["observed"] > 0)
    if not rows.size:
        raise ValueError(
            f"the model masks all {found['observed'].size} {unit}s, so there is nothing to leave "
            f"out; expected {unit}s with an observation."
        )
    return rows


def difference_estimate(
    exact: Float[np.ndarray, " m"],
    approximation: Float[np.ndarray, " n"],
    used: Int[np.ndarray, " m"],
) -> tuple[Float[np.ndarray, " n"], dict[str, float]]:
    """A sum over n rows from its terms in m random rows and an approximation of all terms.

    See Magnusson et al. (2020), equations 7 to 9, and for the last term its expectation.

    Args:
        exact: the terms of the rows chosen.
        approximation: an approximation of every term.
        used: the rows chosen, at random without replacement.

    Returns:
        Values of all rows that add up to the estimate, and the estimate ("elpd"), its standard
        error due to the choice of rows ("subsampling_se"), and the estimate of n times the variance
        of the terms over the rows ("variance").
    """
    n, m = approximation.size, used.size
    error = exact - approximation[used]
    total = float(approximation.sum() + n * error.mean())
    of_choice = n**2 * (1 - m / n) * float(np.var(error, ddof=1)) / m
    squares = np.sum(approximation**2) + n * np.mean(exact**2 - approximation[used] ** 2)
    values = approximation + error.mean()
    values[used] = exact
    return values, {
        "elpd": total,
        "subsampling_se": float(np.sqrt(of_choice)),
        "variance": float(squares - (total**2 - of_choice) / n),
    }


def _leave_out(
    likelihood: ModelLikelihood,
    rows: Rows,
    draws: Mapping[str, Array],
    leave: LeaveOneOut,
    on_rows: Any,
) -> dict[str, np.ndarray]:
    """The results of rows, in the order of their numbers."""
    args = likelihood.program, dict(draws), leave
    names, width = ("elpd", "lpd", "khat", "observed"), _WIDTH * leave.log_ratios.size
    return _by_row(rows, block, args, width, names, on_rows)


def _at_the_mean(
    likelihood: ModelLikelihood, draws: Mapping[str, Array], leave: LeaveOneOut, on_rows: Any
) -> dict[str, np.ndarray]:
    """The log-likelihood of every row at the posterior mean of the unconstrained parameters.

    It is under "values", and under "observed" which rows are observations.
    """
    free = likelihood.unconstrain_draws(draws)
    weights = jnp.exp(leave.log_weights)
    mean = {name: jnp.tensordot(weights, x, 1, precision="highest") for name, x in free.items()}
    first = {name: x[0] for name, x in draws.items()}
    args, names = (likelihood.program, mean, first), ("values", "observed")
    return _by_row(likelihood.rows, _at_one_point, args, 1, names, on_rows)


def _at_one_point(args: Any, rows: tuple, counted: Array) -> dict[str, Array]:
    program, params, draw = args
    values = program.log_likelihood(params, rows[0])
    return {"values": values, "observed": are_observed(program, draw, rows[0])}


def _by_row(
    rows: Rows, fn: Any, args: tuple, width: int, names: tuple[str, ...], on_rows: Any
) -> dict[str, np.ndarray]:
    """One pass whose results are numbers of each row, of all processes."""

    def add(state: State, values: dict, first: int, num: int) -> State:
        for name in names:
            state[name][first : first + num] = values[name].reshape(-1)[:num]
        return state

    start = {name: np.zeros(rows.num_rows) for name in names}
    states = rows.map_reduce(fn, args, width, start, add, what="leave-one-out", on_rows=on_rows)
    found = {name: np.sum([state[name] for state in states], axis=0) for name in names}
    order = np.argsort(rows.numbers(np.arange(rows.num_rows)))
    return {name: values[order] for name, values in found.items()}


def _rows_of(likelihood: ModelLikelihood, indices: Int[np.ndarray, " m"]) -> Rows:
    """Some of the rows, in increasing order of their numbers, on every process."""
    rows = likelihood.rows
    places = rows.places(indices)
    order = np.argsort(places)
    context = dataclasses.replace(rows.context, processes=SINGLE_PROCESS, checkpoint=None)
    return Rows(rows.select(places[order]), context, order if rows.order is not None else None)


def _warn(bad: Int[np.ndarray, " b"], num: int, good: float, unit: str) -> None:
    if not bad.size:
        return
    first = ", ".join(map(str, bad[:NUM_BAD_ROWS_SHOWN]))
    warn_user(
        f"Pareto's k is above {good:.2f} for {bad.size:,} of {num:,} {unit}s, the first of them "
        f"{first}: leaving one of them out changes the posterior too much for its value to be "
        f"trusted. Look at these {unit}s, or use a model that allows for them, such as one with "
        "heavier tails; `bad_rows` lists all their numbers.",
    )
