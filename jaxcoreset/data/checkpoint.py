"""A file with the results of passes over the data, from which an interrupted build resumes.

A build depends only on its key, its settings and the results of its passes over the rows. All other
work takes seconds, and a resumed build repeats it with the same result, bit for bit. So the file
contains the results of the passes, in their order, and the progress of the current pass. It is
always written as a whole under another name and then renamed, so it is never incomplete.
"""

import contextlib
import errno
import glob
import hashlib
import importlib.metadata
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from jaxcoreset.data.arrays import decode, encode, load_archive, require_type, save_archive, usable
from jaxcoreset.data.messages import warn_user
from jaxcoreset.data.processes import ProcessGroup
from jaxcoreset.data.reading import fingerprint

_FORMAT = 2
# A setting that is known only once the model has been evaluated.
MODEL_VALUES = "model values"
_PASS_TYPES: dict[str, Any] = {"what": str, "digest": str, "state": dict[str, np.ndarray]}
_PASS_TYPES |= {"next_row": int, "is_done": bool}
# Seconds after which nobody is writing an unfinished file any more.
_ABANDONED = 600.0


@dataclass
class Pass:
    """One pass over the rows, and the file that stores it.

    Attributes:
        checkpoint: the file.
        what: what the pass is for.
        digest: a hash of what is evaluated.
        progress: the result so far, and the first row of this process that it does not include;
            one attribute, so that an interruption cannot separate the two.
        is_done: True if it includes all rows.
    """

    checkpoint: "CheckpointFile"
    what: str
    digest: str
    progress: tuple[dict[str, np.ndarray], int] = field(default_factory=lambda: ({}, 0))
    is_done: bool = False

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The result so far."""
        return self.progress[0]

    def check_like(
        self, start: dict[str, np.ndarray], rows: int, block: int, first: int = 0
    ) -> None:
        """Check that the stored result fits this pass.

        Args:
            start: arrays of the same names, types and shapes.
            rows: the number of rows of this process.
            block: the number of rows that are evaluated at once.
            first: the row that the first of these blocks begins at.

        Raises:
            ValueError: if it does not fit; the file was not written by this program.
        """
        forms = [
            {name: (np.shape(array), np.asarray(array).dtype) for name, array in one.items()}
            for one in (start, self.state)
        ]
        row = self.progress[1]
        is_end = row == rows or (0 <= row < rows and (row - first) % block == 0)
        if forms[0] != forms[1] or not is_end:
            raise ValueError(
                f"checkpoint {str(self.checkpoint.path)!r} is damaged; delete it, or give another "
                f"path. Its pass {self.what!r} is at row {row} with the arrays {forms[1]}; "
                f"expected the end of a block of {block} among {rows} rows, and {forms[0]}."
            )

    def advance(self, state: dict[str, np.ndarray], next_row: int) -> None:
        """Record the progress of the pass, and write the file if the interval is over."""
        self.progress = state, next_row
        self.checkpoint.write_if_due()

    def finish(self, state: dict[str, np.ndarray]) -> None:
        """Record the end of the pass, and write the file."""
        self.progress = state, self.progress[1]
        self.is_done = True
        self.checkpoint.write_if_due(is_last=True)


class CheckpointFile:
    """The file with the passes of one build.

    Args:
        path: the file.
        settings: everything that the build depends on, as text by name; a file with other settings
            raises an error.
        interval: seconds between two writes during a pass.

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
        # What a killed process left of a write, under the names that write_whole makes. A recent
        # one may be what another build with this checkpoint is writing.
        file = Path(os.path.realpath(self.path))
        unfinished = f"{glob.escape(file.name)}.{'[0-9a-f]' * 32}.part"
        for leftover in file.parent.glob(unfinished):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - leftover.stat().st_mtime > _ABANDONED:
                    leftover.unlink()
        if self.path.exists():
            self._read()

    def require_same(self, name: str, text: str) -> None:
        """Add a setting that the build depends on.

        Raises:
            ValueError: if the file has another value for it.
        """
        self.settings[name] = text
        if self._kept.get(name, text) != text:
            self._refuse([name])

    def open(self, what: str, digest: str) -> Pass:
        """The next pass, from the file or new.

        If the file has another pass at this place, that pass and all later ones are dropped.
        """
        kept = self.passes[self._at] if self._at < len(self.passes) else None
        if kept is None or (kept.what, kept.digest) != (what, digest):
            self.passes[self._at :] = [Pass(self, what, digest)]
        self._at += 1
        return self.passes[self._at - 1]

    def write(self) -> Path:
        """Write the whole file, or leave the old one unchanged."""
        arrays: dict[str, np.ndarray] = {}
        passes = [
            {
                "what": one.what,
                "digest": one.digest,
                "state": encode(one.progress[0], arrays, str(i)),
                "next_row": one.progress[1],
                "is_done": one.is_done,
            }
            for i, one in enumerate(self.passes)
        ]
        header = {"checkpoint": _FORMAT, "settings": self.settings, "passes": passes}
        self._written = time.monotonic()
        return save_archive(self.path, header, arrays, compress=False)

    def save_after_error(self) -> str:
        """Write the file after an error, and tell the user what to do with it."""
        try:
            path = self.write()
        except OSError as failure:
            return f"the checkpoint could not be written: {failure}"
        return (
            f"the checkpoint is in {str(path)!r}; run the build again with the same arguments, and "
            "it resumes there"
        )

    def write_if_due(self, is_last: bool = False) -> None:
        """Write the file if the interval is over, and at the end of a pass.

        Warns if it cannot be written. The build continues, and tries again after the interval.
        """
        if not is_last and time.monotonic() - self._written < self.interval:
            return
        try:
            self.write()
        except OSError as failure:
            warn_user(
                f"the checkpoint {str(self.path)!r} could not be written: "
                f"{failure.strerror or failure}. The build goes on; if it is interrupted, it "
                "resumes from what was written before."
            )

    def _read(self) -> None:
        trouble = "is not a checkpoint, or is damaged; delete it, or give another path."
        if not self.path.is_file():
            raise ValueError(f"{str(self.path)!r} {trouble} Expected a file.")
        header, arrays = load_archive(self.path, "checkpoint", trouble)
        if header["checkpoint"] != _FORMAT:
            raise ValueError(
                f"checkpoint {str(self.path)!r} was written by another version of jaxcoreset; "
                "delete it, or use that version."
            )
        at = "settings"
        with usable(self.path, trouble, lambda: at):
            require_type(header["settings"], dict[str, str], at)
            require_type(header["passes"], list[dict[str, Any]], "passes")
            for i, one in enumerate(header["passes"]):
                at = f"pass {i}"
                state = decode(one["state"], arrays)
                fields = one["what"], one["digest"], (state, one["next_row"]), one["is_done"]
                for name, hint in _PASS_TYPES.items():
                    require_type(state if name == "state" else one[name], hint, name)
                self.passes.append(Pass(self, *fields))
        self._kept = header["settings"]
        names = sorted({*self._kept, *self.settings} - {MODEL_VALUES})
        if differing := [name for name in names if self._kept.get(name) != self.settings.get(name)]:
            self._refuse(differing)

    def _refuse(self, names: list[str]) -> NoReturn:
        differing = [
            f"{name} (in the file {self._kept.get(name)}, now {self.settings.get(name)})"
            for name in names
        ]
        raise ValueError(
            f"checkpoint {str(self.path)!r} belongs to another build: it differs in "
            f"{', '.join(differing)}. Delete it, give another path, or use the same settings."
        )


def build_settings(
    builder: Any, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any], processes: ProcessGroup
) -> dict[str, str]:
    """Everything that a build depends on, as text by name: settings, model, key, data, versions.

    Args:
        builder: the builder, with its `model` and the settings that matter in `statistical`.
        key: the build's random key.
        args: the model's positional arguments.
        kwargs: its keyword arguments.
        processes: the processes of the build.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = [leaf for leaf in leaves if hasattr(leaf, "shape")]
    others = [leaf for leaf in leaves if not hasattr(leaf, "shape")]
    settings = {name: _text(value) for name, value in builder.statistical.items()}
    return settings | {
        "model": _text(builder.model),
        "key": str(np.asarray(jax.random.key_data(key)).tolist()),
        "data": fingerprint(arrays),
        "arguments": f"{tree} {_text(others)}",
        "process": f"{processes.index} of {processes.count}",
        "float64": str(jax.dtypes.canonicalize_dtype(float)),
        "platform": jax.default_backend(),
        "jaxcoreset": importlib.metadata.version("jaxcoreset"),
        "jax": jax.__version__,
    }


def settings_of_all(
    builder: Any, key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any], processes: ProcessGroup
) -> dict[str, str]:
    """The settings that all processes of a build share; arguments as in `build_settings`."""
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves((args, kwargs)) if np.ndim(leaf)}
    # Each process has its own rows and groups, and its own numbers of them. Which integers count
    # groups is known later.
    has_groups = builder.statistical.get("groups") is not None
    args, kwargs = jax.tree.map(
        lambda leaf: "rows" if isinstance(leaf, int) and (has_groups or leaf in lengths) else leaf,
        (args, kwargs),
    )
    settings = build_settings(builder, key, args, kwargs, processes)
    return {name: settings[name] for name in settings if name not in ("data", "process")}


def _text(value: Any) -> str:
    """A setting as text: what it prints as without addresses in memory, and a hash of its arrays.

    Functions are compared by their names, and what a model computes by `MODEL_VALUES`.
    """
    arrays = [x for x in jax.tree.leaves(value) if isinstance(x, np.ndarray | jax.Array)]
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return f"{text} {fingerprint(arrays)}" if arrays else text


def digest_of(args: PyTree) -> str:
    """A hash of the arrays among a function's arguments."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(args):
        if eqx.is_array_like(leaf):
            array = np.asarray(leaf)
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
