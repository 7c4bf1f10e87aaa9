"""Following the binlog of a MySQL or MariaDB server, and reading its tables."""

from penstock.source.mysql.catalog import captured_tables, open_catalog, survey
from penstock.source.mysql.chunks import KeyChunk, plan_chunks
from penstock.source.mysql.client import BinlogConnection, DumpOptions, open_binlog
from penstock.source.mysql.snapshot import Snapshots, open_snapshots, read_choices
from penstock.source.mysql.status import (
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
