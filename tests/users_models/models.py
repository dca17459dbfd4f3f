"""All models, by name."""

from tests.users_models import hierarchies, refusals, regressions, spellings

_ROOMS = (regressions, hierarchies, spellings)
POSTERIORS = {make.__name__: make for room in _ROOMS for make in room.POSTERIORS}
REFUSALS = {make.__name__: make for make in refusals.REFUSALS}
