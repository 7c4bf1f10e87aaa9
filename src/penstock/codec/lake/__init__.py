"""Bytes of the files in which lakes keep deleted rows: deletion vectors and position deletes.

No I/O. Not here: data files, which are plain Parquet, and the metadata of tables, which the Java
classes of the formats write.
"""

from penstock.codec.lake.deletion_vectors import (
    DeltaVector,
    bin_name,
    inline_vector,
    make_bin,
)
from penstock.codec.lake.errors import DeletionCorrupt
from penstock.codec.lake.position_deletes import make_position_deletes, parse_position_deletes
from penstock.codec.lake.puffin import PuffinBlob, make_puffin, parse_blob, parse_footer
from penstock.codec.lake.roaring import (
    NO_POSITIONS,
    Positions,
    parse_positions,
    serialize_positions,
)

__all__ = [
    "NO_POSITIONS",
    "DeletionCorrupt",
    "DeltaVector",
    "Positions",
    "PuffinBlob",
    "bin_name",
    "inline_vector",
    "make_bin",
    "make_position_deletes",
    "make_puffin",
    "parse_blob",
    "parse_footer",
    "parse_position_deletes",
    "parse_positions",
    "serialize_positions",
]
