"""Columns of Parquet files: one file, or all those of a folder, read a few megabytes at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxcoreset.data.dtypes import cast, default_float, handed_on, is_float, is_number
from jaxcoreset.data.fingerprint import Hash, file_state
from jaxcoreset.data.messages import did_you_mean, listed, require
from jaxcoreset.data.sources.base import BATCH_BYTES, RawBatch, RowSource, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

# Columns that become one matrix are laid side by side in parts that fit a processor's cache.
_PART_BYTES = 1 << 19
_SAMPLE_ROWS = 1024


def parquet(
    path: str | os.PathLike,
    *,
    dtype: Any = None,
    allow_nonfinite: bool = False,
    **columns: str | Sequence[str],
) -> RowSource:
    """Rows of a Parquet file, or of all those below a folder in the order of their names.

    Args:
        path: a file, or a folder with files that end in ``.parquet``. Names of folders, as
            ``year=2013``, are not read as columns.
        dtype: the type of all arrays. By default one column keeps its kind (boolean, integer or
            real), and several are of JAX's default real type; what JAX would shorten is shortened.
        allow_nonfinite: whether NaN and infinities may stand in the data.
        **columns: for each array of the source the name of a column, for an array of shape (n,), or
            a list of d names, for one of shape (n, d).

    Returns:
        A source whose batches are dictionaries with the names of `columns`.

    Raises:
        SourceError: if a file or a column is missing, or holds no numbers. Missing values are found
            while reading.
        ModuleNotFoundError: if pyarrow is not installed.
    """
    require("pyarrow")
    path = Path(path)
    files = _files(path)
    if not columns:
        raise SourceError(
            f"parquet was not told which columns of {path} to read; wanted for example "
            f"X=['a', 'b'], y='c'. There are {listed(list(files[0].columns))}."
        )
    names = [[value] if isinstance(value, str) else list(value) for value in columns.values()]
    for name, value in zip(columns, names, strict=True):
        if not value or not all(isinstance(column, str) for column in value):
            raise SourceError(f"parquet: {name} is {value!r}; wanted a column's name, or a list.")
    types = _column_types(files, sorted({column for value in names for column in value}))
    tree = jax.tree.structure(dict.fromkeys(columns, 0))
    leaves = [_Leaf.of(columns[key], types, dtype) for key in sorted(columns)]
    return _ParquetSource(path, files, tree, leaves, allow_nonfinite)


@dataclass(frozen=True, eq=False)
class _File:
    """A file: its columns with NumPy types (None for what is no number), and where rows begin."""

    path: Path
    state: tuple[int, int]
    columns: dict[str, tuple[np.dtype | None, str]]
    starts: np.ndarray  # of the row groups, and at last the end; the file's first row is row 0

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])


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
            raise SourceError(f"parquet: dtype is {dtype!r}; wanted real, integer or boolean.")
        return cls(names, not single, handed_on(dtype))


def _files(path: Path) -> list[_File]:
    """The files with their row groups, in order; those without rows are left out."""
    if not path.exists():
        folder = path.parent
        known = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        raise SourceError(f"there is no file or folder {path}{did_you_mean(path.name, known)}")
    if not path.is_dir():
        paths = [path]
    else:
        paths = sorted(
            file
            for file in path.rglob("*.parquet")
            # Hidden ones and those with an underscore are notes of the programs that write folders.
            if file.is_file()
            and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        )
    if not paths:
        raise SourceError(f"there is no file that ends in .parquet below {path}; wanted some.")
    files = [_open(file) for file in paths]
    found = [file for file in files if file.num_rows]
    if not found:
        raise SourceError(f"{path} has no rows; wanted at least one.")
    return found


def _open(path: Path) -> _File:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        state = file_state(path)
        with pq.ParquetFile(path) as table:
            metadata, schema = table.metadata, table.schema_arrow
            sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceError(
            f"{path} cannot be read as Parquet: {error} Wanted a whole Parquet file; if it was cut "
            "short while it was written or copied, do that again."
        ) from error
    repeated = [name for name in set(schema.names) if schema.names.count(name) > 1]
    if repeated:
        raise SourceError(
            f"{path} has more than one column {repeated[0]!r}; wanted different names."
        )
    columns = {field.name: (_numpy_type(field.type), str(field.type)) for field in schema}
    return _File(path, state, columns, np.cumsum([0, *sizes]))


def _numpy_type(kind: "pa.DataType") -> np.dtype | None:
    import pyarrow as pa

    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    return np.dtype(np.float64) if pa.types.is_decimal(kind) else None


def _column_types(files: Sequence[_File], wanted: Sequence[str]) -> dict[str, np.dtype]:
    """The types of columns, which are the same in all files, or fit those of the first."""
    types: dict[str, np.dtype] = {}
    for file in files:
        for name in wanted:
            if name not in file.columns:
                if any(part.startswith(f"{name}=") for part in file.path.parts):
                    raise SourceError(
                        f"{file.path} has no column {name!r}: it stands in the folder's name only. "
                        "Write it into the files, as a column of numbers."
                    )
                raise SourceError(
                    f"{file.path} has no column {name!r}{did_you_mean(name, file.columns)} Its "
                    f"columns are {listed(list(file.columns))}."
                )
            dtype, described = file.columns[name]
            if dtype is None:
                raise SourceError(
                    f"{file.path}: column {name!r} is of type {described}; wanted real numbers, "
                    "integers or booleans. Encode text and categories as numbers, and dates as a "
                    "number of days or seconds, first."
                )
            first = types.setdefault(name, dtype)
            if not np.can_cast(dtype, first, "safe"):
                raise SourceError(
                    f"{file.path}: column {name!r} is of type {dtype}; wanted {first}, as in "
                    f"{files[0].path}, or what fits in it. Write the files with one schema."
                )
    return types


class _ParquetSource(RowSource):
    def __init__(
        self,
        path: Path,
        files: Sequence[_File],
        tree: Any,
        leaves: Sequence[_Leaf],
        allow_nonfinite: bool,
    ) -> None:
        super().__init__(
            str(path),
            sum(file.num_rows for file in files),
            tree,
            [(len(leaf.columns),) if leaf.matrix else () for leaf in leaves],
            [leaf.dtype for leaf in leaves],
            allow_nonfinite=allow_nonfinite,
        )
        self._root = path
        self._files = tuple(files)
        self._from = leaves
        self._columns = sorted({name for leaf in leaves for name in leaf.columns})
        widths = sum(8 for _ in self._columns)  # at most, as Arrow holds them
        self._batch_rows = max(1, BATCH_BYTES // max(self.row_bytes, widths))

    def fingerprint(self) -> str:
        mark = Hash(
            "parquet", [(leaf.columns, leaf.matrix, leaf.dtype.name) for leaf in self._from]
        )
        for file in self._files:
            mark.add(str(file.path.relative_to(self._root)), file.state, file.starts.tolist())
        for leaf in self.take(np.arange(min(_SAMPLE_ROWS, self.num_rows))):
            mark.array(leaf)
        return mark.hex()

    def _read(self, first: int) -> Iterator[RawBatch]:
        return self._scan(lambda start, stop: stop > first)

    def _read_holding(self, rows: np.ndarray) -> Iterator[RawBatch]:
        def holds(start: int, stop: int) -> bool:
            return bool(np.searchsorted(rows, start) < np.searchsorted(rows, stop))

        return self._scan(holds, holds)

    def _place(self, leaf: int, inner: tuple[int, ...]) -> str:
        return f"column {self._from[leaf].columns[inner[0] if inner else 0]!r}"

    def _scan(
        self,
        wanted: Callable[[int, int], bool],
        converted: Callable[[int, int], bool] = lambda start, stop: True,
    ) -> Iterator[RawBatch]:
        """Batches of the row groups that are wanted, by their first row and the end."""
        begin = 0
        for file in self._files:
            starts = (begin + file.starts).tolist()
            groups = [g for g in range(len(starts) - 1) if wanted(starts[g], starts[g + 1])]
            begin += file.num_rows
            if not groups:
                continue
            self._check_unchanged(file)
            label = "" if file.path == self._root else str(file.path.relative_to(self._root))
            for run in _runs(groups):
                start = starts[run[0]]
                for batch in self._record_batches(file, run):
                    if batch.num_rows and converted(start, start + batch.num_rows):
                        leaves = tuple(self._leaf(leaf, batch, label, start) for leaf in self._from)
                        yield RawBatch(label, start, leaves)
                    start += batch.num_rows
            self._check_unchanged(file)

    def _record_batches(self, file: _File, groups: list[int]) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # A row group may be as large as the file: it is read through a small buffer.
            with pq.ParquetFile(file.path, buffer_size=1 << 20, pre_buffer=False) as table:
                yield from table.iter_batches(
                    self._batch_rows, row_groups=groups, columns=self._columns
                )
        except (pa.ArrowException, OSError) as error:
            self._check_unchanged(file)
            raise SourceError(
                f"{file.path} cannot be read: {error} It is damaged; write it again."
            ) from error

    def _leaf(self, leaf: _Leaf, batch: "pa.RecordBatch", label: str, start: int) -> np.ndarray:
        rows = batch.num_rows
        values = [self._column(batch, name, label, start) for name in leaf.columns]
        if not leaf.matrix:
            return self._fitted(values[0], leaf, leaf.columns[0], label, start)
        matrix = np.empty((rows, len(values)), leaf.dtype)
        part = max(1, _PART_BYTES // max(matrix.itemsize * len(values), 1))
        for begin in range(0, rows, part):
            for j, (name, column) in enumerate(zip(leaf.columns, values, strict=True)):
                piece = column[begin : begin + part]
                matrix[begin : begin + part, j] = self._fitted(
                    piece, leaf, name, label, start + begin
                )
        return matrix

    def _column(self, batch: "pa.RecordBatch", name: str, label: str, start: int) -> np.ndarray:
        import pyarrow as pa

        column = batch.column(name)
        if column.null_count:
            missing = np.asarray(column.is_null())
            raise self.error(
                label,
                start,
                batch.num_rows,
                f"column {name!r} has {column.null_count:,} missing values, the first in row "
                f"{start + int(np.argmax(missing)):,}; wanted none. Fill in or drop such rows.",
            )
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        return column.to_numpy(zero_copy_only=False)

    def _fitted(
        self, values: np.ndarray, leaf: _Leaf, name: str, label: str, start: int
    ) -> np.ndarray:
        result, bad = cast(values, leaf.dtype)
        if bad is not None:
            raise self.error(
                label,
                start,
                len(values),
                f"column {name!r} is {values[bad]} in row {start + bad:,}, which "
                f"{leaf.dtype} cannot hold; wanted numbers that it can. Pass another dtype, scale "
                "the column, or switch on JAX's x64 before making the source.",
            )
        return result

    def _check_unchanged(self, file: _File) -> None:
        if not file.path.exists() or file_state(file.path) != file.state:
            raise SourceError(
                f"{file.path} was changed after the source was made; wanted the same rows in every "
                "pass. Make a new source."
            )


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Sorted numbers, those that follow each other together."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [run.tolist() for run in np.split(np.asarray(numbers), breaks)]
