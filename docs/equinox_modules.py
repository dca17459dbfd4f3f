"""An extension of Griffe: the fields of an Equinox module are the arguments of its constructor.

Griffe knows that of classes decorated as dataclasses. `equinox.Module` makes dataclasses of its
subclasses without a decorator, so that their reference would have no signatures.
"""

from typing import Any

from griffe import (
    Attribute,
    Class,
    Expr,
    Extension,
    Function,
    Parameter,
    ParameterKind,
    Parameters,
)

_LABEL = "equinox"  # of constructors that are made here


class EquinoxModules(Extension):
    """Gives subclasses of `equinox.Module` the constructor that they have when they are run."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Go through a package once it is loaded."""
        for module in pkg.modules.values():
            if not module.is_alias:
                self.on_package(pkg=module)
        for found in pkg.classes.values():
            if not found.is_alias and _is_equinox(found):
                _give_constructor(found)


def _is_equinox(found: Any) -> bool:
    bases = [base.canonical_path for base in found.bases if isinstance(base, Expr)]
    return "equinox.Module" in bases or any(
        _is_equinox(base) for base in found.resolved_bases
    )


def _fields(found: Any) -> dict[str, Parameter]:
    """The fields of a class and those of its bases, the bases' first."""
    fields: dict[str, Parameter] = {}
    for base in reversed(found.resolved_bases):
        fields |= _fields(base)
    for name, member in found.members.items():
        if not isinstance(member, Attribute) or member.annotation is None:
            continue
        # ClassVars and properties are on the class alone; a field is on its instances too.
        if "property" in member.labels or "instance-attribute" not in member.labels:
            continue
        default = member.value
        if isinstance(default, Expr) and "field(" in str(default):
            named = {
                getattr(item, "name", None): item
                for item in getattr(default, "arguments", ())
            }
            default = named["default"].value if "default" in named else None
        fields[name] = Parameter(
            name,
            annotation=member.annotation,
            kind=ParameterKind.positional_or_keyword,
            default=default,
        )
    return fields


def _give_constructor(found: Class) -> None:
    written = (one.members.get("__init__") for one in (found, *found.mro()))
    if any(one is not None and _LABEL not in one.labels for one in written):
        return
    receiver = Parameter("self", kind=ParameterKind.positional_or_keyword)
    parameters = Parameters(receiver, *_fields(found).values())
    constructor = Function(
        "__init__", parent=found, parameters=parameters, returns="None"
    )
    constructor.labels.add(_LABEL)
    found.set_member("__init__", constructor)
