"""Models as users write them: the reported divergence beside the true one, and the error of means.

    python -m benchmarks.robustness.users_models [MODEL ...] [--output FILE.json]

The models, their true posteriors and the settings of the builder are those of `tests/users_models`.
"""

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

import jaxcoreset as jc
from benchmarks import common
from tests.users_models.models import POSTERIORS
from tests.users_models.test_users_models import SETTINGS, is_calibrated
from tests.users_models.truth import distance, truths


def measure(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The models one after the other, as rows of the table; the time is of the processor."""
    for name in names:
        case, truth = POSTERIORS[name](), truths()[name]
        started = time.process_time()
        builder = jc.CoresetBuilder(case.model, **(SETTINGS | case.settings))
        try:
            coreset = builder.run(jax.random.key(0), *case.args, **case.kwargs)
        except ValueError as error:
            yield {"model": name, "held": False, "outcome": str(error)[:300]}
            continue
        seconds = time.process_time() - started
        found = distance(case, coreset, truth)
        yield {
            "model": name,
            "parameters": truth.mean.size,
            "rows": len(coreset),
            "reported KL": coreset.report.kl,
            "true KL": found.kl,
            "standard error": found.kl_standard_error,
            "mean error": found.mean_error,
            "k-hat": found.khat,
            "ess": found.ess,
            "displacement": found.displacement,
            "seconds": seconds,
            "seconds of the check": time.process_time() - started - seconds,
            "precision": coreset.report.precision,
            "rounds": len(coreset.report.rounds),
            "held": is_calibrated(coreset, found),
        }


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="names of models; all of them by default")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", UserWarning)
    rows = []
    for row in measure(options.models or [*POSTERIORS]):
        print(" ".join(f"{key}: {_short(value)}" for key, value in row.items()), flush=True)
        rows.append(row)
    held = sum(row["held"] for row in rows)
    print(f"\n{held} of {len(rows)} held")
    result = {"benchmark": "robustness: users' models", "environment": common.environment()}
    common.write(options.output, result | {"num_cases": len(rows), "num_held": held, "rows": rows})


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
