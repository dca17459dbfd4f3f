"""Rows of data that need not fit in memory: read in order, in batches, and checked.

A source represents arrays with one row per datum. Pass its `arrays` where you would pass arrays in
memory. They are read one batch at a time.
"""

from jaxcoreset.data.sources.arrays import array as array
from jaxcoreset.data.sources.base import RowSource as RowSource
from jaxcoreset.data.sources.base import SourceArray as SourceArray
from jaxcoreset.data.sources.base import SourceError as SourceError
from jaxcoreset.data.sources.batches import batches as batches
from jaxcoreset.data.sources.npy import npy as npy
from jaxcoreset.data.sources.parquet import parquet as parquet
