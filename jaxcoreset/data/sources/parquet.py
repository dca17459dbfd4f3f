"""Columns of Parquet files: one file or all files in a folder, read a few megabytes at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxcoreset.data.dtypes import cast, default_float, handed_on, is_float, is_number
from jaxcoreset.data.fingerprint import Hash
from jaxcoreset.data.messages import did_you_mean, listed, no_column, not_parquet, require
from jaxcoreset.data.sources.base import BATCH_BYTES, RawBatch, RowSource, SourceError, changed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileInfo, FileSystem

# Columns that become one matrix are copied in parts that fit a processor's cache.
_PART_BYTES = 1 << 19
_SAMPLE_ROWS = 1024


def parquet(
    path: str | os.PathLike,
    *,
    filesystem: Any = None,
    dtype: Any = None,
    allow_nonfinite: bool = False,
    **columns: str | Sequence[str],
) -> RowSource:
    """A source of the rows of one Parquet file, or of all in a folder in the order of their names.

    Args:
        path: a file, or a folder with files that end in ``.parquet``. A subfolder with a name such
            as ``year=2013`` gives a column of numbers, here ``year``. A URL, such as
            ``s3://bucket/trips``, is read by pyarrow or, if pyarrow does not know its kind, by
            fsspec.
        filesystem: the file system of `path`, from pyarrow or fsspec; by default that of this
            machine or of the URL.
        dtype: the type of all arrays. By default one column keeps its kind (boolean, integer or
            real), and several become JAX's default real type. Types that JAX would shorten are
            shortened.
        allow_nonfinite: whether the data may contain NaN and infinities.
        **columns: for each array of the source, the name of a column, which gives an array of shape
            (n,), or a list of d names, which gives an array of shape (n, d).

    Returns:
        A source whose batches are dictionaries with the names of `columns`.

    Raises:
        SourceError: if a file or a column is missing, or a column does not contain numbers. Missing
            values raise this error later, when they are read.
        ModuleNotFoundError: if pyarrow is not installed.
    """
    require("pyarrow")
    files = _files(path, filesystem)
    if not columns:
        raise SourceError(
            f"parquet was not told which columns of {path} to read; expected for example "
            f"X=['a', 'b'], y='c'. The columns are {listed(list(files[0].columns))}."
        )
    names = [[value] if isinstance(value, str) else list(value) for value in columns.values()]
    for name, value in zip(columns, names, strict=True):
        if not value or not all(isinstance(column, str) for column in value):
            raise SourceError(
                f"parquet: {name} is {value!r}; expected a column's name, or a list of names."
            )
    types = _column_types(files, sorted({column for value in names for column in value}))
    tree = jax.tree.structure(dict.fromkeys(columns, 0))
    leaves = [_Leaf.of(columns[key], types, dtype) for key in sorted(columns)]
    return _ParquetSource(str(path), files, tree, leaves, allow_nonfinite)


@dataclass(frozen=True, eq=False)
class _File:
    """A file, its size and time of change, its columns, and where its row groups begin.

    Attributes:
        label: its path below the folder; empty if the source is this one file.
        columns: NumPy types and descriptions by name; the type of a column without numbers is None.
        keys: values of the columns that stand in the names of its folders.
        starts: first rows of the row groups, and the number of rows; the file's first row is row 0.
    """

    filesystem: "FileSystem"
    path: str
    label: str
    state: tuple[int | None, int | None]
    columns: dict[str, tuple[np.dtype | None, str]]
    keys: dict[str, int | float]
    starts: np.ndarray

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def check_unchanged(self) -> None:
        if _state(self.filesystem.get_file_info(self.path)) != self.state:
            raise changed(self.path)


@dataclass(frozen=True, eq=False)
class _Leaf:
    """Columns that become one array."""

    columns: tuple[str, ...]
    matrix: bool
    dtype: np.dtype

    @classmethod
    def of(cls, columns: str | Sequence[str], types: dict[str, np.dtype], dtype: Any) -> "_Leaf":
        single = isinstance(columns, str)
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        if dtype is None:
            kind = np.result_type(*(types[name] for name in names))
            dtype = kind if single or is_float(kind) else default_float()
        if not is_number(np.dtype(dtype)):
            raise SourceError(
                f"parquet: dtype is {dtype!r}; expected a real, integer or boolean type."
            )
        return cls(names, not single, handed_on(dtype))


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


def _files(path: str | os.PathLike, filesystem: Any) -> list[_File]:
    """The files with their row groups, in order; files without rows are left out."""
    from pyarrow import fs

    filesystem, root = _located(path, filesystem)
    info = filesystem.get_file_info(root)
    infos = [info]
    if info.type == fs.FileType.NotFound:
        folder = fs.FileSelector(os.path.dirname(root) or ".", allow_not_found=True)
        known = [other.base_name for other in filesystem.get_file_info(folder)]
        raise SourceError(f"there is no file or folder {path}{did_you_mean(info.base_name, known)}")
    if info.type == fs.FileType.Directory:
        infos = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    files, has_parquet = [], False
    for one in sorted(infos, key=lambda one: one.path.split("/")):
        label = one.path.removeprefix(root).strip("/")
        # Programs that write folders put their notes in names with a dot or an underscore.
        is_note = any(part.startswith((".", "_")) for part in label.split("/"))
        if one.is_file and not is_note and (one is info or label.endswith(".parquet")):
            has_parquet = True
            files.append(_open(filesystem, one, label))
    if not has_parquet:
        raise SourceError(f"there is no file below {path} whose name ends in .parquet.")
    if not any(file.num_rows for file in files):
        raise SourceError(f"{path} has no rows; expected at least one.")
    return [file for file in files if file.num_rows]


def _open(filesystem: "FileSystem", info: "FileInfo", label: str) -> _File:
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
    columns = {field.name: (_numpy_type(field.type), str(field.type)) for field in schema}
    keys: dict[str, int | float] = {}
    for name, equals, text in (part.partition("=") for part in label.split("/")[:-1]):
        if equals and name not in columns:
            value = _number(text)
            kind = None if value is None else np.dtype(type(value))
            columns[name] = kind, f"text in the folder's name, {text!r}"
            keys |= {} if value is None else {name: value}
    return _File(filesystem, info.path, label, _state(info), columns, keys, np.cumsum([0, *sizes]))


def _number(text: str) -> int | float | None:
    try:
        number = int(text)
        return number if abs(number) < 2**63 else float(number)
    except (ValueError, OverflowError):
        try:
            return float(text)
        except ValueError:
            return None


def _state(info: "FileInfo") -> tuple[int | None, int | None]:
    """Size in bytes and time of the last change of a file; not every file system knows the time."""
    return info.size, info.mtime_ns


def _numpy_type(kind: "pa.DataType") -> np.dtype | None:
    import pyarrow as pa

    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    return np.dtype(np.float64) if pa.types.is_decimal(kind) else None


def _column_types(files: Sequence[_File], names: Sequence[str]) -> dict[str, np.dtype]:
    """The types of columns: those in the first file, which can hold those in the other files."""
    types: dict[str, np.dtype] = {}
    for file in files:
        for name in names:
            if name not in file.columns:
                raise SourceError(no_column(file.path, name, list(file.columns)))
            dtype, described = file.columns[name]
            if dtype is None:
                raise SourceError(
                    f"{file.path}: column {name!r} is of type {described}; expected real numbers, "
                    "integers or booleans. Encode text and categories as numbers, and dates as a "
                    "number of days or seconds, first."
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


class _ParquetSource(RowSource):
    def __init__(
        self,
        name: str,
        files: Sequence[_File],
        tree: Any,
        leaves: Sequence[_Leaf],
        allow_nonfinite: bool,
    ) -> None:
        super().__init__(
            name,
            sum(file.num_rows for file in files),
            tree,
            [(len(leaf.columns),) if leaf.matrix else () for leaf in leaves],
            [leaf.dtype for leaf in leaves],
            allow_nonfinite=allow_nonfinite,
        )
        self._files = tuple(files)
        self._from = leaves
        self._columns = sorted({name for leaf in leaves for name in leaf.columns})
        # Arrow holds up to eight bytes for each number.
        self._batch_rows = max(1, BATCH_BYTES // max(self.row_bytes, 8 * len(self._columns)))

    def fingerprint(self) -> str:
        mark = Hash(
            "parquet", [(leaf.columns, leaf.matrix, leaf.dtype.name) for leaf in self._from]
        )
        for file in self._files:
            mark.add(file.label, file.state, file.starts.tolist())
        for leaf in self.take(np.arange(min(_SAMPLE_ROWS, self.num_rows))):
            mark.array(leaf)
        return mark.hex()

    def _read(self, first: int) -> Iterator[RawBatch]:
        return self._scan(lambda start, stop: stop > first)

    def _read_holding(self, rows: np.ndarray) -> Iterator[RawBatch]:
        return self._scan(
            lambda start, stop: bool(np.searchsorted(rows, start) < np.searchsorted(rows, stop))
        )

    def _place(self, leaf: int, inner: tuple[int, ...]) -> str:
        return f"column {self._from[leaf].columns[inner[0] if inner else 0]!r}"

    def _scan(self, is_needed: Callable[[int, int], bool]) -> Iterator[RawBatch]:
        """The batches, and of the row groups only those, for whose first row and end this holds."""
        begin = 0
        for file in self._files:
            starts = (begin + file.starts).tolist()
            begin = starts[-1]
            groups = [g for g in range(len(starts) - 1) if is_needed(starts[g], starts[g + 1])]
            if not groups:
                continue
            file.check_unchanged()
            for group, batch in self._record_batches(file, groups):
                start, starts[group] = starts[group], starts[group] + batch.num_rows
                if batch.num_rows and is_needed(start, start + batch.num_rows):
                    leaves = tuple(self._leaf(leaf, batch, file, start) for leaf in self._from)
                    yield RawBatch(file.label, start, leaves)
            file.check_unchanged()

    def _record_batches(
        self, file: _File, groups: list[int]
    ) -> "Iterator[tuple[int, pa.RecordBatch]]":
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = [name for name in self._columns if name not in file.keys]
        try:
            # Through a small buffer: pyarrow.dataset would hold a whole row group, which may be as
            # large as the file.
            with pq.ParquetFile(
                file.filesystem.open_input_file(file.path), buffer_size=1 << 20, pre_buffer=False
            ) as table:
                for group in groups:
                    for batch in table.iter_batches(
                        self._batch_rows, row_groups=[group], columns=columns
                    ):
                        yield group, batch
        except (pa.ArrowException, OSError) as error:
            file.check_unchanged()
            raise SourceError(
                f"{file.path} cannot be read: {error} It is damaged; write it again."
            ) from error

    def _leaf(self, leaf: _Leaf, batch: "pa.RecordBatch", file: _File, start: int) -> np.ndarray:
        rows = batch.num_rows
        values = [self._column(batch, name, file, start) for name in leaf.columns]
        if not leaf.matrix:
            return self._fitted(values[0], leaf, leaf.columns[0], file, start)
        matrix = np.empty((rows, len(values)), leaf.dtype)
        part = max(1, _PART_BYTES // max(matrix.itemsize * len(values), 1))
        for begin in range(0, rows, part):
            for j, (name, column) in enumerate(zip(leaf.columns, values, strict=True)):
                piece = column[begin : begin + part]
                matrix[begin : begin + part, j] = self._fitted(
                    piece, leaf, name, file, start + begin
                )
        return matrix

    def _column(self, batch: "pa.RecordBatch", name: str, file: _File, start: int) -> np.ndarray:
        import pyarrow as pa

        if name in file.keys:
            return np.full(batch.num_rows, file.keys[name])
        column = batch.column(name)
        if column.null_count:
            missing = np.asarray(column.is_null())
            raise self.error(
                file.label,
                start,
                batch.num_rows,
                f"column {name!r} has {column.null_count:,} missing values, the first in row "
                f"{start + int(np.argmax(missing)):,}; expected none. Fill in or drop such rows.",
            )
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        return column.to_numpy(zero_copy_only=False)

    def _fitted(
        self, values: np.ndarray, leaf: _Leaf, name: str, file: _File, start: int
    ) -> np.ndarray:
        result, bad = cast(values, leaf.dtype)
        if bad is not None:
            raise self.error(
                file.label,
                start,
                len(values),
                f"column {name!r} is {values[bad]} in row {start + bad:,}, which "
                f"{leaf.dtype} cannot hold; expected numbers in its range. Pass another dtype, "
                "scale the column, or switch on JAX's x64 before making the source.",
            )
        return result
