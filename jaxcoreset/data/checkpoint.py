"""What passes over the data have found, kept in a file, so that a build can be taken up again.

A build is a function of its key, its settings and the results of its passes over the rows: all that
lies between them takes seconds and is done again, to the bit. So the checkpoint keeps the passes'
results, in their order, and how far the one that is being made has come. The file is written anew
under another name and renamed, with a checksum; it is there whole or not at all.
"""

import dataclasses
import errno
import functools
import glob
import hashlib
import importlib.metadata
import io
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxcoreset.data.arrays import restored, storable, type_name
from jaxcoreset.data.processes import ProcessGroup
from jaxcoreset.data.reading import fingerprint
from jaxcoreset.data.utils import write_whole

_FORMAT = 1
# Known once the model has been looked at.
MODEL_VALUES = "model values"
_MAGIC = b"jaxcoreset checkpoint\n"


@dataclass
class Pass:
    """One pass over the rows.

    Attributes:
        what: what it is for.
        digest: a hash of what was evaluated.
        progress: what it has found so far, and the first row of this process that is not in it;
            one attribute, so that an interruption cannot come between the two.
        is_done: whether all rows are in it.
    """

    what: str
    digest: str
    progress: tuple[dict[str, np.ndarray], int]
    is_done: bool = False


class CheckpointFile:
    """The passes of one build.

    Args:
        path: the file.
        settings: what the build depends on, as text by name; a checkpoint of others is refused.
        interval: seconds between two writings while a pass is being made.

    Raises:
        ValueError: if the file belongs to another build; the message says what differs.
        FileNotFoundError: if the file's directory is missing.
    """

    def __init__(
        self, path: str | os.PathLike, settings: dict[str, str], *, interval: float = 30.0
    ):
        self.path = Path(path)
        self.settings = settings
        self.interval = interval
        self.passes: list[Pass] = []
        self._kept: dict[str, str] = {}
        self._at = 0
        self._written = time.monotonic()
        if not self.path.parent.is_dir():  # before the first pass rather than after it
            raise FileNotFoundError(
                errno.ENOENT, "there is no such directory for a checkpoint", str(self.path.parent)
            )
        # What write_whole left, under the names that it makes, when it was killed.
        unfinished = f"{glob.escape(self.path.name)}.{'[0-9a-f]' * 32}.part"
        for leftover in self.path.parent.glob(unfinished):
            leftover.unlink(missing_ok=True)
        if self.path.exists():
            self._read()

    def require_same(self, name: str, text: str) -> None:
        """Something more that the build depends on, as text by name.

        Raises:
            ValueError: if it is another one in the file.
        """
        self.settings[name] = text
        if self._kept.get(name, text) != text:
            self._refuse([name])

    def open(self, what: str, digest: str) -> "Entry":
        """The next pass: as it was kept, or a new one.

        Where it is not the pass that was kept at this place, that and all after it are dropped.
        """
        if self._at < len(self.passes):
            kept = self.passes[self._at]
            if (kept.what, kept.digest) != (what, digest):
                del self.passes[self._at :]
        if self._at == len(self.passes):
            self.passes.append(Pass(what, digest, ({}, 0)))
        self._at += 1
        return Entry(self, self.passes[self._at - 1])

    def write(self) -> Path:
        """Write the file, whole or not at all."""
        body = io.BytesIO()
        header = {
            "format": _FORMAT,
            "settings": self.settings,
            "passes": [
                {
                    "what": one.what,
                    "digest": one.digest,
                    "next_row": one.progress[1],
                    "is_done": one.is_done,
                    "arrays": {
                        name: [list(array.shape), type_name(array.dtype)]
                        for name, array in one.progress[0].items()
                    },
                }
                for one in self.passes
            ],
        }
        body.write(json.dumps(header).encode() + b"\n")
        eqx.tree_serialise_leaves(
            body, jax.tree.map(storable, [one.progress[0] for one in self.passes])
        )
        content = body.getvalue()
        checksum = hashlib.sha256(content).hexdigest().encode()

        def write(file: Any) -> None:
            file.write(_MAGIC + checksum + b"\n" + content)
            file.flush()
            os.fsync(file.fileno())

        self._written = time.monotonic()
        return write_whole(self.path, write)

    def save_after_error(self) -> str:
        """Write the file after an error, and say what to do with it."""
        try:
            path = self.write()
        except OSError as failure:
            return f"what the build had done could not be written: {failure}"
        return (
            f"what the build had done is in {str(path)!r}; run it again with the same arguments to "
            "go on from there"
        )

    def write_if_due(self) -> None:
        """Write the file if it was not written for a while."""
        if time.monotonic() - self._written >= self.interval:
            self.write()

    def _read(self) -> None:
        content = self.path.read_bytes()
        magic, _, rest = content.partition(b"\n")
        checksum, _, body = rest.partition(b"\n")
        if magic + b"\n" != _MAGIC:
            raise ValueError(
                f"checkpoint {str(self.path)!r} is another file; wanted one that a build wrote, or "
                "a path where there is none."
            )
        if hashlib.sha256(body).hexdigest().encode() != checksum:
            # Renaming is atomic, so this is a disk's or a copy's doing.
            raise ValueError(
                f"checkpoint {str(self.path)!r} is damaged; delete it, and the build starts anew."
            )
        line, _, arrays = body.partition(b"\n")
        header = json.loads(line)
        if header["format"] != _FORMAT:
            raise ValueError(
                f"checkpoint {str(self.path)!r} was written by another version of jaxcoreset; "
                "delete it, or take that version."
            )
        self._kept = header["settings"]
        names = sorted({*self._kept, *self.settings} - {MODEL_VALUES})
        if differing := [name for name in names if self._kept.get(name) != self.settings.get(name)]:
            self._refuse(differing)
        like = [
            {name: np.zeros(shape, np.dtype(kind)) for name, (shape, kind) in one["arrays"].items()}
            for one in header["passes"]
        ]
        stored = eqx.tree_deserialise_leaves(io.BytesIO(arrays), jax.tree.map(storable, like))
        states = jax.tree.map(lambda array, wanted: restored(array, wanted.dtype), stored, like)
        self.passes = [
            Pass(one["what"], one["digest"], (state, one["next_row"]), one["is_done"])
            for one, state in zip(header["passes"], states, strict=True)
        ]

    def _refuse(self, names: list[str]) -> NoReturn:
        differing = [
            f"{name} (then {self._kept.get(name)}, now {self.settings.get(name)})" for name in names
        ]
        raise ValueError(
            f"checkpoint {str(self.path)!r} belongs to another build: it differs in "
            f"{', '.join(differing)}. Delete it, give another path, or build as then."
        )


def build_settings(
    builder: Any, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any], processes: ProcessGroup
) -> dict[str, str]:
    """What a build depends on, as text by name: settings, model, key, data and versions.

    Args:
        builder: the builder, with its `model` and the settings that matter in `statistical`.
        key: the build's random key.
        args: the model's positional arguments.
        kwargs: its keyword arguments.
        processes: those that build together.
    """
    settings = {name: _text(value) for name, value in builder.statistical.items()}
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = [leaf for leaf in leaves if hasattr(leaf, "shape")]
    others = [leaf for leaf in leaves if not hasattr(leaf, "shape")]
    return settings | {
        "model": _code(builder.model),
        "key": str(np.asarray(jax.random.key_data(key)).tolist()),
        "data": fingerprint(arrays),
        "arguments": f"{tree} {others!r}",
        "process": f"{processes.index} of {processes.count}",
        "float64": str(jax.dtypes.canonicalize_dtype(float)),
        "platform": jax.default_backend(),
        "jaxcoreset": importlib.metadata.version("jaxcoreset"),
        "jax": jax.__version__,
    }


def settings_of_all(
    builder: Any, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any], processes: ProcessGroup
) -> dict[str, str]:
    """The settings that are the same in all processes of a build; arguments as `build_settings`."""
    settings = build_settings(builder, key, args, kwargs, processes)
    leaves, tree = jax.tree.flatten((args, kwargs))
    lengths = {leaf.shape[0] for leaf in leaves if getattr(leaf, "shape", ())}
    # A number of rows is a process's own.
    others = [
        "rows" if isinstance(leaf, int) and leaf in lengths else _text(leaf)
        for leaf in leaves
        if not hasattr(leaf, "shape")
    ]
    own = {"arguments": f"{tree} {others}"}
    return {name: settings[name] for name in settings if name not in ("data", "process")} | own


def _text(value: Any) -> str:
    """A setting as text: arrays by a hash, functions by their code."""
    if isinstance(value, eqx.Module):
        leaves, tree = jax.tree.flatten(value)
        return f"{tree} {[_text(leaf) for leaf in leaves]}"
    if isinstance(value, np.ndarray | jax.Array):
        return fingerprint([value])
    if callable(value):
        return _code(value)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _code(function: Any) -> str:
    """A function by its name, its code and what it closes over: a changed one is another."""
    if isinstance(function, functools.partial):
        given = [_text(value) for value in function.args]
        named = {name: _text(value) for name, value in function.keywords.items()}
        return f"{_code(function.func)} of {given} {named}"
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    code = getattr(function, "__code__", None)
    if code is None:
        return name if name != "." else type(function).__qualname__
    closed = [_text(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ()]
    defaults = getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)
    closed += [_text(value) for value in jax.tree.leaves(defaults)]
    text = f"{_of_code(code)} {closed}".encode()
    return f"{name} {hashlib.sha256(text).hexdigest()[:16]}"


def _of_code(code: Any) -> str:
    """Instructions, names and constants, without the addresses of the functions within."""
    constants = [
        _of_code(one)
        if hasattr(one, "co_code")
        else repr(sorted(one, key=repr) if isinstance(one, frozenset) else one)
        for one in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


@dataclasses.dataclass
class Entry:
    """A pass that is being made, in its checkpoint."""

    checkpoint: CheckpointFile
    kept: Pass

    @property
    def is_done(self) -> bool:
        """Whether the pass was finished before."""
        return self.kept.is_done

    @property
    def state(self) -> dict[str, np.ndarray]:
        """What it found, so far."""
        return self.kept.progress[0]

    @property
    def next_row(self) -> int:
        """The first row that is not in it."""
        return self.kept.progress[1]

    def advance(self, state: dict[str, np.ndarray], next_row: int) -> None:
        """Note how far the pass has come, and now and then write it down."""
        self.kept.progress = state, next_row
        self.checkpoint.write_if_due()

    def finish(self, state: dict[str, np.ndarray]) -> None:
        """Note the end of the pass, and write it down."""
        self.kept.progress = state, self.next_row
        self.kept.is_done = True
        self.checkpoint.write()
