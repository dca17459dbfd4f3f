"""The benchmark of compilation measures programs of its own, with variables of its own."""

import pytest

from benchmarks import OLDER_EMITTERS
from benchmarks.builds import compilation


def test_variants_differ_in_their_variables(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/the/users")
    plain = compilation._variables("as it comes", "here")
    assert "JAX_COMPILATION_CACHE_DIR" not in plain
    assert plain["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=true"
    older = compilation._variables("older emitters", "here")
    assert older["XLA_FLAGS"].split() == [plain["XLA_FLAGS"], OLDER_EMITTERS]
    cached = compilation._variables("cache, filled", "here")
    assert cached["JAX_COMPILATION_CACHE_DIR"] == "here"


@pytest.mark.parametrize(
    ("variant", "what", "devices"),
    [
        ("cache, empty", "program", ()),
        pytest.param(
            *("older emitters", "batch", (4, 2)),  # shared out among two devices
            marks=[pytest.mark.slow, pytest.mark.unoptimised],
        ),
    ],
)
def test_a_program_is_timed_in_a_process_of_its_own(variant, what, devices, tmp_path):
    found = compilation._program(compilation._variables(variant, str(tmp_path)), 20, 3, *devices)
    assert found[what] > found[f"{what} run".removeprefix("program ")] > 0
    assert any(tmp_path.iterdir()) == variant.startswith("cache")
