"""Fixtures for all tests, and how their programs are compiled."""

import atexit
import contextlib
import gc
import os
import shutil
import tempfile
from pathlib import Path

import jax
import jaxtyping
import pytest

from tests import OLDER_EMITTERS

# Most of the time goes into compiling small programs that run once. Set the variable to 0 to test
# what the compiler makes of them at its best, as CI does for the slow tests.
_QUICK = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") not in ("0", "false", "False")
jax.config.update("jax_disable_most_optimizations", _QUICK)
if _QUICK and "xla_backend_extra_options" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {OLDER_EMITTERS}".strip()

# Workers, and the processes that tests start, share compiled programs in a folder, which is removed
# at the end.
if "PYTEST_XDIST_WORKER" not in os.environ and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _FOLDER = tempfile.mkdtemp(prefix="programs-of-tests-")
    atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
    for _name, _value in {
        "jax_compilation_cache_dir": _FOLDER,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }.items():
        jax.config.update(_name, _value)
        os.environ[_name.upper()] = str(_value)

# What JAX traces is many small objects that live on. Looking through all of them as often as Python
# does by default takes a tenth of the tests' time.
gc.set_threshold(50_000, 20, 100)


def pytest_configure(config):
    # ArviZ 0.23 renames a file on its first import of a day, which two workers must not do at once.
    if getattr(config.option, "numprocesses", None):
        with contextlib.suppress(ModuleNotFoundError):
            import arviz  # noqa: F401


# Tests that take more than three seconds on two cores, most of it to compile. A run without -m
# leaves them out, and CI runs them. Tests that are renamed or added run until they are listed.
_LONG = frozenset(Path(__file__).with_name("long.txt").read_text("utf-8").splitlines())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid in _LONG:
            item.add_marker(pytest.mark.long)


# A process of Linux may have 65,530 mappings of memory, and each program that XLA compiles for a
# CPU takes a few. Beyond, the next compilation ends the process.
_MOST_MAPPINGS = 40_000
_MAPPINGS = Path("/proc/self/maps")


@pytest.fixture(autouse=True, scope="module")
def _programs_of_a_module_are_dropped():
    yield
    _drop_programs(_MOST_MAPPINGS // 2)


@pytest.fixture(autouse=True)
def _programs_of_slow_tests_are_dropped(request):
    yield
    if request.node.get_closest_marker("slow") is not None:
        _drop_programs(_MOST_MAPPINGS)


def _drop_programs(limit: int) -> None:
    if _MAPPINGS.is_file() and _MAPPINGS.read_bytes().count(b"\n") > limit:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True, scope="session")
def _programs_that_are_not_interpreted_are_errors():
    """The check of indices leaves them out without a word."""
    from jaxcoreset.likelihood import index_check

    index_check.RAISES = True


@pytest.fixture
def untyped():
    """Switches the checks of annotations off, to see what a user without them sees."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def unverified(monkeypatch):
    """What is looked at before a build does not show that a model's rows see one another."""
    monkeypatch.setattr(
        "jaxcoreset.likelihood.verification.alike_subsets", lambda num_rows: iter(())
    )
