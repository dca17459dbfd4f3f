"""The tables of the results of whole builds, as Markdown."""

from collections.abc import Callable
from typing import Any

from benchmarks.builds import chains, compilation
from benchmarks.common import markdown, text_of

_LIMITS = ("n", "parameters", "D(D+3)/2", "coordinates", "rows", "estimated KL")


def _rounds(result: dict[str, Any]) -> str:
    columns = ["model", "size", "start", "round", "true KL", "estimate", "own estimate", "stops"]
    return markdown([row for row in result["rows"] if "round" in row], columns)


def _kl(result: dict[str, Any]) -> str:
    columns = ["data", "k", "estimate", "standard error", "true KL", "k-hat", "estimate / true"]
    found = result["summary"]
    low, high = found["least and largest ratio"]
    summary = (
        f"Between 1e-8 and 0.3 nats there are {found['cells between 1e-8 and 0.3 nats']} cells; "
        f"{found['within a factor of two']} of them are within a factor of two, and the ratio is "
        f"{text_of(low)} to {text_of(high)}."
    )
    return markdown(result["rows"], [*columns, "Laplace KL"]) + f"\n\n{summary}"


def _compilation(result: dict[str, Any]) -> str:
    return markdown(result["rows"], compilation.COLUMNS)


def _chains(result: dict[str, Any]) -> str:
    return markdown(result["rows"], chains.COLUMNS)


def _limits_parameters(result: dict[str, Any]) -> str:
    return markdown(result["parameters"], [*_LIMITS, "seconds to build"])


def _limits_rows(result: dict[str, Any]) -> str:
    columns = ["seconds to build", "seconds of NUTS on the coreset", "seconds of NUTS on all rows"]
    return markdown(result["rows"], [*_LIMITS, *columns])


def _limits_wide(result: dict[str, Any]) -> str:
    return markdown(result["wide"], ["k", "held-out error", "estimated KL", "standard error"])


def _flights(result: dict[str, Any]) -> str:
    columns = ["method", "seconds", "draws", "effective draws", "effective draws per second"]
    columns += ["largest error of a mean, in sd", "its Monte Carlo error, in sd"]
    parts = ("full", "coreset", "alone", "hmcecs")
    text = markdown([result[part] for part in parts if part in result], columns)
    sentences = []
    for found in (result[part] for part in ("coreset", "alone") if part in result):
        settings = ", ".join(f"{name} = {value}" for name, value in found["settings"].items())
        certificate = found["certificate"]
        sentences.append(
            f"With {settings} the coreset has {found['rows']} of {result['rows']:,} rows. The "
            f"estimate is {text_of(found['estimated KL'])} ± "
            f"{text_of(found['its standard error'])} nats; the certificate says "
            f"{text_of(certificate['kl'])} ± {text_of(certificate['kl_standard_error'])} nats, "
            f"k-hat {text_of(certificate['khat'])}."
        )
    text += "\n\n" + " ".join(sentences)
    if "truth" in result:
        known = result["truth"]
        text += (
            f" Errors are against {known['how']}: R-hat {known['largest R-hat']:.4f}, "
            f"{known['effective draws'][0]:.0f} effective draws at least."
        )
    return text


def _warm_start(result: dict[str, Any]) -> str:
    columns = ["method", "warm-up", "warm-up gradients", "sampling gradients", "least ESS"]
    columns += ["ESS per 1000", "error in sd", "seconds"]
    spent = result["on the coreset"]["coreset gradients"]
    return (
        f"{result['rows']:,} rows, a coreset of {result['size']}.\n\n"
        + markdown(result["results"], columns)
        + f"\n\nNUTS on the coreset came to {spent:.0f} passes over all rows."
    )


# The benchmark that a table is of, and the function that makes it from the result.
TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "rounds": ("builds.rounds", _rounds),
    "kl": ("builds.kl_estimate", _kl),
    "flights": ("builds.flights", _flights),
    "compilation": ("builds.compilation", _compilation),
    "chains": ("builds.chains", _chains),
    "warm_start": ("builds.warm_start", _warm_start),
    "limits_parameters": ("builds.limits", _limits_parameters),
    "limits_rows": ("builds.limits", _limits_rows),
    "limits_wide": ("builds.limits", _limits_wide),
}
