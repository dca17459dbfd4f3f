"""Part `run`: a method on a case, in a process of its own that ends at a limit."""

import json
import resource
import statistics
import sys
import time
import traceback
from typing import Any

import jax

from benchmarks.groups.lme4 import within
from benchmarks.posteriors import ours
from benchmarks.posteriors.cases import CASES
from benchmarks.posteriors.density import Posterior, load
from benchmarks.posteriors.measure import compare
from benchmarks.posteriors.methods import METHODS as OTHERS
from benchmarks.posteriors.methods import TITLES as OTHER_TITLES
from benchmarks.posteriors.outcome import Missing

METHODS = ours.METHODS | OTHERS
TITLES = ours.TITLES | OTHER_TITLES
NUM_DRAWS = 4000
# Only what runs in less is run a second time for its time without compilation.
_WARM_LIMIT = 60.0


def _cpu() -> float:
    used = [resource.getrusage(x) for x in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(x.ru_utime + x.ru_stime for x in used)


def once(case_name: str, method_name: str, seed: int, num_draws: int, warm: bool) -> dict[str, Any]:
    """A method's time, and how far its draws are from the truth.

    Args:
        case_name: the case.
        method_name: the method.
        seed: of its random numbers.
        num_draws: how many draws it is asked for.
        warm: whether to time a second call too, in the process that has compiled everything.
    """
    case, method = CASES[case_name], METHODS[method_name]
    args, kwargs = case.make()
    begin, cpu = time.perf_counter(), _cpu()
    try:
        outcome = method(case, args, kwargs, jax.random.key(seed), num_draws)
    except Missing as error:
        return {"missing": str(error)}
    found: dict[str, Any] = {"s": time.perf_counter() - begin, "CPU s": _cpu() - cpu}
    if warm and found["s"] < _WARM_LIMIT:
        begin, cpu = time.perf_counter(), _cpu()
        method(case, args, kwargs, jax.random.key(seed + 1000), num_draws)
        found |= {"warm s": time.perf_counter() - begin, "warm CPU s": _cpu() - cpu}
    with jax.enable_x64(True):
        found |= compare(outcome, Posterior(case), load(case))
    found["info"] = outcome.info
    return found


def measure(
    case: str, method: str, repeats: int, limit: float, num_draws: int, warm: bool
) -> dict[str, Any]:
    """A cell: medians over processes of their own; a bound where one takes too long.

    Args:
        case: the name of the case.
        method: the name of the method.
        repeats: the number of processes, with other seeds.
        limit: seconds of processor time after which a process is ended.
        num_draws: see `once`.
        warm: see `once`.
    """
    runs = []
    for seed in range(repeats):
        job = json.dumps([case, method, seed, num_draws, warm])
        try:
            printed = within([sys.executable, "-m", "benchmarks.posteriors.run", job], limit)
        except RuntimeError as error:
            return {"failed": str(error)[-600:]}
        if printed is None:
            return {"bound": limit}
        run = json.loads(printed.splitlines()[-1])
        if "missing" in run or "failed" in run:
            return run
        runs.append(run)
    return _median(runs) | {"runs": len(runs)}


def _median(runs: list[Any]) -> Any:
    """Medians of numbers, entry by entry; what is not a number is that of the first run."""
    first = runs[0]
    if isinstance(first, dict):
        return {key: _median([run.get(key) for run in runs]) for key in first}
    if isinstance(first, list):
        return [_median(list(values)) for values in zip(*runs, strict=True)]
    numbers = [x for x in runs if isinstance(x, int | float) and not isinstance(x, bool)]
    return statistics.median(numbers) if len(numbers) == len(runs) else first


def _child(job: str) -> dict[str, Any]:
    try:
        return once(*json.loads(job))
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"[:600]}


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1]), default=float))
