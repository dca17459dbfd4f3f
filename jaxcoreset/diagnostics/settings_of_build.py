"""Settings of the model, such as degrees of freedom, in a call that predicts other rows.

A setting is an argument, or an entry of a dictionary, that holds neither rows nor groups nor their
number. The posterior is that of the build's settings, so that a call without them means the same
settings, and not the defaults of the model.
"""

import inspect
from typing import Any

import jax
import numpy as np

from jaxcoreset.coreset.coreset import Coreset
from jaxcoreset.data.messages import listed, warn_user
from jaxcoreset.likelihood.arguments import Arguments, ModelError, flatten, is_same


def with_settings_of_build(coreset: Coreset, arguments: Arguments) -> tuple[tuple, dict]:
    """The (args, kwargs) of a call, with the settings of the build where it has none.

    There is a warning if the call has another value for a setting.

    Args:
        coreset: the coreset.
        arguments: the arguments of the call.

    Raises:
        ModelError: if a setting is missing, and the model does not take it by its name.
    """
    before, is_setting = _arguments_of_build(coreset)
    args, kwargs = arguments.call
    changed: list[str] = []

    def merged(name: str, value: Any) -> Any:
        if name not in before:
            return value
        return _merged(before[name], is_setting[name], value, name, changed)

    args = tuple(merged(*pair) for pair in zip(arguments.positional, args, strict=True))
    given = {name: merged(name, value) for name, value in kwargs.items()}
    missing = [
        name
        for name, flags in is_setting.items()
        if name not in kwargs and name not in arguments.positional and _are_all(flags)
    ]
    by_name = _taken_by_name(coreset.full_model, missing)
    if unnamed := [name for name in missing if name not in by_name]:
        raise ModelError(
            f"argument {listed(unnamed)} is missing, and the model does not take it by its name; "
            "expected all positional arguments of the build: pass them in the same order, with "
            "None for a response that is missing."
        )
    if changed:
        warn_user(
            f"{' and '.join(changed)}; the predictions are those of the new value, with the "
            "posterior of the build. Leave the argument out to predict by the build's value."
        )
    return args, {**given, **{name: before[name] for name in missing}}


def _arguments_of_build(coreset: Coreset) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the build by name, and trees that say which leaves of them are settings."""
    call = flatten(coreset.full_model, coreset.args, coreset.kwargs)
    if coreset.grouping is None:
        skipped = {*coreset.arguments.data_at, *coreset.arguments.counts_at}
    else:
        positions = coreset.grouping.positions
        skipped = {*positions.data_at, *positions.row_counts, *positions.group_counts}
    flags = [i not in skipped for i in range(len(call.leaves))]

    def by_name(leaves: Any) -> dict[str, Any]:
        args, kwargs = jax.tree.unflatten(call.tree, leaves)
        return {**dict(zip(call.positional, args, strict=True)), **kwargs}

    return by_name(call.leaves), by_name(flags)


def _merged(before: Any, is_setting: Any, now: Any, name: str, changed: list[str]) -> Any:
    """An argument with the settings of the build where a dictionary in it has none.

    Args:
        before: the argument of the build.
        is_setting: which leaves of it are settings.
        now: the argument of the call.
        name: its name.
        changed: sentences on settings that differ, to which more are added.
    """
    if type(before) is dict and type(now) is dict:
        filled = dict(now)
        for key, value in before.items():
            if key in now:
                inner = f"{name}[{key!r}]"
                filled[key] = _merged(value, is_setting[key], now[key], inner, changed)
            elif _are_all(is_setting[key]):
                filled[key] = value
        return filled
    alike = jax.tree.structure(before) == jax.tree.structure(now)
    trees = (jax.tree.leaves(tree) for tree in (before, is_setting, now))
    differs = not alike and _are_all(is_setting)
    if alike:
        differs = any(flag and not _is_same(x, y) for x, flag, y in zip(*trees, strict=True))
    if differs:
        changed.append(
            f"argument {name} is {_shown(now)}, but the coreset was built with {_shown(before)}"
        )
    return now


def _are_all(flags: Any) -> bool:
    """True if an argument holds settings only, as None does."""
    return all(jax.tree.leaves(flags))


def _is_same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if all(isinstance(x, jax.Array) and _is_key(x) for x in (before, now)):
        before, now = jax.random.key_data(before), jax.random.key_data(now)
    return is_same(before, now)


def _is_key(value: jax.Array) -> bool:
    return jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def _shown(value: Any) -> str:
    shape = np.shape(value) if hasattr(value, "shape") else ()
    return f"an array of shape {shape}" if shape else str(value)


def _taken_by_name(model: Any, names: list[str]) -> list[str]:
    """Which of these arguments the model takes by their names."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        only = [one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_ONLY]
        return [name for name in names if name.isidentifier() and name not in only]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {one.name for one in parameters if one.kind in kinds}
    return [name for name in names if name in known]
