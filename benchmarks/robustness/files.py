"""Sixty malformed coreset files and checkpoints: each is refused with its place, and runs nothing.

    python -m benchmarks.robustness.files [--output FILE.json]

A coreset and the checkpoint of its build are written, and changed in one thing each: bytes that are
cut or flipped, entries of the header that are missing, of another type or shape, or that name what
is not there, and models whose names would run a command. A case is held if `jaxcoreset.load` or the
build raises a ValueError that names the file, and, of the names of models, if nothing was run. A
flipped byte may also change nothing.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import jaxcoreset as jc
from benchmarks import common

COLUMNS = ("kind", "case", "held", "outcome")
_NUM_ROWS = 3000

Header = dict[str, Any]
Arrays = dict[str, np.ndarray]
Change = Callable[[Header, Arrays], Any]


def model(x: Any, y: Any) -> None:
    """Linear regression with known noise."""
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)


def build(checkpoint: Path) -> jc.Coreset:
    """A small build that writes a checkpoint, or resumes from it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(_NUM_ROWS, 2)).astype(np.float32)
    y = (x @ np.ones(2) + rng.normal(size=_NUM_ROWS)).astype(np.float32)
    builder = jc.CoresetBuilder(
        model,
        size=5,
        num_draws=60,
        num_held_out=60,
        candidates=jc.Candidates(200, extra_passes=0),
        rounds=1,
        checkpoint=checkpoint,
        progress_bar=False,
        proxy=None,
    )
    return builder.run(jax.random.key(0), x, y)


def _put(*path: Any, value: Any) -> Change:
    """Set an entry of the header."""

    def change(header: Header, arrays: Arrays) -> None:
        at: Any = header
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def _drop(*path: Any) -> Change:
    """Remove an entry of the header."""

    def change(header: Header, arrays: Arrays) -> None:
        at: Any = header
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


def _array(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda header, arrays: arrays.update({name: edit(arrays[name])})


def _without(name: str) -> Change:
    return lambda header, arrays: arrays.pop(name)


_STEP = {"what": "update", "num_rows": 5}
_SUMMARY = ("summary", "dict", "parts", "list", 0, "dict")

CORESETS: dict[str, Change] = {
    "format is text": _put("format", value="1"),
    "format is missing": _drop("format"),
    "args are missing": _drop("args"),
    "args are a number": _put("args", value=7),
    "args name no array": _put("args", "list", 0, value={"array": "none", "jax": False}),
    "args are of no type": _put(
        "args", "list", 0, value={"bits": "args.0", "type": "what", "jax": False}
    ),
    "kwargs are a list": _put("kwargs", value={"list": []}),
    "data_names point beyond": _put("data_names", value={"x": 99}),
    "data_names are text": _put("data_names", value="x"),
    "count_places point beyond": _put("count_places", value=[12]),
    "count_places are text": _put("count_places", value="0"),
    "report is missing": _drop("report"),
    "report is a list": _put("report", value=[]),
    "report.num_data is text": _put("report", "num_data", value="3000"),
    "report.kl is null": _put("report", "kl", value=None),
    "report.curve is text": _put("report", "curve", value="curve"),
    "report has another attribute": _put("report", "more", value=1),
    "report.history lacks a number": _put("report", "history", value=[_STEP]),
    "data_dims are a list": _put("data_dims", value=["y"]),
    "model is a number": _put("model", value=3),
    "summary is a list": _put("summary", value={"list": []}),
    "summary has an unknown use": _put(*_SUMMARY, "use", value={"value": "nothing"}),
    "summary lacks totals": _drop(*_SUMMARY, "total"),
    "inefficiency is text": _put("summary", "dict", "inefficiency", value={"value": "1"}),
    "indices are missing": _without("indices"),
    "indices point beyond": _array("indices", lambda x: x + _NUM_ROWS),
    "indices decrease": _array("indices", lambda x: x[::-1]),
    "indices are real": _array("indices", lambda x: x + 0.5),
    "weights are fewer": _array("weights", lambda x: x[:-1]),
    "weights are negative": _array("weights", lambda x: -x),
    "weights are nan": _array("weights", lambda x: x * np.nan),
    "weights are text": _array("weights", lambda x: x.astype(str)),
    "a column is shorter": _array("args.0", lambda x: x[:-1]),
}
NAMES = (
    "os:system",
    "jaxcoreset.data.utils:os.system",
    "jaxcoreset.command.inputs:import_model",
    "canary_of_robustness:run",
)
CHECKPOINTS: dict[str, Change] = {
    "format is text": _put("checkpoint", value="2"),
    "settings are a list": _put("settings", value=[]),
    "a setting is a number": _put("settings", "size", value=5),
    "passes are missing": _drop("passes"),
    "passes are a dictionary": _put("passes", value={}),
    "what is a number": _put("passes", 0, "what", value=1),
    "next_row is text": _put("passes", 0, "next_row", value="7"),
    "next_row is negative": _put("passes", 0, "next_row", value=-5),
    "next_row is beyond": _put("passes", 0, "next_row", value=10 * _NUM_ROWS),
    "next_row is within a block": _put("passes", 0, "next_row", value=7),
    "is_done is a number": _put("passes", 0, "is_done", value=1),
    "state is a list": _put("passes", 0, "state", value={"list": []}),
    "state is empty": _put("passes", 0, "state", value={"dict": {}}),
}
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "text": lambda content: b"hello",
    "half": lambda content: content[: len(content) // 2],
    "end is cut": lambda content: content[:-10],
    "a byte is flipped": lambda content: _flipped(content, 0.5),
}


def _flipped(content: bytes, share: float) -> bytes:
    at = int(share * len(content))
    return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]


def _changed(path: Path, to: Path, change: Change) -> None:
    """Write an archive with another header or other arrays, whose checksums are right."""
    with np.load(path) as contents:
        arrays = dict(contents)
    header = json.loads(arrays.pop("header").tobytes())
    change(header, arrays)
    np.savez(to, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)


def _outcome(attempt: Callable[[], Any], path: Path) -> tuple[bool, str]:
    """Whether an attempt is refused as it should be, and what it raised."""
    try:
        attempt()
    except ValueError as error:
        return path.name in str(error), str(error).replace(str(path.parent), "…")[:160]
    except BaseException as error:
        return False, f"{type(error).__name__}: {error}"[:160]
    return False, "nothing was raised"


def measure(folder: Path) -> Iterator[dict[str, Any]]:
    """The cases one after the other, as rows of the table."""
    checkpoint = folder / "whole.build"
    coreset = build(checkpoint)
    saved = coreset.save(folder / "whole.npz")

    def use_coreset(path: Path) -> None:
        jc.load(path, model)

    for kind, source, changes, use in (
        ("coreset", saved, CORESETS, use_coreset),
        ("checkpoint", checkpoint, CHECKPOINTS, build),
    ):
        path = folder / f"changed_{kind}.npz"
        for case, change in changes.items():
            _changed(source, path, change)
            held, outcome = _outcome(lambda use=use, path=path: use(path), path)
            yield {"kind": kind, "case": case, "held": held, "outcome": outcome}
        for case, edit in BYTES.items():
            path.write_bytes(edit(source.read_bytes()))
            held, outcome = _outcome(lambda use=use, path=path: use(path), path)
            yield {"kind": kind, "case": case, "held": held, "outcome": outcome}
    canary = folder / "ran"
    (folder / "canary_of_robustness.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    path = folder / "named.npz"
    command = {"list": [{"value": f"touch {canary}"}]}

    def name(value: str) -> Change:
        # The arguments are what the function of this name would be called with.
        return lambda header, arrays: header.update(
            model=value, args=command, data_names=None, count_places=None
        )

    for value in NAMES:
        _changed(saved, path, name(value))
        canary.unlink(missing_ok=True)
        refused = "nothing was raised"
        try:
            loaded = jc.load(path)
            loaded.model(*loaded.args)
        except BaseException as error:
            refused = f"{type(error).__name__}: {error}"
        held = "trust=True" in refused and not canary.exists()
        yield {"kind": "model's name", "case": value, "held": held, "outcome": refused[:160]}


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", "--output", type=Path, dest="output", help="where the JSON goes")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measure(Path(folder)))
    print(common.table(rows, COLUMNS[:3]))
    held = sum(row["held"] for row in rows)
    print(f"\n{held} of {len(rows)} held")
    for row in rows:
        if not row["held"]:
            print(f"not held: {row['kind']}, {row['case']}: {row['outcome']}")
    result = {"benchmark": "robustness: files", "environment": common.environment()}
    common.write(options.output, result | {"num_cases": len(rows), "num_held": held, "rows": rows})


if __name__ == "__main__":
    main()
