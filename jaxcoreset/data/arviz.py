"""Posterior containers and Pareto smoothing from whichever version of ArviZ is installed.

ArviZ 0.23 has `InferenceData`; ArviZ 1 uses `DataTree` of xarray and has a separate package for the
statistics. No other module depends on the version, and ArviZ is imported when it is first used.
"""

import functools
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxcoreset.data.messages import require


def groups_of_mcmc(mcmc: Any, dims: Mapping[str, list[str]]) -> dict[str, Any]:
    """The groups of ``arviz.from_numpyro(mcmc)``: data sets by name.

    Args:
        mcmc: an `MCMC` that has run.
        dims: the names of each site's axes, which ArviZ cannot infer if sites have weights.
    """
    return _groups(_arviz().from_numpyro(mcmc, dims=dict(dims), pred_dims={}, log_likelihood=False))


def groups_of_samples(
    samples: Mapping[str, np.ndarray], dims: Mapping[str, list[str]]
) -> dict[str, Any]:
    """The group "posterior" of arrays with leading axes (chains, draws)."""
    dims = {name: names for name, names in dims.items() if name in samples}
    return _groups(_from_dict({"posterior": dict(samples)}, dims=dims))


def posterior_of_groups(draws: Mapping[str, np.ndarray], dimension: str, labels: np.ndarray) -> Any:
    """Draws with an entry for each group as the group "posterior" of a `container`.

    Args:
        draws: for each site an array of shape (draws, G, …).
        dimension: the name of the axis of groups.
        labels: shape (G,), its coordinates.
    """
    found = {"posterior": {name: x[None] for name, x in draws.items()}}
    dims = {site: [dimension] for site in draws}
    return _from_dict(found, dims=dims, coords={dimension: labels})


def predictive(
    draws: Mapping[str, np.ndarray], observed: Mapping[str, np.ndarray], dims: list[str]
) -> Any:
    """The groups "posterior_predictive" and "observed_data", as `container` returns them.

    Args:
        draws: for each site an array of shape (chains, draws, …).
        observed: for each site one of the shape of a draw.
        dims: the names of a site's first axes.
    """
    found = {"posterior_predictive": dict(draws), "observed_data": dict(observed)}
    found = {name: values for name, values in found.items() if values}
    return _from_dict(found, dims={site: dims for site in draws})


def psislw(
    log_ratios: Float[np.ndarray, " s"], relative_efficiency: float
) -> tuple[Float[np.ndarray, " s"], float]:
    """Smoothed log weights and k-hat by ArviZ; a ValueError if no tail can be fitted."""
    if _is_modern():
        from arviz_stats.base import array_stats  # pyright: ignore[reportMissingImports]

        # The function is for leave-one-out, where the ratio is one over the likelihood.
        weights, khat = array_stats.psislw(-log_ratios, r_eff=relative_efficiency)
    else:
        weights, khat = _arviz().psislw(log_ratios.copy(), relative_efficiency)
    return np.asarray(weights, np.float64), float(khat)


def container(groups: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """The data sets as an `InferenceData` of ArviZ 0.23, or a `DataTree` of a later version."""
    if not _is_modern():
        return _arviz().InferenceData(attrs=dict(attributes), **groups)
    import xarray

    tree = xarray.DataTree.from_dict(dict(groups))
    tree.attrs.update(attributes)
    return tree


def posterior_of(data: Any) -> dict[str, np.ndarray] | None:
    """The arrays of "posterior" of ArviZ's containers; None of all else."""
    if not isinstance(data, Mapping) or "posterior" not in data:
        return None
    found = data["posterior"]
    if not hasattr(found, "data_vars"):  # a site of this name
        return None
    return _arrays(found)


def corrected(data: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None:
    """The arrays of "posterior" and "sample_stats" of what `correct` returned; None of all else."""
    if not isinstance(data, Mapping) or not {"posterior", "sample_stats"} <= set(data):
        return None
    posterior, stats = _arrays(data["posterior"]), _arrays(data["sample_stats"])
    return (posterior, stats) if "log_ratio" in stats else None


def attributes_of_corrected(data: Any) -> dict[str, Any]:
    """The attributes of what `correct` returned; none of all else."""
    return {} if corrected(data) is None else dict(data["sample_stats"].attrs)


def elpd_data(
    elpd: Mapping[str, Any],
    pointwise: Mapping[str, np.ndarray],
    unit: str,
    labels: np.ndarray,
    extra: Mapping,
) -> Any:
    """The result of leave-one-out as the `ELPDData` of the version that is installed.

    Args:
        elpd: elpd, se, p, n_samples, n_data_points, warning and good_k.
        pointwise: elpd_i and pareto_k, shape (n,).
        unit: the name of their axis.
        labels: its coordinates.
        extra: further entries.
    """
    import xarray

    arrays = {
        name: xarray.DataArray(x, dims=[unit], coords={unit: labels}, name=name)
        for name, x in pointwise.items()
    }
    if not _is_modern():
        from arviz.stats.stats_utils import ELPDData

        names = {"elpd": "elpd_loo", "p": "p_loo", "elpd_i": "loo_i"}
        fields = {**elpd, **arrays, "scale": "log", **extra}
        order = ["elpd", "se", "p", "n_samples", "n_data_points", "warning", "elpd_i", "pareto_k"]
        order += ["scale", "good_k", *extra]
        return ELPDData([fields[x] for x in order], index=[names.get(x, x) for x in order])
    from arviz_stats import utils  # pyright: ignore[reportMissingImports]

    fields = {**elpd, **arrays, "scale": "log"}
    # The first versions have one class, whose kind is an argument.
    kind = getattr(utils, "ELPDDataLOO", None)
    if kind is None:
        found = utils.ELPDData(kind="loo", **fields)
    elif "subsampling_se" in extra:
        fields |= {"elpd_loo_approx": xarray.DataArray(extra["elpd_loo_approx"], dims=[unit])}
        names = ("subsample_size", "subsampling_se", "loo_subsample_observations")
        found = utils.ELPDDataLOOSubsample(**fields, **{name: extra[name] for name in names})
    else:
        found = kind(**fields)
    for name, value in extra.items():
        if not hasattr(found, name):
            setattr(found, name, value)
    return found


def _from_dict(groups: Mapping[str, Any], **names: Any) -> Any:
    """A container of arrays by group and name."""
    if _is_modern():
        return _arviz().from_dict(groups, **names)
    return _arviz().from_dict(**groups, **names)


def _arrays(group: Any) -> dict[str, np.ndarray]:
    return {str(name): np.asarray(group[name]) for name in group.data_vars}


def _groups(found: Any) -> dict[str, Any]:
    if not _is_modern():
        return {name: found[name] for name in found.groups()}
    return {name: node.to_dataset() for name, node in found.children.items()}


@functools.cache
def _is_modern() -> bool:
    # Importing ArviZ takes more than a second, which Pareto smoothing with ArviZ 1 can do without.
    try:
        version = metadata.version("arviz")
    except metadata.PackageNotFoundError:
        version = _arviz().__version__
    return int(version.split(".")[0]) >= 1


def _arviz() -> Any:
    why = "certificates, corrections, loo and ArviZ's containers need it"
    try:
        return require("arviz", why, "arviz")
    except FileNotFoundError:
        # ArviZ 0.23 writes and renames a file in the user's cache once a day. If two processes do
        # so at the same time, the rename fails in one of them.
        return require("arviz", why, "arviz")
