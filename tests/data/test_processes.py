"""Several processes over loopback build what one builds; none of them is left waiting."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parent / "process_program.py"


def launch(num_processes, what, *options):
    """The command's exit status, what each process found, all that was printed, and seconds."""
    command = [sys.executable, str(PROGRAM), what]
    if num_processes:
        command = [sys.executable, "-m", "jaxcoreset.command.main", "launch", *options]
        command += ["--processes", str(num_processes), str(PROGRAM), what]
    start = time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    found = [
        json.loads(line.partition("FOUND ")[2])
        for line in done.stdout.splitlines()
        if "FOUND " in line
    ]
    return done.returncode, found, done.stdout + done.stderr, time.monotonic() - start


@pytest.fixture(scope="module")
def alone():
    status, found, text, _ = launch(0, "build")
    assert status == 0, text
    return found[0]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_build_what_one_builds(alone, count):
    status, found, text, _ = launch(count, "build")
    assert status == 0, text
    assert len(found) == count
    for one in found:
        assert one["num_local"] == alone["num_data"] // count
        assert one["num_data"] == alone["num_data"]
        assert one["indices"] == alone["indices"]
        np.testing.assert_allclose(one["weights"], alone["weights"], rtol=1e-4)
        assert one["rows"] == alone["rows"]
        assert one["kl"] == pytest.approx(alone["kl"], rel=1e-3)


def test_an_error_in_one_process_is_told_in_all():
    status, found, text, _ = launch(2, "bad rows")
    assert status != 0
    assert not found
    assert re.search("log-likelihood at a starting point is (-inf|NaN) in rows 8192, 8193", text)
    assert "[0] " in text
    assert "another process" in text.replace("\n[0] ", " ")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("other types", "y: int32|do not have the same kind of arrays"),
        ("other size", "were not called alike.* differ in size: [67] here, [67] there"),
        ("no rows", "another process of the build failed. process 1: model: ModelError"),
    ],
)
def test_processes_that_do_not_fit_together_are_told_at_once(what, words):
    status, found, text, seconds = launch(2, what)
    assert status != 0
    assert not found
    assert re.search(words, re.sub(r"\n\[\d\] ", " ", text)), text
    assert seconds < 100  # in place of the timeout


def test_certificates_of_processes_are_at_the_draws_of_the_first():
    status, found, text, _ = launch(2, "certify")
    assert status == 0, text
    assert found[0] == found[1]
    assert found[0]["kl"] < 10 * found[0]["built"] + 1e-6


@pytest.mark.slow
def test_processes_end_where_the_first_one_dies():
    """It keeps the book of who is there, so JAX itself ends the others."""
    status, found, text, seconds = launch(2, "first dies", "--grace", "60")
    assert status != 0
    assert not found
    assert "another task died" in text
    assert seconds < 90


@pytest.mark.slow
def test_a_process_that_dies_is_named_within_the_time():
    status, found, text, seconds = launch(2, "dies", "--grace", "60")
    assert status != 0
    assert not found
    assert "process 1 of 2 did not come within 5 seconds" in text
    assert seconds < 90


def test_launching_without_a_coordinator_on_several_machines_is_refused(capsys):
    from jaxcoreset.command.main import main

    assert main(["launch", "--nodes", "2", "script.py"]) == 2
    assert "--coordinator" in capsys.readouterr().err
    assert main(["launch", "--processes", "0", "script.py"]) == 2


@pytest.mark.usefixtures("untyped")
def test_a_distributed_build_without_processes_says_what_to_do():
    import jax

    import jaxcoreset as jc

    builder = jc.CoresetBuilder(
        lambda x: None, size=3, execution=jc.Execution(processes=jc.Processes())
    )
    with pytest.raises(RuntimeError, match=r"jaxcoreset.initialize_processes\(\)"):
        builder.run(jax.random.key(0), np.zeros(5))
