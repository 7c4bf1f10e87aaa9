"""Check whether the compiled kernels are in use, or their plain twins."""

from __future__ import annotations

from penstock.codec import changefeed
from penstock.codec.ignite import marshal, wal
from penstock.codec.mysql import binlog
from penstock.codec.oracle import sql_redo
from penstock.codec.postgres import copy_binary, copy_binary_decode, pgoutput, pgoutput_encode


def all_compiled() -> bool:
    """Return whether every decoder and encoder is the compiled one."""
    ignite = marshal.COMPILED and wal.COMPILED
    copies = copy_binary.COMPILED and copy_binary_decode.COMPILED
    postgres = pgoutput.COMPILED and pgoutput_encode.COMPILED and copies
    others = binlog.COMPILED and changefeed.COMPILED and sql_redo.COMPILED
    return postgres and others and ignite
