"""NumPyro's HMCECS: NUTS with a part of the rows, and a Taylor expansion as control variate.

Dang, Quiroz, Kohn, Tran and Villani, "Hamiltonian Monte Carlo with energy conserving subsampling"
(JMLR 2019). The model's likelihood is replaced by one `numpyro.factor` under a plate with a
`subsample_size`, so any case's model can be used.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer import HMCECS, MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.initialization import init_to_value

import jaxcoreset as jc
from benchmarks.posteriors.case import Case
from benchmarks.posteriors.methods import common
from benchmarks.posteriors.outcome import Outcome

# The defaults of NumPyro's examples/hmcecs.py.
_ROWS, _BLOCKS, _SVI_STEPS, _STEP, _WARMUP = 1300, 100, 5000, 1e-3, 500
# The variance in nats of the estimated log-likelihood for which rows are chosen when tuned.
_VARIANCE = 1.0
_PILOT_DRAWS, _PILOT_ROWS = 50, 20_000
# Entries of the Hessians of the rows of a part; with more, the expansion is of the first degree.
_MOST_ENTRIES = 2e8


def _run(
    likelihood: jc.ModelLikelihood,
    reference: Mapping[str, Any],
    size: int,
    blocks: int,
    num_warmup: int,
    key: Any,
    num_draws: int,
    **of_nuts: Any,
) -> Outcome:
    degree = 2 if size * likelihood.num_params**2 < _MOST_ENTRIES else 1
    model = common.subsampled_model(likelihood, size, by_plate=True)
    proxy = HMCECS.taylor_proxy(dict(reference), degree)
    kernel = HMCECS(NUTS(model, **of_nuts), num_blocks=blocks, proxy=proxy)
    mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_draws, progress_bar=False)
    mcmc.run(key, common.device_rows(likelihood), extra_fields=("accept_prob",))
    draws = common.numpy_draws(mcmc.get_samples(), likelihood.init_params)
    accepted = float(np.mean(np.asarray(mcmc.get_extra_fields()["accept_prob"])))
    info = {"rows of a part": size, "blocks": blocks, "degree": degree}
    return Outcome(draws, info=info | {"accepted parts": accepted})


def hmcecs(case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int) -> Outcome:
    """HMCECS with the settings of NumPyro's example, examples/hmcecs.py.

    The reference is found by 5,000 steps of Adam with step size 0.001 on an `AutoDelta` guide, with
    parts of 1,300 rows; NUTS then has 1,300 rows in 100 blocks and 500 steps of warmup.
    """
    likelihood = common.likelihood_of(case, args, kwargs)
    common.refuse_many_parameters(likelihood)
    size = min(_ROWS, likelihood.num_data - 1)
    search_key, key = jax.random.split(key)
    model = common.subsampled_model(likelihood, size)
    svi = SVI(model, AutoDelta(model), optax.adam(_STEP), Trace_ELBO())
    rows = common.device_rows(likelihood)
    found = svi.run(search_key, _SVI_STEPS, rows, progress_bar=False).params
    reference = {name: found[f"{name}_auto_loc"] for name in likelihood.init_params}
    return _run(likelihood, reference, size, _BLOCKS, _WARMUP, key, num_draws)


def hmcecs_tuned(
    case: Case, args: tuple, kwargs: Mapping[str, Any], key: Any, num_draws: int
) -> Outcome:
    """HMCECS at the mode of all rows, with rows and blocks by rule, and a dense mass matrix.

    The number of rows is that for which the estimate of the log-likelihood has a variance of 1 in
    the mean over draws of the Laplace approximation (about what Dang et al. 2019, section 5,
    recommend), between 1,300 and a tenth of all; a block has ten rows, with 100 blocks at most.
    With 100 rows, which that variance often allows, a chain may leave the region of the expansion
    during warmup and never return.
    Warmup has 1,000 steps.
    """
    fit_key, pilot_key, rows_key, key = jax.random.split(key, 4)

    def finish(likelihood: jc.ModelLikelihood, laplace: jc.LaplaceApproximation) -> Outcome:
        n, mode = likelihood.num_data, laplace.params()
        draws = laplace.draws(pilot_key, _PILOT_DRAWS)
        needed = n**2 * _variance(likelihood, mode, draws, rows_key) / _VARIANCE
        fewest = min(_ROWS, n // 2)
        size = int(np.clip(needed, fewest, max(fewest, n // 10)))
        blocks = min(_BLOCKS, size // 10)
        reference = likelihood.constrain(mode)
        of_nuts = {"dense_mass": True, "init_strategy": init_to_value(values=reference)}
        warmup = common.NUM_WARMUP
        return _run(likelihood, reference, size, blocks, warmup, key, num_draws, **of_nuts)

    return common.with_laplace(case, args, kwargs, fit_key, finish)


def _variance(likelihood: jc.ModelLikelihood, mode: Any, draws: Any, key: Any) -> float:
    """The variance over rows of what the quadratic expansion leaves, in the mean over draws."""
    count = min(_PILOT_ROWS, likelihood.num_data)
    chosen = jax.random.choice(key, likelihood.num_data, (count,), replace=False)
    rows = tuple(map(jnp.asarray, likelihood.take(np.sort(np.asarray(chosen)))))

    @jax.jit
    def remainder_variance(draw: Any, rows: tuple) -> Any:
        towards = jax.tree.map(jnp.subtract, draw, mode)

        def values(at: Any) -> Any:
            return likelihood.log_likelihood(at, rows)

        def slope(at: Any) -> Any:
            return jax.jvp(values, (at,), (towards,))

        (value, first), (_, second) = jax.jvp(slope, (mode,), (towards,))
        return jnp.var(values(draw) - value - first - 0.5 * second)

    found = [
        remainder_variance(jax.tree.map(lambda x, i=i: x[i], draws), rows)
        for i in range(_PILOT_DRAWS)
    ]
    return float(np.mean(found))
