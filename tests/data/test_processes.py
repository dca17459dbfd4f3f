"""Several processes over loopback build what one builds; none of them is left waiting."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

PROGRAM = [sys.executable, str(Path(__file__).parent / "process_program.py")]
TIMEOUT = 280
SLOW = [pytest.mark.slow, pytest.mark.unoptimised]
# As root, and with more processes than cores, Open MPI starts nothing unless told to.
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def run(*commands):
    """The largest exit status, what the processes found, all that was printed, and the seconds."""
    start = time.monotonic()
    # Each process writes a file, because mpirun may join the lines that several processes print.
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=ENVIRONMENT | {"FOUND_FOLDER": folder},
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
    text = "".join(texts)
    status = max(abs(process.returncode) for process in running)
    return status, found, text, time.monotonic() - start


def run_over_loopback(count, what):
    """See `run`, for a number of processes that are told of each other by arguments."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    where = [f"127.0.0.1:{port}", str(count)]
    return run(*([*PROGRAM, what, *where, str(index)] for index in range(count)))


def run_by_mpirun(count, what):
    """See `run`, for processes that `jax.distributed` finds by itself."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: on Debian, apt-get install openmpi-bin")
    return run(["mpirun", "-n", str(count), "--bind-to", "none", *PROGRAM, what, "mpirun"])


@pytest.fixture(scope="module")
def alone():
    status, found, text, _ = run([*PROGRAM, "build"])
    assert status == 0, text
    return found[0]


@pytest.fixture(scope="module")
def together():
    return run_over_loopback(2, "build and certify")


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=SLOW)])
@pytest.mark.parametrize("start", [run_over_loopback, run_by_mpirun])
def test_processes_build_what_one_builds(alone, start, count, request):
    is_together = start is run_over_loopback and count == 2
    found_by = request.getfixturevalue("together") if is_together else start(count, "build")
    status, found, text, _ = found_by
    assert status == 0, text
    assert len(found) == count
    for one in found:
        assert one["num_local"] == alone["num_data"] // count
        assert one["num_data"] == alone["num_data"]
        assert one["indices"] == alone["indices"]
        np.testing.assert_allclose(one["weights"], alone["weights"], rtol=1e-4)
        assert one["rows"] == alone["rows"]
        assert one["kl"] == pytest.approx(alone["kl"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.unoptimised
def test_processes_build_what_one_builds_with_a_proxy(alone):
    status, found, text, _ = run([*PROGRAM, "proxy"])
    assert status == 0, text
    (one,) = found
    assert one["kl"] < 0.01 * alone["kl"]
    status, found, text, _ = run_over_loopback(2, "proxy")
    assert status == 0, text
    for each in found:
        assert each["indices"] == one["indices"]
        np.testing.assert_allclose(each["weights"], one["weights"], rtol=0.02)
        assert each["kl"] == pytest.approx(one["kl"], rel=0.02)


@pytest.mark.slow
def test_processes_share_groups():
    status, found, text, _ = run([*PROGRAM, "groups"])
    assert status == 0, text
    (one,) = found
    status, found, text, _ = run_over_loopback(3, "groups")
    assert status == 0, text
    for each in found:
        assert each["num_data"] == one["num_data"] == 90
        assert each["indices"] == one["indices"]
        np.testing.assert_allclose(each["weights"], one["weights"], rtol=1e-3)
        assert each["rows"] == one["rows"]
        assert each["kl"] == pytest.approx(one["kl"], rel=1e-2)
        np.testing.assert_allclose(each["effects"], one["effects"], atol=1e-4)


@pytest.mark.slow
def test_a_group_is_in_one_process():
    status, _, text, _ = run_over_loopback(2, "divided group")
    assert status != 0
    assert "expected all rows of a group in one process" in text


def test_an_error_in_one_process_is_told_in_all():
    status, found, text, _ = run_over_loopback(2, "bad rows")
    assert status != 0
    assert not found
    assert re.search("log-likelihood at a starting point is (-inf|NaN) in rows 8192, 8193", text)
    assert "another process" in text


@pytest.mark.parametrize(
    ("what", "words"),
    [
        pytest.param("other types", "y: int32|do not have the same kind of arrays", marks=SLOW),
        ("other size", "have different settings.* differ in size: [67] here, [67] there"),
        pytest.param(
            "no rows",
            "another process of the build failed. process 1: model: ModelError",
            marks=SLOW,
        ),
    ],
)
def test_processes_that_do_not_fit_together_are_told_at_once(what, words):
    status, found, text, seconds = run_over_loopback(2, what)
    assert status != 0
    assert not found
    assert re.search(words, text.replace("\n", " ")), text
    assert seconds < 100  # in place of the timeout


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("no file", "process 1: FileNotFoundError: "),
        pytest.param("no first file", "process 0: FileNotFoundError: ", marks=SLOW),
        pytest.param("ends", "process 1: it ended before the build did", marks=SLOW),
    ],
)
def test_a_process_that_ends_before_the_build_ends_the_other_ones_with_its_error(what, why):
    status, found, text, seconds = run_over_loopback(2, what)
    assert status == 1  # and no signal, with which JAX's service aborts
    assert not found
    assert f"ProcessError: another process of the build failed. {why}" in text
    assert "coordination" not in text
    assert seconds < 60


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize(
    ("what", "num_found", "expected"), [("goes on", 2, 0), ("fails after", 1, 1)]
)
def test_a_process_that_ends_early_leaves_the_other_ones_alone(what, num_found, expected):
    status, found, text, _ = run_over_loopback(2, what)
    assert status == expected, text
    assert len(found) == num_found
    assert "coordination" not in text


def test_certificates_of_processes_are_at_the_draws_of_the_first(together):
    status, found, text, _ = together
    assert status == 0, text
    assert found[0]["certified"] == found[1]["certified"]
    assert found[0]["certified"] < 10 * found[0]["kl"] + 1e-6


def test_processes_leave_all_rows_out_and_predict_their_own(alone, together):
    status, found, text, _ = together
    assert status == 0, text
    for one in found:
        assert one["num_loo"] == alone["num_data"]
        assert one["loo"] == pytest.approx(alone["loo"], rel=1e-4)
        assert one["num_predicted"] == one["num_local"]
    predicted = np.concatenate([one["predicted"] for one in found])
    errors = predicted - np.asarray(alone["predicted"])
    # The means of 200 responses, whose random numbers depend on the place of a row.
    assert np.sqrt(np.mean(errors**2)) < 2 * np.sqrt(2 * 0.25 / 200)
    assert abs(errors.mean()) < 0.01


@pytest.mark.slow
@pytest.mark.unoptimised
def test_processes_take_the_same_weighting_where_one_finds_no_mode():
    status, found, text, _ = run_over_loopback(2, "no mode")
    assert status == 0, text
    assert [one["weighting"] for one in found] == ["SubsampleNUTS"] * 2
    assert found[0]["indices"] == found[1]["indices"]
    assert found[0]["weights"] == found[1]["weights"]
    assert "it found nothing in another process; the build goes on with SubsampleNUTS" in text


@pytest.mark.slow
@pytest.mark.unoptimised
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("first dies", "another task died"),  # it coordinates, so JAX itself ends the others
        ("dies", "process 1 of 2 did not arrive within 5 seconds"),
    ],
)
def test_processes_end_in_time_where_one_dies(what, message):
    status, found, text, seconds = run_over_loopback(2, what)
    assert status != 0
    assert what == "first dies" or "coordination" not in text
    assert not found
    assert message in text
    assert seconds < 90


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="Linux lists open ports there")
@pytest.mark.parametrize(("host", "by_variable"), [("127.0.0.1", False), ("localhost", True)])
def test_a_coordinator_on_loopback_listens_there_only(host, by_variable):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    address = f"{host}:{port}"
    options = "" if by_variable else f"coordinator_address={address!r}, "
    program = f"""
import jaxcoreset as jc
jc.initialize_processes({options}num_processes=1, process_id=0)
lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{{name}}")]
ports = [words[1] for words in lines if words[3] == "0A"]
print("LISTENS", *(one for one in ports if one.endswith(":{port:04X}")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | ({"JAX_COORDINATOR_ADDRESS": address} if by_variable else {}),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    addresses = done.stdout.split("LISTENS")[1].split()
    # 127.0.0.1 and ::1, as Linux prints them.
    own = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert addresses
    assert {address.split(":")[0] for address in addresses} <= own


def test_initialize_processes_says_how_to_start_a_script_that_nothing_started():
    done = subprocess.run(
        [*PROGRAM, "build", "mpirun"], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode != 0
    assert "Start the script with mpirun or srun" in done.stderr


@pytest.mark.usefixtures("untyped")
def test_a_distributed_build_without_processes_says_what_to_do():
    import jax

    import jaxcoreset as jc

    builder = jc.CoresetBuilder(
        lambda x: None, size=3, execution=jc.Execution(processes=jc.Processes()), proxy=None
    )
    with pytest.raises(RuntimeError, match=r"jaxcoreset.initialize_processes\(\)"):
        builder.run(jax.random.key(0), np.zeros(5))
