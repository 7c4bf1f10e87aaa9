"""Tokens of a server's answer (MS-TDS 2.2.7)."""

from __future__ import annotations

import struct

from sim_sqlserver.errors import SqlError
from sim_sqlserver.metadata import collation_bytes
from sim_sqlserver.sqltypes import DEFAULT_COLLATION

DONE, DONEPROC, DONEINPROC = 0xFD, 0xFE, 0xFF
MORE, ERROR, IN_TRANSACTION, COUNT, ATTENTION = 0x1, 0x2, 0x4, 0x10, 0x20
SELECT, INSERT, DELETE, UPDATE, MERGE, BULK = 0xC1, 0xC3, 0xC4, 0xC5, 0x117, 0xF0
SERVER = "SIMULATED"
PRODUCT = "Microsoft SQL Server"
VERSION = bytes([16, 0, 0x10, 0x18])  # 16.0.4120: SQL Server 2022


def b_text(text: str) -> bytes:
    """Return a text of at most 255 characters with its length in a byte."""
    return bytes([len(text.encode("utf-16-le")) // 2]) + text.encode("utf-16-le")


def us_text(text: str) -> bytes:
    """Return a text with its length in two bytes."""
    data = text.encode("utf-16-le")
    return struct.pack("<H", len(data) // 2) + data


def make_done(status: int = 0, command: int = 0, rows: int = 0, *, token: int = DONE) -> bytes:
    """Return the end of a statement's answer."""
    return struct.pack("<BHHQ", token, status, command, rows)


def env_change(kind: int, new: bytes, old: bytes) -> bytes:
    """Return the notice of a changed property of the session."""
    body = bytes([kind]) + new + old
    return b"\xe3" + struct.pack("<H", len(body)) + body


def message(error: SqlError, *, is_info: bool = False) -> bytes:
    """Return an error, or a message that is none."""
    body = struct.pack("<iBB", error.number, error.state, error.severity)
    body += us_text(str(error)[:2000]) + b_text(SERVER) + b_text(error.procedure)
    body += struct.pack("<I", error.line)
    return (b"\xab" if is_info else b"\xaa") + struct.pack("<H", len(body)) + body


def return_status(value: int = 0) -> bytes:
    """Return a procedure's status."""
    return b"\x79" + struct.pack("<i", value)


def return_value(ordinal: int, name: str, type_info: bytes, value: bytes) -> bytes:
    """Return an output parameter."""
    head = b"\xac" + struct.pack("<H", ordinal) + b_text(name)
    return head + b"\x01" + struct.pack("<IH", 0, 1) + type_info + value


def login_ack(database: str, packet_size: int, tds: bytes) -> bytes:
    """Return the answer to a login."""
    collation = collation_bytes(DEFAULT_COLLATION)
    ack = b"\x01" + tds + b_text(PRODUCT) + VERSION
    changed = SqlError(5701, f"Changed database context to '{database}'.", severity=0, state=2)
    return b"".join(
        (
            env_change(1, b_text(database), b_text("master")),
            message(changed, is_info=True),
            env_change(7, b"\x05" + collation, b"\0"),
            env_change(2, b_text("us_english"), b_text("")),
            b"\xad" + struct.pack("<H", len(ack)) + ack,
            env_change(4, b_text(str(packet_size)), b_text("4096")),
            make_done(),
        )
    )
