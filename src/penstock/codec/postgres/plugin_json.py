r"""Write rows and transactions as JSON, as the output plugin wal2json 2.6 does. Pure.

Format 1 is one object for each transaction, or a piece of it for each change (write-in-chunks);
format 2 is one object for each row and each boundary. Values are texts as PostgreSQL prints them:
numbers and booleans bare, bytea without its `\x`, others in quotes. Source: wal2json's README, and
its options as the plugin reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring as _quoted
from typing import Any

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgtypes import wire_type
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.plugin_text import (
    NUMBERS,
    Images,
    Transaction,
    boolean,
    images,
    not_parsed,
    to_bytes,
    type_name,
    unknown,
)
from penstock.model import Column, Identity, Op, Relation

_NAME_INVALID, _INVALID, _UNSUPPORTED = "42602", "22023", "0A000"
_FORMATS = (1, 2)
_ACTIONS = ("insert", "update", "delete", "truncate")
_SPECIAL = re.compile("-?(nan|infinity)", re.IGNORECASE)
_ITEM = re.compile(r"\s*((?:\\.|[^\\,\s])+)\s*(,|\Z)", re.DOTALL)
_TYPE_NAMES = {
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "boolean": "bool",
    "character varying": "varchar",
    "character": "bpchar",
    "bit varying": "varbit",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
}
_WORDS = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}
_FLAGS = {
    "include-transaction": "transaction",
    "include-xids": "xids",
    "include-timestamp": "timestamp",
    "include-origin": "origin",
    "include-lsn": "lsn",
    "include-schemas": "schemas",
    "include-types": "types",
    "include-type-oids": "type_oids",
    "include-typmod": "typmod",
    "include-domain-data-type": "domain_type",
    "include-column-positions": "positions",
    "include-not-null": "not_null",
    "include-pk": "pk",
    "pretty-print": "pretty",
    "write-in-chunks": "chunks",
    "numeric-data-types-as-string": "numbers_quoted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An entry of filter-tables or add-tables. None means any."""

    schema: str | None
    table: str | None

    def takes(self, schema: str, table: str) -> bool:
        """Return whether the entry matches this table."""
        return self.schema in (None, schema) and self.table in (None, table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wal2Json:
    """Plugin wal2json with its options: README, "Parameters"."""

    version: int = 1
    transaction: bool = True
    xids: bool = False
    timestamp: bool = False
    origin: bool = False
    lsn: bool = False
    schemas: bool = True
    types: bool = True
    type_oids: bool = False
    typmod: bool = True
    domain_type: bool = False
    positions: bool = False
    not_null: bool = False
    pk: bool = False
    pretty: bool = False
    chunks: bool = False
    numbers_quoted: bool = False
    actions: frozenset[str] = frozenset(_ACTIONS)
    filtered: tuple[Chosen, ...] = ()
    added: tuple[Chosen, ...] | None = None
    filtered_prefixes: tuple[str, ...] = ()
    added_prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Wal2Json:
        """Read the options. Raises Refused: 22023, 42602, 0A000."""
        found = cls()
        for name, value in given.items():
            found = replace(found, **_option(name, value))
        return found

    # -- what is sent at all ---------------------------------------------------------------------

    def takes(self, schema: str, table: str) -> bool:
        """Return whether rows of a table are sent."""
        if any(one.takes(schema, table) for one in self.filtered):
            return False
        return self.added is None or any(one.takes(schema, table) for one in self.added)

    def takes_message(self, prefix: str) -> bool:
        """Return whether a logical message is sent."""
        if prefix in self.filtered_prefixes:
            return False
        return not self.added_prefixes or prefix in self.added_prefixes

    # -- boundaries ------------------------------------------------------------------------------

    def begin(self, transaction: Transaction) -> bytes | None:
        """Return the text before a transaction."""
        if self.version == 2:
            return self._boundary("B", transaction) if self.transaction else None
        tab, line, space = self._white
        lines = [
            f'{tab}"xid":{space}{transaction.xid},{line}' * self.xids,
            f'{tab}"nextlsn":{space}"{Lsn(transaction.end)}",{line}' * self.lsn,
            f'{tab}"timestamp":{space}"{transaction.time}",{line}' * self.timestamp,
            f'{tab}"origin":{space}0,{line}' * self.origin,
        ]
        return f'{{{line}{"".join(lines)}{tab}"change":{space}['.encode()

    def commit(self, transaction: Transaction) -> bytes | None:
        """Return the text after a transaction."""
        if self.version == 2:
            return self._boundary("C", transaction) if self.transaction else None
        tab, line, _ = self._white
        return f"{'' if self.chunks else line}{tab}]{line}}}".encode()

    def change(self, body: bytes, *, is_first: bool) -> bytes:
        """Return a change of format 1 as part of its transaction. body: from `rows` or
        `message`.
        """
        tab, line, _ = self._white
        head = ("" if self.chunks else line) + 2 * tab + ("" if is_first else ",")
        return head.encode() + body

    @property
    def _white(self) -> tuple[str, str, str]:
        return ("\t", "\n", " ") if self.pretty else ("", "", "")

    def _boundary(self, letter: str, transaction: Transaction) -> bytes:
        where = ""
        if self.lsn:
            end = transaction.end
            where = f',"lsn":"{Lsn(end - 1)}","nextlsn":"{Lsn(end)}"'
        return f'{{"action":"{letter}"{self._of(transaction)}{where}}}'.encode()

    def _of(self, transaction: Transaction | None) -> str:
        """Return the fields that describe the transaction in each object of format 2; None outside
        a transaction.
        """
        told = transaction
        return (
            f',"xid":{told.xid if told else "null"}' * self.xids
            + (f',"timestamp":"{told.time}"' if told else ',"timestamp":null') * self.timestamp
            + f',"origin":{0 if told else "null"}' * self.origin
        )

    # -- what is not a row -----------------------------------------------------------------------

    def truncate(
        self, relations: Sequence[Relation], transaction: Transaction, position: int
    ) -> list[bytes]:
        """Return objects for truncated tables; format 1 has none."""
        if self.version == 1:
            return []
        head = f'{{"action":"T"{self._of(transaction)}{self._where(position)}'
        return [to_bytes(f"{head}{self._table(one)}}}") for one in relations]

    def _where(self, position: int) -> str:
        return f',"lsn":"{Lsn(position)}"' * self.lsn

    def _table(self, relation: Relation) -> str:
        schema = f',"schema":{_quoted(relation.schema)}' * self.schemas
        return f'{schema},"table":{_quoted(relation.name)}'

    def message(
        self, prefix: str, content: bytes, transaction: Transaction | None, position: int
    ) -> bytes:
        """Return a logical message. transaction: None outside one."""
        said = content.partition(b"\0")[0].decode("utf-8", "surrogateescape")
        truth = "true" if transaction else "false"
        if self.version == 2:
            return to_bytes(
                f'{{"action":"M"{self._of(transaction)}{self._where(position)}'
                f',"transactional":{truth},"prefix":{_quoted(prefix)},"content":{_quoted(said)}}}'
            )
        tab, line, space = self._white
        deep = 3 * tab
        body = (
            f'{{{line}{deep}"kind":{space}"message",{line}'
            f'{deep}"transactional":{space}{truth},{line}'
            f'{deep}"prefix":{space}{_quoted(prefix)},{line}'
            f'{deep}"content":{space}{_quoted(said)}{line}{2 * tab}}}'
        )
        if transaction is None:
            body = f'{{{line}{tab}"change":{space}[{line}{2 * tab}{body}{line}{tab}]{line}}}'
        return to_bytes(body)

    # -- rows ------------------------------------------------------------------------------------

    def rows(
        self,
        relation: Relation,
        batch: Any,
        positions: Sequence[int],
        transactions: Sequence[Transaction],
    ) -> list[bytes]:
        """Return an object for each row. Objects of format 1 lack the beginning that `change` adds.

        `positions` and `transactions` are those of each row. Raises Unencodable.
        """
        found = images(relation, batch)
        table = _Table(self, relation, found)
        if self.version == 1:
            return [to_bytes(table.first_format(row)) for row in range(len(found.ops))]
        of = {one: self._of(one) for one in set(transactions)}
        return [
            to_bytes(
                f'{{"action":"{chr(found.ops[row])}"{of[transaction]}{self._where(int(position))}'
                f"{table.second_format(row)}}}"
            )
            for row, (position, transaction) in enumerate(zip(positions, transactions, strict=True))
        ]


class _Table:
    """One batch of a table, printed."""

    def __init__(self, plugin: Wal2Json, relation: Relation, found: Images) -> None:
        self._plugin, self._relation, self._images = plugin, relation, found
        columns = relation.columns
        printers = [_value_of(plugin, one) for one in columns]
        self._new = [
            ["null" if v is None else printer(v) for v in values]
            for printer, values in zip(printers, found.after, strict=True)
        ]
        self._old = {
            index: ["null" if v is None else printers[index](v) for v in values]
            for index, values in zip(relation.before, found.before, strict=True)
        }
        self._old_null = {
            index: [v is None for v in values]
            for index, values in zip(relation.before, found.before, strict=True)
        }
        self._types = [_type_of(plugin, one) for one in columns]
        self._names = [_quoted(one.name) for one in columns]
        self._is_full = relation.identity is Identity.FULL
        # Of a whole old image all columns identify the row; else those that it has.
        self._identity = range(len(columns)) if self._is_full else sorted(relation.before)

    def _list_sent(self, row: int) -> list[int]:
        everything = range(len(self._names))
        if self._images.absent[row] is None:
            return list(everything)
        return [index for index in everything if not self._images.is_absent(row, index)]

    # -- format 2 --------------------------------------------------------------------------------

    def second_format(self, row: int) -> str:
        """Return the text after action and transaction."""
        plugin, op = self._plugin, self._images.ops[row]
        has_old = op != Op.INSERT and self._images.has_before[row]
        sent = self._list_sent(row)
        parts = [plugin._table(self._relation)]
        if op != Op.DELETE:
            items = [self._item(index, self._new[index][row], is_new=True) for index in sent]
            parts.append(f',"columns":[{",".join(items)}]')
        if has_old:
            items = [self._item(i, self._old[i][row]) for i in self._identity if i in self._old]
            parts.append(f',"identity":[{",".join(items)}]')
        elif op == Op.UPDATE:
            items = [self._item(i, self._new[i][row]) for i in self._identity if i in sent]
            parts.append(f',"identity":[{",".join(items)}]')
        if plugin.pk:
            items = [self._item(index, None) for index in sorted(self._relation.key)]
            parts.append(f',"pk":[{",".join(items)}]')
        return "".join(parts)

    def _item(self, index: int, value: str | None, *, is_new: bool = False) -> str:
        plugin, column = self._plugin, self._relation.columns[index]
        return "".join(
            (
                f'{{"name":{self._names[index]}',
                f',"type":{self._types[index]}' if plugin.types else "",
                f',"typeoid":{_oid_of(column)}' if plugin.type_oids else "",
                "" if value is None else f',"value":{value}',
                f',"optional":{_truth(column.nullable)}' if is_new and plugin.not_null else "",
                f',"position":{index + 1}' if is_new and plugin.positions else "",
                "}",
            )
        )

    # -- format 1 --------------------------------------------------------------------------------

    def first_format(self, row: int) -> str:
        """Return the object of one change."""
        plugin, op = self._plugin, Op(self._images.ops[row])
        tab, line, space = plugin._white
        deep = 3 * tab
        parts = [f'{{{line}{deep}"kind":{space}"{_WORDS[op]}",{line}']
        if plugin.schemas:
            parts.append(f'{deep}"schema":{space}{_quoted(self._relation.schema)},{line}')
        parts.append(f'{deep}"table":{space}{_quoted(self._relation.name)},{line}')
        has_pk = plugin.pk and bool(self._relation.key)
        if op != Op.DELETE:
            more = has_pk or op == Op.UPDATE
            parts.append(self._columns(row, more=more))
        if has_pk:
            parts.append(self._key(more=op != Op.INSERT))
        if op != Op.INSERT:
            parts.append(self._old_keys(row))
        return "".join(parts) + f"{2 * tab}}}"

    def _columns(self, row: int, *, more: bool) -> str:
        plugin, sent = self._plugin, self._list_sent(row)
        columns = self._relation.columns
        lists = [("columnnames", [self._names[i] for i in sent])]
        if plugin.types:
            lists.append(("columntypes", [self._types[i] for i in sent]))
        if plugin.type_oids:
            lists.append(("columntypeoids", [_oid_of(columns[i]) for i in sent]))
        if plugin.positions:
            lists.append(("columnpositions", [str(i + 1) for i in sent]))
        if plugin.not_null:
            # The plugin has these only where it has types, too.
            shown = sent if plugin.types else []
            lists.append(("columnoptionals", [_truth(columns[i].nullable) for i in shown]))
        lists.append(("columnvalues", [self._new[i][row] for i in sent]))
        return self._lists(lists, 3, more=more)

    def _key(self, *, more: bool) -> str:
        plugin = self._plugin
        tab, line, space = plugin._white
        key = sorted(self._relation.key)
        lists = [
            ("pknames", [self._names[i] for i in key]),
            ("pktypes", [self._types[i] for i in key] if plugin.types else []),
        ]
        inside = self._lists(lists, 4, more=False)
        return f'{3 * tab}"pk":{space}{{{line}{inside}{3 * tab}}}{"," * more}{line}'

    def _old_keys(self, row: int) -> str:
        plugin = self._plugin
        tab, line, space = plugin._white
        if self._images.has_before[row]:
            shown = [i for i in self._identity if i in self._old and not self._old_null[i][row]]
            values = [self._old[i][row] for i in shown]
        else:
            sent = self._list_sent(row)
            shown = [
                i for i in self._identity if i in sent and self._images.after[i][row] is not None
            ]
            values = [self._new[i][row] for i in shown]
        lists = [("keynames", [self._names[i] for i in shown])]
        if plugin.types:
            lists.append(("keytypes", [self._types[i] for i in shown]))
        if plugin.type_oids:
            lists.append(("keytypeoids", [_oid_of(self._relation.columns[i]) for i in shown]))
        lists.append(("keyvalues", values))
        inside = self._lists(lists, 4, more=False)
        return f'{3 * tab}"oldkeys":{space}{{{line}{inside}{3 * tab}}}{line}'

    def _lists(self, lists: Sequence[tuple[str, list[str]]], depth: int, *, more: bool) -> str:
        tab, line, space = self._plugin._white
        comma = "," + space
        texts = [f'{depth * tab}"{name}":{space}[{comma.join(one)}]' for name, one in lists]
        return f",{line}".join(texts) + f"{',' * more}{line}"


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _oid_of(column: Column) -> str:
    return str(column.type_oid or wire_type(column)[0])


def _type_of(plugin: Wal2Json, column: Column) -> str:
    if column.base_type and plugin.domain_type:
        column = replace(column, source_type=column.base_type)
    if plugin.version == 1 and not plugin.typmod:
        return _quoted(_catalogue_name(type_name(column)))
    name = column.source_type
    return name if name.startswith('"') and not name.endswith("]") else _quoted(name)


def _catalogue_name(printed: str) -> str:
    """Return the name in pg_type of a type that format_type() prints like this."""
    element = printed.removesuffix("[]")
    if element != printed:
        return "_" + _catalogue_name(element)
    name = _TYPE_NAMES.get(printed, printed)
    if name.endswith('"'):
        return name.rpartition('."')[2].strip('"').replace('""', '"')
    return name.rpartition(".")[2]


def _value_of(plugin: Wal2Json, column: Column) -> Callable[[str], str]:
    if column.base_type and plugin.domain_type and plugin.version == 1:
        column = replace(column, source_type=column.base_type)
    kind = type_name(column)
    if kind in NUMBERS:
        if plugin.numbers_quoted:
            return _quoted
        return lambda text: "null" if _SPECIAL.match(text) else text
    if kind == "boolean":
        return lambda text: "true" if text == "t" else "false"
    if kind == "bytea":
        return lambda text: _quoted(text[2:])
    return _quoted


# -- options ----------------------------------------------------------------------------------


def _option(name: str, value: str) -> dict[str, Any]:
    if name in _FLAGS:
        return {_FLAGS[name]: boolean(name, value)}
    if name in ("include-default", "partition-root"):
        if name == "include-default" and boolean(name, value):
            raise Refused(
                _UNSUPPORTED, "include-default is not served: the log does not have defaults"
            )
        boolean(name, value)
        return {}
    if name == "include-unchanged-toast":
        raise Refused(_NAME_INVALID, f'parameter "{name}" was deprecated')
    if name == "format-version":
        return {"version": _version(name, value)}
    if name == "actions":
        return {"actions": _actions(name, value)}
    if name in _LISTS:
        return _LISTS[name](name, value)
    raise unknown(name, value)


def _no_origins(name: str, value: str) -> dict[str, Any]:
    if not all(one.isdigit() for one in _items(name, value)):
        raise not_parsed(name, value, _NAME_INVALID)
    return {}  # no row has an origin


# Of an empty add-tables the plugin sends nothing.
_LISTS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "filter-origins": _no_origins,
    "filter-tables": lambda name, value: {"filtered": _tables(name, value)},
    "add-tables": lambda name, value: {"added": _tables(name, value)},
    "filter-msg-prefixes": lambda name, value: {"filtered_prefixes": tuple(_items(name, value))},
    "add-msg-prefixes": lambda name, value: {"added_prefixes": tuple(_items(name, value))},
}


def _version(name: str, value: str) -> int:
    if not value:
        return max(_FORMATS)
    if not re.fullmatch(r"[+-]?\d+", value.strip()):
        raise not_parsed(name, value)
    number = int(value)
    if number not in _FORMATS:
        bound = "2 or lower" if number > max(_FORMATS) else "1 or higher"
        reason = f"client sent format_version={number} but we only support format {bound}"
        raise Refused(_UNSUPPORTED, reason)
    return number


def _actions(name: str, value: str) -> frozenset[str]:
    if not value:
        return frozenset(_ACTIONS)
    found = _items(name, value)
    for one in found:
        if one not in _ACTIONS:
            raise not_parsed(name, one)
    return frozenset(found)


def _items(name: str, value: str) -> list[str]:
    """Return a list between commas, with its backslashes. Raises Refused: 42602."""
    found: list[str] = []
    at, more = 0, bool(value.strip())
    while more:
        match = _ITEM.match(value, at)
        if match is None:
            raise not_parsed(name, value, _NAME_INVALID)
        found.append(match[1])
        at, more = match.end(), match[2] == ","
    return found


def _tables(name: str, value: str) -> tuple[Chosen, ...]:
    found = []
    for item in _items(name, value):
        match = re.fullmatch(r"((?:\\.|[^\\.])*)\.(.*)", item, re.DOTALL)
        if match is None:
            raise not_parsed(name, value, _NAME_INVALID)
        schema, table = match[1], match[2]
        found.append(
            Chosen(
                schema=None if schema == "*" else _plain(schema),
                table=None if table == "*" else _plain(table),
            )
        )
    return tuple(found)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
