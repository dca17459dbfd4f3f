"""Several processes over loopback build what one builds; none of them is left waiting.

Starting a process and compiling its first build takes most of the time, so each of them makes
several builds, and several tests look at what it found.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxcoreset as jc

PROGRAM = [sys.executable, "-m", "tests.data.process_program"]
TIMEOUT = 280
# As root, and with more processes than cores, Open MPI starts nothing unless told to.
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def slow(test):
    """Marks a test that takes long, most of it for compilation."""
    return pytest.mark.slow(pytest.mark.unoptimised(test))


@dataclass
class Outcome:
    """The largest exit status, what each process found, all that was printed, and the seconds."""

    status: int
    found: list[dict]
    text: str
    seconds: float

    def of(self, what):
        """What each process found in one build."""
        assert self.found, self.text
        return [one[what] for one in self.found]


def run(*commands, **variables):
    start = time.monotonic()
    # Each process writes a file, because mpirun may join the lines that several processes print.
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=ENVIRONMENT | variables | {"FOUND_FOLDER": folder},
                cwd=Path(__file__).parents[2],
            )
            for command in commands
        ]
        try:
            texts = [
                process.communicate(timeout=TIMEOUT - (time.monotonic() - start))[0]
                for process in running
            ]
        finally:
            for process in running:
                process.kill()
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]
    status = max(abs(process.returncode) for process in running)
    return Outcome(status, found, "".join(texts), time.monotonic() - start)


def run_over_loopback(count, names, by_variable=False):
    """See `run`, for a number of processes that are told of each other."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    variables = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}"} if by_variable else {}
    where = ["" if by_variable else f"127.0.0.1:{port}", str(count)]
    return run(*([*PROGRAM, names, *where, str(index)] for index in range(count)), **variables)


@pytest.fixture(scope="module")
def alone():
    return run([*PROGRAM, "build and more"])


@pytest.fixture(scope="module")
def together():
    names = "build and more,other size,other categories,other types,no rows,bad rows,dies"
    return run_over_loopback(2, names, by_variable=True)


@pytest.fixture(scope="module")
def left():
    """Of three processes two are gone before the build."""
    return run_over_loopback(3, "others end,build")


@pytest.fixture(scope="module")
def together_more():
    return run_over_loopback(2, "proxy,no mode")


@pytest.fixture(scope="module")
def three():
    return run_over_loopback(3, "groups,divided group,first waits,others end")


@pytest.fixture(scope="module")
def alone_more():
    return run([*PROGRAM, "proxy,groups"])


def check_the_same(one, processes, of_weights=1e-4, of_kl=1e-3):
    for each in processes:
        assert each["num_data"] == one["num_data"]
        assert each["indices"] == one["indices"]
        np.testing.assert_allclose(each["weights"], one["weights"], rtol=of_weights)
        assert each["rows"] == one["rows"]
        assert each["kl"] == pytest.approx(one["kl"], rel=of_kl)


def check_ended_in_order(done):
    assert done.status == 1  # and no signal, with which JAX's service aborts
    assert "coordination" not in done.text
    assert done.seconds < 60


def test_processes_build_what_one_builds(alone, together):
    (one,), processes = alone.of("build and more"), together.of("build and more")
    assert [each["num_local"] for each in processes] == [one["num_data"] // 2] * 2
    check_the_same(one, processes)


@slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="on Debian, apt-get install openmpi-bin")
def test_processes_that_mpirun_starts_build_what_one_builds(alone):
    done = run(["mpirun", "-n", "2", "--bind-to", "none", *PROGRAM, "build", "mpirun"])
    assert done.status == 0, done.text
    assert len(done.found) == 2
    check_the_same(alone.of("build and more")[0], done.of("build"))


@slow
def test_processes_build_what_one_builds_with_a_proxy(alone, alone_more, together_more):
    (one,) = alone_more.of("proxy")
    assert one["kl"] < 0.01 * alone.of("build and more")[0]["kl"]
    check_the_same(one, together_more.of("proxy"), 0.02, 0.02)


@slow
def test_processes_share_groups(alone_more, three):
    (one,) = alone_more.of("groups")
    assert one["num_data"] == 90
    check_the_same(one, three.of("groups"), 1e-3, 1e-2)
    for each in three.of("groups"):
        np.testing.assert_allclose(each["effects"], one["effects"], atol=1e-4)


@slow
def test_a_group_is_in_one_process(three):
    for each in three.of("divided group"):
        assert "expected all rows of a group in one process" in each["error"]


@pytest.mark.parametrize(
    ("what", "in_first", "in_last"),
    [
        (
            "bad rows",
            "another process found no starting point .* see the error of process 1",
            "log-likelihood at a starting point is (-inf|NaN) in rows 6144, 6145",
        ),
        ("other types", "y: int32|do not have the same kind of arrays", "y: int32|same kind"),
        ("other size", "different settings.* size: 6 here, 7 there", "size: 7 here, 6 there"),
        (
            "other categories",
            r"column 'carrier' in \w+ stand for .*pass categories=.*'AA', 'UA'\] here, .*'B6'",
            r"'B6', 'UA'\] here, .*'AA', 'UA'",
        ),
        ("no rows", "another process of the build failed. process 1: model: ModelError", "Model"),
    ],
)
def test_an_error_or_a_difference_is_told_in_all_processes(together, what, in_first, in_last):
    for found, words in zip(together.of(what), (in_first, in_last), strict=True):
        assert re.search(words, found["error"].replace("\n", " "))
        assert found["seconds"] < 60  # in place of the timeout


def test_processes_that_end_before_the_build_end_the_other_ones_with_their_errors(left):
    (first,) = left.of("build")
    assert first["error"].startswith("ProcessError: another process of the build failed. ")
    assert "process 1: it ended before the build did" in first["error"]
    assert "process 2: FileNotFoundError: " in first["error"]
    check_ended_in_order(left)


@slow
def test_a_first_process_that_ends_before_the_build_ends_the_other_ones_with_its_error():
    done = run_over_loopback(2, "first fails,build")
    (second,) = done.of("build")
    assert "process 0: FileNotFoundError: " in second["error"]
    check_ended_in_order(done)


@slow
def test_processes_that_end_early_leave_the_other_ones_alone(three):
    """One of them with an error."""
    assert three.status == 1, three.text
    assert len(three.found) == 3
    assert three.text.count("Traceback") == 1
    assert "coordination" not in three.text


def test_certificates_of_processes_are_at_the_draws_of_the_first(together):
    one, other = together.of("build and more")
    assert one["certified"] == other["certified"]
    assert one["certified"] < 10 * one["kl"] + 1e-6


def test_processes_leave_all_rows_out_and_predict_their_own(alone, together):
    (whole,), processes = alone.of("build and more"), together.of("build and more")
    for one in processes:
        assert one["num_loo"] == whole["num_data"]
        assert one["loo"] == pytest.approx(whole["loo"], rel=1e-4)
        assert one["num_predicted"] == one["num_local"]
    predicted = np.concatenate([one["predicted"] for one in processes])
    errors = predicted - np.asarray(whole["predicted"])
    # The means of 200 responses, whose random numbers depend on the place of a row.
    assert np.sqrt(np.mean(errors**2)) < 2 * np.sqrt(2 * 0.25 / 200)
    assert abs(errors.mean()) < 0.01


@slow
def test_processes_take_the_same_weighting_where_one_finds_no_mode(together_more):
    one, other = together_more.of("no mode")
    assert one["weighting"] == other["weighting"] == "SubsampleNUTS"
    assert one["indices"] == other["indices"]
    assert one["weights"] == other["weights"]
    text = "it found nothing in another process; the build goes on with SubsampleNUTS"
    assert text in together_more.text


def test_a_build_ends_in_time_where_a_process_dies(together):
    error = together.found[0]["dies"]["error"]
    assert "process 1 of 2 did not arrive within 5 seconds" in error
    assert "dies" not in together.found[1]
    assert together.status == 9
    assert "coordination" not in together.text


@slow
def test_processes_end_in_time_where_the_first_dies():
    done = run_over_loopback(2, "first dies")
    assert done.status != 0
    assert not done.found
    assert "another task died" in done.text  # it coordinates, so JAX itself ends the others
    assert done.seconds < 90


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="Linux lists open ports there")
def test_a_coordinator_on_loopback_listens_there_only(together, left):
    """Its address is given by JAX's variable, and by an argument."""
    # 127.0.0.1 and ::1, as Linux prints them.
    own = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    for done in (together, left):
        assert done.found[0]["listens"]
        assert set(done.found[0]["listens"]) <= own


def test_initialize_processes_says_how_to_start_a_script_that_nothing_started(alone):
    assert "Start the script with mpirun or srun" in alone.of("nothing started")[0]["error"]


@pytest.mark.usefixtures("untyped")
def test_a_distributed_build_without_processes_says_what_to_do():
    builder = jc.CoresetBuilder(
        lambda x: None, size=3, execution=jc.Execution(processes=jc.Processes()), proxy=None
    )
    with pytest.raises(RuntimeError, match=r"jaxcoreset.initialize_processes\(\)"):
        builder.run(jax.random.key(0), np.zeros(5))
