"""The benchmark of malformed files holds, case by case, and bytes that are flipped at random."""

import numpy as np
import pytest

import jaxcoreset as jc
from benchmarks.robustness import files
from jaxcoreset.data.arrays import load_archive
from jaxcoreset.data.checkpoint import CheckpointFile


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return list(files.measure(tmp_path_factory.mktemp("files")))


def test_sixty_malformed_files_are_refused_with_their_place_and_run_nothing(rows):
    assert len(rows) == 60
    assert not [row for row in rows if not row["held"]]


@pytest.mark.parametrize(
    ("case", "place"),
    [
        ("report is missing", "in report: KeyError: 'report'"),
        ("weights are negative", "in indices or weights: ValueError: weights ar"),
        ("is_done is a number", "in pass 0: ValueError: is_done is '1', of type"),
        ("next_row is within a block", "is damaged; delete it"),
    ],
)
def test_a_message_says_what_is_wrong_where(rows, case, place):
    (row,) = [row for row in rows if row["case"] == case]
    assert place in row["outcome"]


def _read(path, settings):
    """What a coreset or a checkpoint holds, as text and arrays."""
    if path.suffix == ".npz":
        coreset = jc.load(path, files.model)
        return str(coreset.report), [coreset.weights, *coreset.args]
    passes = CheckpointFile(path, dict(settings)).passes
    return str([one.what for one in passes]), [x for one in passes for x in one.state.values()]


@pytest.mark.parametrize("name", ["changed.npz", "changed.build"])
def test_a_file_with_flipped_bytes_is_refused_or_is_the_same(tmp_path, name):
    coreset = files.build(tmp_path / "whole.build")
    coreset.save(tmp_path / "whole.npz")
    path, whole = tmp_path / name, tmp_path / name.replace("changed", "whole")
    settings = load_archive(tmp_path / "whole.build", "checkpoint", "")[0]["settings"]
    text, arrays = _read(whole, settings)
    content, random = np.frombuffer(whole.read_bytes(), np.uint8), np.random.default_rng(0)
    refusals = []
    for _ in range(200):
        changed = content.copy()
        at = random.integers(0, content.size, random.integers(1, 4))
        changed[at] ^= random.integers(1, 256, dtype=np.uint8)
        path.write_bytes(changed.tobytes())
        try:
            found = _read(path, settings)
        except ValueError as error:
            refusals.append(str(error))
            continue
        assert found[0] == text
        for one, other in zip(found[1], arrays, strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(refusals) > 100
    assert all(str(path) in refusal for refusal in refusals)
