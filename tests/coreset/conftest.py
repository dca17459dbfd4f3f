"""A build that two modules use, since a build spends most of its time on compilation."""

import pytest

from tests.coreset.test_update import build, rows


@pytest.fixture(scope="session")
def old():
    """Seven of the rows that `test_update` makes with seed 0."""
    return build(rows(0))
