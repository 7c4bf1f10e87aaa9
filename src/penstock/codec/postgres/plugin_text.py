"""Write rows and transactions as the output plugin test_decoding does; helpers for such plugins.

Pure. Values are those of the log as PostgreSQL prints them with ISO dates in UTC. Source:
contrib/test_decoding of PostgreSQL; PostgreSQL manual, "Logical Decoding Examples".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from penstock.codec.exact_text import timestamp_text
from penstock.codec.postgres.names import quote_ident
from penstock.codec.postgres.pgbinary import Unencodable
from penstock.codec.postgres.pgoutput_encode import NO_OLD_IMAGE, texts
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import Column, Op, Relation

_INVALID, _UNSUPPORTED = "22023", "0A000"
_TRUE, _FALSE = ("true", "yes"), ("false", "no")
_MODIFIER = re.compile(r"\([0-9, -]*\)")
_FIELDS = re.compile(r"interval .*")  # `interval day to second(3)`
NUMBERS = frozenset(("smallint", "integer", "bigint", "oid", "real", "double precision", "numeric"))
_BITS = ("bit", "bit varying")
_TOAST = "unchanged-toast-datum"


class Transaction(NamedTuple):
    """Facts about a transaction in messages. `end` is the LSN of its END; that of its COMMIT is one
    lower.
    """

    xid: int
    time_us: int
    end: int

    @property
    def time(self) -> str:
        """Return the time of the commit."""
        return timestamp_text(self.time_us, "+00")


class Images(NamedTuple):
    """A batch's rows as texts, by column. after, before: None for NULL. absent: see `is_absent`.

    has_before: whether each row has an old image.
    """

    ops: list[int]
    after: list[list[str | None]]
    before: list[list[str | None]]
    has_before: list[bool]
    absent: list[bytes | None]

    def is_absent(self, row: int, index: int) -> bool:
        """Return whether an update's new image lacks a column, whose value has not changed."""
        bits = self.absent[row] if self.ops[row] == Op.UPDATE else None
        return (
            bits is not None and index >> 3 < len(bits) and bool(bits[index >> 3] >> index % 8 & 1)
        )


def images(relation: Relation, batch: Any) -> Images:
    """Return the rows of a batch with the schema of `batch_schema(relation)`. Raises
    Unencodable.
    """
    ops = batch.column("op").to_pylist()
    after, before = batch.column("after"), batch.column("before")
    has_before = before.is_valid().to_pylist()
    for row, op in enumerate(ops):
        if op == Op.DELETE and not has_before[row]:
            raise Unencodable(row, NO_OLD_IMAGE)
    columns = relation.columns
    return Images(
        ops=ops,
        after=[_decode(v, c) for v, c in zip(after.flatten(), columns, strict=True)],
        before=[
            _decode(v, columns[i]) for v, i in zip(before.flatten(), relation.before, strict=True)
        ],
        has_before=has_before,
        absent=batch.column("absent").to_pylist(),
    )


def _decode(values: Any, column: Column) -> list[str | None]:
    found = [
        None if one is None else one.decode("utf-8", "surrogateescape")
        for one in texts(values, column)
    ]
    if column.neutral in _PLACES:
        return [None if one is None else float_text(one, column.neutral) for one in found]
    return found


# From how many places in front of the point a float is printed with an exponent.
_PLACES = {"float32": 6, "float64": 15}


def float_text(text: str, neutral: str) -> str:
    """Return a float as PostgreSQL prints it. text: the shortest text, in any notation."""
    number = Decimal(text)
    if not number.is_finite() or not number:
        return text
    sign, digits, _ = number.normalize().as_tuple()
    shown, exponent = "".join(map(str, digits)), number.adjusted()
    if -5 < exponent < _PLACES[neutral]:
        return f"{number.normalize():f}"
    point = "." if len(shown) > 1 else ""
    return f"{'-' * sign}{shown[0]}{point}{shown[1:]}e{exponent:+03}"


def to_bytes(text: str) -> bytes:
    """Return the bytes of a text that was decoded from the log."""
    return text.encode("utf-8", "surrogateescape")


def type_name(column: Column) -> str:
    """Return a type as the server prints it without modifiers: `character varying[]`,
    `public.mood`.
    """
    name = column.source_type
    if '"' in name:
        return name
    return _MODIFIER.sub("", _FIELDS.sub("interval", name))


def boolean(name: str, value: str) -> bool:
    """Return an option's value as PostgreSQL's parse_bool reads it; without a value it is true.

    Raises Refused.
    """
    word = value.strip().lower()
    if word in ("", "1", "on") or any(one.startswith(word) for one in _TRUE):
        return True
    if word in ("0", "off", "of") or any(one.startswith(word) for one in _FALSE):
        return False
    raise not_parsed(name, value)


def not_parsed(name: str, value: str, sqlstate: str = _INVALID) -> Refused:
    """Return the error of a plugin for a value that it cannot read."""
    return Refused(sqlstate, f'could not parse value "{value}" for parameter "{name}"')


def unknown(name: str, value: str) -> Refused:
    """Return the error of a plugin for an option that it does not have."""
    return Refused(_INVALID, f'option "{name}" = "{value or "(null)"}" is unknown')


@dataclass(frozen=True, slots=True, kw_only=True)
class TestDecoding:
    """Plugin test_decoding with its options. Its messages are bytes of text."""

    __test__ = False  # not a test of pytest's

    xids: bool = True
    timestamp: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> TestDecoding:
        """Read the options. Raises Refused: 22023, 0A000."""
        found = dict.fromkeys(_OPTIONS, False) | {"include-xids": True}
        for name, value in given.items():
            if name not in found:
                raise unknown(name, value)
            if value or name not in _NOTHING_IS_DEFAULT:
                found[name] = boolean(name, value)
        if found["include-rewrites"]:
            raise Refused(
                _UNSUPPORTED,
                "include-rewrites is not served: the log does not have the rows of a rewrite",
            )
        return cls(xids=found["include-xids"], timestamp=found["include-timestamp"])

    def begin(self, transaction: Transaction) -> bytes:
        """Return the line before a transaction."""
        return b"BEGIN" + self._xid(transaction)

    def commit(self, transaction: Transaction) -> bytes:
        """Return the line after a transaction."""
        time = f" (at {transaction.time})".encode() if self.timestamp else b""
        return b"COMMIT" + self._xid(transaction) + time

    def _xid(self, transaction: Transaction) -> bytes:
        return b" %d" % transaction.xid if self.xids else b""

    def truncate(
        self, relations: Sequence[Relation], *, cascade: bool, restart_identity: bool
    ) -> bytes:
        """Return the line of tables that were truncated together."""
        names = ", ".join(_name(one) for one in relations)
        words = " restart_seqs" * restart_identity + " cascade" * cascade
        return to_bytes(f"table {names}: TRUNCATE:{words or ' (no-flags)'}")

    def message(self, prefix: str, content: bytes, *, transactional: bool) -> bytes:
        """Return a message that a user of the source wrote into its log."""
        head = f"message: transactional: {transactional:d} prefix: {prefix}, "
        return to_bytes(f"{head}sz: {len(content)} content:") + content

    def rows(self, relation: Relation, batch: Any) -> list[bytes]:
        """Return a line for each row of a batch. Raises Unencodable."""
        found = images(relation, batch)
        columns = relation.columns
        heads = [f" {quote_ident(one.name)}[{type_name(one)}]:" for one in columns]
        literals = [_literal_of(one) for one in columns]
        after = [
            [f"{head}null" if v is None else head + literal(v) for v in values]
            for head, literal, values in zip(heads, literals, found.after, strict=True)
        ]
        for row, bits in enumerate(found.absent):
            for index in range(len(columns) if bits else 0):
                if found.is_absent(row, index):
                    after[index][row] = heads[index] + _TOAST
        before = [
            ["" if v is None else heads[i] + literals[i](v) for v in values]
            for i, values in sorted(zip(relation.before, found.before, strict=True))
        ]
        head = f"table {_name(relation)}:"
        lines = []
        for row, op in enumerate(found.ops):
            old = "".join([one[row] for one in before])
            if op == Op.DELETE:
                lines.append(f"{head} DELETE:{old or ' (no-tuple-data)'}")
                continue
            new = "".join([one[row] for one in after])
            if op == Op.INSERT:
                lines.append(f"{head} INSERT:{new}")
            elif found.has_before[row]:
                lines.append(f"{head} UPDATE: old-key:{old} new-tuple:{new}")
            else:
                lines.append(f"{head} UPDATE:{new}")
        return [to_bytes(one) for one in lines]


# The options that it knows. What is in the log of a server is whole transactions, none of them
# empty, and no row has an origin: so most of them change nothing.
_OPTIONS = (
    *("include-xids", "include-timestamp", "force-binary", "skip-empty-xacts", "only-local"),
    *("include-rewrites", "stream-changes"),
)
_NOTHING_IS_DEFAULT = ("force-binary", "include-rewrites", "stream-changes")


def _name(relation: Relation) -> str:
    return f"{quote_ident(relation.schema)}.{quote_ident(relation.name)}"


def _literal_of(column: Column) -> Callable[[str], str]:
    kind = type_name(column)
    if kind in NUMBERS:
        return str
    if kind in _BITS:
        return lambda text: f"B'{text}'"
    if kind == "boolean":
        return lambda text: "true" if text == "t" else "false"
    return lambda text: "'" + text.replace("'", "''") + "'"
