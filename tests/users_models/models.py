"""All models, by name."""

from tests.users_models import hierarchies, regressions, spellings
from tests.users_models.case import Case
from tests.users_models.refusals import REFUSALS as REFUSALS

# The functions that make a case.
POSTERIORS = {
    name: make
    for room in (regressions, hierarchies, spellings)
    for name, make in vars(room).items()
    if getattr(make, "__annotations__", {}).get("return") is Case
}
