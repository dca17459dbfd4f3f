"""Rows of data that need not fit in memory: read in order, in batches, and checked.

A source stands for arrays with one row per datum. Its `arrays` are passed on where arrays in memory
would be; what reads them does so a batch at a time.
"""

from jaxcoreset.sources.array_source import array as array
from jaxcoreset.sources.base import RowSource as RowSource
from jaxcoreset.sources.base import SourceArray as SourceArray
from jaxcoreset.sources.base import SourceError as SourceError
from jaxcoreset.sources.batch_source import batches as batches
from jaxcoreset.sources.npy_file import npy as npy
from jaxcoreset.sources.parquet_source import parquet as parquet
