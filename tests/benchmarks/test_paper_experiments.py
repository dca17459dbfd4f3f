"""The papers' experiments run, and what they measure with agrees with something else."""

import dataclasses
import email.message
import hashlib
import json
import urllib.error
import urllib.request

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.special

import jaxcoreset as jc
from benchmarks import common
from benchmarks.paper import (
    chains,
    charts,
    compression,
    download,
    fisher_distance,
    methods,
    peers,
    runner,
    vector_sums,
)
from benchmarks.paper.__main__ import main
from benchmarks.paper.distributions import optimum
from benchmarks.paper.exact_vi import GaussianMean, LinearRegression, sparse_vi
from benchmarks.paper.glm import Regression
from benchmarks.paper.large_scale import synthetic
from jaxcoreset import distributions as jd
from jaxcoreset.diagnostics.gaussian import gaussian_kl
from tests.datasets import _laplace


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs_are_released():
    """The experiments keep programs themselves, where `jax.clear_caches` does not release them."""
    yield
    methods._compiled.cache_clear()
    chains._runner.cache_clear()
    chains._PROGRAMS.clear()


def regression_model(n=12, size=4):
    random = np.random.default_rng(0)
    return LinearRegression(
        random.normal(size=(n, size)), random.normal(size=n), prior_mean=0.5, prior_variance=2.0
    )


def exact_models():
    return [GaussianMean(np.random.default_rng(1).normal(size=(12, 4))), regression_model()]


def full_moments(model):
    """Mean and covariance of the posterior of weights, by the textbook's formulas."""

    def moments(weights):
        if isinstance(model, GaussianMean):
            covariance = np.eye(model.x.shape[1]) / (1 + weights.sum())
            return covariance @ (weights @ model.x), covariance
        size = model.u.shape[1]
        precision = np.eye(size) / model.prior_variance + (model.u.T * weights) @ model.u
        covariance = np.linalg.inv(precision)
        prior = np.full(size, model.prior_mean) / model.prior_variance
        return covariance @ (prior + model.u.T @ (weights * model.v)), covariance

    return moments


@pytest.mark.parametrize("model", exact_models(), ids=["mean", "regression"])
def test_exact_covariances_are_the_gradient_of_the_divergence(model):
    moments = full_moments(model)
    full = moments(np.ones(model.num_data))

    def reverse(weights):
        return gaussian_kl(*moments(weights), *full)

    rows = np.array([1, 4, 7])
    weights = np.zeros(model.num_data)
    weights[rows] = [0.5, 2.0, 1.2]
    numeric = scipy.optimize.approx_fprime(weights, reverse, 1e-6)
    covariance, _ = model.covariances(rows, weights[rows], np.arange(model.num_data))
    np.testing.assert_allclose(-covariance, numeric, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", exact_models(), ids=["mean", "regression"])
def test_exact_divergence_is_that_of_gaussians(model):
    moments = full_moments(model)
    weights = np.random.default_rng(2).uniform(size=model.num_data)
    full, other = moments(np.ones(model.num_data)), moments(weights)
    found = model.divergence(weights)
    np.testing.assert_allclose(found.forward, gaussian_kl(*full, *other), rtol=1e-8)
    np.testing.assert_allclose(found.reverse, gaussian_kl(*other, *full), rtol=1e-8)


@pytest.mark.parametrize("model", exact_models(), ids=["mean", "regression"])
def test_exact_atoms_have_the_inner_products_of_draws(model):
    mean, covariance = full_moments(model)(np.ones(model.num_data))
    draws = np.random.default_rng(3).multivariate_normal(mean, covariance, 400_000)
    if isinstance(model, GaussianMean):
        values = -0.5 * np.sum((draws[:, None] - model.x) ** 2, axis=2)
    else:
        values = -0.5 * (model.v - draws @ model.u.T) ** 2
    expected = np.cov(values, rowvar=False)
    atoms = model.atoms()
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    # 400,000 draws: four standard errors of a covariance.
    np.testing.assert_allclose(atoms @ atoms.T / scale, expected / scale, atol=0.015)


def test_exact_sparse_vi_lowers_the_reverse_divergence_and_keeps_weights_positive():
    model = regression_model()
    path = sparse_vi(model, 8)
    found = [model.divergence(weights).reverse for weights in path]
    assert (path >= 0).all()
    assert (np.count_nonzero(path, axis=1) <= np.arange(1, 9)).all()
    assert found[-1] < 0.2 * model.divergence(np.zeros(12)).reverse


@pytest.mark.parametrize("counts", [False, True])
def test_batched_laplace_fits_are_those_of_plain_newton_steps_on_repeated_rows(counts):
    random = np.random.default_rng(4)
    z = np.hstack([random.normal(size=(60, 3)), np.ones((60, 1))])
    y = random.poisson(2.0, size=60) if counts else random.integers(2, size=60)
    regression = Regression(z, y, counts)
    indices = np.array([[3, 9, 20, 31, 50]])
    weights = np.array([[4.0, 11.0, 0.0, 7.0, 20.0]])

    def laplace(rows, times):
        at, response = np.repeat(rows, times), y if counts else 2 * y - 1
        mode, precision = _laplace(z[at], response[at], counts)
        return mode, np.linalg.inv(precision)

    full = laplace(np.arange(60), 1)
    other = laplace(indices[0], weights[0].astype(int))
    found = regression.measures(indices, weights)
    np.testing.assert_allclose(found["forward"], gaussian_kl(*full, *other), rtol=2e-3)
    np.testing.assert_allclose(found["reverse"], gaussian_kl(*other, *full), rtol=2e-3)
    np.testing.assert_allclose(found["map"], np.linalg.norm(full[0] - other[0]), rtol=1e-3)
    dense = np.zeros((1, 60))
    dense[0, indices[0]] = weights[0]
    np.testing.assert_allclose(regression.of_dense(dense)["reverse"], found["reverse"], rtol=1e-9)


@pytest.mark.parametrize("kind", chains.KINDS)
def test_chain_has_the_moments_of_quadrature(kind):
    # One parameter: 15 of 20 weighted successes under a standard normal prior.
    z, y, weights = np.ones((2, 1)), np.array([1, 0]), np.array([15.0, 5.0])
    theta = np.linspace(-6, 8, 20_001)
    log_density = -0.5 * theta**2 + 15 * theta - 20 * np.logaddexp(0, theta)
    density = np.exp(log_density - log_density.max())
    mean = np.sum(density * theta) / density.sum()
    sd = np.sqrt(np.sum(density * (theta - mean) ** 2) / density.sum())
    start = np.zeros(1)
    draws, _ = chains.chain(kind, (z, y, weights), False, start, 500, 8000, jax.random.key(0))
    # The random walk has an effective draw in ten or so: four standard errors of the mean.
    np.testing.assert_allclose(draws.mean(), mean, atol=4 * sd / np.sqrt(800))
    np.testing.assert_allclose(draws.std(), sd, rtol=0.1)


def test_enumerated_optimum_is_the_lowest_of_all_supports():
    random = np.random.default_rng(5)
    p = random.dirichlet(np.ones(16)).reshape((2,) * 4)
    # The best distribution on a support for KL(q‖p) is p there, normalised: F = −log p(S).
    sums = [
        p[tuple(slice(None) if i in support else 0 for i in range(4))].sum()
        for support in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    ]
    found = optimum(jd.KLDivergence(p.astype(np.float32)), 2, 0.0)
    np.testing.assert_allclose(found, -np.log(max(sums)), rtol=1e-5)


def test_projection_on_the_simplex_is_the_nearest_distribution():
    values = np.array([0.0, 0.9, -0.2, 0.4, 0.0])
    found = compression.project_on_simplex(values)
    at = np.flatnonzero(values)
    best = scipy.optimize.minimize(
        lambda q: np.sum((q - values[at]) ** 2),
        np.full(3, 1 / 3),
        bounds=[(0, None)] * 3,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
    ).x
    np.testing.assert_allclose(found[at], best, atol=1e-6)
    assert not found[values == 0].any()


def test_greedy_mmd_takes_the_best_first_point():
    random = np.random.default_rng(6)
    x = random.normal(size=(20, 2))
    gram = np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=2))

    def mmd(rows):
        weights = np.bincount(rows, minlength=20) / len(rows) - 1 / 20
        return weights @ gram @ weights

    chosen = compression.greedy_mmd(gram, 3)
    assert len(set(chosen)) == 3
    for m in range(3):
        rivals = [i for i in range(20) if i not in chosen[:m]]
        best = min(mmd([*chosen[:m], i]) for i in rivals)
        np.testing.assert_allclose(mmd(chosen[: m + 1]), best, rtol=1e-12)


def test_trials_without_a_value_count_as_infinite():
    values = [[1.0, None], [2.0, None], [3.0, 5.0]]
    np.testing.assert_array_equal(charts.percentiles(values, (50,))[0], [2.0, np.inf])


def test_json_keeps_lists_on_a_line_and_nothing_that_is_not_a_number():
    values = runner.significant([[1.23456, np.nan], [np.inf, 2]])
    text = common.dumps({"a": values, "b": {"c": 1}}, allow_nan=False)
    assert json.loads(text) == {"a": [[1.235, None], [None, 2.0]], "b": {"c": 1}}
    assert "[1.235, null]" in text


def test_programs_that_are_not_installed_are_skipped_with_a_message(capsys, monkeypatch):
    missing = dataclasses.replace(peers.PEERS[0], module="no_such_module")
    monkeypatch.setattr(peers, "PEERS", (missing,))
    assert peers.available() == []
    assert "no_such_module" in capsys.readouterr().out


def stored_set(folder, **changes):
    """A data set of 6 and 2 rows as the repository has them, in a file in place of its address."""
    random = np.random.default_rng(7)
    x = np.hstack([random.normal(size=(8, 3)), np.ones((8, 1))])
    y = np.array([1, -1, 1, 1, -1, 1, 1, -1])
    file = folder / "stored.npz"
    np.savez(file, X=x[:6], y=y[:6], Xt=x[6:], yt=y[6:])
    digest, classes = hashlib.sha256(file.read_bytes()).hexdigest(), {-1: 3, 1: 5}
    source = download.Source(
        "some", file.as_uri(), download._both_parts, (8, 3), digest, classes=classes
    )
    return dataclasses.replace(source, **changes), x, y


def test_download_puts_the_parts_together_and_drops_the_intercept(tmp_path):
    source, x, y = stored_set(tmp_path)
    assert download.fetch_all(tmp_path / "data", (source,)) == []
    with np.load(tmp_path / "data" / "some.npz", allow_pickle=False) as kept:
        np.testing.assert_array_equal(kept["X"], x[:, :3])
        np.testing.assert_array_equal(kept["y"], y)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["some.npz"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "SHA-256"),
        ({"shape": (9, 3)}, "wanted \\(9, 3\\)"),
        ({"shape": (8, 4)}, "wanted \\(8, 4\\)"),
        ({"classes": {-1: 4, 1: 4}}, "classes"),
        ({"classes": None, "total": 3}, "sum to 2; wanted 3"),
        ({"read": download._libsvm, "sha256": None}, "cannot read"),
    ],
)
def test_download_of_something_else_is_refused_and_leaves_nothing(tmp_path, changes, message):
    source, _, _ = stored_set(tmp_path, **changes)
    with pytest.raises(download.DownloadError, match=message):
        download.fetch(source, tmp_path / "data")
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").iterdir())


def test_download_names_what_failed_and_goes_on(tmp_path, capsys, monkeypatch):
    reach = urllib.request.urlopen

    def urlopen(url, **settings):
        if "gone" in url:
            raise urllib.error.HTTPError(url, 404, "Not Found", email.message.Message(), None)
        return reach(url, **settings)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    source, _, _ = stored_set(tmp_path)
    gone = dataclasses.replace(source, name="gone", url="http://localhost/gone.npz")
    assert download.fetch_all(tmp_path, (gone, source)) == ["gone"]
    assert "404" in capsys.readouterr().out
    assert (tmp_path / "some.npz").is_file()


def test_libsvm_text_becomes_rows_of_norm_one():
    kept = download._libsvm(b"+1 1:3 3:4\n0 2:2\n-1 1:1 2:1\n")
    expected = [[0.6, 0, 0.8], [0, 1, 0], [0.5**0.5, 0.5**0.5, 0]]
    np.testing.assert_allclose(kept["X"], expected)
    np.testing.assert_array_equal(kept["y"], [1, -1, -1])


def test_command_refuses_what_it_cannot_do(capsys, monkeypatch):
    monkeypatch.delenv("JAXCORESET_DATA", raising=False)
    for arguments in (["nonsense"], ["gaussian", "--trials", "0"], ["all", "--download"], ["data"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert "--data-dir" in capsys.readouterr().err


@pytest.fixture
def _few_methods(monkeypatch):
    """One or two methods for each way to run their lanes, since most of the time is compilation."""
    few = methods.UNIFORM, methods.PURSUIT, methods.DEFAULT
    monkeypatch.setattr(methods, "PAPER", (methods.UNIFORM, methods.AIHT2))
    monkeypatch.setattr(methods, "OURS", (methods.RECOMBINATION, methods.DEFAULT))
    monkeypatch.setattr(vector_sums, "_METHODS", few)
    monkeypatch.setattr(fisher_distance, "_METHODS", few)
    # Each of these compiles a program for each number of rows.
    monkeypatch.setattr(fisher_distance, "KINDS", chains.KINDS[1:])
    monkeypatch.setattr(
        methods, "seconds_per_solve", lambda problem, ks, *args, **_: [0.1] * len(ks)
    )


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.usefixtures("_few_methods")
@pytest.mark.parametrize("name", runner.NAMES)
def test_experiment_runs_at_tiny_settings_and_writes_its_files(name, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    drawn = []
    with monkeypatch.context() as patch:
        patch.setattr(runner, "draw", lambda *given: drawn.append(given[0]))
        result = runner.run(name, runner.Settings("tiny", trials=1), tmp_path)
    if result is None:
        pytest.skip("its data are missing")
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["scale"] == "tiny"
    assert written["cells"]
    # Table and figures are of the JSON alone.
    assert drawn == [name]
    main([name, "--redraw", "--out", str(tmp_path)])
    assert "| method" in (tmp_path / f"{name}.md").read_text() or name == "fisher_distance"
    figures = list(tmp_path.glob("*.png"))
    assert figures
    assert all(path.stat().st_size > 5000 for path in figures)


def test_one_solve_for_each_size_is_timed():
    problem = jc.CoresetProblem(np.random.default_rng(9).normal(size=(12, 5)))
    assert all(spent > 0 for spent in methods.seconds_per_solve(problem, [1, 2], methods.UNIFORM))


def test_synthetic_regression_has_the_papers_size_and_slope():
    _, z, y = synthetic(9000)
    assert z.shape == (9000, 3)
    with jax.enable_x64(True):
        mode = Regression(z, y, counts=False).full.mode
    # Four posterior standard deviations at n = 9000.
    np.testing.assert_allclose(mode, [3, 3, 0], atol=0.35)
