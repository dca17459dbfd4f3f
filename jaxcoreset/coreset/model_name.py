"""The name under which a saved coreset imports its model again."""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


def name_of(model: Callable | None) -> str | None:
    """The name under which this model can be imported, or None.

    A handler around a model, such as `numpyro.handlers.scale`, has the name of the model inside,
    which is another model.
    """
    module, path = getattr(model, "__module__", None), getattr(model, "__qualname__", None)
    try:
        found = _attribute(sys.modules[str(module)], str(path))
    except (KeyError, AttributeError):
        return None
    return f"{module}:{path}" if found is model else None


def _attribute(module: Any, path: str) -> Any:
    """The attribute at a dotted path."""
    return functools.reduce(getattr, path.split("."), module)


def import_model(name: str | None) -> Callable:
    """The model of a name.

    Raises:
        ValueError: if there is no name, or it cannot be imported.
    """
    trouble = "the coreset was saved without the name of an importable model"
    if name is not None:
        module, _, path = name.partition(":")
        try:
            return _attribute(importlib.import_module(module), path)
        except (ImportError, AttributeError) as error:
            trouble = f"{name} cannot be imported ({error})"
    raise ValueError(
        f"the coreset's model is missing: {trouble}. Pass it: load(path, model=model)."
    )
