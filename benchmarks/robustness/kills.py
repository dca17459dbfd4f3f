"""Builds that are killed twenty times: each resumes from its checkpoint, bit for bit.

    python -m benchmarks.robustness.kills [--quick] [--output FILE.json]

Builds from NumPy arrays, from a Parquet file and from a generator of batches run in a process of
their own. The process is killed by SIGKILL at a random moment after its checkpoint has grown, and
started again, until it has been killed twenty times or is done. The passes are slowed down, so that
there is time for that. A case is held if the coreset has the rows and, bit for bit, the weights and
the reported divergence of a build that nothing has disturbed. If a build is done before its last
kill, another one begins.
"""

import argparse
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxcoreset as jc
from benchmarks import common
from benchmarks.robustness import children
from jaxcoreset.data import rows as rows_module
from jaxcoreset.data import sources

COLUMNS = ("source", "held", "kills", "builds", "seconds")
SOURCES = ("numpy", "parquet", "generator")
_MODULE = "benchmarks.robustness.kills"
# Seconds by which a group of rows is slowed down, the longest wait before a kill, and the batch.
_DELAY, _LONGEST_WAIT, _BATCH = 0.03, 0.3, 256


def _data(source: str, folder: Path) -> tuple[Any, Any]:
    """The arguments of the model."""
    x, y = children.table()
    if source == "numpy":
        return x, y
    if source == "parquet":
        path = folder / "rows.parquet"
        if not path.exists():
            import pyarrow
            import pyarrow.parquet

            columns = pyarrow.table({"a": x[:, 0], "b": x[:, 1], "y": y})
            pyarrow.parquet.write_table(columns, path, row_group_size=500)
        arrays = sources.parquet(path, x=["a", "b"], y="y").arrays
        return arrays["x"], arrays["y"]

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for first in range(0, children.NUM_ROWS, _BATCH):
            some = slice(first, first + _BATCH)
            yield {"x": x[some], "y": y[some]}

    arrays = sources.batches(batches, children.NUM_ROWS, fingerprint="rows of kills").arrays
    return arrays["x"], arrays["y"]


def child(source: str, checkpoint: str, out: str) -> None:
    """A build, slow enough to be killed anywhere."""
    evaluate = rows_module.evaluate_blocks

    def slow(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for group in evaluate(*args, **kwargs):
            time.sleep(_DELAY)
            yield group

    rows_module.evaluate_blocks = slow
    builder = jc.CoresetBuilder(
        children.model,
        size=5,
        num_draws=60,
        num_held_out=60,
        candidates=jc.Candidates(200, extra_passes=1),
        rounds=1,
        execution=jc.Execution(batch_size=1),  # so that a pass has many groups
        checkpoint=jc.Checkpoint(checkpoint, every=0.0),
        progress_bar=False,
        proxy=None,
    )
    data = _data(source, Path(checkpoint).parent)
    builder.run(jax.random.key(0), *data).save(out)


def measure(source: str, num_kills: int, folder: Path) -> dict[str, Any]:
    """Kill builds from one source."""
    start, chance = time.monotonic(), random.Random(0)
    _data(source, folder)
    whole = folder / "whole.npz"
    _run_to_the_end(source, folder / "whole.build", whole)
    kills = builds = 0
    held, trouble = True, ""
    while kills < num_kills and held:
        checkpoint, out = folder / f"{builds}.build", folder / f"{builds}.npz"
        while not out.exists() and kills < num_kills:
            before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
            running = _start(source, checkpoint, out)
            while running.poll() is None and (
                not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before
            ):
                time.sleep(0.01)
            time.sleep(chance.uniform(0, _LONGEST_WAIT))
            running.kill()
            (ended,) = children.finish([running], 60)
            if ended.status < 0:
                kills += 1
            elif ended.status > 0:
                return _row(source, False, kills, builds, start, ended.text[-2000:])
        if not out.exists():
            _run_to_the_end(source, checkpoint, out)
        builds += 1
        one, other = (np.load(path) for path in (whole, out))
        names = [name for name in one.files if name != "header"]
        different = [name for name in names if one[name].tobytes() != other[name].tobytes()]
        errors = [jc.load(path, children.model).report.kl for path in (whole, out)]
        different += ["kl"] if errors[0] != errors[1] else []
        held, trouble = not different, ", ".join(different)
    return _row(source, held, kills, builds, start, trouble)


def _row(
    source: str, held: bool, kills: int, builds: int, start: float, outcome: str
) -> dict[str, Any]:
    seconds = time.monotonic() - start
    found: dict[str, Any] = {"source": source, "held": held, "kills": kills, "builds": builds}
    return found | {"seconds": seconds, "outcome": outcome}


def _start(source: str, checkpoint: Path, out: Path) -> subprocess.Popen:
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # most of the time goes into compilation
    return children.start(_MODULE, source, str(checkpoint), str(out), **quick)


def _run_to_the_end(source: str, checkpoint: Path, out: Path) -> None:
    running = _start(source, checkpoint, out)
    (ended,) = children.finish([running], 300)
    if ended.status:
        raise RuntimeError(ended.text)


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two kills of a build from NumPy")
    parser.add_argument("--json", "--output", type=Path, dest="output", help="where the JSON goes")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(*options.child)
        return
    rows = []
    for source in SOURCES[:1] if options.quick else SOURCES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(source, 2 if options.quick else 20, Path(folder)))
    print(common.table(rows, COLUMNS))
    held = sum(row["held"] for row in rows)
    print(f"\n{held} of {len(rows)} held")
    for row in rows:
        if not row["held"]:
            print(f"not held: {row['source']}: {row['outcome']}")
    result = {"benchmark": "robustness: kills", "environment": common.environment()}
    common.write(options.output, result | {"num_cases": len(rows), "num_held": held, "rows": rows})


if __name__ == "__main__":
    main()
