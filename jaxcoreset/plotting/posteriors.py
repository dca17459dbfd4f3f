"""Figures that lay two posteriors over each other: marginals, and contours of pairs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike
from numpyro.infer import MCMC

from jaxcoreset.data.messages import listed
from jaxcoreset.likelihood.trace import unconstrain_draws
from jaxcoreset.plotting.style import CORESET, DASHES, FULL, legend_below, literal, new_axes
from jaxcoreset.weighting.laplace import LaplaceApproximation, parameter_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Draws of shape (draws, D); or by site, with a leading axis of draws; or an MCMC; or a Gaussian.
Posterior = (
    Mapping[str, ArrayLike] | ArrayLike | MCMC | LaplaceApproximation | tuple[ArrayLike, ArrayLike]
)

_MAX_DRAWS = 4000  # in a density estimate
_GRID = 80
_SMOOTHING = 1.2  # times Scott's bandwidth, with which outer contours are ragged


def plot_marginals(
    coreset: Posterior,
    full: Posterior,
    sd: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    axes: "Iterable[Axes] | None" = None,
    *,
    labels: tuple[str, str] = ("coreset", "all rows"),
) -> np.ndarray:
    """Plot the marginals of the coreset posterior and the full posterior, a panel per parameter.

    Args:
        coreset: the coreset posterior: an `MCMC` that has run, of which the latent sites are shown;
            draws of shape (draws, D); a dictionary of sites, as from ``mcmc.get_samples()``; a
            `LaplaceApproximation`; or (mean, covariance).
        full: the full posterior in one of these forms; or its D means, with `sd`.
            A `LaplaceApproximation` is of the unconstrained parameters, such as the logarithm of a
            scale. An `MCMC` beside it is drawn on that scale too, and so have to be arrays of draws
            and moments. A dictionary beside it is refused if the model has constrained sites.
        sd: the D standard deviations of the full posterior, if `full` is its means.
        names: D titles; by default the names of the sites.
        axes: D axes; by default a grid of new ones.
        labels: the names of the two posteriors in the legend. A new grid has a legend; for your own
            axes, make one from ``axes[0].get_legend_handles_labels()``.

    Returns:
        The D axes, an object array.

    Raises:
        ValueError: if the numbers of parameters or of names differ, or a dictionary of constrained
            values is compared with unconstrained ones.
    """
    if sd is not None:
        full = (np.asarray(full), np.diag(np.asarray(sd) ** 2))
    first, second = _on_one_scale(coreset, full)
    names = _names(names, first, second)
    new = axes is None
    axes = _grid_axes(len(names)) if axes is None else np.asarray(list(axes), dtype=object)
    for i, ax in enumerate(axes):
        _draw_marginals(ax, i, first, second, labels)
        ax.set_title(names[i], fontsize=9)
    if new:
        legend_below(axes[0].get_figure(), axes[0])
    return axes


def plot_contours(
    coreset: Posterior,
    full: Posterior,
    ax: "Axes | None" = None,
    *,
    parameters: tuple[int, int] = (0, 1),
    masses: Sequence[float] = (0.5, 0.95),
    names: Sequence[str] | None = None,
    labels: tuple[str, str] = ("coreset", "all rows"),
    legend: bool = True,
) -> "Axes":
    """Plot contours of two parameters for the coreset posterior over those of the full posterior.

    Each contour encloses the region of highest density with a given mass: an ellipse for a Gaussian
    (mass 0.865 is the 2σ ellipse of Zhang et al. 2021, Figure 6), and a level line of a kernel
    density estimate for draws.

    Args:
        coreset: the coreset posterior; see `plot_marginals`.
        full: the full posterior.
        ax: axes to draw into; by default new ones.
        parameters: the positions of the two parameters.
        masses: the posterior masses inside the contours, each between 0 and 1.
        names: D names, two of which label the axes.
        labels: the names of the two posteriors in the legend.
        legend: whether to draw a legend.

    Returns:
        The axes.

    Raises:
        ValueError: if the numbers of parameters or of names differ, or a mass is not between 0
            and 1.
    """
    first, second = _on_one_scale(coreset, full)
    names = _names(names, first, second)
    masses = _checked(masses)
    ax = new_axes(ax, (4.6, 4.2))
    i, j = parameters
    _draw_contours(ax, parameters, first, second, masses, (1.6, 2.2))
    ax.set(xlabel=names[i], ylabel=names[j])
    if legend:
        _line_legend(ax, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return ax


def plot_pairs(
    coreset: Posterior,
    full: Posterior,
    names: Sequence[str] | None = None,
    parameters: Sequence[int] | None = None,
    *,
    masses: Sequence[float] = (0.5, 0.95),
    labels: tuple[str, str] = ("coreset", "all rows"),
) -> np.ndarray:
    """Plot marginals on the diagonal, and contours of all pairs of parameters below it.

    Args:
        coreset: the coreset posterior; see `plot_marginals`.
        full: the full posterior.
        names: D names; by default the names of the sites.
        parameters: the positions of the p parameters to show; by default the first five.
        masses: see `plot_contours`.
        labels: the names of the two posteriors in the legend.

    Returns:
        The p × p axes, an object array; those above the diagonal are not visible.

    Raises:
        ValueError: see `plot_contours`.
    """
    import matplotlib.pyplot as plt

    first, second = _on_one_scale(coreset, full)
    names = _names(names, first, second)
    masses = _checked(masses)
    shown = list(range(min(5, len(names)))) if parameters is None else list(parameters)
    p = len(shown)
    figure, axes = plt.subplots(
        p, p, figsize=(1.75 * p + 0.8, 1.6 * p + 0.9), layout="constrained", squeeze=False
    )
    for row, i in enumerate(shown):
        for column, j in enumerate(shown):
            ax = axes[row, column]
            if column > row:
                ax.set_visible(False)
            elif column == row:
                _draw_marginals(ax, i, first, second, labels)
            else:
                _draw_contours(ax, (j, i), first, second, masses, (1.4, 1.9))
                ax.tick_params(labelsize=7)
                ax.locator_params(nbins=3)
                ax.set_ylabel(names[i], fontsize=9)
                ax.set_ylim(*_limits(i, first, second))
            ax.set_xlabel(names[j], fontsize=9)
            ax.set_xlim(*_limits(j, first, second))
            ax.label_outer()
    share = " and ".join(f"{mass:.0%}" for mass in masses)
    _line_legend(figure, labels, loc="upper right", title=f"regions of {share}")
    return axes


def _on_one_scale(coreset: Posterior, full: Posterior) -> "tuple[_Marginals, _Marginals]":
    """Two posteriors, on the unconstrained scale if one of them is a Laplace approximation."""
    gaussians = (one for one in (coreset, full) if isinstance(one, LaplaceApproximation))
    constrained = next((one.constrained for one in gaussians), ()) or ()

    def scaled(posterior: Posterior) -> Posterior:
        if not constrained or isinstance(posterior, LaplaceApproximation):
            return posterior
        if isinstance(posterior, Mapping):
            raise ValueError(
                "a dictionary of draws is compared with a LaplaceApproximation, which is of the "
                f"unconstrained parameters, but the model constrains {listed(constrained)}. Pass "
                "the MCMC in place of mcmc.get_samples(), or an array of shape (draws, D) of "
                "unconstrained draws, or two dictionaries."
            )
        return _unconstrained(posterior) if isinstance(posterior, MCMC) else posterior

    return _Marginals(scaled(coreset)), _Marginals(scaled(full))


def _unconstrained(mcmc: MCMC) -> Mapping[str, ArrayLike]:
    """The draws of an MCMC as unconstrained values of the latent sites."""
    draws: Any = _latent_draws(mcmc)
    model: Any = getattr(mcmc.sampler, "model", None)
    if model is None:  # a sampler of a potential energy has no constraints
        return draws
    return unconstrain_draws(model, (mcmc._args, mcmc._kwargs), draws)


class _Marginals:
    """The marginals of a posterior for one or two parameters, from draws or a Gaussian."""

    def __init__(self, posterior: Posterior):
        self.names: list[str] | None = None
        self.draws: np.ndarray | None = None
        if isinstance(posterior, LaplaceApproximation):
            self.names = list(posterior.names)
            self.mean, self.covariance = posterior.mode, posterior.covariance
        elif isinstance(posterior, tuple):
            self.mean, self.covariance = (np.asarray(part, np.float64) for part in posterior)
        else:
            self.draws, self.names = _flat_draws(posterior)
            self.mean = self.draws.mean(axis=0)
            self.covariance = np.atleast_2d(np.cov(self.draws, rowvar=False))
        d = self.mean.size
        if self.mean.ndim != 1 or self.covariance.shape != (d, d):
            raise ValueError(
                f"a Gaussian has a mean of shape {self.mean.shape} and a covariance of shape "
                f"{self.covariance.shape}; expected (D,) and (D, D)."
            )

    def sd(self, i: int) -> float:
        return float(np.sqrt(self.covariance[i, i]))

    def density(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """A grid, and the marginal density on it."""
        mean, sd = self.mean[i], self.sd(i)
        grid = mean + sd * np.linspace(-4, 4, 201)
        if self.draws is None:
            return grid, np.exp(-0.5 * ((grid - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
        from scipy.stats import gaussian_kde

        draws = self.draws[:, i]
        grid = np.linspace(draws.min() - 0.3 * sd, draws.max() + 0.3 * sd, 201)
        return grid, gaussian_kde(_thin(draws[:, None])[:, 0])(grid)

    def draw_filled(self, ax: "Axes", i: int, label: str) -> None:
        style = {"color": CORESET, "alpha": 0.45, "label": label}
        if self.draws is None:
            ax.fill_between(*self.density(i), lw=0, **style)
        else:
            bins = int(np.clip(np.sqrt(len(self.draws)), 10, 40))
            ax.hist(self.draws[:, i], bins=bins, density=True, **style)

    def draw_pair(
        self,
        ax: "Axes",
        pair: tuple[int, int],
        masses: list[float],
        color: str,
        dash: Any,
        lw: float,
    ) -> None:
        both = list(pair)
        if self.draws is None:
            factor = np.linalg.cholesky(self.covariance[np.ix_(both, both)])
            angle = np.linspace(0, 2 * np.pi, 181)
            circle = np.stack([np.cos(angle), np.sin(angle)])
            for mass in masses:
                radius = np.sqrt(-2 * np.log1p(-mass))  # χ² with two degrees of freedom
                ellipse = self.mean[both, None] + radius * factor @ circle
                ax.plot(*ellipse, color=color, ls=dash, lw=lw, zorder=4)
            return
        from scipy.stats import gaussian_kde

        draws = _thin(self.draws[:, both])
        estimate = gaussian_kde(draws.T, lambda kde: _SMOOTHING * kde.scotts_factor())
        margin = 0.6 * draws.std(axis=0)
        x, y = np.linspace(draws.min(axis=0) - margin, draws.max(axis=0) + margin, _GRID).T
        heights = estimate(np.stack(np.meshgrid(x, y)).reshape(2, -1)).reshape(_GRID, _GRID)
        levels = np.unique(np.quantile(estimate(draws.T), [1 - mass for mass in masses]))
        style = {"colors": [color], "linestyles": [dash], "linewidths": lw, "zorder": 4}
        ax.contour(x, y, heights, levels, **style)


def _draw_marginals(
    ax: "Axes", i: int, first: _Marginals, second: _Marginals, labels: tuple[str, str]
) -> None:
    """Draw one parameter: the first posterior as an area, the second as a line."""
    first.draw_filled(ax, i, labels[0])
    ax.plot(*second.density(i), color=FULL, lw=1.6, label=labels[1])
    ax.set_yticks([])
    ax.set_ylim(bottom=0)
    ax.tick_params(labelsize=7)
    ax.locator_params(axis="x", nbins=4)
    ax.spines[["top", "left", "right"]].set_visible(False)


def _draw_contours(
    ax: "Axes",
    pair: tuple[int, int],
    first: _Marginals,
    second: _Marginals,
    masses: list[float],
    widths: tuple[float, float],
) -> None:
    """Draw two parameters: the contours of the first posterior over those of the second."""
    second.draw_pair(ax, pair, masses, FULL, "-", widths[1])
    first.draw_pair(ax, pair, masses, CORESET, DASHES[1], widths[0])
    ax.autoscale_view()
    ax.spines[["top", "right"]].set_visible(False)


def _flat_draws(posterior: Any) -> tuple[np.ndarray, list[str] | None]:
    """Draws as a matrix (draws, D), and the names of the parameters if they are known."""
    if isinstance(posterior, MCMC):
        posterior = _latent_draws(posterior)
    if isinstance(posterior, Mapping):
        sites = {name: np.asarray(values) for name, values in posterior.items()}
        lengths = {len(values) for values in sites.values() if values.ndim}
        if len(lengths) != 1 or any(values.ndim == 0 for values in sites.values()):
            raise ValueError(
                "the sites of a posterior differ in their number of draws: "
                f"{ {name: values.shape for name, values in sites.items()} }; expected the same "
                "leading axis of draws for all."
            )
        names = parameter_names({name: values[0] for name, values in sites.items()})
        columns = [sites[name].reshape(len(sites[name]), -1) for name in sorted(sites)]
        return np.concatenate(columns, axis=1).astype(np.float64), names
    draws = np.asarray(posterior, np.float64)
    if draws.ndim != 2 or len(draws) < 2:
        raise ValueError(
            f"draws have the shape {draws.shape}; expected (draws, D) with at least two draws, an "
            "MCMC, a dictionary of sites, a LaplaceApproximation, or (mean, covariance)."
        )
    return draws, None


def _latent_draws(mcmc: MCMC) -> Mapping[str, ArrayLike]:
    """The draws of the sites that the sampler moves, without deterministic ones."""
    if mcmc.last_state is None:
        raise ValueError(
            "the MCMC has no samples yet; expected one that has run: mcmc.run(key, ...)."
        )
    draws, state = mcmc.get_samples(), getattr(mcmc.last_state, "z", None)
    return {name: draws[name] for name in state} if isinstance(state, Mapping) else draws


def _names(names: Sequence[str] | None, first: _Marginals, second: _Marginals) -> Sequence[str]:
    d = first.mean.size
    if second.mean.size != d:
        raise ValueError(
            f"the coreset posterior has {d} parameters and the full posterior {second.mean.size}; "
            "expected the same parameters."
        )
    if names is None:
        known = first.names or second.names or [f"parameter {i}" for i in range(d)]
        names = [literal(name) for name in known]
    if len(names) != d:
        raise ValueError(f"names has {len(names)} entries; expected {d}, one for each parameter.")
    return names


def _checked(masses: Sequence[float]) -> list[float]:
    if not masses or not all(0 < mass < 1 for mass in masses):
        raise ValueError(f"masses is {masses!r}; expected numbers between 0 and 1.")
    return sorted(masses)


def _limits(i: int, *posteriors: _Marginals) -> tuple[float, float]:
    low = min(one.mean[i] - 3.7 * one.sd(i) for one in posteriors)
    return low, max(one.mean[i] + 3.7 * one.sd(i) for one in posteriors)


def _thin(draws: np.ndarray) -> np.ndarray:
    """Evenly spaced draws, a maximum of `_MAX_DRAWS`."""
    return draws[:: -(-len(draws) // _MAX_DRAWS)]


def _grid_axes(count: int) -> np.ndarray:
    import matplotlib.pyplot as plt

    columns = min(5, count)
    rows = -(-count // columns)
    figure = plt.figure(figsize=(2.2 * columns, 1.7 * rows + 0.35), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for ax in grid.flat[count:]:
        ax.set_visible(False)
    return grid.reshape(-1)[:count]


def _line_legend(place: Any, labels: tuple[str, str], **settings: Any) -> None:
    """The legend of contours, in axes or a figure."""
    from matplotlib.lines import Line2D

    full = Line2D([], [], color=FULL, ls="-", lw=2)
    coreset = Line2D([], [], color=CORESET, ls=DASHES[1], lw=1.6)
    place.legend([full, coreset], [labels[1], labels[0]], frameon=False, **settings)
