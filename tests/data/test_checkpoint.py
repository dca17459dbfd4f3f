"""An interrupted build resumes to the same coreset, bit for bit; a file is never half written."""

import contextlib
import functools
import os
import time
import uuid
from types import SimpleNamespace
from unittest import mock

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


@contextlib.contextmanager
def counted_groups(after=None, error=None):
    """Count the groups of rows that passes evaluate, and raise an error at one of them."""
    evaluate = rows_module.evaluate_blocks
    seen = SimpleNamespace(num=0)

    @functools.wraps(evaluate)
    def counting(*args, **kwargs):
        for group in evaluate(*args, **kwargs):
            seen.num += 1
            if seen.num == after:
                raise error or KeyboardInterrupt
            yield group

    with mock.patch.object(rows_module, "evaluate_blocks", counting):
        yield seen


def check_same(coreset, expected):
    np.testing.assert_array_equal(coreset.indices, expected.indices)
    np.testing.assert_array_equal(coreset.weights, expected.weights)
    assert coreset.report.kl == expected.report.kl


@pytest.fixture(scope="module")
def whole():
    """A build without a checkpoint, and the number of groups of rows in its passes."""
    with counted_groups() as seen:
        coreset = build(None)
    return SimpleNamespace(coreset=coreset, num_groups=seen.num)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A build with a checkpoint, and what its file held."""
    path = tmp_path_factory.mktemp("finished") / "build"
    coreset = build(path)
    return SimpleNamespace(coreset=coreset, path=path, content=path.read_bytes())


@pytest.fixture
def copy(tmp_path, finished):
    """A file of its own of the finished build."""
    (tmp_path / "build").write_bytes(finished.content)
    return tmp_path / "build"


@pytest.mark.parametrize("after", [1, 5, 14, 27])
def test_an_interrupted_build_says_where_it_is_and_goes_on_bit_for_bit(tmp_path, whole, after):
    path = tmp_path / "build"
    with counted_groups(after), pytest.raises(KeyboardInterrupt) as caught:
        build(path)
    assert str(path) in caught.value.__notes__[0]
    with counted_groups() as seen:
        check_same(build(path), whole.coreset)
    assert seen.num == whole.num_groups - after + 1  # nothing that was done is done again


@pytest.mark.parametrize(
    "decimals", [0, pytest.param(6, marks=[pytest.mark.slow, pytest.mark.unoptimised])]
)
def test_an_interrupted_build_with_a_proxy_goes_on_bit_for_bit(tmp_path, decimals):
    """With rounded numbers most rows are equal, and passes evaluate the distinct ones."""

    def robust(x, y):
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.StudentT(4.0, x @ slopes, 1.0), obs=y)

    data = tuple(np.round(leaf, decimals) for leaf in table())
    settings = {"model": robust, "proxy": jc.Taylor(), "data": data}
    with counted_groups() as seen:
        whole = build(None, **settings)
    assert len(whole) > 0
    assert (whole.likelihood.rows.folding is None) == (decimals > 0)
    for after in (3, seen.num - 1) if decimals == 0 else (seen.num - 1,):
        path = tmp_path / str(after)
        with counted_groups(after), pytest.raises(KeyboardInterrupt):
            build(path, **settings)
        coreset = build(path, **settings)
        check_same(coreset, whole)
        for found, expected in zip(
            *map(jax.tree.leaves, (coreset.proxy, whole.proxy)), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_a_missing_folder_is_told_before_the_first_pass(tmp_path):
    message = "no such directory for a checkpoint"
    with counted_groups() as seen, pytest.raises(FileNotFoundError, match=message):
        build(tmp_path / "missing" / "build")
    assert seen.num == 0


def test_a_checkpoint_that_cannot_be_written_does_not_hide_the_error(tmp_path, monkeypatch):
    def full(self):
        raise OSError("no space left")

    monkeypatch.setattr(CheckpointFile, "write", full)
    with counted_groups(5), pytest.raises(KeyboardInterrupt) as caught:
        build(None, checkpoint=jc.Checkpoint(tmp_path / "build", every=3600.0))
    assert "could not be written: no space left" in caught.value.__notes__[0]


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_build_goes_on(
    tmp_path, monkeypatch, whole
):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match=r"build' could not be written: No space left .* goes on"):
        check_same(build(tmp_path / "build"), whole.coreset)
    assert os.listdir(tmp_path) == []


def test_a_finished_build_is_there_at_once(copy, whole):
    with counted_groups() as seen:
        check_same(build(copy, execution=jc.Execution(batch_size=700)), whole.coreset)
    assert seen.num == 0


def test_passes_after_the_build_are_not_kept(finished):
    likelihood = finished.coreset.likelihood
    log_likelihood_totals(
        likelihood.log_likelihood, {"slopes": np.zeros((3, 2), np.float32)}, likelihood.rows
    )
    assert finished.path.read_bytes() == finished.content


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
def test_a_checkpoint_of_another_build_is_refused(copy, changes, named):
    with pytest.raises(ValueError, match=rf"another build: it differs in {named} \("):
        build(copy, **changes)


def test_a_changed_global_is_another_build(copy, monkeypatch):
    monkeypatch.setitem(NOISE, "of all", 3.0)
    with pytest.raises(ValueError, match="differs in model values"):
        build(copy)


def setting(name, value):
    """What a checkpoint compares of one setting."""
    built = builder(None, **{name: value})
    return build_settings(built, jax.random.key(0), table(), {}, SINGLE_PROCESS)[name]


class Holder:
    """A model whose noise is held by an object."""

    def __init__(self, scale):
        self.scale = scale

    def model(self, x, y):
        model(x, y, self.scale)

    __call__ = model


@pytest.mark.parametrize(
    "make",
    [
        lambda scale: lambda x, y: model(x, y, scale),
        lambda scale: functools.partial(model, scale=scale),
        lambda scale: Holder(scale).model,
        Holder,
    ],
)
def test_a_model_of_the_same_code_and_other_values_is_another_build(make):
    def settings_of(scale):
        made = make(scale)
        return setting("model", made), jc.model_likelihood(made, table()).values_as_text()

    first = settings_of(1.0)
    assert settings_of(1.0) == first
    assert settings_of(3.0) != first


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_arrays_in_a_setting_are_compared_by_their_values(array):
    """A representation shows their shape alone."""

    def weighting_of(shift):
        draws = np.arange(400.0).reshape(200, 2) + shift
        return setting("weighting", jc.Draws({"slopes": array(draws)}))

    assert weighting_of(0.0) == weighting_of(0.0) != weighting_of(0.5)


@pytest.mark.parametrize("damage", ["cut", "changed", "other"])
def test_a_damaged_file_is_refused_and_not_read(copy, finished, damage):
    content = finished.content
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 1])
    damaged = {
        "cut": content[:middle],
        "changed": content[:middle] + flipped + content[middle + 1 :],
        "other": b"something else",
    }
    copy.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match="is not a checkpoint, or is damaged; delete it"):
        CheckpointFile(copy, {})


@pytest.mark.parametrize("name", ["build", "[b]uild*"])
def test_only_what_a_killed_writing_left_is_deleted(tmp_path, name):
    left = f"{name}.{uuid.uuid4().hex}.part"
    being_written = f"{name}.{uuid.uuid4().hex}.part"  # maybe by another build
    others = [
        f"{name}.2024.part",
        f"{name}.{uuid.uuid4().hex}.part.gz",
        f"{name}.more.{uuid.uuid4().hex}.part",
        f"build2.{uuid.uuid4().hex}.part",
    ]
    for file in (left, being_written, *others):
        (tmp_path / file).touch()
        if file != being_written:
            os.utime(tmp_path / file, (time.time() - 3600, time.time() - 3600))
    CheckpointFile(tmp_path / name, {})
    assert {file.name for file in tmp_path.iterdir()} == {being_written, *others}


def test_a_pass_that_is_not_the_one_that_was_kept_is_made_anew(tmp_path):
    checkpoint = CheckpointFile(tmp_path / "checkpoint", {})
    for digest in ("a", "b", "c"):
        checkpoint.open("target", digest).finish({"total": np.ones(2)})
    again = CheckpointFile(tmp_path / "checkpoint", {})
    assert again.open("target", "a").is_done
    assert not again.open("target", "other").is_done
    assert not again.open("target", "c").is_done


def test_types_that_numpy_cannot_store_are_kept_in_a_checkpoint(tmp_path):
    state = {
        np.dtype(dtype).str: np.arange(-2, 3).astype(dtype)
        for dtype in (jnp.bfloat16, jnp.float8_e5m2, jnp.int4, np.float16, ">f4")
    }
    CheckpointFile(tmp_path / "checkpoint", {}).open("target", "a").finish(state)
    entry = CheckpointFile(tmp_path / "checkpoint", {}).open("target", "a")
    assert entry.is_done
    for name, array in state.items():
        assert entry.state[name].dtype == array.dtype
        np.testing.assert_array_equal(entry.state[name].astype(float), array.astype(float))


def test_rows_of_bfloat16_that_were_kept_are_not_read_again(tmp_path):
    x = np.arange(600).reshape(300, 2).astype(jnp.bfloat16)
    passes = []

    def start():
        passes.append(1)
        yield x

    source = jc.sources.batches(start, 300)
    for num_passes in (1, 0):
        passes.clear()
        file = CheckpointFile(tmp_path / "checkpoint", {})
        rows = rows_module.Rows(source.arrays, rows_module.PassContext(checkpoint=file))
        rows.keep(np.arange(0, 300, 7))
        taken = rows.take(np.array([7, 21]))
        assert taken.dtype == jnp.bfloat16
        np.testing.assert_array_equal(taken.astype(float), x[[7, 21]].astype(float))
        assert len(passes) == num_passes
