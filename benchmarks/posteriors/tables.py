"""The tables of `benchmarks.posteriors`, as Markdown."""

from collections.abc import Callable
from typing import Any

from benchmarks.common import markdown
from benchmarks.posteriors.cases import CASES
from benchmarks.posteriors.run import TITLES

# In nats. A divergence below is about the variance of the log-ratio.
_SMALL = 0.1


def kl(found: dict[str, Any] | None) -> str:
    """The divergence of a cell in words.

    Where it is less than two of its Monte Carlo errors, these are told, or with "≈" the variance of
    the log-ratio if that is smaller still. Where a density is not known, it is that of the moments,
    in parentheses.
    """
    if not found:
        return ""
    if found.get("KL") is not None:
        if found["KL"] > 2 * found["error"]:
            return f"{found['KL']:.2g}"
        if found["variance"] < min(found["error"], _SMALL):
            return f"≈ {found['variance']:.2g}"
        return f"{found['KL']:.2g} ± {found['error']:.1g}"
    if (of_moments := found.get("KL of moments")) is not None:
        # Below zero the covariance of the draws is singular.
        return f"({of_moments:.2g})" if of_moments >= 0 else "–"
    return "–" if "CPU s" in found else _why_not(found)


def _why_not(found: dict[str, Any]) -> str:
    if "bound" in found:
        return f"> {found['bound']:.0f} s"
    return "fails" if "failed" in found else "–"


def _of(number: str, form: str = ".2g") -> Callable[[dict[str, Any] | None], str]:
    def text(found: dict[str, Any] | None) -> str:
        if not found:
            return ""
        return format(found[number], form) if number in found else _why_not(found)

    return text


def _by_method(result: dict[str, Any], text: Callable[[dict[str, Any] | None], str]) -> str:
    cells = result["cells"]
    ran = [name for name in TITLES if any(name in of_case for of_case in cells.values())]
    rows = [
        {"case": CASES[case].title} | {TITLES[x]: text(of_case.get(x)) for x in ran}
        for case, of_case in _in_order(cells)
    ]
    return markdown(rows, ["case", *(TITLES[name] for name in ran)])


def _in_order(by_case: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, by_case[name]) for name in CASES if name in by_case]


def _distances(result: dict[str, Any]) -> str:
    return _by_method(result, kl)


def _seconds(result: dict[str, Any]) -> str:
    return _by_method(result, _of("CPU s", ".0f"))


def _means(result: dict[str, Any]) -> str:
    return _by_method(result, _of("mean error, sd"))


def _effective(result: dict[str, Any]) -> str:
    def text(found: dict[str, Any] | None) -> str:
        if not found or "CPU s" not in found:
            return "" if not found else _why_not(found)
        return format(found["effective"] / found["CPU s"], ".2g")

    return _by_method(result, text)


def _truth(result: dict[str, Any]) -> str:
    rows = [
        {
            "case": CASES[name].title,
            "rows": f"{facts['rows']:,}",
            "parameters compared": facts["parameters"],
            "Gaussian's KL": _gaussian(facts["Gaussian"]),
            "why": CASES[name].why,
            "largest R-hat": f"{facts['R-hat']:.3f}",
            "least effective draws": f"{facts['effective']:.0f}",
            "divergent": facts.get("divergent"),
            "NUTS, CPU s": f"{facts['CPU s']:.0f}",
        }
        for name, facts in _in_order(result["truths"])
    ]
    return markdown(rows, list(rows[0]))


def _gaussian(found: dict[str, Any] | None) -> str:
    if found is None:
        return "no mode"
    return "infinite" if found["KL"] is None else f"{found['KL']:.2g}"


def _ours(result: dict[str, Any]) -> str:
    rows = []
    for name, of_case in _in_order(result["cells"]):
        found = of_case.get("ours")
        if not found:
            continue
        info, facts = found.get("info", {}), result["truths"].get(name, {})
        row: dict[str, Any] = {
            "case": CASES[name].title,
            "Gaussian's KL": _gaussian(facts.get("Gaussian")) if facts else None,
            "KL by the truth": kl(found),
        }
        rows.append(row)
        if "CPU s" not in found:
            continue
        low, high = found["sd ratios"]
        inside = found["draws within the true 90 % intervals"]
        row |= {
            "± ": f"{found['error']:.1g}" if found.get("error") is not None else None,
            "variance": f"{found['variance']:.2g}" if found.get("variance") is not None else None,
            "estimated KL": f"{info['estimated KL']:.2g}",
            "within tol": {True: "yes", False: "no"}.get(info["is within tol"]),
            "kept": f"{info['rows']} {info['units']}" + (" + proxy" if info["proxy"] else ""),
            "mean error, sd": found["mean error, sd"],
            "corrected": found.get("mean error corrected, sd"),
            "sd ratio": f"{low:.2f} to {high:.2f}",
            "in the true 90 %": f"{inside[0]:.2f} to {inside[1]:.2f}",
            "k-hat": info["k-hat"],
            "CPU s": f"{found['CPU s']:.0f}",
            "build, s": f"{info['build s']:.0f}",
            "NUTS, s": f"{info['NUTS s']:.0f}",
            "correction, s": f"{info['correction s']:.0f}",
            "to draws, CPU s": _to_draws(info),
            "warm, CPU s": f"{found['warm CPU s']:.0f}" if "warm CPU s" in found else None,
        }
    columns = list(max(rows, key=len))
    return markdown(rows, columns)


def _to_draws(info: dict[str, Any]) -> str | None:
    if "build CPU s" not in info:
        return None
    return f"{info['build CPU s'] + info['NUTS CPU s']:.0f}"


def _reasons(result: dict[str, Any]) -> str:
    """Why a method did not run, once for each of its reasons."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for case, of_case in _in_order(result["cells"]):
        for method, found in of_case.items():
            reason = found.get("missing") or found.get("failed")
            if reason:
                by_reason.setdefault((TITLES[method], reason), []).append(CASES[case].title)
    rows = [
        {"method": method, "cases": "; ".join(cases), "reason": " ".join(reason.split())}
        for (method, reason), cases in by_reason.items()
    ]
    return markdown(rows, ["method", "cases", "reason"])


_MAKERS = {
    "posteriors_truth": _truth,
    "posteriors_ours": _ours,
    "posteriors_kl": _distances,
    "posteriors_means": _means,
    "posteriors_seconds": _seconds,
    "posteriors_effective": _effective,
    "posteriors_reasons": _reasons,
}
# By table the result that it is made of, and what makes it.
TABLES = {name: ("posteriors", make) for name, make in _MAKERS.items()}
