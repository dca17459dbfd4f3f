"""Ways to find π̂, the weighting distribution at whose draws log-likelihoods are compared.

A `Weighting` takes the model's likelihood and returns a `DrawSource`, which makes draws as they are
needed. Draws are dictionaries of *unconstrained* parameters with a leading axis.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from jaxcoreset.likelihood.likelihood import Params as Params
from jaxcoreset.weighting.base import DrawSource as DrawSource
from jaxcoreset.weighting.base import Weighting as Weighting
from jaxcoreset.weighting.draws import Draws as Draws
from jaxcoreset.weighting.gaussian import Laplace as Laplace

if _TYPE_CHECKING:
    from jaxcoreset.weighting.guide import Guide as Guide
    from jaxcoreset.weighting.nuts import SubsampleNUTS as SubsampleNUTS
    from jaxcoreset.weighting.pathfinder import Pathfinder as Pathfinder

# Modules that import optax or NumPyro's samplers are imported when they are used.
_LATER = {"Guide": "guide", "Pathfinder": "pathfinder", "SubsampleNUTS": "nuts"}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{_LATER[name]}"), name)
