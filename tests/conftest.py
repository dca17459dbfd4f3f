"""Fixtures for all tests, and how their programs are compiled."""

import os

import jax
import jaxtyping
import pytest

# Most of the time goes into compiling small programs that run once. Set the variable to 0 to test
# what the compiler makes of them at its best, as CI does for the slow tests.
_QUICK = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") not in ("0", "false", "False")
jax.config.update("jax_disable_most_optimizations", _QUICK)


@pytest.fixture
def untyped():
    """Switches the checks of annotations off, to see what a user without them sees."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
