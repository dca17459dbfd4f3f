"""Columns of Parquet files: one file, several, or all in a folder, a few megabytes at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxcoreset.data.dtypes import cast, default_float, handed_on, is_float, is_number
from jaxcoreset.data.fingerprint import Hash
from jaxcoreset.data.messages import listed, require
from jaxcoreset.data.sources.base import BATCH_BYTES, Codes, RawBatch, RowSource, SourceError
from jaxcoreset.data.sources.parquet_categories import (
    Categories,
    categories_of,
    code_of_key,
    comparable_type,
    unknown_category,
)
from jaxcoreset.data.sources.parquet_files import (
    File,
    Paths,
    column_types,
    find_files,
    name_of,
    number_of_text,
    plain,
    record_batches,
)

if TYPE_CHECKING:
    import pyarrow as pa

# Columns that become one matrix are copied in parts that fit a processor's cache.
_PART_BYTES = 1 << 19
_SAMPLE_ROWS = 1024


def parquet(
    path: Paths,
    *,
    filesystem: Any = None,
    dtype: Any = None,
    allow_nonfinite: bool = False,
    categories: Categories = (),
    **columns: str | Sequence[str],
) -> "ParquetSource":
    """A source of the rows of Parquet files: one, several, or all in a folder.

    Args:
        path: a file, or a folder with files that end in ``.parquet``. A subfolder with a name such
            as ``year=2013`` gives a column, here ``year``. It holds numbers if all such folders are
            named by numbers, as 1 or 0.5, or by digits of one width, as 01 to 12. As categories,
            text such as 01 stays text. ``A%20B`` is read as ``A B``. A URL, such as
            ``s3://bucket/trips``, is read by pyarrow, or by fsspec if pyarrow does not support this
            kind of URL. A list of files or folders is read in its order, and a pattern such as
            ``trips/*.parquet`` on this machine in the order of the names.
        filesystem: the file system of `path`, from pyarrow or fsspec; by default that of this
            machine or of the URL.
        dtype: the type of all arrays. By default one column keeps its kind (boolean, integer or
            real), and several become JAX's default real type. Types that JAX would shorten are
            shortened.
        allow_nonfinite: whether the data may contain NaN and infinities.
        categories: names of columns whose values are categories: text, or numbers whose order means
            nothing. Such a column is read as integers 0, 1, …: the position of a value among the
            distinct values in increasing order, which are in the source's `categories`. To find
            these values takes one pass over the columns. Or a dictionary from names to values:
            the integers are then positions among these values, and no pass is needed. Pass those of
            another source, or of `Coreset.categories`, for rows that belong to the same model. With
            None instead of values, they are found.
        **columns: for each array of the source, the name of a column, which gives an array of shape
            (n,), or a list of d names, which gives an array of shape (n, d).

    Returns:
        A source whose batches are dictionaries with the names of `columns`.

    Raises:
        SourceError: if a file or a column is missing, a column does not contain numbers, or the
            values of a category repeat. Missing values, and values that are not among those given,
            raise this error later, when they are read.
        ModuleNotFoundError: if pyarrow is not installed.
    """
    require("pyarrow")
    files = find_files(path, filesystem)
    if not columns:
        raise SourceError(
            f"parquet was not given the columns of {name_of(path)} to read; expected for example "
            f"X=['a', 'b'], y='c'. The columns are {listed(list(files[0].columns))}."
        )
    names = [[value] if isinstance(value, str) else list(value) for value in columns.values()]
    for name, value in zip(columns, names, strict=True):
        if not value or not all(isinstance(column, str) for column in value):
            raise SourceError(
                f"parquet: {name} is {value!r}; expected a column's name, or a list of names. Each "
                "keyword is an array of the source, for example X=['a', 'b'], y='c'."
            )
    used = {column for value in names for column in value}
    coded = {categories: None} if isinstance(categories, str) else categories
    coded = dict(coded) if isinstance(coded, Mapping) else dict.fromkeys(coded)
    if unused := [name for name in coded if name not in used]:
        raise SourceError(
            f"parquet: categories names {unused[0]!r}, which is no column of an array; expected "
            f"some of {listed(sorted(used))}."
        )
    types = column_types(files, sorted(used.difference(coded)))
    known = {name: categories_of(files, name, values) for name, values in coded.items()}
    types |= dict.fromkeys(known, np.dtype(np.int32))
    tree = jax.tree.structure(dict.fromkeys(columns, 0))
    leaves = [_Leaf.of(columns[key], types, dtype) for key in sorted(columns)]
    return ParquetSource(name_of(path), files, tree, leaves, allow_nonfinite, known)


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


class ParquetSource(RowSource):
    """The rows of Parquet files; made by `parquet`.

    Attributes:
        categories: by column, the values that its numbers stand for.
    """

    def __init__(
        self,
        name: str,
        files: Sequence[File],
        tree: Any,
        leaves: Sequence[_Leaf],
        allow_nonfinite: bool,
        categories: dict[str, np.ndarray],
    ) -> None:
        super().__init__(
            name,
            sum(file.num_rows for file in files),
            tree,
            [(len(leaf.columns),) if leaf.matrix else () for leaf in leaves],
            [leaf.dtype for leaf in leaves],
            allow_nonfinite=allow_nonfinite,
        )
        self.categories = categories
        self._files = tuple(files)
        self._from = leaves
        self._columns = sorted({name for leaf in leaves for name in leaf.columns})
        # Arrow holds up to eight bytes for each number.
        self._batch_rows = max(1, BATCH_BYTES // max(self.row_bytes, 8 * len(self._columns)))

    def categories_of(self, leaf: int) -> np.ndarray | None:
        """See `RowSource.categories_of`."""
        columns = self._from[leaf].columns
        return self.categories.get(columns[0]) if len(columns) == 1 else None

    def codes_of(self, leaf: int) -> Codes | None:
        """See `RowSource.codes_of`."""
        return tuple((name, self.categories.get(name)) for name in self._from[leaf].columns)

    def fingerprint(self) -> str:
        """See `RowSource.fingerprint`."""
        mark = Hash(
            "parquet", [(leaf.columns, leaf.matrix, leaf.dtype.name) for leaf in self._from]
        )
        for name, values in self.categories.items():
            mark.add(name, values.tolist())
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
            columns = [name for name in self._columns if name not in file.keys]
            for group, batch in record_batches(file, groups, columns, self._batch_rows):
                start, starts[group] = starts[group], starts[group] + batch.num_rows
                if batch.num_rows and is_needed(start, start + batch.num_rows):
                    leaves = tuple(self._leaf(leaf, batch, file, start) for leaf in self._from)
                    yield RawBatch(file.label, start, leaves)
            file.check_unchanged()

    def _leaf(self, leaf: _Leaf, batch: "pa.RecordBatch", file: File, start: int) -> np.ndarray:
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

    def _column(self, batch: "pa.RecordBatch", name: str, file: File, start: int) -> np.ndarray:
        import pyarrow as pa

        if name in file.keys:
            known = self.categories.get(name)
            if known is None:
                return np.full(batch.num_rows, number_of_text(file.keys[name] or ""))
            return np.full(batch.num_rows, code_of_key(file, name, known))
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
        if name in self.categories:
            return self._numbers_of(plain(column), name, file, start)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        return column.to_numpy(zero_copy_only=False)

    def _numbers_of(self, column: "pa.Array", name: str, file: File, start: int) -> np.ndarray:
        """The places of values among the categories."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pa.array(self.categories[name])
        try:
            # Numbers of another type are the same category if they are equal.
            alike = comparable_type(column.type, known.type)
            options = pc.SetLookupOptions(value_set=known.cast(alike))
            numbers: Any = pc.call_function("index_in", [column.cast(alike)], options)
        except (pa.ArrowException, NotImplementedError) as error:
            raise SourceError(
                f"{file.path}: column {name!r} is of type {column.type}, and its categories are of "
                f"type {known.type}; expected values of one kind: {error}"
            ) from error
        if numbers.null_count:
            first = int(np.argmax(np.asarray(numbers.is_null())))
            file.check_unchanged()
            raise self.error(
                file.label,
                start,
                len(column),
                unknown_category(name, column[first].as_py(), self.categories[name])
                + f" The value is in row {start + first:,}.",
            )
        return numbers.to_numpy(zero_copy_only=False)

    def _fitted(
        self, values: np.ndarray, leaf: _Leaf, name: str, file: File, start: int
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
