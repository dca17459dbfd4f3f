"""The name under which a saved coreset imports its model again."""

import functools
import pkgutil
import sys
from collections.abc import Callable

# The package's own models. A name such as jaxcoreset.data.utils:os.system is none of them.
_OWN = ("jaxcoreset.command.regressions", "jaxcoreset.command.flights")

# The modules of a script that runs, and of the processes that it starts.
_SCRIPTS = ("__main__", "__mp_main__")


def name_of(model: Callable | None) -> str | None:
    """The name under which this model can be imported, or None.

    A handler around a model, such as `numpyro.handlers.scale`, has the name of the model inside,
    which is another model. A function of the script that runs, `__main__`, has a name that means
    another function in the next script.
    """
    if getattr(model, "__module__", None) in _SCRIPTS:
        return None
    module, path = getattr(model, "__module__", None), getattr(model, "__qualname__", None)
    try:
        found = functools.reduce(getattr, str(path).split("."), sys.modules[str(module)])
    except (KeyError, AttributeError):
        return None
    return f"{module}:{path}" if found is model else None


def import_model(name: str | None, trust: bool) -> Callable:
    """The model of a name.

    Args:
        name: ``module:name``, from the file of a coreset.
        trust: whether to import what is not of this package; whoever wrote the file may have put
            any function there, which then runs with the arguments in the file.

    Raises:
        ValueError: if there is no name, it is not trusted, or it cannot be imported.
    """
    trouble = "the coreset was saved without the name of an importable model"
    if name is not None:
        try:
            if name.partition(":")[0] in _SCRIPTS:
                raise ValueError("it was a function of the script that saved the coreset")
            if trust or name.partition(":")[0] in _OWN:
                model = pkgutil.resolve_name(name)
                if trust or name_of(model) == name:
                    return model
            raise ValueError(
                f"the file names {name}, which would be imported and run: if you trust the file, "
                "load(path, trust=True)"
            )
        except (ImportError, AttributeError, ValueError) as error:
            trouble = f"{name} is not imported ({error})"
    raise ValueError(
        f"the coreset's model is missing: {trouble}. Pass it: load(path, model=model)."
    )
