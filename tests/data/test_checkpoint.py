"""An interrupted build resumes to the same coreset, bit for bit; a file is never half written."""

import functools
import os
import random
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import jaxcoreset as jc
from jaxcoreset.data import rows as rows_module
from jaxcoreset.data.checkpoint import CheckpointFile, build_settings
from jaxcoreset.data.processes import SINGLE_PROCESS
from jaxcoreset.likelihood.totals import log_likelihood_totals

NUM_ROWS = 3000


NOISE = {"of all": 1.0}


def model(x, y, scale=1.0):
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, scale * NOISE["of all"]), obs=y)


def table(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_ROWS, 2)).astype(np.float32)
    return x, (x @ np.ones(2) + rng.normal(size=NUM_ROWS)).astype(np.float32)


def builder(path, **settings):
    settings = {
        "size": 5,
        "num_draws": 60,
        "num_held_out": 60,
        "candidates": jc.Candidates(200, extra_passes=1),
        "execution": jc.Execution(batch_size=1),  # so that a pass has many groups
        "checkpoint": None if path is None else jc.Checkpoint(path, every=0.0),
        "progress_bar": False,
        "proxy": None,
    } | settings
    return jc.CoresetBuilder(settings.pop("model", model), **settings)


def build(path, data=None, key=0, **settings):
    return builder(path, **settings).run(jax.random.key(key), *(data or table()))


@pytest.fixture(scope="module")
def whole():
    return build(None)


class Stop(BaseException):
    """What ends a build in the middle."""


def break_off(monkeypatch, after, error):
    """Raise an error after so many groups of rows, in whatever pass."""
    evaluate = rows_module.evaluate_blocks
    seen = [0]

    @functools.wraps(evaluate)
    def counted(*args, **kwargs):
        for group in evaluate(*args, **kwargs):
            seen[0] += 1
            if seen[0] == after:
                raise error
            yield group

    monkeypatch.setattr(rows_module, "evaluate_blocks", counted)
    return seen


@pytest.mark.parametrize("after", [1, 5, 14, 22, 27])
def test_an_interrupted_build_says_where_it_is_and_goes_on_bit_for_bit(
    tmp_path, monkeypatch, whole, after
):
    path = tmp_path / "build"
    with monkeypatch.context() as patch:
        break_off(patch, after, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt) as caught:
            build(path)
    assert str(path) in caught.value.__notes__[0]
    with monkeypatch.context() as patch:
        seen = break_off(patch, None, None)
        coreset = build(path)
    np.testing.assert_array_equal(coreset.indices, whole.indices)
    np.testing.assert_array_equal(coreset.weights, whole.weights)
    assert coreset.report.kl == whole.report.kl
    with monkeypatch.context() as patch:
        all_groups = break_off(patch, None, None)
        build(None)
    assert seen[0] == all_groups[0] - after + 1  # nothing that was done is done again


@pytest.mark.parametrize("decimals", [6, 0])
def test_an_interrupted_build_with_a_proxy_goes_on_bit_for_bit(tmp_path, monkeypatch, decimals):
    """With rounded numbers most rows are equal, and passes evaluate the distinct ones."""

    def robust(x, y):
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.StudentT(4.0, x @ slopes, 1.0), obs=y)

    data = tuple(np.round(leaf, decimals) for leaf in table())
    settings = {"model": robust, "proxy": jc.Taylor(), "data": data}
    with monkeypatch.context() as patch:
        seen = break_off(patch, None, None)
        whole = build(None, **settings)
    assert len(whole) > 0
    assert (whole.likelihood.rows.folding is None) == (decimals > 0)
    for after in (3, seen[0] - 1):
        path = tmp_path / str(after)
        with monkeypatch.context() as patch:
            break_off(patch, after, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                build(path, **settings)
        coreset = build(path, **settings)
        np.testing.assert_array_equal(coreset.indices, whole.indices)
        np.testing.assert_array_equal(coreset.weights, whole.weights)
        for found, expected in zip(
            *map(jax.tree.leaves, (coreset.proxy, whole.proxy)), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_a_missing_folder_is_told_before_the_first_pass(tmp_path, monkeypatch):
    seen = break_off(monkeypatch, None, None)
    with pytest.raises(FileNotFoundError, match="no such directory for a checkpoint"):
        build(tmp_path / "missing" / "build")
    assert seen[0] == 0


def test_a_checkpoint_that_cannot_be_written_does_not_hide_the_error(tmp_path, monkeypatch):
    def full(self):
        raise OSError("no space left")

    break_off(monkeypatch, 5, KeyboardInterrupt())
    monkeypatch.setattr(CheckpointFile, "write", full)
    with pytest.raises(KeyboardInterrupt) as caught:
        build(None, checkpoint=jc.Checkpoint(tmp_path / "build", every=3600.0))
    assert "could not be written: no space left" in caught.value.__notes__[0]


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_build_goes_on(
    tmp_path, monkeypatch, whole
):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match=r"build' could not be written: No space left .* goes on"):
        coreset = build(tmp_path / "build")
    np.testing.assert_array_equal(coreset.weights, whole.weights)
    assert os.listdir(tmp_path) == []


def test_a_finished_build_is_there_at_once(tmp_path, monkeypatch, whole):
    build(tmp_path / "build")
    with monkeypatch.context() as patch:
        seen = break_off(patch, None, None)
        again = build(tmp_path / "build", execution=jc.Execution(batch_size=700))
    assert seen[0] == 0
    np.testing.assert_array_equal(again.weights, whole.weights)


def test_passes_after_the_build_are_not_kept(tmp_path):
    coreset = build(tmp_path / "build")
    before = (tmp_path / "build").read_bytes()
    likelihood = coreset.likelihood
    log_likelihood_totals(
        likelihood.log_likelihood, {"slopes": np.zeros((3, 2), np.float32)}, likelihood.rows
    )
    assert (tmp_path / "build").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"key": 1}, "key"),
        ({"data": table(1)}, "data"),
        ({"size": 6}, "size"),
        ({"num_draws": 61}, "num_draws"),
        ({"weighting": jc.Laplace(max_iters=49)}, "weighting"),
    ],
)
def test_a_checkpoint_of_another_build_is_refused(tmp_path, changes, named):
    path = tmp_path / "build"
    build(path)
    with pytest.raises(ValueError, match=rf"another build: it differs in {named} \("):
        build(path, **changes)


class Holder:
    """A model whose noise is held by an object."""

    def __init__(self, scale):
        self.scale = scale

    def model(self, x, y):
        model(x, y, self.scale)

    __call__ = model


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_arrays_in_a_setting_are_compared_by_their_values(array):
    """A representation shows their shape alone."""

    def weighting_of(shift):
        draws = jc.Draws({"slopes": array(np.arange(400.0).reshape(200, 2) + shift)})
        built = builder(None, weighting=draws)
        return build_settings(built, jax.random.key(0), table(), {}, SINGLE_PROCESS)["weighting"]

    assert weighting_of(0.0) == weighting_of(0.0) != weighting_of(0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda scale: lambda x, y: model(x, y, scale),
        lambda scale: functools.partial(model, scale=scale),
        lambda scale: Holder(scale).model,
        Holder,
    ],
)
def test_a_model_of_the_same_code_and_other_values_is_another_build(tmp_path, make):
    path = tmp_path / "build"
    first = build(path, model=make(1.0))
    again = build(path, model=make(1.0))
    np.testing.assert_array_equal(again.weights, first.weights)
    with pytest.raises(ValueError, match=r"differs in .*model"):
        build(path, model=make(3.0))


def test_a_changed_global_is_another_build(tmp_path, monkeypatch):
    path = tmp_path / "build"
    build(path)
    monkeypatch.setitem(NOISE, "of all", 3.0)
    with pytest.raises(ValueError, match="differs in model values"):
        build(path)


@pytest.mark.parametrize("damage", ["cut", "changed", "other"])
def test_a_damaged_file_is_refused_and_not_read(tmp_path, damage):
    path = tmp_path / "build"
    build(path)
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 1])
    path.write_bytes(
        {
            "cut": content[:middle],
            "changed": content[:middle] + flipped + content[middle + 1 :],
            "other": b"something else",
        }[damage]
    )
    with pytest.raises(ValueError, match="is not a checkpoint, or is damaged; delete it"):
        build(path)


def test_what_a_killed_writing_left_is_cleared_away(tmp_path, whole):
    path = tmp_path / "build"
    left, being_written = (tmp_path / f"build.{digit * 32}.part" for digit in "01")
    for part in (left, being_written):
        part.write_bytes(b"half a")
    os.utime(left, (time.time() - 3600, time.time() - 3600))
    coreset = build(path)
    # The recent one may be that of another build with the same checkpoint.
    assert {file.name for file in tmp_path.iterdir()} == {"build", being_written.name}
    np.testing.assert_array_equal(coreset.weights, whole.weights)


def test_a_pass_that_is_not_the_one_that_was_kept_is_made_anew(tmp_path):
    checkpoint = CheckpointFile(tmp_path / "checkpoint", {})
    for digest in ("a", "b", "c"):
        checkpoint.open("target", digest).finish({"total": np.ones(2)})
    again = CheckpointFile(tmp_path / "checkpoint", {})
    assert again.open("target", "a").is_done
    assert not again.open("target", "other").is_done
    assert not again.open("target", "c").is_done


def program(path, out):
    """A build in a process of its own, slow enough to be killed anywhere."""
    evaluate = rows_module.evaluate_blocks

    def slow(*args, **kwargs):
        for group in evaluate(*args, **kwargs):
            time.sleep(0.05)
            yield group

    rows_module.evaluate_blocks = slow
    build(path).save(out)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_a_build_that_is_killed_twenty_times_ends_in_the_same_coreset(tmp_path):
    path, out = tmp_path / "build", tmp_path / "coreset.npz"
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    undisturbed = [sys.executable, __file__, str(tmp_path / "other"), str(tmp_path / "whole.npz")]
    subprocess.run(undisturbed, env=environment, check=True, timeout=120)
    whole = jc.load(tmp_path / "whole.npz", model)
    command = [sys.executable, __file__, str(path), str(out)]
    generator = random.Random(0)
    kills = 0
    while not out.exists():
        running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        # Until it has gone further than the last one, and then at any moment.
        if kills < 20:
            before = path.stat().st_mtime_ns if path.exists() else 0
            while running.poll() is None and (
                not path.exists() or path.stat().st_mtime_ns == before
            ):
                time.sleep(0.01)
            time.sleep(generator.uniform(0, 0.3))
            running.send_signal(signal.SIGKILL)
            kills += 1
        _, errors = running.communicate(timeout=120)
        assert running.returncode in (0, -signal.SIGKILL), errors.decode()
    assert kills == 20 or out.exists()
    coreset = jc.load(out, model)
    np.testing.assert_array_equal(coreset.indices, whole.indices)
    np.testing.assert_array_equal(coreset.weights, whole.weights)


if __name__ == "__main__":
    program(sys.argv[1], sys.argv[2])
