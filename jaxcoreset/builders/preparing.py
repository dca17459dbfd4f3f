"""What a build needs before it solves: a likelihood, a solver with its labels, an expansion."""

import os
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from jaxcoreset.builders.settings import Taylor
from jaxcoreset.coreset.codes import codes_as_text
from jaxcoreset.data.checkpoint import CheckpointFile, build_settings, settings_of_all
from jaxcoreset.data.messages import did_you_mean, listed, warn_user
from jaxcoreset.data.processes import SINGLE_PROCESS, DistributedProcesses
from jaxcoreset.data.rows import PassContext
from jaxcoreset.likelihood.arguments import codes_of_call
from jaxcoreset.likelihood.expansion import Expansion, flat_point
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.likelihood.group_likelihood import group_likelihood
from jaxcoreset.likelihood.group_model import GroupModel
from jaxcoreset.likelihood.index_check import check_indices
from jaxcoreset.likelihood.integral_error import accurate_enough, describe
from jaxcoreset.likelihood.likelihood import ModelLikelihood
from jaxcoreset.likelihood.precision import Float32Error
from jaxcoreset.likelihood.structure import LatentOfRowError
from jaxcoreset.selection.construction import Construction
from jaxcoreset.selection.draws import DrawPool
from jaxcoreset.selection.expanding import expansion_of
from jaxcoreset.selection.reach import PosteriorOfRows, reaching_out
from jaxcoreset.solvers.base import Solver
from jaxcoreset.solvers.constraints.base import constraints_of, replace_constraints
from jaxcoreset.weighting import DrawSource, Weighting
from jaxcoreset.weighting.auto import float64_is_left
from jaxcoreset.weighting.errors import UnusableWeightingError

# What the error of the integrals over effects may add, in nats, or as a part of the tolerance.
_INTEGRAL_KL, _PART_OF_TOL = 1e-3, 0.1
# The number of draws at which it is measured.
_NUM_DRAWS = 64
# The number of draws at which rounding is measured.
_NOISE_DRAWS = 8


def pass_context(
    builder: Any,
    key: PRNGKeyArray,
    args: tuple,
    kwargs: dict[str, Any],
    *,
    is_plan: bool = False,
    in_float64: bool = False,
) -> PassContext:
    """Where a `CoresetBuilder` evaluates rows, and the file that keeps the passes over them."""
    together = builder.execution.processes
    processes = SINGLE_PROCESS if together is None else DistributedProcesses(together.timeout)
    mesh = builder.execution.mesh
    if mesh is None and len(jax.local_devices()) > 1:
        mesh = Mesh(np.array(jax.local_devices()), ("rows",))
    if processes.count > 1:
        # Groups are known by their labels, and each process has its own.
        codes = codes_of_call(builder.model, args, kwargs, builder.groups)
        settings = settings_of_all(builder, key, args, kwargs, processes)
        processes.agree(settings | codes_as_text(codes))
    checkpoint = None
    if not is_plan and builder.checkpoint is not None:
        path = os.fspath(builder.checkpoint.path) + (".float64" if in_float64 else "")
        if processes.count > 1:
            path = f"{path}.{processes.index}-of-{processes.count}"
        with processes.all_or_none("checkpoint"):
            settings = build_settings(builder, key, args, kwargs, processes)
            checkpoint = CheckpointFile(path, settings, interval=builder.checkpoint.every)
    size = builder.execution.batch_size
    return PassContext(mesh, size, processes, checkpoint, in_float64, may_read=not is_plan)


def likelihood_of(
    builder: Any, args: tuple, kwargs: dict[str, Any], key: PRNGKeyArray, context: PassContext
) -> ModelLikelihood:
    """The log-likelihoods of rows; of groups if they are named, or rows have latents of their own.

    Args:
        builder: the `CoresetBuilder`.
        args: the model's positional arguments.
        kwargs: its keyword arguments.
        key: see `model_likelihood`.
        context: where rows are evaluated.

    Raises:
        ModelError: see `model_likelihood` and `group_likelihood`; or if the model has no entry for
            a number that it takes as an index.
    """
    likelihood = _unchecked_likelihood(builder, args, kwargs, key, context)
    if not context.in_float64:  # a build that is repeated in float64 was checked before
        check_indices(likelihood)
        warn_of_summaries(likelihood)
    return likelihood


def warn_of_summaries(likelihood: ModelLikelihood) -> None:
    """Warn of deterministic sites whose value with the rows of a coreset is not that of all."""
    structure = getattr(likelihood.model, "structure", None)
    if structure is not None and structure.left_out:
        warn_user(
            f"deterministic sites {list(structure.left_out)} are computed from several groups. "
            "coreset.model and group_effects leave them out: compute them from the effects of all "
            "groups, as group_effects returns them."
        )
    if found := likelihood.summaries_of_rows:
        warn_user(
            f"deterministic sites {list(found)} are computed from the rows. coreset.model has "
            "their values for the rows of the coreset only, and correct leaves them out: compute "
            "them from the draws and all rows, for instance with numpyro.infer.Predictive."
        )


def _unchecked_likelihood(
    builder: Any, args: tuple, kwargs: dict[str, Any], key: PRNGKeyArray, context: PassContext
) -> ModelLikelihood:
    groups, integration = builder.groups, builder.integration
    settings = {"data_axes": builder.data_axes, "plate": builder.plate, "context": context}
    given = builder.model, args, kwargs
    if groups is None:
        try:
            found = model_likelihood(*given, key=key, **settings)
        except LatentOfRowError:
            pass
        else:
            if integration is not None:
                raise ValueError(
                    f"integration is {integration!r}, but groups is None and no latent site has an "
                    "entry for each row, so there are no effects to integrate out. Pass groups=, "
                    "the name of the argument that says to which group each row belongs."
                )
            return found
    return group_likelihood(*given, groups=groups, integration=integration, key=key, **settings)


def draw_source(
    weighting: Weighting, likelihood: ModelLikelihood, key: PRNGKeyArray, show_progress: bool
) -> DrawSource:
    """The draws of a weighting; a Float32Error if none was found and float64 may help."""
    try:
        return weighting.fit(likelihood, key, show_progress=show_progress)
    except UnusableWeightingError as error:
        if not float64_is_left(likelihood):
            raise
        raise Float32Error(str(error)) from error


def refined(construction: Construction, source: DrawSource, key: PRNGKeyArray) -> Construction:
    """The construction with integrals over effects that are accurate enough, if it has any."""
    likelihood = construction.likelihood
    if not isinstance(likelihood.model, GroupModel):
        return construction
    if source.approximation is not None:
        draws = source.approximation.draws(key, _NUM_DRAWS)
    else:
        draws = source.take(key, 0, min(_NUM_DRAWS, source.limit or _NUM_DRAWS))
    tol = construction.tol
    goal = _INTEGRAL_KL if tol is None else _PART_OF_TOL * tol
    likelihood, error = accurate_enough(likelihood, draws, goal)
    assert isinstance(likelihood.model, GroupModel)
    facts = {
        "unit": "groups",
        "integration": describe(likelihood.model),
        "integral_kl": error,
    }
    return replace(construction, likelihood=likelihood, facts=facts)


def is_allowed(proxy: Literal["auto"] | Taylor | None, solver: Solver | None) -> bool:
    """Return whether a proxy is allowed: with a constraint on rows, "auto" uses rows alone."""
    return proxy is not None and not (proxy == "auto" and constraints_of(solver))


def expand(
    proxy: Literal["auto"] | Taylor | None, construction: Construction, pool: DrawPool
) -> Construction:
    """Give the pool the expansion of all rows, if there is to be a proxy and it is proper.

    Where the posterior is seen to have another mode, "auto" takes rows alone.

    Returns:
        The construction, with what the report says about another mode.

    Raises:
        ValueError: if it is not, and `proxy` is a `Taylor`.
    """
    if not construction.may_expand:
        return construction
    approximation = pool.source.approximation
    if approximation is not None:  # a build in float64 would repeat the passes of an expansion
        pool.measure_noise(approximation.draws(jax.random.key(0), _NOISE_DRAWS))
    center = proxy.center if isinstance(proxy, Taylor) else None
    if center is None and approximation is not None:
        pool.expansion = approximation.expansion
    if pool.expansion is None:
        likelihood, position = construction.likelihood, None
        if center is not None:
            given = {name: jnp.asarray(value) for name, value in center.items()}
            position = flat_point(likelihood.unconstrain(given))
        else:
            construction.embed(pool)
        pool.expansion = expansion_of(likelihood, pool, position)
    if pool.expansion is not None:
        pool.expansion = _reaching_out(construction.likelihood, pool.expansion)
        if (other_mode := pool.expansion.other_mode) is not None:
            if proxy == "auto":
                pool.expansion, construction = None, replace(construction, may_expand=False)
            if approximation is not None:  # other draws may visit both
                facts = construction.facts | {"other_mode": other_mode}
                construction = replace(construction, facts=facts)
    elif isinstance(proxy, Taylor):
        raise ValueError(
            "the second-order expansion of the log-posterior is not concave at the proxy's "
            'center, so it is not a density; expected a point near the mode. proxy="auto" '
            "takes rows alone then."
        )
    return construction


def expand_again(
    proxy: Literal["auto"] | Taylor | None, likelihood: ModelLikelihood, pool: DrawPool
) -> None:
    """Expand at the mean of a round's draws, where the quadratic is better than at the mode.

    A center that the user gave stays.
    """
    is_given = isinstance(proxy, Taylor) and proxy.center is not None
    if pool.expansion is not None and not is_given:
        found = expansion_of(likelihood, pool)
        if found is not None:
            pool.expansion = _reaching_out(likelihood, found)


def _reaching_out(likelihood: ModelLikelihood, expansion: Expansion) -> Expansion:
    posterior = PosteriorOfRows(likelihood, likelihood.rows, expansion.center)
    return reaching_out(posterior, expansion)


def bound_solver(solver: Solver | None, likelihood: ModelLikelihood) -> Solver | None:
    """The solver, whose constraints have their labels where they name an argument."""
    solver = replace_constraints(
        solver, lambda constraint: constraint.bind(partial(_labels, likelihood))
    )
    for constraint in constraints_of(solver):
        constraint.check(likelihood.num_data)
    return solver


def _labels(likelihood: ModelLikelihood, name: str) -> np.ndarray:
    """The argument of the model that a constraint names, one label for each row."""
    given = likelihood.arguments
    if name not in given.names:
        raise ValueError(
            f"the constraint names {name!r}{did_you_mean(name, given.names)} Expected one of the "
            f"model's arguments: {listed(given.names)}."
        )
    values = np.asarray(given.leaves[given.names.index(name)])
    if values.shape != (likelihood.num_data,):
        raise ValueError(
            f"the constraint names {name!r}, which has shape {values.shape}; expected "
            f"({likelihood.num_data},), one label for each row."
        )
    return values
