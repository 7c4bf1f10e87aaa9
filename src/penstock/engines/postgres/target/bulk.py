"""PostgreSQL as a target of the bulk load: the port of `ports/bulk.py`.

The decisions before the first row (refusals, formats) only read the target. Every step after the
rows (keys, indexes, statistics, foreign keys) is safe to repeat. Not here: the statements that
create tables and keys (`schema.py`), the marks in `wirekite.bulk_table`
(`penstock.sql.state_store`), and deferred keys (`deferred_keys.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg

from penstock.codec.server_pair import ServerPair
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    commit_durably,
    connect,
    quote,
    server_errors,
)
from penstock.engines.postgres.target.claims import end_copies
from penstock.engines.postgres.target.deferred_keys import deferred_keys
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.schema import (
    INDEX_MEMORY,
    add_foreign_keys,
    add_keys,
    create_tables,
)
from penstock.engines.postgres.target.shaped import postgres_definition, referable
from penstock.engines.postgres.target.target import TargetTable, read_own_rows, read_target_tables
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.bulk import (
    BulkTarget,
    Found,
    Mark,
    TablePlan,
    TargetFires,
    chunks_missing,
)
from penstock.ports.deferred_keys import DeferredKey
from penstock.ports.target import TargetDdlFailed, target_name
from penstock.sql.schema_translation import tables_by_name

# Types whose binary form is the same in every version and says everything; others go as text.
# Not interval: what is the largest one up to 16 means infinity from 17 on.
BINARY_TYPES = frozenset(
    {
        "boolean", "smallint", "integer", "bigint", "oid", "real", "double precision", "numeric",
        "text", "character varying", "character", "bytea", "bit", "bit varying", "uuid",
        "date", "time without time zone", "time with time zone",
        "timestamp without time zone", "timestamp with time zone",
        "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8",
        "point", "line", "lseg", "box", "path", "polygon", "circle",
        "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange",
    }
)  # fmt: skip


# Foreign keys of other tables to these that act on a DELETE.
CASCADES = """
    select conrelid::regclass::text, confrelid::regclass::text, conname
      from pg_constraint
     where contype = 'f'
       and confrelid = any(%(names)s::text[]::regclass[])
       and conrelid <> all(%(names)s::text[]::regclass[])
       and confdeltype in ('c', 'n', 'd')
     order by 1, 3
     limit 1
"""


def may_be_replica(connection: psycopg.Connection) -> bool:
    """Return whether we may keep the target's triggers and foreign keys from acting on our rows."""
    try:
        with connection.transaction():
            connection.execute("set local session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def check_quiet(table: TargetTable) -> None:
    """Refuse a table whose triggers or foreign keys would react to rows in any order."""
    if not table.triggers and not table.parents and not table.self_reference:
        return
    what = "a foreign key" if table.parents or table.self_reference else "a trigger"
    raise TargetFires(
        f"target table {table.name} has {what}, and the role may not set session_replication_role",
        hint="On 15 and later, as superuser: grant set on parameter session_replication_role to "
        "ROLE; or drop foreign keys and disable triggers until the load is done.",
        table=str(table.name),
    )


def check_no_cascade(connection: psycopg.Connection, tables: Sequence[TableName]) -> None:
    """Refuse to empty tables when that would change or delete rows of others that refer to them."""
    names = [quote(*table) for table in tables]
    row = connection.execute(CASCADES, {"names": names}).fetchone()
    if row is None:
        return
    raise TargetFires(
        f"deleting the rows of target table {row[1]} would change rows of {row[0]} by its foreign "
        f"key {row[2]}, and the role may not set session_replication_role",
        hint="On 15 and later, as superuser: grant set on parameter session_replication_role to "
        "ROLE; or drop the foreign key until the rows are copied.",
        table=str(row[1]),
    )


def goes_binary(definition: TableDefinition) -> bool:
    """Return whether a table may be copied in COPY's binary format.

    The target has the same types: `create_tables` created or checked them. An array names its
    elements' type by oid, which for these types is the same everywhere.
    """
    types = (c.type_text.partition("(") for c in definition.columns if not c.generated)
    bare = (head + rest.partition(")")[2] for head, _, rest in types)
    return all(text.removesuffix("[]") in BINARY_TYPES for text in bare)


APPLICATION_NAME = "penstock bulk keys"
ROUGH_STATISTICS = 10  # buckets and most common values per column; PostgreSQL's default is 100

# Whether autovacuum will analyze a table that got many rows: within autovacuum_naptime, a minute.
AUTOVACUUM_COMES = """
    select current_setting('autovacuum')::bool
           and current_setting('track_counts')::bool
           and coalesce((select o.option_value::bool
                           from pg_options_to_table(c.reloptions) as o
                          where o.option_name = 'autovacuum_enabled'), true)
      from pg_class as c
     where c.oid = to_regclass(%(name)s)
"""


def add_all_keys(
    target_url: str,
    definitions: Sequence[TableDefinition],
    namespaces: Mapping[str, str],
    *,
    threads: int,
    stop: Callable[[], bool],
) -> None:
    """Create keys and indexes of the tables that penstock created, and statistics of all tables.

    Works on several tables at once, the largest first. Begins none after stop() has returned true.
    Raises the errors of `postgres.schema.add_keys`.
    """
    settings = {**EXACT_TEXT_SETTINGS, "maintenance_work_mem": INDEX_MEMORY}

    def finish(definition: TableDefinition, made: set[TableName]) -> None:
        if stop():
            return
        target = target_name(definition.name, namespaces)
        with connect(target_url, application_name=APPLICATION_NAME, options=settings) as connection:
            commit_durably(connection)  # the load counts as finished after it
            if target in made:
                add_keys(connection, definition, namespaces)
            with server_errors(f"analyzing {target}"):
                analyze(connection, definition, target)

    with connect(target_url, application_name=APPLICATION_NAME) as connection:
        made = PostgresProgress(connection).made_tables()
    ordered = sorted(definitions, key=lambda d: -d.size_bytes)
    with ThreadPoolExecutor(threads) as executor:
        for done in [executor.submit(finish, definition, made) for definition in ordered]:
            done.result()


def analyze(connection: psycopg.Connection, definition: TableDefinition, table: TableName) -> None:
    """Create the planner's statistics of a table that was filled just now.

    Only for the columns that it has: the source may have more by now. They are rough if autovacuum
    soon creates better ones: it still counts the rows as changed, because an ANALYZE that names
    columns does not reset that count.
    """
    row = connection.execute(AUTOVACUUM_COMES, {"name": quote(*table)}).fetchone()
    there = read_target_tables(connection, [table]).get(table)
    columns = ", ".join(
        quote(c.name)
        for c in definition.columns
        if not c.generated and there is not None and there.column(c.name) is not None
    )
    if row is None or not row[0] or not columns:
        connection.execute(f"analyze {quote(*table)}")
        return
    connection.execute(f"set default_statistics_target = {ROUGH_STATISTICS}")
    connection.execute(f"analyze {quote(*table)} ({columns})")


def make_foreign_keys(
    connection: psycopg.Connection,
    definitions: Sequence[TableDefinition],
    namespaces: Mapping[str, str],
) -> list[str]:
    """Create the foreign keys of the tables that penstock created; return notes like
    `add_foreign_keys`.
    """
    made = PostgresProgress(connection).made_tables()
    ours = [d for d in definitions if target_name(d.name, namespaces) in made]
    return add_foreign_keys(connection, ours, namespaces)


def is_empty(connection: psycopg.Connection, target: TableName) -> bool:
    """Return whether a target table has no row."""
    row = connection.execute(
        f"select exists (select from {read_own_rows(connection, target)})"
    ).fetchone()
    return row is not None and not row[0]


def begin_afresh(connection: psycopg.Connection, plans: Iterable[TablePlan]) -> None:
    """Empty the target tables of these plans and put them under their new plans, all at once.

    Sessions that still write chunks of their older plans are ended. Emptying is by TRUNCATE, or by
    DELETE where a foreign key of another table forbids that.
    """
    plans = sorted(plans, key=lambda plan: plan.source)  # one order of locks
    if not plans:
        return
    progress = PostgresProgress(connection)
    with connection.transaction():
        commit_durably(connection, once=True)
        for plan in plans:
            end_copies(connection, plan.given_up, plan.source)
            progress.begin_mark(plan.source, plan.name, plan.position)
        for plan in plans:
            progress.forget_chunks(plan.source)
        filled = [plan.target for plan in plans if not is_empty(connection, plan.target)]
        if filled:
            _empty(connection, filled)


def _empty(connection: psycopg.Connection, tables: list[TableName]) -> None:
    own = {table: read_own_rows(connection, table) for table in tables}
    try:
        with connection.transaction():
            connection.execute(f"truncate {', '.join(own.values())}")
    except psycopg.errors.FeatureNotSupported:
        # Of tables that foreign keys refer to; no cascade may take the rows that refer with it.
        try:
            with connection.transaction():
                connection.execute("set local session_replication_role = replica")
        except psycopg.errors.InsufficientPrivilege:
            check_no_cascade(connection, tables)
        for table in tables:
            connection.execute(f"delete from {own[table]}")


def finish_table(connection: psycopg.Connection, plan: TablePlan) -> int:
    """Record that all rows of a table are in the target; return their number.

    This commit is synchronous and follows the asynchronous commits of all chunks, so once it is
    durable, they all are. Sessions that still copy a chunk are ended, because they would hold the
    mark. Raises ChunksMissing if the target does not have every chunk.
    """
    progress = PostgresProgress(connection)
    with connection.transaction():
        commit_durably(connection, once=True)
        done = progress.finished_chunks(plan.source)
        missing = [chunk.number for chunk in plan.chunks if chunk.number not in done]
        rows = sum(done.values())
        if not missing:
            end_copies(connection, [plan.name], plan.source)
        is_marked = progress.finish_mark(plan.source, plan.name, rows)
        if missing or not is_marked:
            raise chunks_missing(plan, missing, is_marked=is_marked)
    return rows


class PostgresBulk(BulkTarget):
    """The driver's connection; see `BulkTarget`."""

    def __init__(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        application_name: str,
        servers: ServerPair | None,
    ) -> None:
        self._url = url
        self._namespaces = namespaces
        self._servers = servers
        self._connection = connect(
            url, application_name=application_name, options=EXACT_TEXT_SETTINGS
        )
        self._progress = PostgresProgress(self._connection)
        with server_errors("preparing a session"):
            commit_durably(self._connection)

    def _as_postgres(self, definitions: Sequence[TableDefinition]) -> list[TableDefinition]:
        """Return the tables in PostgreSQL's form."""
        servers = self._servers
        if servers is None:
            return list(definitions)
        return [postgres_definition(one, servers, self._namespaces) for one in definitions]

    def read_action(self) -> str:
        return self._progress.read_action()

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        return self._progress.read_done()

    def under_way(self) -> Mapping[TableName, int]:
        return self._progress.under_way()

    def look(self, targets: Collection[TableName]) -> Found:
        connection = self._connection
        with server_errors("looking at the target tables"):
            present = read_target_tables(connection, targets)
            empty = {table: is_empty(connection, table) for table in present}
            is_replica = may_be_replica(connection)
        refusals: dict[TableName, PenstockError] = {}
        for name, table in present.items():
            try:
                if not is_replica:
                    check_quiet(table)
            except TargetFires as error:
                refusals[name] = error
        truncates = {name: f"truncate {table.own_rows}" for name, table in present.items()}
        return Found(empty=empty, marks=self.marks(), truncates=truncates, refusals=refusals)

    def is_replica(self) -> bool:
        with server_errors("reading the session's privileges at the target"):
            return may_be_replica(self._connection)

    def create(self, definitions: Sequence[TableDefinition]) -> list[str]:
        """Create missing tables. Raises the errors of `create_tables`."""
        shaped = self._as_postgres(definitions)
        notes = create_tables(self._connection, shaped, self._namespaces).notes
        self._progress.ensure_marks()
        return notes

    def marks(self) -> dict[TableName, Mark]:
        return self._progress.read_marks()

    def takes_binary(self, definition: TableDefinition) -> bool:
        return self._servers is None and goes_binary(definition)

    def begin_afresh(self, plans: Iterable[TablePlan]) -> None:
        with server_errors("emptying the target tables"):
            begin_afresh(self._connection, plans)

    def finish_table(self, plan: TablePlan) -> int:
        with server_errors(f"finishing {plan.target}"):
            return finish_table(self._connection, plan)

    def drop_if_made(self, target: TableName) -> None:
        with server_errors(f"dropping {target}"):
            if target in self._progress.made_tables():
                self._connection.execute(f"drop table {quote(*target)}")

    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        shaped = self._as_postgres(definitions)
        add_all_keys(self._url, shaped, self._namespaces, threads=threads, stop=stop)

    def deferred_keys(self, definition: TableDefinition) -> tuple[DeferredKey, ...]:
        if target_name(definition.name, self._namespaces) not in self._progress.made_tables():
            return ()
        (shaped,) = self._as_postgres([definition])
        return deferred_keys(shaped, self._namespaces)

    def add_foreign_keys(self, definitions: Sequence[TableDefinition]) -> list[str]:
        if self._servers is None:
            return make_foreign_keys(self._connection, definitions, self._namespaces)
        notes: list[str] = []
        known = tables_by_name(definitions)
        for definition in self._as_postgres(definitions):
            for key in definition.foreign_keys:
                notes += self._foreign_key(replace(definition, foreign_keys=(key,)), known)
        return notes

    def _foreign_key(
        self, definition: TableDefinition, known: Mapping[TableName, TableDefinition]
    ) -> list[str]:
        """Create a foreign key of another engine, whose rules are laxer. Returns a note if it
        cannot be created.
        """
        (key,) = definition.foreign_keys
        reason = referable(key, known)
        if not reason:
            try:
                made = make_foreign_keys
                return made(self._connection, [definition], self._namespaces)
            except TargetDdlFailed as error:
                reason = error.message
        return [f"{definition.name} has no foreign key {key.name} in the target: {reason}"]

    def close(self) -> None:
        self._connection.close()
