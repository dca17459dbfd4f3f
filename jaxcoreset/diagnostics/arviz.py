"""ArviZ behind one door: Pareto smoothing, and posteriors in the container of its version.

ArviZ 0.23 has `InferenceData`; from 1.0 on there are xarray's `DataTree` and a package of its own
for the statistics. Nothing else here asks which one is installed.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

# Ratios this close differ by float32's rounding, whose tail says nothing.
_NEGLIGIBLE = 1e-4


def pareto_smooth(
    log_ratios: Float[np.ndarray, " s"], relative_efficiency: float = 1.0
) -> tuple[Float[np.ndarray, " s"], float]:
    """Pareto-smoothed importance sampling (Vehtari et al. 2024).

    Args:
        log_ratios: log importance ratios, up to a constant; −inf for a ratio of zero.
        relative_efficiency: effective sample size of the ratios over their number, in (0, 1].

    Returns:
        Smoothed log weights, whose exponentials add to one, and k-hat, the estimated shape of the
        ratios' tail: 0 where all ratios are equal to 1e-4, infinite where no tail can be fitted.
    """
    log_ratios = np.asarray(log_ratios, np.float64)
    if np.ptp(log_ratios) < _NEGLIGIBLE:
        return log_ratios - _log_sum_exp(log_ratios), 0.0
    try:
        if _is_modern():
            from arviz_stats.base import array_stats  # pyright: ignore[reportMissingImports]

            # It is made for leave-one-out, where the ratio is one over the likelihood.
            weights, khat = array_stats.psislw(-log_ratios, r_eff=relative_efficiency)
        else:
            weights, khat = _arviz().psislw(log_ratios.copy(), relative_efficiency)
    except ValueError:  # the tail is one draw over and over
        weights, khat = log_ratios - _log_sum_exp(log_ratios), np.inf
    khat = float(khat)
    return np.asarray(weights, np.float64), khat if np.isfinite(khat) else np.inf


def groups_of_mcmc(mcmc: Any, dims: Mapping[str, list[str]]) -> dict[str, Any]:
    """The groups that ``arviz.from_numpyro(mcmc)`` makes, data sets by name.

    Args:
        mcmc: what has run.
        dims: the names of each site's axes, which ArviZ cannot infer where sites have weights.
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


def _log_sum_exp(values: Float[np.ndarray, " s"]) -> float:
    top = np.max(values)
    return float(top + np.log(np.sum(np.exp(values - top))))


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
