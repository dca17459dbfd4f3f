"""Parquet files: where they are, which columns and row groups they have, and their batches."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from jaxcoreset.data.messages import did_you_mean, no_column, not_parquet
from jaxcoreset.data.sources.base import SourceError, changed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileInfo, FileSystem

# One file or folder, or several.
Paths = str | os.PathLike | Sequence[str | os.PathLike]

# What Hive, Spark and pandas write as the folder of rows without a value.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, eq=False)
class File:
    """A file, its size and time of change, its columns, and where its row groups begin.

    Attributes:
        label: its path below the folder; empty if the source is this one file.
        columns: NumPy types and descriptions by name; the type of a column without numbers is None.
        keys: text of the columns that stand in the names of its folders; None if it is missing.
        starts: first rows of the row groups, and the number of rows; the file's first row is row 0.
        plain: the keys whose text is that of plain numbers in all files; as categories, they are
            numbers too.
    """

    filesystem: "FileSystem"
    path: str
    label: str
    state: tuple[int | None, int | None]
    columns: dict[str, tuple[np.dtype | None, str]]
    keys: dict[str, str | None]
    starts: np.ndarray
    plain: frozenset[str] = frozenset()

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.starts[-1])

    def check_unchanged(self) -> None:
        """Raise a SourceError if the file is another one than when it was opened."""
        if _state(self.filesystem.get_file_info(self.path)) != self.state:
            raise changed(self.path)


def _located(path: str | os.PathLike, filesystem: Any) -> "tuple[FileSystem, str]":
    """A file system of pyarrow, and the path in it."""
    import pyarrow as pa
    from pyarrow import fs

    text = os.fspath(path)
    if filesystem is None and "://" not in text:
        return fs.LocalFileSystem(), Path(text).as_posix()
    if filesystem is None:
        try:
            return fs.FileSystem.from_uri(text)
        except pa.ArrowInvalid as unknown:
            try:
                from fsspec.core import url_to_fs

                filesystem, text = url_to_fs(text)
            except (ImportError, ValueError) as error:
                raise SourceError(
                    f"{text} cannot be read: {unknown}; {error}. Install fsspec and its package "
                    "for this kind of file system, or pass filesystem=."
                ) from error
    if not isinstance(filesystem, fs.FileSystem):
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    return filesystem, text.rstrip("/")


def find_files(path: Paths, filesystem: Any) -> list[File]:
    """The files with their row groups, in order; files without rows are left out.

    Raises:
        SourceError: if there is no file, or all are empty.
    """
    listed = list(path) if isinstance(path, list | tuple) else _matches(path, filesystem)
    files = [file for one in listed for file in _files_of(one, filesystem, len(listed) > 1)]
    if not any(file.num_rows for file in files):
        raise SourceError(f"{name_of(path)} has no rows; expected at least one.")
    return _with_numbers([file for file in files if file.num_rows])


def name_of(path: Paths) -> str:
    """What is read, for messages."""
    if not isinstance(path, list | tuple):
        return str(path)
    more = f" and {len(path) - 1:,} more" if len(path) > 1 else ""
    return f"{path[0]}{more}" if path else "an empty list of files"


def _matches(path: Any, filesystem: Any) -> list[str | os.PathLike]:
    """A path, or the files that a pattern such as ``trips/*.parquet`` matches, sorted."""
    if not isinstance(path, str | os.PathLike):
        raise SourceError(
            f"parquet was given a {type(path).__name__}; expected a file, a folder, or a list of "
            "them, such as sorted(Path('trips').glob('*.parquet'))."
        )
    text = os.fspath(path)
    if filesystem is not None or "://" in text or os.path.exists(text) or not has_magic(text):
        return [path]
    found = sorted(glob(text, recursive=True))
    if not found:
        raise SourceError(f"no file matches {text}.")
    return [*found]


def _files_of(path: str | os.PathLike, filesystem: Any, is_listed: bool) -> list[File]:
    """The files of one path, with all of it in their labels if it is one of several."""
    from pyarrow import fs

    filesystem, root = _located(path, filesystem)
    info = filesystem.get_file_info(root)
    infos = [info]
    if info.type == fs.FileType.NotFound:
        folder = fs.FileSelector(os.path.dirname(root) or ".", allow_not_found=True)
        known = [other.base_name for other in filesystem.get_file_info(folder)]
        pattern = " Pass a folder or a list of files instead of a pattern." * ("*" in str(path))
        near = did_you_mean(info.base_name, known)
        raise SourceError(f"there is no file or folder {path}{near}{pattern}")
    if info.type == fs.FileType.Directory:
        infos = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    files, has_parquet = [], False
    for one in sorted(infos, key=lambda one: one.path.split("/")):
        label = one.path.removeprefix(root).strip("/")
        # Programs that write folders put their notes in names with a dot or an underscore.
        is_note = any(part.startswith((".", "_")) for part in label.split("/"))
        if one.is_file and not is_note and (one is info or label.endswith(".parquet")):
            has_parquet = True
            files.append(_open(filesystem, one, one.path if is_listed else label))
    if not has_parquet:
        raise SourceError(f"there is no file below {path} whose name ends in .parquet.")
    return files


def _open(filesystem: "FileSystem", info: "FileInfo", label: str) -> File:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(filesystem.open_input_file(info.path)) as table:
            metadata, schema = table.metadata, table.schema_arrow
            sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceError(not_parquet(info.path, error)) from error
    repeated = [name for name in set(schema.names) if schema.names.count(name) > 1]
    if repeated:
        raise SourceError(
            f"{info.path} has more than one column {repeated[0]!r}; expected different names."
        )
    columns = {field.name: (numpy_type(field.type), str(field.type)) for field in schema}
    keys: dict[str, str | None] = {}
    for name, equals, value in (part.partition("=") for part in label.split("/")[:-1]):
        name, text = unquote(name), unquote(value)
        if equals and name not in columns:
            columns[name] = None, f"text in the folder's name, {text!r}"
            keys[name] = None if text == _NULL else text
    return File(filesystem, info.path, label, _state(info), columns, keys, np.cumsum([0, *sizes]))


def _with_numbers(files: Sequence[File]) -> list[File]:
    """The files with numbers as the types of folders' names, where all of them are numbers.

    Text such as 01 is another category than 1. As a column of numbers, 01 to 12 are 1 to 12.
    """
    texts: dict[str, set[str]] = {}
    for file in files:
        for name, text in file.keys.items():
            texts.setdefault(name, set()).update(() if text is None else (text,))
    plain = frozenset(name for name in texts if all(map(_is_plain_number, texts[name])))
    padded = {
        name
        for name, found in texts.items()
        if len({len(text) for text in found}) == 1 and all(map(_is_digits, found))
    }
    result = []
    for file in files:
        types = {
            name: (np.dtype(type(number_of_text(text))), file.columns[name][1])
            for name, text in file.keys.items()
            if text is not None and name in plain | padded
        }
        columns = file.columns | types
        result.append(dataclasses.replace(file, columns=columns, plain=plain))
    return result


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_plain_number(text: str) -> bool:
    """True if a text is that of a finite number in Python, as 1 or 0.5, but not as 01 or 1_0."""
    with contextlib.suppress(ValueError):
        if str(int(text)) == text:
            return True
    with contextlib.suppress(ValueError):
        return str(float(text)) == text and bool(np.isfinite(float(text)))
    return False


def number_of_text(text: str) -> int | float:
    """The number that a folder's name spells; a real one if 64 bits do not hold it as a whole."""
    with contextlib.suppress(ValueError):
        return number if abs(number := int(text)) < 2**63 else float(text)
    return float(text)


def _state(info: "FileInfo") -> tuple[int | None, int | None]:
    """Size in bytes and time of the last change of a file; not every file system knows the time."""
    return info.size, info.mtime_ns


def numpy_type(kind: "pa.DataType") -> np.dtype | None:
    """The type of a column's numbers; None if it holds anything else."""
    import pyarrow as pa

    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    return np.dtype(np.float64) if pa.types.is_decimal(kind) else None


def column_types(files: Sequence[File], names: Sequence[str]) -> dict[str, np.dtype]:
    """The types of columns: those in the first file, which can hold those in the other files."""
    types: dict[str, np.dtype] = {}
    for file in files:
        for name in names:
            if name not in file.columns:
                raise SourceError(no_column(file.path, name, list(file.columns)))
            check_key(file, name)
            dtype, described = file.columns[name]
            if dtype is None:
                raise SourceError(
                    f"{file.path}: column {name!r} is of type {described}; expected real numbers, "
                    f"integers or booleans. Pass categories=[{name!r}] for the numbers of its "
                    "different values; write dates as a number of days or seconds."
                )
            first = types.setdefault(name, dtype)
            if name in file.keys:
                types[name] = np.result_type(first, dtype)
            elif not np.can_cast(dtype, first, "safe"):
                raise SourceError(
                    f"{file.path}: column {name!r} is of type {dtype}; expected {first}, as in "
                    f"{files[0].path}, or a type that fits in it. Write the files with one schema."
                )
    return types


def check_key(file: File, name: str) -> None:
    """Raise a SourceError if the name of a file's folder says that a column has no value."""
    if name in file.keys and file.keys[name] is None:
        raise SourceError(
            f"{file.path}: column {name!r} has a missing value in all rows, since the folder is "
            f"named {name}={_NULL}; expected none. Fill in or drop such rows."
        )


def record_batches(
    file: File, groups: Sequence[int], columns: list[str], batch_rows: int
) -> "Iterator[tuple[int, pa.RecordBatch]]":
    """Some columns of some row groups, in parts: the row group and the part."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Through a small buffer: pyarrow.dataset would hold a whole row group, which may be as
        # large as the file.
        with pq.ParquetFile(
            file.filesystem.open_input_file(file.path), buffer_size=1 << 20, pre_buffer=False
        ) as table:
            for group in groups:
                for batch in table.iter_batches(batch_rows, row_groups=[group], columns=columns):
                    yield group, batch
    except (pa.ArrowException, OSError) as error:
        file.check_unchanged()
        raise SourceError(
            f"{file.path} cannot be read: {error} It is damaged; write it again."
        ) from error


def plain(column: "pa.Array") -> "pa.Array":
    """The values of a column, which Parquet may keep as places in a dictionary."""
    import pyarrow as pa

    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
