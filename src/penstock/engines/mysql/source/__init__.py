"""The binlog of a MySQL or MariaDB server, which is followed, and its tables, which are read."""

from penstock.engines.mysql.source.catalog import captured_tables, open_catalog, survey
from penstock.engines.mysql.source.chunks import KeyChunk, plan_chunks
from penstock.engines.mysql.source.client import BinlogConnection, DumpOptions, open_binlog
from penstock.engines.mysql.source.snapshot import Snapshots, open_snapshots, read_choices
from penstock.engines.mysql.source.status import (
    ResumePoint,
    capture,
    check_continues,
    check_resume,
    read_identity,
    read_log_identity,
    read_status,
)

__all__ = [
    "BinlogConnection",
    "DumpOptions",
    "KeyChunk",
    "ResumePoint",
    "Snapshots",
    "capture",
    "captured_tables",
    "check_continues",
    "check_resume",
    "open_binlog",
    "open_catalog",
    "open_snapshots",
    "plan_chunks",
    "read_choices",
    "read_identity",
    "read_log_identity",
    "read_status",
    "survey",
]
