"""Posterior containers and Pareto smoothing from whichever version of ArviZ is installed.

ArviZ 0.23 has `InferenceData`; ArviZ 1 uses `DataTree` of xarray and has a separate package for the
statistics. No other module depends on the version, and ArviZ is imported when it is first used.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float


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
    arviz, dims = _arviz(), {name: names for name, names in dims.items() if name in samples}
    if _is_modern():
        return _groups(arviz.from_dict({"posterior": dict(samples)}, dims=dims))
    return _groups(arviz.from_dict(posterior=dict(samples), dims=dims))


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


def _groups(found: Any) -> dict[str, Any]:
    if not _is_modern():
        return {name: found[name] for name in found.groups()}
    return {name: node.to_dataset() for name, node in found.children.items()}


def _is_modern() -> bool:
    return int(_arviz().__version__.split(".")[0]) >= 1


def _arviz() -> Any:
    try:
        import arviz
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is missing; certificates and corrections need it: "
            "pip install 'jaxcoreset[arviz]'",
            name=error.name,
        ) from error
    return arviz
