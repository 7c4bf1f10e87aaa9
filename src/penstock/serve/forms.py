"""Form of transactions for a client: an output plugin with its options, as START_REPLICATION has
them.

A form makes message bodies; clients of the same form get the same bodies. Rows of a form that
`joins` are put together at their transaction's end, or have a comma between them. Options are read
without I/O.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from penstock.codec.postgres import pgoutput_write as write
from penstock.codec.postgres.pgoutput_encode import Frames, make_encoder
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.plugin_json import Wal2Json
from penstock.codec.postgres.plugin_text import TestDecoding, Transaction
from penstock.model import Identity, Relation
from penstock.model.whole_number import parse_whole
from penstock.serve.settings import CHANGE, YUGABYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Logical:
    """Message that a user of the source wrote into its log, with or without a transaction."""

    prefix: str
    content: bytes
    position: int
    transaction: Transaction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptied:
    """Tables that were emptied together."""

    relations: Sequence[Relation]
    position: int
    transaction: Transaction
    cascade: bool
    restart_identity: bool


RowEncoder = Callable[[Any, Any, Callable[[], Sequence[Transaction]], int], Frames]
"""Turns a batch's rows, LSNs, transactions and the time into frames (bodies if `joins`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(ABC):
    """Plugin with its options: hashable, as streams of equal forms share their bytes.

    Attributes:
        by_publication: publications choose the changes, and shapes are sent before rows; otherwise
            everything that `takes` accepts is sent.
        hybrid: LSNs are commit times (`hybrid.py`).
    """

    hybrid: bool = False

    by_publication: ClassVar[bool] = False

    @property
    def joins(self) -> bool:
        """Return whether rows are sent as parts of their transaction: see `change`."""
        return False

    @property
    def is_whole(self) -> bool:
        """Return whether a transaction is one message."""
        return False

    @property
    def actions(self) -> frozenset[str]:
        """Actions that are sent without a publication."""
        return frozenset(("insert", "update", "delete", "truncate"))

    def takes(self, schema: str, table: str) -> bool:  # noqa: ARG002
        """Return whether a table is sent at all."""
        return True

    @property
    def tells_heartbeats(self) -> bool:
        """Return whether heartbeats in the log are sent as messages."""
        return False

    def takes_message(self, prefix: str) -> bool:  # noqa: ARG002
        """Return whether a logical message is sent."""
        return True

    def relation(self, shape: Relation) -> bytes:
        """Return the message with a shape, if `by_publication`."""
        return write.relation(shape, shape.source_id)

    @abstractmethod
    def encoder(self, relation: Relation) -> RowEncoder:
        """Return the function that makes frames of rows."""

    @abstractmethod
    def begin(self, transaction: Transaction) -> bytes | None:
        """Return the message before a transaction; None if there is none."""

    @abstractmethod
    def commit(self, transaction: Transaction) -> bytes | None:
        """Return the message after a transaction; None if there is none."""

    def change(self, body: bytes, *, is_first: bool) -> bytes:  # noqa: ARG002
        """Return a change as a part of its transaction."""
        return body

    @abstractmethod
    def encode_emptied(self, what: Emptied) -> list[bytes]:
        """Return the messages of TRUNCATE."""

    @abstractmethod
    def logical(self, what: Logical) -> bytes:
        """Return a logical message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PgOutput(Form):
    """Form of pgoutput.

    Attributes:
        messages: logical messages are wanted.
        binary: values are binary, if their type has that form.
        changes_only: as in yboutput, an update of a table with the usual identity has only the
            columns that were set: the replica identity CHANGE.
    """

    messages: bool = False
    binary: bool = False
    changes_only: bool = False

    by_publication: ClassVar[bool] = True

    def relation(self, shape: Relation) -> bytes:
        is_change = self.changes_only and shape.identity is Identity.DEFAULT
        return write.relation(shape, shape.source_id, identity=CHANGE if is_change else "")

    @property
    def tells_heartbeats(self) -> bool:
        return self.messages

    def takes_message(self, prefix: str) -> bool:  # noqa: ARG002
        return self.messages

    def encoder(self, relation: Relation) -> RowEncoder:
        encoder = make_encoder(relation, relation.source_id, binary=self.binary)
        return lambda batch, lsns, _, now_us: encoder.encode(batch, lsns, now_us)

    def begin(self, transaction: Transaction) -> bytes | None:
        return write.begin(transaction.end - 1, transaction.time_us, transaction.xid)

    def commit(self, transaction: Transaction) -> bytes | None:
        return write.commit(transaction.end - 1, transaction.end, transaction.time_us)

    def encode_emptied(self, what: Emptied) -> list[bytes]:
        tables = [one.source_id for one in what.relations]
        restarts = what.restart_identity
        return [write.truncate(tables, cascade=what.cascade, restart_identity=restarts)]

    def logical(self, what: Logical) -> bytes:
        transactional = what.transaction is not None
        return write.logical(what.prefix, what.content, what.position, transactional=transactional)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsText(Form):
    """Form of test_decoding."""

    plugin: TestDecoding

    def encoder(self, relation: Relation) -> RowEncoder:
        rows = self.plugin.rows
        return lambda batch, lsns, _, now_us: _frame(rows(relation, batch), lsns, now_us)

    def begin(self, transaction: Transaction) -> bytes | None:
        return self.plugin.begin(transaction)

    def commit(self, transaction: Transaction) -> bytes | None:
        return self.plugin.commit(transaction)

    def encode_emptied(self, what: Emptied) -> list[bytes]:
        restarts = what.restart_identity
        return [
            self.plugin.truncate(what.relations, cascade=what.cascade, restart_identity=restarts)
        ]

    def logical(self, what: Logical) -> bytes:
        transactional = what.transaction is not None
        return self.plugin.message(what.prefix, what.content, transactional=transactional)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsJson(Form):
    """Form of wal2json."""

    plugin: Wal2Json

    @property
    def joins(self) -> bool:
        return self.plugin.version == 1

    @property
    def is_whole(self) -> bool:
        return self.joins and not self.plugin.chunks

    @property
    def actions(self) -> frozenset[str]:
        # Format 1 has no TRUNCATE.
        return self.plugin.actions - {"truncate"} if self.joins else self.plugin.actions

    def takes(self, schema: str, table: str) -> bool:
        return self.plugin.takes(schema, table)

    def takes_message(self, prefix: str) -> bool:
        return self.plugin.takes_message(prefix)

    def encoder(self, relation: Relation) -> RowEncoder:
        def encode(
            batch: Any, lsns: Any, of: Callable[[], Sequence[Transaction]], now_us: int
        ) -> Frames:
            bodies = self.plugin.rows(relation, batch, lsns, of())
            return _join(bodies) if self.joins else _frame(bodies, lsns, now_us)

        return encode

    def begin(self, transaction: Transaction) -> bytes | None:
        return self.plugin.begin(transaction)

    def commit(self, transaction: Transaction) -> bytes | None:
        return self.plugin.commit(transaction)

    def change(self, body: bytes, *, is_first: bool) -> bytes:
        return self.plugin.change(body, is_first=is_first)

    def encode_emptied(self, what: Emptied) -> list[bytes]:
        return self.plugin.truncate(what.relations, what.transaction, what.position)

    def logical(self, what: Logical) -> bytes:
        return self.plugin.message(what.prefix, what.content, what.transaction, what.position)


def _frame(bodies: Sequence[bytes], lsns: Any, now_us: int) -> Frames:
    return _join(
        [write.xlog_data(body, int(lsn), now_us) for body, lsn in zip(bodies, lsns, strict=True)]
    )


def _join(pieces: Sequence[bytes]) -> Frames:
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return Frames(b"".join(pieces), ends)


_TEXT, _JSON = "test_decoding", "wal2json"
PLUGINS = ("pgoutput", _TEXT, _JSON)
_YBOUTPUT = "yboutput"
PLUGINS_YUGABYTE = (_YBOUTPUT, *PLUGINS)
PLUGINS_BINARY = ("pgoutput", _YBOUTPUT)
_INVALID, _UNSUPPORTED, _SYNTAX = "22023", "0A000", "42601"
_PROTOCOLS = range(1, 5)
_OPTIONS = (
    *("proto_version", "publication_names", "messages", "binary", "streaming", "two_phase"),
    "origin",
)
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^",\s]+))\s*')
_TRUE, _FALSE = ("true", "on", "yes", "1", "t", ""), ("false", "off", "no", "0", "f")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a stream.

    Streaming of transactions in progress and an origin are accepted: transactions in our log are
    whole, so each is sent as B to C; no row has an origin.

    Attributes:
        publications: names; empty if the form needs none.
    """

    form: Form
    publications: tuple[str, ...] = ()


def check_plugin(name: str, *, dialect: str) -> None:
    """Refuse an output plugin that is not supported. Raises Refused."""
    known = PLUGINS_YUGABYTE if dialect == YUGABYTE else PLUGINS
    if name not in known:
        raise Refused(
            _UNSUPPORTED,
            f'output plugin "{name}" is not served',
            hint=f"Served here: {', '.join(known)}.",
        )


def check_lsn_type(word: str, *, dialect: str) -> None:
    """Refuse unsupported LSNs; `word` is empty for the default. Raises Refused."""
    if word and dialect != YUGABYTE:
        raise Refused(_SYNTAX, f'syntax error at or near "{word}"')


def stream_options(
    plugin: str,
    given: dict[str, str],
    *,
    hybrid: bool = False,
    repeated: Collection[str] = (),
) -> StreamOptions:
    """Return the options of a slot's output plugin. Raises Refused.

    Args:
        plugin: the plugin.
        given: options of the client.
        hybrid: LSNs are of HYBRID_TIME.
        repeated: names that were given twice.
    """
    if repeated and plugin not in (_TEXT, _JSON) and set(repeated) <= set(_OPTIONS):
        raise Refused(_SYNTAX, "conflicting or redundant options")
    found = _of_plugin(plugin, given)
    return replace(found, form=replace(found.form, hybrid=hybrid))


def _of_plugin(plugin: str, given: dict[str, str]) -> StreamOptions:
    if plugin == _TEXT:
        return StreamOptions(form=AsText(plugin=TestDecoding.of(given)))
    if plugin == _JSON:
        return StreamOptions(form=AsJson(plugin=Wal2Json.of(given)))
    return _of_pgoutput(given, changes_only=plugin == _YBOUTPUT)


def _of_pgoutput(given: dict[str, str], *, changes_only: bool) -> StreamOptions:
    for name in given:
        if name not in _OPTIONS:
            raise Refused(_INVALID, f"unrecognized pgoutput option: {name}")
    if "two_phase" in given and _boolean("two_phase", given["two_phase"]):
        raise Refused(
            _UNSUPPORTED,
            "two_phase is not served: the log holds a prepared transaction when it is committed",
            hint="Create the subscription with two_phase = false.",
        )
    if given.get("origin", "any").lower() not in ("none", "any"):
        raise Refused(_INVALID, f'unrecognized origin value: "{given["origin"]}"')
    if given.get("streaming", "").lower() != "parallel":
        _boolean("streaming", given.get("streaming", "off"))
    _check_protocol(given.get("proto_version", "0"))
    if "publication_names" not in given:
        raise Refused(_INVALID, "publication_names option missing")
    return StreamOptions(
        form=PgOutput(
            messages=_boolean("messages", given.get("messages", "off")),
            binary=_boolean("binary", given.get("binary", "off")),
            changes_only=changes_only,
        ),
        publications=_names(given["publication_names"]),
    )


def _check_protocol(value: str) -> None:
    number = parse_whole(value, 2**32 - 1)
    if number is None:
        raise Refused(_INVALID, "invalid proto_version")
    if number not in _PROTOCOLS:
        reason = f"client sent proto_version={number} but server only supports protocol "
        bound = "4 or lower" if number > _PROTOCOLS.stop - 1 else "1 or higher"
        raise Refused(_UNSUPPORTED, reason + bound)


def _names(value: str) -> tuple[str, ...]:
    """Return identifiers between commas: in quotes unchanged, otherwise in lower case."""
    found: list[str] = []
    at = 0
    while True:
        match = _NAME.match(value, at)
        if match is None:
            raise Refused("42602", "invalid publication_names syntax")
        quoted, plain = match.groups()
        found.append(plain.lower() if quoted is None else quoted.replace('""', '"'))
        if match.end() == len(value):
            return tuple(dict.fromkeys(found))
        if value[match.end()] != ",":
            raise Refused("42602", "invalid publication_names syntax")
        at = match.end() + 1


def _boolean(name: str, value: str) -> bool:
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise Refused(_SYNTAX, f"{name} requires a Boolean value")
