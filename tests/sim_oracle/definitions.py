"""DDL by SQL: users, tables, indexes, triggers, comments. Each statement commits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sim_oracle import ddl_text
from sim_oracle.columns import LOBS, NATIONAL, Column, fit_value, parse_column
from sim_oracle.constraints import Constraint, Index, Trigger, violations
from sim_oracle.ddl_text import ColumnText, ConstraintText, TableText, Words
from sim_oracle.errors import OraError
from sim_oracle.tables import Table

if TYPE_CHECKING:
    from sim_oracle.session import Session

COLUMNS_MAX = 1000
KEY_BYTES_MAX = 6398  # of a block of 8 KiB
_LENGTHS = {"VARCHAR2": 4000, "NVARCHAR2": 4000, "RAW": 2000, "CHAR": 2000, "NCHAR": 2000}
_KINDS = frozenset(
    [
        *("NUMBER", "FLOAT", "BINARY_FLOAT", "BINARY_DOUBLE", "VARCHAR2", "NVARCHAR2", "CHAR"),
        *("NCHAR", "RAW", "LONG", "LONG RAW", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
        *("TIMESTAMP WITH LOCAL TIME ZONE", "INTERVAL YEAR TO MONTH", "INTERVAL DAY TO SECOND"),
        *("CLOB", "NCLOB", "BLOB", "BFILE", "ROWID", "UROWID", "XMLTYPE"),
    ]
)
_NEWER = {"JSON": 21, "BOOLEAN": 23, "VECTOR": 23}  # first release that has the type
_NOT_IN_KEYS = frozenset([*LOBS, "LONG", "LONG RAW", "TIMESTAMP WITH TIME ZONE", "JSON", "XMLTYPE"])


def run(session: Session, text: str) -> None:
    """Run a statement whose transaction is committed; raises OraError."""
    words = Words(text.strip().rstrip(";"))
    verb = words.take().text.upper()
    if verb == "CREATE":
        _create(session, words, text)
    elif verb == "DROP":
        _drop(session, words, text)
    elif verb == "TRUNCATE":
        words.expect("TABLE")
        _truncate(session, session.find_table_of(words.full_name(), "DROP ANY TABLE"), text)
    elif verb == "ALTER":
        _alter(session, words, text)
    elif verb in ("GRANT", "REVOKE", "COMMENT", "PURGE", "AUDIT"):
        return
    elif verb == "RENAME":
        old = words.name()
        words.expect("TO")
        _rename(session, session.find_table_of(("", old)), words.name(), text)
    else:
        raise OraError(900)


# ---------------------------------------------------------------------- CREATE


def _create(session: Session, words: Words, text: str) -> None:
    if words.accept("OR", "REPLACE"):
        pass
    is_temporary = words.accept("GLOBAL", "TEMPORARY") or words.accept("PRIVATE", "TEMPORARY")
    if words.accept("TABLE"):
        _create_table(session, words, text, is_temporary=is_temporary)
    elif words.accept("UNIQUE", "INDEX") or words.accept("INDEX"):
        _create_index(session, words, is_unique="UNIQUE" in text.upper().split()[:3])
    elif words.accept("TRIGGER"):
        _create_trigger(session, words)
    elif words.accept("USER"):
        session.require("CREATE USER")
        name = words.name()
        if name in session.database.users:
            raise OraError(1920, name)
        session.database.users.add(name)
    else:
        raise OraError(900, text=f"the simulator does not know {text[:200]}")


def check_name(session: Session, name: str) -> str:
    """Return a name; raises OraError 972 if it is too long."""
    is_old = int(session.database.settings.version.split(".")[0]) < 12 or (
        session.database.settings.version.startswith("12.1")
    )
    if len(name.encode()) > (30 if is_old else 128):
        raise OraError(972)
    return name


def _create_table(session: Session, words: Words, text: str, *, is_temporary: bool) -> None:
    owner, name = words.full_name()
    owner = owner or session.schema
    check_name(session, name)
    session.require("CREATE TABLE" if owner == session.user else "CREATE ANY TABLE")
    if owner not in session.database.users:
        raise OraError(1918, owner)
    if (session.container, owner, name) in session.database.tables:
        raise OraError(955)
    if words.peek() != "(":
        raise OraError(900, text="the simulator needs the columns of a table")
    definition = ddl_text.read_table(words)
    options = " ".join(token.text.upper() for token in words.tokens[words.at :])
    by, partitions = _partitions(options)
    columns = [_column(session, one) for one in definition.columns]
    _check_columns(columns)
    table = session.database.define_table(
        owner,
        name,
        tuple(columns),
        text.strip(),
        container=session.container,
        supplemental=definition.supplemental or "NONE",
        is_temporary=is_temporary,
        is_index_organized="ORGANIZATION INDEX" in options,
        is_logging="NOLOGGING" not in options,
        partitions=partitions,
        partition_by=by,
    )
    try:
        for constraint in _constraints_of(definition):
            add_constraint(session, table, constraint)
    except OraError:
        session.database.forget_table(table)
        raise


def _partitions(options: str) -> tuple[str | None, list[str]]:
    """Return the first partitioning column and the names of the partitions.

    The model chooses a row's partition by the value alone, whatever the definition says.
    """
    match = re.search(r'PARTITION BY \w+ \( (?:"([^"]+)"|(\w+))', options)
    if match is None:
        return None, []
    names = re.findall(r"(?<!\w)PARTITION (?!BY)(\w+)", options)
    return match[1] or match[2], names or ["SYS_P1", "SYS_P2"]


def _constraints_of(definition: TableText) -> list[ConstraintText]:
    inline = [one for column in definition.columns for one in column.constraints]
    every = [*inline, *definition.constraints]
    return sorted(every, key=lambda one: one.kind != "P")


def _check_columns(columns: list[Column]) -> None:
    if len(columns) > COLUMNS_MAX:
        raise OraError(1792)
    if len({column.name for column in columns}) < len(columns):
        raise OraError(957)
    if sum(column.kind in ("LONG", "LONG RAW") for column in columns) > 1:
        raise OraError(1754)


def _column(session: Session, text: ColumnText) -> Column:
    """Return a column; raises OraError of a type that the release lacks or of a length."""
    check_name(session, text.name)
    declaration = text.type or ("NUMBER" if text.is_virtual else "")
    column = parse_column(
        text.name,
        declaration,
        is_nullable=text.is_nullable is not False,
        default=text.default,
        identity=text.identity,
        is_virtual=text.is_virtual,
        is_invisible=text.is_invisible,
    )
    release = int(session.database.settings.version.split(".")[0])
    if column.kind not in _KINDS and release < _NEWER.get(column.kind, 99):
        raise OraError(902, text="invalid datatype")
    _check_length(session, column)
    return column


def _check_length(session: Session, column: Column) -> None:
    kind, length = column.kind, column.length
    is_extended = session.database.settings.parameters["max_string_size"] == "EXTENDED"
    limit = _LENGTHS.get(kind, 0)
    if kind in ("VARCHAR2", "NVARCHAR2", "RAW"):
        limit = 32_767 if is_extended else limit
        if length is None:
            raise OraError(906, text="missing left parenthesis")
        limit = limit // 2 if kind == "NVARCHAR2" else limit
    if limit and length is not None and not 1 <= length <= limit:
        raise OraError(910 if length else 1723)
    if kind == "NUMBER" and column.precision is not None:
        if not 1 <= column.precision <= 38:
            raise OraError(1727)
        if not -84 <= (column.scale or 0) <= 127:
            raise OraError(1728)
    if kind.startswith("TIMESTAMP") and not 0 <= (column.scale or 0) <= 9:
        raise OraError(30088)


def add_constraint(session: Session, table: Table, text: ConstraintText) -> None:
    """Add a constraint to a table; raises OraError if it or its rows are not right."""
    version = table.version
    known = {column.name: column for column in version.columns}
    for name in text.columns:
        if name not in known:
            raise OraError(904, f'"{name}"')
    generated = session.database.new_object_number()
    name = check_name(session, text.name or f"SYS_C{generated:07d}")
    used = [one for one in session.database.tables.values() if one.version.owner == version.owner]
    if any(name in one.constraints or (one.key_name == name and one.version.key) for one in used):
        raise OraError(2264)
    if text.kind in ("P", "U"):
        _check_key_columns(session, [known[one] for one in text.columns])
    if text.kind == "P":
        _add_key(session, table, text, name)
        return
    constraint = Constraint(
        name,
        text.kind,
        tuple(text.columns),
        text.condition,
        on_delete=text.on_delete,
        is_deferrable=text.is_deferrable,
        is_deferred=text.is_deferred,
        is_enabled=text.is_enabled,
        is_validated=text.is_validated,
        is_generated=text.name is None,
    )
    if text.kind == "U":
        same = [one for one in table.constraints.values() if one.kind == "U"]
        if constraint.columns == version.key or any(
            one.columns == constraint.columns for one in same
        ):
            raise OraError(2261)
    if text.kind == "R":
        _find_parent(session, table, text, constraint)
    if constraint.is_enabled and constraint.is_validated and any(violations(table, constraint)):
        raise OraError(2299 if text.kind == "U" else 2298, version.owner, name)
    table.add_constraint(constraint)


def _check_key_columns(session: Session, columns: list[Column]) -> None:
    size = 0
    for column in columns:
        if column.kind in _NOT_IN_KEYS:
            raise OraError(2329, column.kind)
        width = 2 if column.kind in NATIONAL else 4 if column.is_in_chars else 1
        size += (column.length or 11) * width if column.length else 22
    if size > KEY_BYTES_MAX:
        raise OraError(1450, KEY_BYTES_MAX)
    if len(columns) > 32:
        raise OraError(2257)


def _add_key(session: Session, table: Table, text: ConstraintText, name: str) -> None:
    version = table.version
    if version.key:
        raise OraError(2260)
    if any(one.columns == tuple(text.columns) for one in table.constraints.values()
           if one.kind == "U"):  # fmt: skip
        raise OraError(2261)
    probe = Constraint(name, "P", tuple(text.columns))
    if any(row.get(one) is None for row in table.rows.values() for one in text.columns):
        raise OraError(1449)
    if any(violations(table, probe)):
        raise OraError(2437, version.owner, name)
    columns = tuple(
        replace(one, is_nullable=one.is_nullable and one.name not in text.columns)
        for one in version.columns
    )
    table.version = replace(version, key=tuple(text.columns), columns=columns)
    table.key_name = name
    table.index_rows()


def _find_parent(
    session: Session, table: Table, text: ConstraintText, constraint: Constraint
) -> None:
    assert text.parent is not None
    owner, name = text.parent
    parent = session.find_table_of((owner or table.version.owner, name))
    columns = tuple(text.parent_columns) or parent.version.key
    if not columns:
        raise OraError(2268)
    unique = [one.columns for one in parent.constraints.values() if one.kind == "U"]
    if columns not in (parent.version.key, *unique):
        raise OraError(2270)
    if len(columns) != len(constraint.columns):
        raise OraError(2256)
    for own, other in zip(constraint.columns, columns, strict=True):
        if table.version.column(own).kind != parent.version.column(other).kind:
            raise OraError(2267)
    constraint.parent, constraint.parent_columns = parent, columns


def _create_index(session: Session, words: Words, *, is_unique: bool) -> None:
    _, name = words.full_name()
    check_name(session, name)
    words.expect("ON")
    table = session.find_table_of(words.full_name())
    columns = tuple(_index_part(part) for part in words.brackets().split(" , "))
    own = [one for one in session.database.tables.values()
           if one.version.owner == table.version.owner]  # fmt: skip
    if any(name in one.indexes for one in own):
        raise OraError(955)
    listed = [one.columns for one in table.indexes.values()]
    listed += [one.columns for one in table.constraints.values() if one.kind == "U"]
    if columns in (table.version.key, *listed):
        raise OraError(1408)
    known = {column.name: column for column in table.version.columns}
    for one in columns:
        if one in known and known[one].kind in LOBS:
            raise OraError(2327, one)
        if one not in known and one.isidentifier():
            raise OraError(904, f'"{one}"')
    if is_unique:
        constraint = Constraint(name, "U", columns, is_generated=True)
        if any(violations(table, constraint)):
            raise OraError(1452)
        table.add_constraint(constraint)
        constraint.condition = "INDEX"  # the dictionary does not list a unique index as one
    table.indexes[name] = Index(name, columns, is_unique)


def _index_part(text: str) -> str:
    plain = text.strip().removesuffix(" DESC").removesuffix(" ASC")
    return plain[1:-1] if plain.startswith('"') else plain.upper()


def _create_trigger(session: Session, words: Words) -> None:
    _, name = words.full_name()
    head: list[str] = []
    while words.peek() != "ON":
        head.append(words.take().text.upper())
    words.expect("ON")
    table = session.find_table_of(words.full_name())
    events = " ".join(head).replace("BEFORE ", "").replace("AFTER ", "").split(" OF ")[0]
    is_row = "FOR" in [token.text.upper() for token in words.tokens[words.at :]]
    kind = f"{head[0]} {'EACH ROW' if is_row else 'STATEMENT'}"
    table.triggers[name] = Trigger(name, kind, events)


# ---------------------------------------------------------------------- DROP, TRUNCATE


def _drop(session: Session, words: Words, text: str) -> None:
    if words.accept("TABLE"):
        table = session.find_table_of(words.full_name(), "DROP ANY TABLE")
        children = [one for one in table.children() if one[0] is not table]
        if children and not words.accept("CASCADE", "CONSTRAINTS"):
            raise OraError(2449)
        session.lock_for_ddl(table)
        for child, constraint in children:
            del child.constraints[constraint.name]
        is_purged = text.upper().rstrip("; ").endswith("PURGE")
        session.database.drop_table(table, text.strip() if is_purged else "")
    elif words.accept("INDEX"):
        name = words.full_name()[1]
        table = _table_with(session, lambda one: name in one.indexes, 1418)
        del table.indexes[name]
        table.constraints.pop(name, None)
    elif words.accept("TRIGGER"):
        name = words.full_name()[1]
        table = _table_with(session, lambda one: name in one.triggers, 4080, name)
        del table.triggers[name]
    elif words.accept("USER"):
        session.require("DROP USER")
        name = words.name()
        if name not in session.database.users:
            raise OraError(1918, name)
        owned = [one for one in session.database.tables.values() if one.version.owner == name]
        if owned and not words.accept("CASCADE"):
            raise OraError(1922, name)
        for table in owned:
            session.database.drop_table(table)
        session.database.users.discard(name)
    else:
        raise OraError(900, text=f"the simulator does not know {text[:200]}")


def _table_with(
    session: Session, has: Callable[[Table], bool], code: int, *values: object
) -> Table:
    for table in session.database.tables.values():
        if table.container == session.container and has(table):
            return table
    raise OraError(code, *values)


def _truncate(session: Session, table: Table, text: str) -> None:
    if any(child is not table and one.is_enabled for child, one in table.children()):
        raise OraError(2266)
    session.lock_for_ddl(table)
    session.database.truncate(table, text.strip())


# ---------------------------------------------------------------------- ALTER


def _alter(session: Session, words: Words, text: str) -> None:
    if words.accept("TRIGGER"):
        name = words.full_name()[1]
        table = _table_with(session, lambda one: name in one.triggers, 4080, name)
        table.triggers[name].is_enabled = words.accept("ENABLE")
        return
    if words.accept("INDEX"):
        name = words.full_name()[1]
        table = _table_with(session, lambda one: name in one.indexes, 1418)
        table.indexes[name].status = "UNUSABLE" if words.accept("UNUSABLE") else "VALID"
        return
    if words.accept("USER"):
        return
    words.expect("TABLE")
    table = session.find_table_of(words.full_name(), "ALTER ANY TABLE")
    session.lock_for_ddl(table)
    said: str | None = text.strip()
    while words:
        _alter_table(session, table, words, said)
        said = None  # a statement has one row in the redo


def _say(session: Session, table: Table, text: str | None) -> None:
    """Write the row of a statement, unless it was written."""
    if text is not None:
        session.database.ddl(text, table)


def _alter_table(session: Session, table: Table, words: Words, text: str | None) -> None:
    if words.accept("ADD", "SUPPLEMENTAL", "LOG", "DATA"):
        kind = ddl_text.read_supplemental(words)
        table.version = replace(table.version, supplemental=kind)
        _say(session, table, text)
    elif words.accept("DROP", "SUPPLEMENTAL", "LOG", "DATA"):
        ddl_text.read_supplemental(words)
        table.version = replace(table.version, supplemental="NONE")
        _say(session, table, text)
    elif words.accept("ADD"):
        _add(session, table, words, text)
    elif words.accept("MODIFY"):
        _modify(session, table, words, text)
    elif words.accept("DROP"):
        _drop_part(session, table, words, text)
    elif words.accept("RENAME", "COLUMN"):
        old = words.name()
        words.expect("TO")
        _rename_column(session, table, old, words.name(), text)
    elif words.accept("RENAME", "TO"):
        _rename(session, table, words.name(), text or "")
    elif words.peek() in ("ENABLE", "DISABLE"):
        _switch(session, table, words, is_enabled=words.take().text.upper() == "ENABLE")
    elif words.accept("MOVE"):
        words.at = len(words.tokens)
        session.database.move(table, text or "")
    elif words.peek() in ("LOGGING", "NOLOGGING"):
        table.is_logging = words.take().text.upper() == "LOGGING"
    else:
        raise OraError(1735, text="invalid ALTER TABLE option")


def _add(session: Session, table: Table, words: Words, text: str | None) -> None:
    definition = TableText()
    if words.peek() == "(":
        definition = ddl_text.read_table(words)
    elif words.peek() in ("CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        definition.constraints.append(ddl_text.read_constraint(words))
    else:
        definition.columns.append(ddl_text.read_column(words))
    for one in definition.columns:
        names = {column.name for column in table.version.columns}
        if one.name in names:
            raise OraError(1430)
        column = _column(session, one)
        value = None if column.default is None or column.is_virtual else session.value_of(column)
        if not column.is_nullable and table.rows and value is None and column.identity is None:
            raise OraError(1758)
        session.database.append_column(table, column, text, value)
        text = None
    for constraint in _constraints_of(definition):
        add_constraint(session, table, constraint)
        _say(session, table, text)
        text = None


def _modify(session: Session, table: Table, words: Words, text: str | None) -> None:
    if words.peek() == "(":
        changes = ddl_text.read_table(words).columns
    else:
        changes = [ddl_text.read_column(words)]
    columns = list(table.version.columns)
    for change in changes:
        place = next((n for n, one in enumerate(columns) if one.name == change.name), None)
        if place is None:
            raise OraError(904, f'"{change.name}"')
        columns[place] = _modify_column(session, table, columns[place], change)
    session.database.replace_columns(table, tuple(columns), text)


def _modify_column(session: Session, table: Table, old: Column, change: ColumnText) -> Column:
    values = [row[old.name] for row in table.rows.values() if row.get(old.name) is not None]
    new = old
    if change.type:
        parsed = replace(change, is_nullable=old.is_nullable)
        new = replace(
            _column(session, parsed), is_nullable=old.is_nullable, default=old.default,
            identity=old.identity,
        )  # fmt: skip
        _check_type_change(old, new, values)
    if change.default is not None:
        new = replace(new, default=None if change.default.upper() == "NULL" else change.default)
    if change.is_nullable is False:
        if not old.is_nullable:
            raise OraError(1442)
        if len(values) < len(table.rows):
            raise OraError(2296, table.version.owner, old.name)
        new = replace(new, is_nullable=False)
    elif change.is_nullable is True:
        if old.is_nullable:
            raise OraError(1451)
        if old.name in table.version.key:
            raise OraError(1451)
        new = replace(new, is_nullable=True)
    return new


# Source: SQL Language Reference, ALTER TABLE, modify_col_properties.
_CHANGES_WITH_VALUES = {("CHAR", "VARCHAR2"), ("VARCHAR2", "CHAR"), ("DATE", "TIMESTAMP")}


def _check_type_change(old: Column, new: Column, values: list[Any]) -> None:
    if old.kind != new.kind:
        if old.kind in LOBS or new.kind in LOBS:
            raise OraError(22858 if new.kind in LOBS else 22859)
        if values and (old.kind, new.kind) not in _CHANGES_WITH_VALUES:
            raise OraError(1439)
    elif new.kind == "NUMBER" and values:
        old_whole = 999 if old.precision is None else old.precision - (old.scale or 0)
        new_whole = 999 if new.precision is None else new.precision - (new.scale or 0)
        old_scale = 999 if old.scale is None else old.scale
        new_scale = 999 if new.scale is None else new.scale
        if new_whole < old_whole or new_scale < old_scale:
            raise OraError(1440)
    elif new.kind.startswith("TIMESTAMP") and values and (new.scale or 0) < (old.scale or 0):
        raise OraError(30082)
    elif new.length is not None:
        for value in values:
            try:
                fit_value(new, value.rstrip(" ") if new.kind == "CHAR" else value)
            except OraError:
                raise OraError(1441) from None


def _drop_part(session: Session, table: Table, words: Words, text: str | None) -> None:
    if words.accept("CONSTRAINT"):
        name = words.name()
        if name == table.key_name and table.version.key:
            _drop_key(table, is_cascading=words.accept("CASCADE"))
        elif name in table.constraints:
            del table.constraints[name]
            words.accept("CASCADE")
        else:
            raise OraError(2443)
        _say(session, table, text)
        return
    if words.accept("PRIMARY", "KEY"):
        if not table.version.key:
            raise OraError(2441)
        _drop_key(table, is_cascading=words.accept("CASCADE"))
        _say(session, table, text)
        return
    names = [words.name()] if words.accept("COLUMN") else words.names()
    is_cascading = words.accept("CASCADE", "CONSTRAINTS")
    for name in names:
        _drop_column(session, table, name, text, is_cascading=is_cascading)
        text = None


def _drop_key(table: Table, *, is_cascading: bool) -> None:
    children = [one for one in table.children() if one[1].parent_columns == table.version.key]
    if children and not is_cascading:
        raise OraError(2273)
    for child, constraint in children:
        del child.constraints[constraint.name]
    table.version = replace(table.version, key=())
    table.index_rows()


def _drop_column(
    session: Session, table: Table, name: str, text: str | None, *, is_cascading: bool
) -> None:
    version = table.version
    if name not in {column.name for column in version.columns}:
        raise OraError(904, f'"{name}"')
    if len(version.columns) == 1:
        raise OraError(12983)
    parents = [one for one in table.children() if name in one[1].parent_columns]
    if parents and not is_cascading:
        raise OraError(12992)
    wide = [one for one in table.constraints.values()
            if name in one.columns and len(one.columns) > 1]  # fmt: skip
    if (wide or (name in version.key and len(version.key) > 1)) and not is_cascading:
        raise OraError(12991)
    for child, constraint in parents:
        del child.constraints[constraint.name]
    for constraint in list(table.constraints.values()):
        if name in constraint.columns:
            del table.constraints[constraint.name]
    for index in list(table.indexes.values()):
        if name in index.columns:
            del table.indexes[index.name]
    if name in version.key:
        table.version = replace(version, key=())
    session.database.drop_column(table, name, text)


def _rename_column(session: Session, table: Table, old: str, new: str, text: str | None) -> None:
    names = {column.name for column in table.version.columns}
    if old not in names:
        raise OraError(904, f'"{old}"')
    if new in names:
        raise OraError(957)
    check_name(session, new)
    for constraint in table.constraints.values():
        constraint.columns = tuple(new if one == old else one for one in constraint.columns)
    for _, constraint in table.children():
        listed = constraint.parent_columns
        constraint.parent_columns = tuple(new if one == old else one for one in listed)
    for index in table.indexes.values():
        index.columns = tuple(new if one == old else one for one in index.columns)
    session.database.rename_column(table, old, new, text or "")


def _rename(session: Session, table: Table, name: str, text: str) -> None:
    check_name(session, name)
    owner = table.version.owner
    if (table.container, owner, name) in session.database.tables:
        raise OraError(955)
    session.database.rename_table(table, name, text)


def _switch(session: Session, table: Table, words: Words, *, is_enabled: bool) -> None:
    is_validated = not words.accept("NOVALIDATE")
    words.accept("VALIDATE")
    if words.accept("ALL", "TRIGGERS"):
        for trigger in table.triggers.values():
            trigger.is_enabled = is_enabled
        return
    words.expect("CONSTRAINT")
    name = words.name()
    constraint = table.constraints.get(name)
    if constraint is None:
        raise OraError(2431 if not is_enabled else 2430, name)
    if is_enabled and is_validated and any(violations(table, constraint)):
        raise OraError(2299 if constraint.kind == "U" else 2298, table.version.owner, name)
    constraint.is_enabled = is_enabled
    constraint.is_validated = is_enabled and is_validated
