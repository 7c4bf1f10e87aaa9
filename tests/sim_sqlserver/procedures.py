"""Procedures that EXEC and remote calls run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim_sqlserver import ddl
from sim_sqlserver.ddl_parse import Reader
from sim_sqlserver.errors import SqlError
from sim_sqlserver.lexer import Statement, Token, tokenize
from sim_sqlserver.metadata import Column, collation_bytes
from sim_sqlserver.names import literal, quote_name
from sim_sqlserver.sqltypes import DEFAULT_COLLATION, SqlType
from sim_sqlserver.variables import Variable, split_at_commas, split_declarations

if TYPE_CHECKING:
    from sim_sqlserver.session import Session

INT = SqlType("int")
TEXT = SqlType("nvarchar", length=128)


@dataclass(slots=True)
class Arguments:
    """Arguments of a procedure.

    Attributes:
        listed: Values without a name.
        named: Values by lower-case name.
        outputs: Variables that get values back, by name or position.
    """

    listed: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str | int, str] = field(default_factory=dict)

    def get(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument by name or position."""
        if name in self.named:
            return self.named[name]
        return self.listed[place] if place < len(self.listed) else default


Procedure = Callable[["Session", Arguments], None]
PROCEDURES: dict[str, Procedure] = {}


def procedure(name: str) -> Callable[[Procedure], Procedure]:
    """Register a procedure by its lower-case name without schema."""

    def register(function: Procedure) -> Procedure:
        PROCEDURES[name] = function
        return function

    return register


def execute(session: Session, tokens: Sequence[Token]) -> None:
    """Run EXEC with these tokens behind it."""
    assert session.reply is not None
    target = ""
    if len(tokens) > 1 and tokens[0].kind == "variable" and tokens[1].text == "=":
        target, tokens = tokens[0].text, tokens[2:]
    if tokens[0].text == "(":
        text = session.evaluate(" ".join(token.text for token in tokens[1:-1]))
        session.run_nested(str(text))
        return
    reader = Reader("", tokens)
    name = _procedure_name(reader)
    arguments = _arguments(session, tuple(tokens[reader.at :]))
    session.return_status = 0
    call(session, name, arguments)
    if target:
        session.variables[target.lstrip("@").lower()].value = session.return_status


def _procedure_name(reader: Reader) -> str:
    parts = [reader.identifier()]
    while reader.take("."):
        parts.append("" if reader.mark() == "." else reader.identifier())
    schema = parts[-2].lower() if len(parts) > 1 else ""
    prefix = "sim." if schema == "sim" else ""
    return prefix + parts[-1].lower()


def call(session: Session, name: str, arguments: Arguments) -> None:
    """Run a procedure; raises SqlError 2812 for one that is not there."""
    found = PROCEDURES.get(name)
    if found is None:
        raise SqlError(2812, f"Could not find stored procedure '{name}'.", state=62)
    found(session, arguments)


def _arguments(session: Session, tokens: tuple[Token, ...]) -> Arguments:
    arguments = Arguments()
    for part in split_at_commas(tokens):
        rest, name = part, ""
        if len(part) > 2 and part[0].kind == "variable" and part[1].text == "=":
            name, rest = part[0].text.lstrip("@").lower(), part[2:]
        is_output = rest[-1].upper in ("OUTPUT", "OUT")
        if is_output:
            rest = rest[:-1]
            key = name or len(arguments.listed)
            arguments.outputs[key] = rest[0].text.lstrip("@").lower()
        value = _value(session, rest)
        if name:
            arguments.named[name] = value
        else:
            arguments.listed.append(value)
    return arguments


def _value(session: Session, tokens: tuple[Token, ...]) -> Any:
    if len(tokens) == 1:
        token = tokens[0]
        if token.kind == "text":
            return token.literal
        if token.kind == "number" and token.text.isdigit():
            return int(token.text)
        if token.upper in ("NULL", "DEFAULT"):
            return None
        if token.kind == "hex":
            digits = token.text[2:]
            return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)
        if token.kind == "word":
            return token.text
    return session.evaluate(" ".join(token.text for token in tokens))


# --- texts ----------------------------------------------------------------------------------------


@procedure("sp_executesql")
def _executesql(session: Session, arguments: Arguments) -> None:
    text = str(arguments.get(0, "stmt") or arguments.get(0, "statement"))
    declared = str(arguments.get(1, "params") or "")
    before = session.variables
    inner: dict[str, Variable] = {}
    outputs: dict[str, str] = {}
    for place, ((name, sql_type, is_output), _) in enumerate(
        split_declarations(tokenize(declared))
    ):
        value = arguments.named.get(name)
        if value is None and place + 2 < len(arguments.listed):
            value = arguments.listed[place + 2]
        inner[name] = Variable(sql_type, value, is_output)
        outer = arguments.outputs.get(name) or arguments.outputs.get(place + 2)
        if outer:
            outputs[name] = outer
    session.variables = inner
    try:
        session.run_nested(text)
    finally:
        session.variables = before
    for name, outer in outputs.items():
        before[outer].value = inner[name].value


def begin_bulk(session: Session, statement: Statement) -> None:
    """Note INSERT BULK; the rows come in a message of their own."""
    from sim_sqlserver.bulk import BulkLoad

    session.bulk = BulkLoad.parse(statement)
    assert session.reply is not None
    session.reply.add_done(0, 0, 0)


# --- catalogue ------------------------------------------------------------------------------------


@procedure("sp_tablecollations_100")
def _collations(session: Session, arguments: Arguments) -> None:
    name = Reader("", tokenize(str(arguments.get(0, "object_fullname")))).name()
    number = ddl.table_id(session, name)
    columns = [
        Column("colid", INT),
        Column("name", TEXT),
        Column("tds_collation_28", SqlType("binary", length=5)),
        Column("collation_28", TEXT),
    ]
    rows = []
    for place, column in _table_columns(session, number):
        collation = column.type.collation or DEFAULT_COLLATION
        shown = (
            f"'\\x{collation_bytes(collation).hex()}'::bytea, {literal(collation)}"
            if column.type.is_text
            else "null::bytea, null::text"
        )
        rows.append(f"select {place}, {literal(column.name)}::text, {shown}")
    session.send_rows(columns, " union all ".join(rows) + " order by 1")


def _table_columns(session: Session, number: int) -> list[tuple[int, Column]]:
    from sim_sqlserver.results import read_columns

    return read_columns(number, session.rows)


@procedure("sp_rename")
def _rename(session: Session, arguments: Arguments) -> None:
    old = Reader("", tokenize(str(arguments.get(0, "objname"))))
    new = str(arguments.get(1, "newname"))
    kind = str(arguments.get(2, "objtype") or "").upper()
    parts = [old.identifier()]
    while old.take("."):
        parts.append(old.identifier())
    with session.statement(writes=True, needs_block=True):
        if kind == "COLUMN":
            _rename_column(session, parts, new)
        elif kind == "INDEX":
            _rename_index(session, parts, new)
        else:
            _rename_object(session, parts, new)
        session.has_ddl = True
        session.database.names_changed()
    if not session.trancount:
        session.database.names_changed()
    session.info("Caution: Changing any part of an object name could break scripts.", 15477)


def _rename_column(session: Session, parts: list[str], new: str) -> None:
    table = (parts[-3] if len(parts) > 2 else "", parts[-2])
    number = ddl.table_id(session, table)
    spelled = ddl.column_spelling(session, number, parts[-1])
    session.database.check_rename(session, number, spelled)
    full = ddl.qualify(session, table)
    session.rows(f"select sim.drop_normaliser({number})")
    session.rows(f"alter table {full} rename column {quote_name(spelled)} to {quote_name(new)}")
    ddl.normalise(session, number)


def _rename_index(session: Session, parts: list[str], new: str) -> None:
    table = (parts[-3] if len(parts) > 2 else "", parts[-2])
    number = ddl.table_id(session, table)
    found = session.rows(
        f"select c.oid::regclass::text, left(c.relname, 3) from pg_index i "
        f"join pg_class c on c.oid = i.indexrelid where i.indrelid = {number} "
        f"and lower(sim.index_name(c.relname)) = lower({literal(parts[-1])})"
    )
    if not found:
        raise SqlError(
            15248,
            "Either the parameter @objname is ambiguous or the claimed type is wrong.",
            severity=11,
        )
    name = f"ix${new}${number}" if found[0][1] == "ix$" else new
    session.rows(f"alter index {found[0][0]} rename to {quote_name(name)}")


def _rename_object(session: Session, parts: list[str], new: str) -> None:
    name = (parts[-2] if len(parts) > 1 else "", parts[-1])
    constraint = session.rows(
        "select k.conrelid::regclass::text, k.conname from pg_constraint k "
        f"where lower(k.conname) = lower({literal(parts[-1])}) and k.conrelid <> 0"
    )
    if constraint:
        table, spelled = constraint[0]
        session.rows(
            f"alter table {table} rename constraint {quote_name(spelled)} to {quote_name(new)}"
        )
        return
    ddl.table_id(session, name)
    session.rows(f"alter table {ddl.qualify(session, name)} rename to {quote_name(new)}")


@procedure("sp_getapplock")
def _getapplock(session: Session, arguments: Arguments) -> None:
    name = str(arguments.get(0, "resource"))
    mode = str(arguments.get(1, "lockmode") or "Exclusive").lower()
    owner = str(arguments.get(2, "lockowner") or "Transaction").lower()
    timeout = arguments.get(3, "locktimeout")
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    if owner == "transaction" and not session.trancount:
        raise SqlError(1222, "The applock cannot be acquired: there is no transaction.")
    scope = "xact_" if owner == "transaction" else ""
    shared = "_shared" if mode in ("shared", "intentshared") else ""
    if timeout == 0:
        taken = session.rows(f"select pg_try_advisory_{scope}lock{shared}({key})")[0][0]
        session.return_status = 0 if taken else -1
        return
    wait = -1 if timeout is None else int(timeout)
    session.backend.run(f"set lock_timeout = '{0 if wait < 0 else wait}ms'")
    try:
        with session.statement(writes=False):
            session.rows(f"select pg_advisory_{scope}lock{shared}({key})")
        session.return_status = 0
    except SqlError as error:
        if error.number == 1205:
            session.return_status = -3
            raise
        session.settle_error(error)
        session.return_status = -1
    finally:
        if not session.backend.has_failed:
            session.backend.run("set lock_timeout = 0")


@procedure("sp_releaseapplock")
def _releaseapplock(session: Session, arguments: Arguments) -> None:
    name = str(arguments.get(0, "resource"))
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    released = session.rows(f"select pg_advisory_unlock({key}) or pg_advisory_unlock_shared({key})")
    if not released[0][0]:
        raise SqlError(1223, f"Cannot release the application lock '{name}'.")


@procedure("sp_reset_connection")
def _reset(session: Session, arguments: Arguments) -> None:
    session.reset()


@procedure("sp_who2")
def _who(session: Session, arguments: Arguments) -> None:
    columns = [Column("SPID", INT), Column("Login", TEXT)]
    session.send_rows(columns, "select session_id, login from sim.sessions order by 1")


_DESCRIBED = (
    ("parameter_ordinal", INT), ("name", TEXT), ("suggested_system_type_id", INT),
    ("suggested_system_type_name", TEXT), ("suggested_max_length", SqlType("smallint")),
    ("suggested_precision", SqlType("tinyint")), ("suggested_scale", SqlType("tinyint")),
    ("suggested_user_type_id", INT), ("suggested_user_type_database", TEXT),
    ("suggested_user_type_schema", TEXT), ("suggested_user_type_name", TEXT),
    ("suggested_assembly_qualified_type_name", TEXT), ("suggested_xml_collection_id", INT),
    ("suggested_xml_collection_database", TEXT), ("suggested_xml_collection_schema", TEXT),
    ("suggested_xml_collection_name", TEXT), ("suggested_is_xml_document", SqlType("bit")),
    ("suggested_is_case_sensitive", SqlType("bit")),
    ("suggested_is_fixed_length_clr_type", SqlType("bit")),
    ("suggested_is_input", SqlType("bit")), ("suggested_is_output", SqlType("bit")),
    ("formal_parameter_name", TEXT), ("suggested_tds_type_id", INT),
    ("suggested_tds_length", INT),
)  # fmt: skip


@procedure("sp_describe_undeclared_parameters")
def _describe_parameters(session: Session, arguments: Arguments) -> None:
    from sim_sqlserver.undeclared import describe

    rows = ["select " + ", ".join(row) for row in describe(session, str(arguments.get(0, "tsql")))]
    columns = [Column(name, sql_type) for name, sql_type in _DESCRIBED]
    empty = "select " + ", ".join("null" for _ in columns) + " where false"
    session.send_rows(columns, " union all ".join(rows) if rows else empty)
