"""The pictures: what they show is what they were given."""

import matplotlib as mpl
import numpy as np
import pytest

from jaxcoreset.report import Report

mpl.use("Agg")
plotting = pytest.importorskip("jaxcoreset.plotting")


def report():
    sizes = np.array([1, 2, 4, 8])
    curve = {
        "size": sizes,
        "num_used": sizes,
        "relative_error": 0.5 / sizes,
        "held_out_error": 0.6 / sizes,
        "kl": 1.0 / sizes**2,
        "kl_standard_error": 0.05 / sizes**2,
    }
    return Report(
        100, 8, 8, 100, 50, 50, 0.06, 0.07, 0.01, 0.001, "X", True, "Laplace", curve, {"solve": 1.0}
    )


def test_error_curve_has_both_errors_and_labels():
    ax = plotting.plot_error(report())
    seen, held_out = ax.get_lines()
    np.testing.assert_allclose(seen.get_ydata(), 0.5 / np.array([1, 2, 4, 8]))
    np.testing.assert_allclose(held_out.get_ydata(), 0.6 / np.array([1, 2, 4, 8]))
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_marginals_draw_one_panel_a_parameter():
    draws = np.random.default_rng(0).normal(size=(500, 7))
    axes = plotting.plot_marginals(draws, np.zeros(7), np.ones(7), list("abcdefg"))
    assert [ax.get_title() for ax in axes] == list("abcdefg")
    density = axes[0].get_lines()[0].get_ydata()
    assert density.max() == pytest.approx(1 / np.sqrt(2 * np.pi), rel=1e-3)
