"""Rows of the system catalogues: from the facts, from our tables, and from the present state.

Each function returns rows as dictionaries. A column that is left out does not exist in the
catalogue, and a query that names it is refused. Values are as `types.py` keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.model import Identity
from penstock.serve.catalog.answers import ServerState
from penstock.serve.catalog.facts import Facts, PgType, Row, make_type
from penstock.serve.catalog.model import (
    DATABASE_OID,
    OWNER_OID,
    CatalogTable,
    Model,
    cut_name,
)
from penstock.serve.catalog.publications import Publication
from penstock.serve.catalog.row_filter import shown_filter
from penstock.serve.catalog.types import Types, json_of
from penstock.serve.settings import CHANGE, YUGABYTE

# Tables that are always empty on a server of the log.
EMPTY = frozenset(
    [
        "pg_attrdef",
        "pg_depend",
        "pg_shdepend",
        "pg_inherits",
        "pg_trigger",
        "pg_policy",
        "pg_enum",
        "pg_description",
        "pg_shdescription",
        "pg_subscription",
        "pg_subscription_rel",
        "pg_foreign_table",
        "pg_foreign_server",
        "pg_foreign_data_wrapper",
        "pg_user_mapping",
        "pg_partitioned_table",
        "pg_event_trigger",
        "pg_sequence",
        "pg_statistic_ext",
        "pg_statistic_ext_data",
        "pg_extension",
        "pg_auth_members",
        "pg_db_role_setting",
        "pg_default_acl",
        "pg_seclabel",
        "pg_shseclabel",
        "pg_seclabels",
        "pg_largeobject_metadata",
        "pg_replication_origin",
        "pg_prepared_xacts",
        "pg_stat_wal_receiver",
        "pg_stat_subscription",
        "pg_transform",
        "pg_parameter_acl",
        "pg_matviews",
        "pg_policies",
        "pg_sequences",
        "pg_stat_progress_copy",
        "pg_prepared_statements",
        "pg_cursors",
    ]
)


HEAP_AM, BTREE_AM, DEFAULT_TABLESPACE = 2, 403, 1663
_SYSTEM_COLUMNS = (
    *(("ctid", 27, -1), ("xmin", 28, -2), ("cmin", 29, -3), ("xmax", 28, -4), ("cmax", 29, -5)),
    ("tableoid", 26, -6),
)


class Rows:
    """Makes the rows for one catalogue."""

    def __init__(
        self, facts: Facts, types: Types, model: Model, database: str, *, dialect: str = ""
    ) -> None:
        """Set the sources; `database` is the only database."""
        self._has_change = dialect == YUGABYTE
        self._facts, self._types, self._model = facts, types, model
        self._database = database

    # -- rows that never change ---------------------------------------------------------------

    def list_fixed(self) -> dict[str, list[Row]]:
        """Return by table the rows that are the same for every catalogue of this version."""
        facts = self._facts
        type_columns = [c.name for c in facts.relations["pg_catalog", "pg_type"].columns]
        return {
            "pg_type": [dict(zip(type_columns, row, strict=True)) for row in facts.rows["type"]],
            "pg_class": [self._system_class(oid) for oid in facts.relation_by_oid],
            "pg_attribute": [row for oid in facts.relation_by_oid for row in self._columns_of(oid)],
            "pg_namespace": [_namespace(name, oid) for name, oid in facts.namespaces.items()],
            "pg_am": _plain(facts, "am", "oid amname amhandler amtype"),
            "pg_language": _plain(facts, "language", "oid lanname lanispl lanpltrusted"),
            "pg_range": _plain(
                facts,
                "range",
                "rngtypid rngsubtype rngmultitypid rngcollation rngsubopc rngcanonical rngsubdiff",
            ),
            "pg_collation": [
                {**row, "collnamespace": self._types.system_schema, "collowner": OWNER_OID}
                for row in _plain(
                    facts,
                    "collation",
                    "oid collname collprovider collisdeterministic collencoding collcollate "
                    "collctype",
                )
            ],
            "pg_proc": [self._function(*row) for row in facts.rows["proc"]],
            "pg_tablespace": [
                {
                    "oid": oid,
                    "spcname": name,
                    "spcowner": OWNER_OID,
                    "spcacl": None,
                    "spcoptions": None,
                }
                for oid, name in ((DEFAULT_TABLESPACE, "pg_default"), (1664, "pg_global"))
            ],
            "pg_database": [self._database_row()],
            "pg_stat_ssl": [],
        } | {name: [] for name in EMPTY if ("pg_catalog", name) in facts.relations}

    def _function(
        self, oid: int, name: str, kind: str, returns_set: bool, result: int, arguments: str
    ) -> Row:
        numbers = [int(word) for word in arguments.split()]
        return {
            "oid": oid,
            "proname": name,
            "pronamespace": self._types.system_schema,
            "proowner": OWNER_OID,
            "prolang": 12,
            "prokind": kind,
            "proretset": int(returns_set),
            "prorettype": result,
            "pronargs": len(numbers),
            "proargtypes": json_of(numbers),
            "proacl": None,
        }

    def _system_class(self, oid: int) -> Row:
        relation = self._facts.relation_by_oid[oid]
        return _class_row(
            oid=oid,
            relname=relation.name,
            relnamespace=self._facts.namespaces[relation.schema],
            reltype=relation.row_type,
            relkind=relation.kind,
            relam=HEAP_AM if relation.kind == "r" else 0,
            relnatts=len(relation.columns),
            relhasindex=int(relation.kind == "r"),
            relisshared=int(relation.shared),
            relhasrules=int(relation.kind == "v"),
            relreplident="n",
        )

    def _columns_of(self, oid: int) -> Iterator[Row]:
        relation = self._facts.relation_by_oid[oid]
        for number, column in enumerate(relation.columns, 1):
            yield self._attribute(
                oid, number, column.name, column.type_oid, column.typmod, column.not_null
            )
        if relation.kind == "r":
            yield from self._system_columns(oid)

    def _system_columns(self, oid: int) -> Iterator[Row]:
        for name, type_oid, number in _SYSTEM_COLUMNS:
            yield self._attribute(oid, number, name, type_oid, -1, True)

    def _attribute(
        self, relation: int, number: int, name: str, type_oid: int, typmod: int, not_null: bool
    ) -> Row:
        size, by_value, align, storage, collation = self._storage(type_oid)
        is_array = bool(self._types.element_of(type_oid)) and size == -1
        return {
            "attrelid": relation,
            "attname": name,
            "atttypid": type_oid,
            "attstattarget": (-1 if number > 0 else 0) if self._facts.version < 17 else None,
            "attlen": size,
            "attnum": number,
            "attndims": int(is_array),
            "attcacheoff": -1,
            "atttypmod": typmod,
            "attbyval": by_value,
            "attalign": align,
            "attstorage": storage,
            "attcompression": "",
            "attnotnull": int(not_null),
            "atthasdef": 0,
            "atthasmissing": 0,
            "attidentity": "",
            "attgenerated": "",
            "attisdropped": 0,
            "attislocal": 1,
            "attinhcount": 0,
            "attcollation": collation,
            "attacl": None,
            "attoptions": None,
            "attfdwoptions": None,
            "attmissingval": None,
        }

    def _storage(self, type_oid: int) -> tuple[int, int, str, str, int]:
        """Return size, by value, alignment, storage and collation of a type's values."""
        found = self._storages.get(type_oid)
        return (-1, 0, "d", "x", 0) if found is None else found

    @property
    def _storages(self) -> dict[int, tuple[int, int, str, str, int]]:
        if not hasattr(self, "_kept_storages"):
            names = [c.name for c in self._facts.relations["pg_catalog", "pg_type"].columns]
            wanted = ("oid", "typlen", "typbyval", "typalign", "typstorage", "typcollation")
            places = [names.index(name) for name in wanted]
            self._kept_storages = {}
            for row in self._facts.rows["type"]:
                oid, size, by_value, align, storage, collation = (row[p] for p in places)
                self._kept_storages[oid] = (size, int(by_value), align, storage, collation)
        return self._kept_storages

    def _database_row(self) -> Row:
        return {
            "oid": DATABASE_OID,
            "datname": self._database,
            "datdba": OWNER_OID,
            "encoding": 6,
            "datlocprovider": "c",
            "datistemplate": 0,
            "datallowconn": 1,
            "dathasloginevt": 0,
            "datconnlimit": -1,
            "datfrozenxid": 0,
            "datminmxid": 0,
            "dattablespace": DEFAULT_TABLESPACE,
            "datcollate": "C",
            "datctype": "C",
            "daticulocale": None,
            "datlocale": None,
            "daticurules": None,
            "datcollversion": None,
            "datlastsysoid": DATABASE_OID,
            "datacl": None,
        }

    # -- rows of our tables -------------------------------------------------------------------

    def row_types(self) -> dict[int, PgType]:
        """Return the types of our tables' rows."""
        return {row["oid"]: make_type(row) for row in self._row_type_rows()}

    def of_model(self) -> dict[str, list[Row]]:
        """Return by table the rows for our tables, roles and publications."""
        model = self._model
        tables = model.tables.values()
        system = self._facts.namespaces
        return {
            "pg_namespace": [
                _namespace(name, oid) for name, oid in model.schemas.items() if name not in system
            ],
            "pg_class": [row for table in tables for row in self._classes(table)],
            "pg_attribute": [row for table in tables for row in self._attributes(table)],
            "pg_type": list(self._row_type_rows()),
            "pg_index": [self._index(table) for table in tables if table.key],
            "pg_constraint": [row for table in tables for row in self._constraints(table)],
            "pg_authid": [_role(oid, name) for oid, name in model.roles.items()],
        }

    def _classes(self, table: CatalogTable) -> Iterator[Row]:
        schema = self._model.schemas[table.schema]
        yield _class_row(
            oid=table.oid,
            relname=table.name,
            relnamespace=schema,
            reltype=table.row_type,
            relam=HEAP_AM,
            relkind="r",
            relnatts=len(table.columns),
            relhasindex=int(bool(table.key)),
            relreplident=CHANGE
            if self._has_change and table.identity is Identity.DEFAULT
            else table.identity.value,
        )
        if table.key:
            yield _class_row(
                oid=table.index_oid,
                relname=table.index_name,
                relnamespace=schema,
                relam=BTREE_AM,
                relkind="i",
                relnatts=len(table.key),
                relreplident="n",
            )

    def _attributes(self, table: CatalogTable) -> Iterator[Row]:
        for number, column in enumerate(table.columns, 1):
            yield self._attribute(
                table.oid, number, column.name, column.type_oid, column.typmod, column.not_null
            )
        yield from self._system_columns(table.oid)
        for number, place in enumerate(table.key, 1):
            column = table.columns[place]
            yield self._attribute(
                table.index_oid, number, column.name, column.type_oid, column.typmod, False
            )

    def _row_type_rows(self) -> Iterator[Row]:
        columns = [c.name for c in self._facts.relations["pg_catalog", "pg_type"].columns]
        by_oid = {row[0]: dict(zip(columns, row, strict=True)) for row in self._facts.rows["type"]}
        # The row type and the array type of pg_class are the model for those of our tables.
        base = self._facts.relations["pg_catalog", "pg_class"].row_type
        for table in self._model.tables.values():
            schema = self._model.schemas[table.schema]
            yield {
                **by_oid[base],
                "oid": table.row_type,
                "typname": table.name,
                "typnamespace": schema,
                "typrelid": table.oid,
                "typarray": table.array_type,
                "typowner": OWNER_OID,
            }
            yield {
                **by_oid[by_oid[base]["typarray"]],
                "oid": table.array_type,
                "typname": f"_{table.name}"[:63],
                "typnamespace": schema,
                "typelem": table.row_type,
                "typowner": OWNER_OID,
            }

    def _index(self, table: CatalogTable) -> Row:
        columns = [table.columns[place] for place in table.key]
        return {
            "indexrelid": table.index_oid,
            "indrelid": table.oid,
            "indnatts": len(columns),
            "indnkeyatts": len(columns),
            "indisunique": 1,
            "indnullsnotdistinct": 0,
            "indisprimary": int(table.primary),
            "indisexclusion": 0,
            "indimmediate": 1,
            "indisclustered": 0,
            "indisvalid": 1,
            "indcheckxmin": 0,
            "indisready": 1,
            "indislive": 1,
            "indisreplident": int(table.identity is Identity.INDEX),
            "indkey": json_of([place + 1 for place in table.key]),
            "indcollation": json_of([self._storage(c.type_oid)[4] for c in columns]),
            "indoption": json_of([0] * len(columns)),
            "indexprs": None,
            "indpred": None,
        }

    def _constraints(self, table: CatalogTable) -> Iterator[Row]:
        key = [place + 1 for place in table.key]
        if table.key and table.primary:
            yield self._constraint(table, table.constraint_oid, table.index_name, "p", key)
        if self._facts.version < 18:
            return
        for number, column in enumerate(table.columns, 1):
            if column.not_null:
                oid = self._model.oid("not null", table.schema, f"{table.name}.{column.name}")
                name = cut_name(table.name, column.name, "not_null")
                yield self._constraint(table, oid, name, "n", [number])

    def _constraint(
        self, table: CatalogTable, oid: int, name: str, kind: str, numbers: list[int]
    ) -> Row:
        return {
            "oid": oid,
            "conname": name,
            "connamespace": self._model.schemas[table.schema],
            "contype": kind,
            "condeferrable": 0,
            "condeferred": 0,
            "conenforced": 1,
            "convalidated": 1,
            "conrelid": table.oid,
            "contypid": 0,
            "conindid": table.index_oid if kind == "p" else 0,
            "conparentid": 0,
            "confrelid": 0,
            "confupdtype": " ",
            "confdeltype": " ",
            "confmatchtype": " ",
            "conislocal": 1,
            "coninhcount": 0,
            "connoinherit": int(kind == "p"),
            "conperiod": 0,
            "conkey": json_of(numbers),
            "confkey": None,
            "conpfeqop": None,
            "conppeqop": None,
            "conffeqop": None,
            "confdelsetcols": None,
            "conexclop": None,
            "conbin": None,
        }

    def publications(self, shown: Iterable[Publication]) -> dict[str, list[Row]]:
        """Return by table the rows of publications."""
        model = self._model
        whole, members, schemas = [], [], []
        owners = {name: oid for oid, name in model.roles.items()}
        for found in shown:
            actions = ("insert", "update", "delete", "truncate")
            whole.append(
                {
                    "oid": found.oid,
                    "pubname": found.name,
                    "pubowner": owners.get(found.owner, OWNER_OID),
                    "puballtables": int(found.all_tables),
                    **{f"pub{action}": int(action in found.actions) for action in actions},
                    "pubviaroot": int(found.via_root),
                    "pubgencols": "n",
                }
            )
            for table in () if found.all_tables else model.tables.values():
                published = found.table(table.schema, table.name)
                named = table.schema not in found.schemas or any(
                    (t.schema, t.name) == (table.schema, table.name) for t in found.tables
                )
                if published is not None and named:
                    members.append(
                        {
                            "oid": model.oid("member", found.name, f"{table.oid}"),
                            "prpubid": found.oid,
                            "prrelid": table.oid,
                            "prqual": shown_filter(self._types, table, published.row_filter),
                            "prattrs": column_numbers(table, published.columns),
                        }
                    )
            for schema in found.schemas:
                schemas.append(
                    {
                        "oid": model.oid("published schema", found.name, schema),
                        "pnpubid": found.oid,
                        "pnnspid": model.schemas.get(schema, 0),
                    }
                )
        return {
            "pg_publication": whole,
            "pg_publication_rel": members,
            "pg_publication_namespace": schemas,
        }

    # -- rows of the present state ------------------------------------------------------------

    def of_moment(self, state: ServerState) -> dict[str, Callable[[], Iterable[Row]]]:
        """Return by table the source of rows that each query reads again."""
        return {
            "pg_replication_slots": lambda: map(self._slot, state.slots()),
            "pg_stat_replication": lambda: map(self._sender, state.senders()),
            "pg_stat_activity": lambda: map(self._connection, state.connections()),
        }

    def _slot(self, slot: Any) -> Row:
        lost = slot.wal_status == "lost"
        return {
            "slot_name": slot.slot_name,
            "plugin": slot.plugin,
            "slot_type": "logical",
            "datoid": DATABASE_OID,
            "database": self._database,
            "temporary": int(slot.temporary),
            "active": int(slot.active_pid is not None),
            "active_pid": slot.active_pid,
            "xmin": None,
            "catalog_xmin": None,
            "restart_lsn": slot.restart_lsn,
            "confirmed_flush_lsn": slot.confirmed_flush_lsn,
            "wal_status": slot.wal_status,
            "safe_wal_size": slot.safe_wal_size,
            "two_phase": int(slot.two_phase),
            "two_phase_at": None,
            "inactive_since": slot.inactive_since,
            "conflicting": int(lost),
            "invalidation_reason": slot.invalidation_reason,
            "failover": int(slot.failover),
            "synced": 0,
            "yb_stream_id": slot.yb_stream_id,
            "yb_restart_commit_ht": slot.yb_restart_commit_ht,
            "yb_lsn_type": slot.yb_lsn_type,
        }

    def _user(self, name: str) -> int | None:
        return next((oid for oid, role in self._model.roles.items() if role == name), None)

    def _sender(self, sender: Any) -> Row:
        return {
            "pid": sender.pid,
            "usesysid": self._user(sender.usename),
            "usename": sender.usename,
            "application_name": sender.application_name,
            "client_addr": sender.client_addr,
            "client_hostname": None,
            "client_port": sender.client_port,
            "backend_start": sender.backend_start,
            "backend_xmin": None,
            "state": sender.state,
            "sent_lsn": sender.sent_lsn,
            "write_lsn": sender.write_lsn,
            "flush_lsn": sender.flush_lsn,
            "replay_lsn": sender.replay_lsn,
            "write_lag": None,
            "flush_lag": None,
            "replay_lag": None,
            "sync_priority": 0,
            "sync_state": "async",
            "reply_time": sender.reply_time,
        }

    def _connection(self, found: Any) -> Row:
        return {
            "datid": DATABASE_OID,
            "datname": self._database,
            "pid": found.pid,
            "leader_pid": None,
            "usesysid": self._user(found.usename),
            "usename": found.usename,
            "application_name": found.application_name,
            "client_addr": found.client_addr,
            "client_port": found.client_port,
            "backend_start": found.backend_start,
            "state": found.state,
            "client_hostname": None,
            "xact_start": None,
            "query_start": None,
            "state_change": None,
            "wait_event_type": None,
            "wait_event": None,
            "query_id": None,
            "backend_xid": None,
            "backend_xmin": None,
            "query": found.query,
            "backend_type": found.backend_type,
        }


def column_numbers(table: CatalogTable, names: Iterable[str] | None) -> str | None:
    """Return a column list as in prattrs."""
    if names is None:
        return None
    wanted = set(names)
    return json_of([n for n, column in enumerate(table.columns, 1) if column.name in wanted])


def _plain(facts: Facts, kind: str, names: str) -> list[Row]:
    return [dict(zip(names.split(), row, strict=True)) for row in facts.rows[kind]]


def _namespace(name: str, oid: int) -> Row:
    return {"oid": oid, "nspname": name, "nspowner": OWNER_OID, "nspacl": None}


def _class_row(**given: Any) -> Row:
    return {
        "reltype": 0,
        "reloftype": 0,
        "relowner": OWNER_OID,
        "relfilenode": 0,
        "reltablespace": 0,
        "relpages": 0,
        "reltuples": -1.0,
        "relallvisible": 0,
        "relallfrozen": 0,
        "reltoastrelid": 0,
        "relhasindex": 0,
        "relisshared": 0,
        "relpersistence": "p",
        "relchecks": 0,
        "relhasrules": 0,
        "relhastriggers": 0,
        "relhassubclass": 0,
        "relrowsecurity": 0,
        "relforcerowsecurity": 0,
        "relispopulated": 1,
        "relispartition": 0,
        "relrewrite": 0,
        "relfrozenxid": 0,
        "relminmxid": 0,
        "relacl": None,
        "reloptions": None,
        "relpartbound": None,
        **given,
    }


def _role(oid: int, name: str) -> Row:
    is_owner = int(oid == OWNER_OID)
    return {
        "oid": oid,
        "rolname": name,
        "rolsuper": is_owner,
        "rolinherit": 1,
        "rolcreaterole": is_owner,
        "rolcreatedb": is_owner,
        "rolcanlogin": 1 - is_owner,
        "rolreplication": 1,
        "rolbypassrls": is_owner,
        "rolconnlimit": -1,
        "rolpassword": None,
        "rolvaliduntil": None,
    }
