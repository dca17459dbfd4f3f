"""Fixtures for all tests."""

import jaxtyping
import pytest


@pytest.fixture
def untyped():
    """Switches the checks of annotations off, to see what a user without them sees."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
