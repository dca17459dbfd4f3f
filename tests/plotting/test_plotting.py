"""The figures: they show what they were given."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.infer import HMC, MCMC, NUTS

import jaxcoreset as jc
from jaxcoreset import plotting
from jaxcoreset.coreset.report import Report
from jaxcoreset.data.utils import Clock
from jaxcoreset.likelihood.arguments import arguments_by_length
from jaxcoreset.likelihood.from_model import model_likelihood
from jaxcoreset.selection.comparison import Comparison
from jaxcoreset.weighting.laplace import laplace_approximation

mpl.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


SIZES = np.array([1, 2, 4, 8])


def report():
    curve = {
        "size": SIZES,
        "num_used": SIZES,
        "relative_error": 0.5 / SIZES,
        "held_out_error": 0.6 / SIZES,
        "kl": 1.0 / SIZES**2,
        "kl_standard_error": 0.05 / SIZES**2,
    }
    return Report(
        100, 8, 8, 100, 50, 50, 0.06, 0.07, 0.01, 0.001, "X", True, "Laplace", curve, {"solve": 1.0}
    )


def test_error_curve_has_both_errors_and_labels():
    ax = plotting.plot_error(report())
    seen, held_out = ax.get_lines()
    np.testing.assert_allclose(seen.get_ydata(), 0.5 / SIZES)
    np.testing.assert_allclose(held_out.get_ydata(), 0.6 / SIZES)
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_marginals_draw_one_panel_a_parameter():
    draws = np.random.default_rng(0).normal(size=(500, 7))
    axes = plotting.plot_marginals(draws, np.zeros(7), np.ones(7), list("abcdefg"))
    assert [ax.get_title() for ax in axes] == list("abcdefg")
    density = axes[0].get_lines()[0].get_ydata()
    assert density.max() == pytest.approx(1 / np.sqrt(2 * np.pi), rel=1e-3)


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_kl_curve_has_its_band_the_tolerance_and_this_coreset():
    ax = plotting.plot_kl(report(), tol=0.05)
    curve, tolerance, chosen = ax.get_lines()
    np.testing.assert_allclose(curve.get_ydata(), 1 / SIZES**2)
    np.testing.assert_allclose(tolerance.get_ydata(), 0.05)
    assert (chosen.get_xdata()[0], chosen.get_ydata()[0]) == (8, 0.01)
    (band,) = (patch for patch in ax.collections if patch.get_label() == "± 2 standard errors")
    edges = band.get_paths()[0].vertices
    # two standard errors of 5 % are a factor of exp(0.1)
    at_two = edges[edges[:, 0] == 2, 1]
    np.testing.assert_allclose([at_two.min(), at_two.max()], 0.25 * np.exp([-0.1, 0.1]), rtol=1e-6)
    assert "nats" in ax.get_ylabel()
    assert "lower bound only" in [text.get_text() for text in ax.texts]
    ax.figure.canvas.draw()
    rows = [label.get_text() for label in ax.get_xticklabels()]
    assert {"1", "2", "5"} <= set(rows)  # plain numbers


def test_coreset_without_error_has_no_curve_to_draw():
    whole = Report.without_error("all rows", 9, 9, 9, Clock())
    for draw in (plotting.plot_kl, plotting.plot_error):
        with pytest.raises(ValueError, match="a coreset of all rows has no error"):
            draw(whole)


GAUSSIAN = (np.array([1.0, -2.0, 0.5]), np.diag([1.0, 4.0, 0.25]))


def test_marginals_take_draws_sites_and_gaussians():
    draws = np.random.default_rng(0).multivariate_normal(*GAUSSIAN, 4000)
    sites = {"b": draws[:, 1:], "a": draws[:, 0]}
    axes = plotting.plot_marginals(sites, draws)
    assert [ax.get_title() for ax in axes] == ["a", "b[0]", "b[1]"]
    estimate = axes[1].get_lines()[0]
    expected = scipy.stats.norm(-2, 2).pdf(estimate.get_xdata())
    # a kernel density estimate of 4,000 draws
    np.testing.assert_allclose(estimate.get_ydata(), expected, atol=0.02)
    assert texts(axes[0].figure.legends[0]) == ["coreset", "all rows"]
    gaussian = plotting.plot_marginals(GAUSSIAN, GAUSSIAN)[0]
    line, area = gaussian.get_lines()[0], gaussian.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(area[:, 1].max(), line.get_ydata().max())


def scaled_model(y):
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


@pytest.fixture(scope="module")
def chain_and_laplace():
    y = (2 + 0.2 * np.random.default_rng(0).normal(size=200)).astype(np.float32)
    mcmc = MCMC(NUTS(scaled_model), num_warmup=200, num_samples=500, progress_bar=False)
    mcmc.run(jax.random.key(0), y)
    return mcmc, laplace_approximation(model_likelihood(scaled_model, (y,), {}))


def test_chains_beside_a_laplace_approximation_are_unconstrained(chain_and_laplace):
    mcmc, laplace = chain_and_laplace
    scale = np.asarray(mcmc.get_samples()["scale"], np.float64)
    for pair in ((laplace, mcmc), (mcmc, laplace)):
        axes = plotting.plot_marginals(*pair)
        assert [ax.get_title() for ax in axes] == ["mean", "scale"]
        line = axes[1].get_lines()[0].get_xdata()
        assert line.min() < np.log(scale).mean() < line.max() < 0
    shown = plotting.plot_contours(laplace, mcmc)
    assert shown.get_ylim()[1] < 0
    assert plotting.plot_pairs(mcmc, laplace)[1, 1].get_xlim()[1] < 0
    # Two posteriors of constrained values stay as they are.
    line = plotting.plot_marginals(mcmc, mcmc)[1].get_lines()[0].get_xdata()
    assert line.min() < scale.mean() < line.max()
    assert line.min() > 0


@pytest.mark.parametrize(
    "plot", [plotting.plot_marginals, plotting.plot_contours, plotting.plot_pairs]
)
def test_constrained_draws_beside_a_laplace_approximation_are_refused(chain_and_laplace, plot):
    mcmc, laplace = chain_and_laplace
    with pytest.raises(ValueError, match=r"the model constrains 'scale'. Pass the MCMC"):
        plot(mcmc.get_samples(), laplace)
    free = laplace.draws(jax.random.key(1), 200)
    plot(np.stack([free["mean"], free["scale"]], axis=1), laplace)


def test_contours_of_a_gaussian_hold_their_mass():
    mean, covariance = np.array([1.0, -1.0]), np.array([[2.0, 0.6], [0.6, 0.5]])
    gaussian = mean, covariance
    ax = plotting.plot_contours(gaussian, gaussian, masses=[0.5, 0.95], names=["a", "b"])
    lines = ax.get_lines()
    assert len(lines) == 4
    for line, mass in zip(lines[:2], (0.5, 0.95), strict=True):
        offset = np.stack([line.get_xdata(), line.get_ydata()], axis=1) - mean
        squares = np.einsum("ni,ij,nj->n", offset, np.linalg.inv(covariance), offset)
        np.testing.assert_allclose(scipy.stats.chi2(2).cdf(squares), mass, rtol=1e-9)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "b")


def test_contours_of_draws_lie_near_the_ellipses():
    mean, covariance = GAUSSIAN
    draws = np.random.default_rng(1).multivariate_normal(mean, covariance, 4000)
    ax = plotting.plot_contours(draws, GAUSSIAN, parameters=(0, 1), masses=[0.5])
    (contour,) = ax.collections
    places = np.concatenate([path.vertices for path in contour.get_paths()])
    squares = ((places - mean[:2]) ** 2 / np.diag(covariance)[:2]).sum(axis=1)
    # the median of χ² with two degrees of freedom is 1.39
    assert np.median(squares) == pytest.approx(1.39, rel=0.15)


def test_pairs_show_marginals_contours_and_nothing_above():
    draws = np.random.default_rng(0).multivariate_normal(*GAUSSIAN, 500)
    axes = plotting.plot_pairs(draws, GAUSSIAN, ["a", "b", "c"])
    assert axes.shape == (3, 3)
    visible = np.array([[ax.get_visible() for ax in row] for row in axes])
    np.testing.assert_array_equal(visible, np.tri(3, dtype=bool))
    assert [ax.get_xlabel() for ax in axes[2]] == ["a", "b", "c"]
    assert axes[2, 0].get_xlim() == axes[0, 0].get_xlim()
    assert axes[1, 0].get_ylim() == axes[1, 1].get_xlim()
    some = plotting.plot_pairs(draws, GAUSSIAN, ["a", "b", "c"], parameters=[0, 2])
    assert [ax.get_xlabel() for ax in some[1]] == ["a", "c"]


@pytest.mark.parametrize(
    ("plot", "arguments", "message"),
    [
        (plotting.plot_contours, [GAUSSIAN, (np.zeros(2), np.eye(2))], "3 .* full posterior 2"),
        (plotting.plot_pairs, [GAUSSIAN, GAUSSIAN, ["a"]], "names has 1 entries; expected 3"),
        (plotting.plot_marginals, [(np.zeros(3), np.ones(3)), GAUSSIAN], r"\(D,\) and \(D, D\)"),
        (plotting.plot_marginals, [{"a": np.zeros(5), "b": np.zeros(6)}] * 2, "number of draws"),
        (plotting.plot_rows, [np.ones((50, 2)), ([1, 60], [1, 1])], "rows from 1 to 60, .* has 50"),
        (plotting.plot_rows, [np.ones((50, 1)), ([1], [1])], r"expected \(n, 2\)"),
        (plotting.plot_convergence, [[]], "empty"),
        (partial(plotting.plot_contours, masses=[95.0]), [GAUSSIAN] * 2, "between 0 and 1"),
        (partial(plotting.plot_pairs, masses=[95.0]), [GAUSSIAN] * 2, "between 0 and 1"),
    ],
)
def test_what_does_not_fit_is_refused(plot, arguments, message, untyped):
    with pytest.raises(ValueError, match=message):
        plot(*arguments)


@pytest.fixture(scope="module")
def path():
    atoms = np.random.default_rng(0).normal(size=(30, 15)).astype(np.float32)
    solver = jc.AIHT2(record_history=True, max_iters=20)
    return jc.sweep(jc.CoresetProblem(jnp.asarray(atoms)), np.array([3, 5]), solver)


def leaves(index, solution):
    return jax.tree.map(lambda leaf: leaf[index], solution)


POINTS = np.random.default_rng(0).normal(size=(50, 2))


def test_chosen_rows_lie_on_their_points_with_radii_by_weight(path):
    rows = {"indices": jnp.array([3, 7, 20, 0]), "weights": jnp.array([10.0, 40.0, 20.0, 0.0])}
    solution = dataclasses.replace(leaves(0, path), **rows)
    ax = plotting.plot_rows(POINTS, solution, names=["east (km)", "north (km)"])
    everything, chosen = ax.collections
    np.testing.assert_allclose(everything.get_offsets(), POINTS)
    places, areas = chosen.get_offsets(), chosen.get_sizes()
    order = np.argsort(areas)
    np.testing.assert_allclose(places[order], POINTS[[3, 20, 7]])
    np.testing.assert_allclose(np.sqrt(areas[order] / areas.max()), [0.25, 0.5, 1.0])
    assert ax.get_xlabel() == "east (km)"
    legend = ax.get_legend()
    assert texts(legend) == ["10", "20", "40"]
    assert "3 of 50 rows" in legend.get_title().get_text()


@pytest.mark.parametrize("unit", ["rows", "groups"])
def test_points_of_other_data_than_those_of_the_coreset_are_refused(unit):
    one = dataclasses.replace(report(), unit=unit)
    arguments = arguments_by_length(None, (np.zeros(2),), {}, 2)
    coreset = jc.Coreset(None, np.array([3, 7]), np.ones(2), arguments, one, data_dims={})
    with pytest.raises(ValueError, match=f"500 positions, .* 100 {unit}; expected one .* {unit}"):
        plotting.plot_rows(np.ones((500, 2)), coreset)
    ax = plotting.plot_rows(np.random.default_rng(0).normal(size=(100, 2)), coreset)
    assert f"2 of 100 {unit}" in ax.get_legend().get_title().get_text()


def test_tiny_weights_can_still_be_seen():
    ax = plotting.plot_rows(POINTS, (np.array([1, 2]), np.array([1.0, 1e6])), max_radius=10.0)
    assert ax.collections[1].get_sizes().min() == pytest.approx(4)  # (2 × one point)²


def test_points_of_more_columns_are_projected_on_their_principal_directions():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(40, 4)) * [3.0, 2.0, 0.5, 0.1]
    ax = plotting.plot_rows(points, (np.array([0]), np.ones(1)))
    shown = np.asarray(ax.collections[0].get_offsets())
    singular = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(shown, axis=0), singular[:2])
    assert "principal" in ax.get_xlabel()


def test_surface_has_the_limits_that_it_was_given_and_a_labelled_bar():
    x, y = np.linspace(0, 1, 5), np.linspace(0, 2, 6)
    ax = plotting.plot_surface(x, y, x[None] + y[:, None], label="height (m)", limits=(0.0, 6.0))
    assert ax.collections[0].get_clim() == pytest.approx((0, 6), abs=0.5)
    assert [other.get_ylabel() for other in ax.figure.axes if other is not ax] == ["height (m)"]
    same = plotting.plot_rows(np.array([[0.5, 1.0]]), (np.array([0]), np.ones(1)), ax=ax)
    assert same is ax


def test_weights_are_sorted_and_summed():
    weights = np.array([2.0, 50.0, 8.0, 0.0])
    ax = plotting.plot_weights((np.arange(4), weights), num_data=60)
    line, level = ax.get_lines()
    np.testing.assert_allclose(line.get_ydata(), [50, 8, 2])
    np.testing.assert_allclose(level.get_ydata(), 20)
    assert ax.get_title(loc="left") == "sum of weights 60, n = 60 (100.0%)"


def test_convergence_shows_histories_and_final_levels(path):
    first, second = leaves(0, path), leaves(1, path)
    final = dataclasses.replace(second, history=None)
    ax = plotting.plot_convergence({"A-IHT": first, "A-IHT II": second, "GIGA": final})
    lines = {line.get_label(): line for line in ax.get_lines()}
    for label, solution in (("A-IHT", first), ("A-IHT II", second)):
        done = int(solution.num_iters)
        np.testing.assert_array_equal(lines[label].get_xdata(), np.arange(1, done + 1))
        np.testing.assert_allclose(lines[label].get_ydata(), solution.history[:done])
    np.testing.assert_allclose(lines["GIGA (final)"].get_ydata(), final.objective)
    drawn = [lines[label] for label in texts(ax.get_legend())]
    assert len({line.get_color() for line in drawn}) == 3
    # dashes too, for print; get_linestyle() calls every kind of dash "--"
    assert len({str(line._unscaled_dash_pattern) for line in drawn}) == 3


def test_convergence_takes_sequences_and_plain_histories(path):
    assert texts(plotting.plot_convergence([leaves(0, path)]).get_legend()) == ["AIHT2"]
    ax = plotting.plot_convergence({"SparseVI": np.array([3.0, 2.0, 1.0])})
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), [3, 2, 1])


def test_convergence_of_a_sweep_has_a_line_for_each_size_and_five_at_most(path):
    lines = plotting.plot_convergence(path).get_lines()
    labels = [line.get_label() for line in lines if line.get_label()[0] != "_"]
    assert labels == [f"AIHT2, {size} rows" for size in np.asarray(path.size)]
    np.testing.assert_allclose(lines[0].get_ydata()[-1], path.objective[0])
    twelve = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * 6), path)
    rows = {"indices": jnp.zeros((12, 12), int), "weights": jnp.tri(12)}
    many = dataclasses.replace(twelve, objective=1 / jnp.arange(1.0, 13), history=None, **rows)
    drawn = plotting.plot_convergence([many]).get_lines()
    np.testing.assert_allclose(drawn[0].get_ydata(), many.objective[0])
    np.testing.assert_allclose(drawn[-1].get_ydata(), many.objective[-1])
    assert len(drawn) == 5


def test_convergence_refuses_batches_of_sweeps(path):
    with pytest.raises(ValueError, match="batch of shape"):
        plotting.plot_convergence([leaves(None, path)])


def test_comparison_has_a_line_for_each_solver(path):
    labels = ["MatchingPursuit", "GIGA"]
    held_out = {label: np.array([0.1, 0.4]) for label in labels}
    times = dict.fromkeys(labels, 1.0)
    comparison = Comparison(
        np.array([8, 2]), dict.fromkeys(labels, path), held_out, held_out, times, times
    )
    ax = plotting.plot_comparison(comparison)
    line = ax.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), [2, 8])
    np.testing.assert_allclose(line.get_ydata(), [0.4, 0.1])
    assert texts(ax.get_legend()) == labels


def test_marginals_take_an_mcmc_without_its_deterministic_sites():
    def model():
        b = numpyro.sample("b", dist.Normal(1.0, 2.0))
        numpyro.deterministic("square", b**2)

    kernel = HMC(model, trajectory_length=None, num_steps=1)  # quick to compile
    mcmc = MCMC(kernel, num_warmup=5, num_samples=20, progress_bar=False)
    with pytest.raises(ValueError, match="has run"):
        plotting.plot_marginals(mcmc, mcmc)
    mcmc.run(jax.random.key(0))
    (ax,) = plotting.plot_marginals(mcmc, (np.array([1.0]), np.array([[4.0]])))
    assert ax.get_title() == "b"


def test_axes_given_are_the_axes_drawn_into():
    _, (left, right) = plt.subplots(1, 2)
    assert plotting.plot_kl(report(), left) is left
    assert plotting.plot_weights((np.arange(2), np.ones(2)), right) is right
    assert plotting.plot_error(report(), left) is left
    assert len(plt.get_fignums()) == 1
