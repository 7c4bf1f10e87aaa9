"""Changelog tables of FlexCDC in MySQL and MariaDB; see `ports/changelog.py`.

Row images are written as the loader writes rows: into a temporary table with the layout of a merge
table, and from there with the same expressions into the changelog, so that a value of any type is
converted equally in both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymysql
import structlog
from pymysql.cursors import Cursor

from penstock.codec.types import Choices, Engine, Server, fit_row, map_column
from penstock.codec.types import Mapping as TypeMapping
from penstock.engines.mysql.connect import (
    KEY_REQUIRED,
    Connection,
    connect,
    quote,
    rows,
    run,
    server_errors,
    statement_error,
    value,
)
from penstock.engines.mysql.target.layout import TYPE_RULES, mapping_of, same_type, target_server
from penstock.engines.mysql.target.merge import Merge, MergeSql, writes_of
from penstock.engines.mysql.target.refusals import HARMLESS, apply_error, value_refused
from penstock.engines.mysql.target.send import (
    COUNTING,
    StagingSession,
    put_rows,
    refused_rows,
    without_log,
)
from penstock.engines.mysql.target.target import (
    TargetColumn,
    TargetTable,
    read_target_tables,
    require,
)
from penstock.host.errors import StatementFailed
from penstock.model import Column, ColumnDefinition, Relation, TableDefinition, TableName
from penstock.model.sections import StateNames
from penstock.ports.changelog import (
    DML_TYPE,
    GSN,
    OWN_COLUMNS,
    SERVER_ID,
    UOW_ID,
    ChangelogSession,
    RowImages,
    images_lost,
    type_refused,
)
from penstock.ports.target import Counts

logger = structlog.get_logger(__name__)

OWN_TYPES = ("int default 0", "bigint", "int unsigned", "bigint")
_OWN = tuple(
    Column(name=name, source_type=kind, neutral=neutral)
    for name, kind, neutral in (
        (DML_TYPE, "int", "int32"),
        (UOW_ID, "bigint", "int64"),
        (SERVER_ID, "bigint", "int64"),
        (GSN, "bigint", "int64"),
    )
)
LOCK_WAIT_S = 60
_STRICT = "'NO_AUTO_VALUE_ON_ZERO,STRICT_ALL_TABLES,ALLOW_INVALID_DATES'"  # as `connect` has it
# A longer VARCHAR may not fit into a row, in a character set that is not known here.
_VARCHAR_MAX = 1000
_VARCHAR = re.compile(r"(?:var)?char\((\d+)\)\Z", re.IGNORECASE)
TEXT = "longtext character set utf8mb4 collate utf8mb4_bin"
_ALL_LETTERS = "utf8mb4"
_CHARSET = re.compile(r" character set (\w+)", re.IGNORECASE)

_CHANGELOG = """
    create table {table} (
    {body}
    ) engine = InnoDB row_format = dynamic default character set utf8mb4 collate utf8mb4_bin
"""
NUMBER = "penstock_row"  # first column of a changelog at a server that requires keys

STATE_TABLES = (
    """
    create table {mvlogs} (
        table_schema varchar(64) not null,
        table_name varchar(64) not null,
        mvlog_name varchar(64) not null,
        active_flag boolean default true,
        primary key (table_schema, table_name),
        unique key (mvlog_name)
    ) engine = InnoDB default character set utf8 collate utf8_bin
    """,
    """
    create table {binlog_consumer_status} (
        server_id int not null,
        master_log_file varchar(100) not null default '',
        master_log_size bigint,
        exec_master_log_pos bigint,
        primary key (server_id, master_log_file)
    ) engine = InnoDB default character set utf8
    """,
    """
    create table {mview_uow} (
        uow_id bigint not null auto_increment,
        commit_time datetime,
        gsn_hwm bigint not null default 1,
        primary key (uow_id),
        key (commit_time)
    ) engine = InnoDB default character set utf8
    """,
    """
    create table {place} (
        log_id varchar(36) not null,
        segment bigint not null,
        trx bigint not null,
        position varchar(100) not null,
        primary key (log_id)
    ) engine = InnoDB default character set utf8
    """,
)


class MySQLChangelogs(ChangelogSession):
    """Implementation of the port `ports.changelog.ChangelogSession`."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str,
        source_types: str,
        choices: Choices,
        application_name: str,
    ) -> None:
        """Connect. Raises the typed errors of a connection."""
        self._namespace = namespace
        self._source_types = source_types
        self._choices = choices
        self._connection: Connection = connect(
            url,
            application_name=application_name,
            options={
                "innodb_lock_wait_timeout": str(LOCK_WAIT_S),
                "lock_wait_timeout": str(LOCK_WAIT_S),
            },
            local_infile=True,
            found_rows=True,
        )
        try:
            if not without_log(self._connection):
                logger.warning(
                    "changelogs are in the destination's binlog",
                    hint="Give the account the right to set sql_log_bin.",
                )
            doing = "looking at the destination"
            files = value(self._connection, "select @@local_infile", doing=doing)
            room = value(self._connection, "select @@max_allowed_packet", doing=doing)
        except BaseException:
            self._connection.close()
            raise
        self._staging = StagingSession(
            self._connection, takes_files=bool(files), packet_bytes=int(room)
        )
        self._server: Server = target_server(self._connection.server)
        self._tables: dict[TableName, TargetTable] = {}
        self._staged: dict[tuple[TableName, Relation], MergeSql] = {}
        self._numbers = itertools.count(1)

    @property
    def driver(self) -> Connection:
        return self._connection

    def rows(self, sql: str, parameters: Sequence[Any] = (), *, doing: str) -> list[dict[str, Any]]:
        return rows(self._connection, sql, parameters or None, doing=doing)

    def run(self, sql: str, parameters: Sequence[Any] = (), *, doing: str) -> int:
        return run(self._connection, sql, parameters or None, doing=doing)

    def quote(self, *names: str) -> str:
        return quote(*names)

    def begin(self) -> None:
        with server_errors("beginning a transaction"):
            self._connection.begin()

    def commit(self) -> None:
        with server_errors("committing changelogs"):
            self._connection.commit()

    def rollback(self) -> None:
        if self._connection.open:
            try:
                self._connection.rollback()
            except pymysql.Error:
                self._connection._force_close()  # the server rolls back the open transaction

    def close(self) -> None:
        self._connection.close()

    # -- tables ----------------------------------------------------------------------------------

    def create_state(self, names: StateNames) -> None:
        doing = "creating the state tables"
        self.run(f"create database if not exists {quote(names.namespace)}", doing=doing)
        tables = {
            field: quote(names.namespace, getattr(names, field))
            for field in ("mvlogs", "binlog_consumer_status", "mview_uow", "place")
        }
        for statement in STATE_TABLES:
            self.run(statement.format(**tables), doing=doing)
        self.run(f"insert into {tables['mview_uow']} values (1, null, 1)", doing=doing)
        self.run(f"insert into {tables['place']} values ('', -1, 0, '')", doing=doing)

    def drop(self, table: TableName) -> None:
        self._forget(table)
        self.run(f"drop table if exists {quote(*table)}", doing=f"dropping {table}")

    def rename(self, table: TableName, name: str) -> None:
        self._forget(table)
        to = quote(table.schema, name)
        self.run(f"alter table {quote(*table)} rename to {to}", doing=f"renaming {table}")

    def shape(self, table: TableName) -> Mapping[str, str] | None:
        found = read_target_tables(self._connection, [table]).get(table)
        if found is None:
            return None
        return {c.name: _type_of(c) for c in found.columns if c.name != NUMBER}

    def types_of(self, relation: Relation, definition: TableDefinition | None) -> Sequence[str]:
        known = {c.name: c for c in definition.columns} if definition is not None else {}
        mapped: dict[str, TypeMapping] = {}
        for column in relation.columns:
            found = known.get(column.name)
            has_it = found is not None and _is_defined_so(column, found)
            mapped[column.name] = self._map(relation, found if has_it and found else column)
        if not Engine(self._source_types).is_mysql:
            fit_row(mapped)
        return [self._remove_check(mapping.target_type) for mapping in mapped.values()]

    def _remove_check(self, kind: str) -> str:
        """Return a type without MariaDB's check of JSON.

        Rows that a column is added to get an empty text there, which the check refuses.
        """
        is_checked = self._server.engine is Engine.MARIADB and kind == "json"
        return TEXT if is_checked else kind

    def _map(self, relation: Relation, column: Column | ColumnDefinition) -> TypeMapping:
        table = TableName(relation.schema, relation.name)
        source = Server(engine=Engine(self._source_types), version=())
        mapping = map_column(column, source, self._server, choices=self._choices, table=table)
        if not mapping.may_run:
            raise type_refused(relation, column.name, mapping)
        return mapping

    def same_type(self, left: str, right: str) -> bool:
        return same_type(left, right) and _has_letters(left, right)

    def holds(self, wider: str, narrower: str) -> bool:
        holds = TYPE_RULES.holds(_bare(wider), _bare(narrower))
        return holds and _has_letters(wider, narrower)

    @property
    def text_type(self) -> str:
        return TEXT

    def fold(self, column: str) -> str:
        return column.lower()

    def create_changelog(self, table: TableName, columns: Sequence[tuple[str, str]]) -> None:
        own = zip(OWN_COLUMNS, OWN_TYPES, strict=True)
        parts = [f"{quote(name)} {kind}" for name, kind in own]
        parts += [f"{quote(name)} {_nullable_type(kind)}" for name, kind in columns]
        parts.append(f"key ({quote(UOW_ID)}, {quote(DML_TYPE)})")
        body = ",\n    ".join(parts)
        self._forget(table)
        numbered = f"{quote(NUMBER)} bigint not null auto_increment primary key,\n    {body}"
        doing = f"creating the changelog {table}"
        try:
            self.run(_CHANGELOG.format(table=quote(*table), body=body), doing=doing)
        except StatementFailed as error:
            if error.fields.get("errno") not in KEY_REQUIRED:
                raise
            self.run(_CHANGELOG.format(table=quote(*table), body=numbered), doing=doing)

    def add_column(self, table: TableName, name: str, kind: str, *, after: str) -> None:
        self._alter(table, f"add column {quote(name)} {_nullable_type(kind)} after {quote(after)}")

    def retype_column(self, table: TableName, name: str, kind: str) -> None:
        self._alter(table, f"modify column {quote(name)} {_nullable_type(kind)}")

    def rename_column(self, table: TableName, old: str, new: str) -> None:
        self._alter(table, f"rename column {quote(old)} to {quote(new)}")

    def drop_column(self, table: TableName, name: str) -> None:
        self._alter(table, f"drop column {quote(name)}")

    def _alter(self, table: TableName, clause: str) -> None:
        self._forget(table)
        self.run(f"alter table {quote(*table)} {clause}", doing=f"altering the changelog {table}")

    def _forget(self, table: TableName) -> None:
        self._tables.pop(table, None)
        for key in [key for key in self._staged if key[0] == table]:
            staging = self._staged.pop(key).staging
            self.run(f"drop temporary table if exists {staging}", doing="dropping staged rows")

    # -- rows ------------------------------------------------------------------------------------

    def append(self, table: TableName, images: RowImages) -> None:
        sql = self._merge(table, images.relation)
        count = images.own.num_rows
        batch = sql.layout.batch(np.ones(count, np.int64), [*images.own.columns, *images.columns])
        doing = f"appending to the changelog {table}"
        run(self._connection, f"set session sql_mode = {COUNTING}", doing=doing)
        try:
            put = put_rows(self._staging, sql.staging, sql.layout, [batch])
            if not put.is_whole:
                raise refused_rows(self._connection, table, sql.layout, put)
        except pymysql.Error as error:
            raise apply_error(statement_error(doing, error), table) from error
        run(self._connection, f"set session sql_mode = {_STRICT}", doing=doing)
        taken = self._insert(sql, table, doing)
        run(self._connection, f"delete from {sql.staging}", doing=doing)
        if taken != count:
            raise images_lost(table, count, taken)

    def _insert(self, sql: MergeSql, table: TableName, doing: str) -> int:
        try:
            with self._connection.cursor(Cursor) as cursor:
                taken = int(cursor.execute(sql.insert_all()))
                if cursor.warning_count:
                    cursor.execute("show warnings")
                    for _, number, said in cursor.fetchall():
                        if int(number) not in HARMLESS:
                            raise value_refused(str(said), int(number), table)
        except pymysql.Error as error:
            raise apply_error(statement_error(doing, error), table) from error
        return taken

    def _merge(self, table: TableName, relation: Relation) -> MergeSql:
        key = (table, relation)
        if key not in self._staged:
            target = self._table(table)
            wide = Relation(
                schema=relation.schema,
                name=relation.name,
                columns=(*_OWN, *relation.columns),
                key=(OWN_COLUMNS.index(GSN),),
            )
            writes = writes_of(
                relation,
                target,
                lambda column: mapping_of(
                    column,
                    self._source_types,
                    self._server,
                    choices=self._choices,
                    table=TableName(relation.schema, relation.name),
                ),
            )
            name = f"penstock_images_{next(self._numbers)}"
            merge = Merge(relation=wide, table=target, staging=name, counts=Counts(), writes=writes)
            sql = MergeSql(merge)
            sql.staging = quote(self._namespace, name)
            doing = "creating the table of row images"
            self.run(f"drop temporary table if exists {sql.staging}", doing=doing)
            sql.layout.make(
                lambda text: self.run(text, doing=doing), sql.staging, kind="temporary table"
            )
            self._staged[key] = sql
        return self._staged[key]

    def _table(self, table: TableName) -> TargetTable:
        if table not in self._tables:
            found = read_target_tables(self._connection, [table])
            self._tables[table] = require(found, table)
        return self._tables[table]


def _nullable_type(kind: str) -> str:
    """Return a type with NULL allowed and as default, which TIMESTAMP would not have."""
    match = _VARCHAR.match(kind)
    if match is not None and int(match[1]) > _VARCHAR_MAX:
        kind = TEXT
    return f"{kind} null default null"


def _is_defined_so(column: Column, found: ColumnDefinition) -> bool:
    """Return whether the catalogue, which may be ahead, still has a column as the log has it."""
    same_letters = not column.collation or column.collation == found.collation
    return found.type_text == column.source_type and same_letters


def _type_of(column: TargetColumn) -> str:
    """Return a column's type with its character set, unless that holds all letters."""
    if not column.is_text or column.charset == _ALL_LETTERS:
        return column.type_text
    return f"{column.type_text} character set {column.charset} collate {column.collation}"


def _has_letters(kept: str, wanted: str) -> bool:
    """Return whether a changelog's column has all letters of another type's character set.

    The changelog may have been made after the source's column lost some, with rows before that.
    """
    return _charset_of(kept) in (_ALL_LETTERS, _charset_of(wanted))


def _charset_of(kind: str) -> str:
    """Return the character set that a type names, or that of a changelog."""
    found = _CHARSET.search(kind)
    return _ALL_LETTERS if found is None else found[1].lower().replace("utf8mb3", "utf8")


def _bare(kind: str) -> str:
    return re.sub(r"\s+character set .*\Z", "", kind, flags=re.IGNORECASE | re.DOTALL)
