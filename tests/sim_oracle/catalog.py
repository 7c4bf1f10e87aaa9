"""Views of the dictionary: columns, constraints, log groups, objects, extents."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sim_oracle.catalog_constraints import CONSTRAINTS, tables_of
from sim_oracle.columns import FLOATS, LOBS, TEXTS, Column
from sim_oracle.tables import EXTENT_BLOCKS, FILE, FIRST_BLOCK
from sim_oracle.views import Context, Rows, View

BLOCK_SIZE = 8192
CREATED = datetime(2026, 1, 1)  # noqa: DTZ001 - DATE has no zone
_KINDS = {
    "ALL": "ALL COLUMN LOGGING",
    "PRIMARY KEY": "PRIMARY KEY LOGGING",
}


def type_text(column: Column) -> str:
    """Return DATA_TYPE: numbers in brackets are those of times and intervals only."""
    kind = column.kind
    if kind.startswith("TIMESTAMP"):
        return kind.replace("TIMESTAMP", f"TIMESTAMP({column.scale})", 1)
    if kind == "INTERVAL YEAR TO MONTH":
        return f"INTERVAL YEAR({column.precision}) TO MONTH"
    if kind == "INTERVAL DAY TO SECOND":
        return f"INTERVAL DAY({column.precision}) TO SECOND({column.scale})"
    return kind


def data_length(column: Column) -> int:
    """Return DATA_LENGTH in bytes."""
    kind = column.kind
    if kind in TEXTS:
        unit = 2 if kind in ("NCHAR", "NVARCHAR2") else 4 if column.is_in_chars else 1
        return min((column.length or 1) * unit, 32_767)
    if kind == "RAW":
        return column.length or 2000
    if kind in LOBS or kind in ("XMLTYPE", "JSON"):
        return 4000
    if kind in FLOATS:
        return 4 if kind == "BINARY_FLOAT" else 8
    return {"DATE": 7, "NUMBER": 22, "FLOAT": 22}.get(kind, 11)


def _columns(context: Context) -> Rows:
    for table in tables_of(context):
        version = table.version
        visible = 0
        for number, column in enumerate(version.columns, 1):
            is_hidden = column.is_hidden or column.is_invisible
            visible += not is_hidden
            in_chars = column.kind in TEXTS
            yield (
                version.owner,
                version.name,
                column.name,
                type_text(column),
                None,
                None,
                data_length(column),
                column.precision if column.precision is not None else None,
                None if column.kind == "FLOAT" else column.scale,
                "Y" if column.is_nullable else "N",
                None if is_hidden else visible,
                number,
                None if column.is_virtual else number,
                column.default,
                (column.length if in_chars else 0),
                ("C" if column.is_in_chars else "B") if in_chars else None,
                "YES" if is_hidden else "NO",
                "YES" if column.is_virtual else "NO",
                "YES",
                "NO" if column.identity is None else "YES",
                "NCHAR_CS" if column.kind in ("NCHAR", "NVARCHAR2", "NCLOB") else "CHAR_CS",
                "NO",
                "USING_NLS_COMP" if in_chars or column.is_lob else None,
            )


def _log_groups(context: Context) -> Rows:
    for table in tables_of(context):
        version = table.version
        kind = _KINDS.get(version.supplemental)
        if kind is not None:
            name = f"SYS_C{version.object_id:07d}"
            yield version.owner, name, version.name, kind, "ALWAYS", "GENERATED NAME"


def _objects(context: Context) -> Rows:
    for table in tables_of(context):
        version = table.version
        for name, segment in table.segments.items():
            kind = "TABLE" if name is None else "TABLE PARTITION"
            yield (
                version.owner, version.name, name, segment.object_id, segment.data_object_id,
                kind, CREATED, context.database.time_of(table.first_scn), "VALID",
                "Y" if table.is_temporary else "N", "N", "N",
            )  # fmt: skip
        if None not in table.segments:
            yield (
                version.owner, version.name, None, version.object_id, None, "TABLE", CREATED,
                context.database.time_of(table.first_scn), "VALID", "N", "N", "N",
            )  # fmt: skip


def _all_tables(context: Context) -> Rows:
    for table in tables_of(context):
        version = table.version
        yield (
            version.owner,
            version.name,
            None if table.is_temporary else "USERS",
            "YES" if table.is_logging else "NO",
            "Y" if table.is_temporary else "N",
            "YES" if None not in table.segments else "NO",
            "IOT" if table.is_index_organized else None,
            "NO",
            "NO",
            len(table.rows) if table.analyzed_rows is None else table.analyzed_rows,
            sum(segment.blocks for segment in table.segments.values()),
            "NO",
            "VALID",
        )


def _users(context: Context) -> Rows:
    names = {"SYS": "Y", "SYSTEM": "Y", context.user: "N"}
    names |= dict.fromkeys(context.database.users - {"SYS", "SYSTEM"}, "N")
    for number, (name, maintained) in enumerate(sorted(names.items()), 1):
        yield name, number, CREATED, maintained


def _tablespaces(context: Context) -> Rows:
    forced = context.database.settings.force_logging
    for name in ("SYSTEM", "USERS"):
        yield name, BLOCK_SIZE, "ONLINE", "PERMANENT", "LOGGING", forced, "NO"


def _extents(context: Context) -> Rows:
    for table in tables_of(context):
        if table.is_index_organized:
            continue
        for name, segment in table.segments.items():
            for number, first in enumerate(range(0, max(segment.blocks, 1), EXTENT_BLOCKS)):
                yield (
                    table.version.owner, table.version.name, name,
                    "TABLE" if name is None else "TABLE PARTITION", "USERS", number, FILE,
                    FIRST_BLOCK + first, EXTENT_BLOCKS * BLOCK_SIZE, EXTENT_BLOCKS, FILE,
                )  # fmt: skip


def _segments(context: Context) -> Rows:
    for table in tables_of(context):
        for name, segment in table.segments.items():
            blocks = max(-(-segment.blocks // EXTENT_BLOCKS), 1) * EXTENT_BLOCKS
            yield (
                table.version.owner, table.version.name, name,
                "TABLE" if name is None else "TABLE PARTITION", "USERS",
                blocks * BLOCK_SIZE, blocks, blocks // EXTENT_BLOCKS,
            )  # fmt: skip


def _identity_columns(context: Context) -> Rows:
    for table in tables_of(context):
        for column in table.version.columns:
            if column.identity is not None:
                kind = "ALWAYS" if column.identity == "ALWAYS" else "BY DEFAULT"
                name = f"ISEQ$$_{table.version.object_id}"
                yield table.version.owner, table.name, column.name, kind, name


def _lobs(context: Context) -> Rows:
    for table in tables_of(context):
        for column in table.version.columns:
            if column.is_lob:
                is_secure = table.lob_storage == "SECUREFILE"
                yield (
                    table.version.owner, table.name, column.name, "YES" if is_secure else "NO",
                    "YES" if table.lob_inline else "NO",
                )  # fmt: skip


def _part_tables(context: Context) -> Rows:
    for table in tables_of(context):
        if None not in table.segments:
            yield table.version.owner, table.name, "LIST", len(table.segments), "VALID"


def _part_keys(context: Context) -> Rows:
    for table in tables_of(context):
        if table.partition_by is not None:
            yield table.version.owner, table.name, "TABLE", table.partition_by, 1


def _session_grants(context: Context) -> Rows:
    for one in sorted(context.privileges):
        action, is_object, name = one.partition(" ON ")
        if is_object and "." in name:
            owner, _, table = name.partition(".")
            yield context.user, owner, table, action, "NO"


def _partitions(context: Context) -> Rows:
    for table in tables_of(context):
        named = [name for name in table.segments if name is not None]
        for place, name in enumerate(named, 1):
            yield table.version.owner, table.version.name, name, place, "USERS", "YES"


def _nothing(context: Context) -> list[tuple[Any, ...]]:
    return []


_COLUMN_NAMES = (
    "OWNER",
    "TABLE_NAME",
    "COLUMN_NAME",
    "DATA_TYPE",
    "DATA_TYPE_MOD",
    "DATA_TYPE_OWNER",
    "DATA_LENGTH",
    "DATA_PRECISION",
    "DATA_SCALE",
    "NULLABLE",
    "COLUMN_ID",
    "INTERNAL_COLUMN_ID",
    "SEGMENT_COLUMN_ID",
    "DATA_DEFAULT",
    "CHAR_LENGTH",
    "CHAR_USED",
    "HIDDEN_COLUMN",
    "VIRTUAL_COLUMN",
    "USER_GENERATED",
    "IDENTITY_COLUMN",
    "CHARACTER_SET_NAME",
    "DEFAULT_ON_NULL",
    "COLLATION",
)
_OBJECT_NAMES = (
    "OWNER",
    "OBJECT_NAME",
    "SUBOBJECT_NAME",
    "OBJECT_ID",
    "DATA_OBJECT_ID",
    "OBJECT_TYPE",
    "CREATED",
    "LAST_DDL_TIME",
    "STATUS",
    "TEMPORARY",
    "SECONDARY",
    "ORACLE_MAINTAINED",
)
_TABLE_NAMES = (
    "OWNER",
    "TABLE_NAME",
    "TABLESPACE_NAME",
    "LOGGING",
    "TEMPORARY",
    "PARTITIONED",
    "IOT_TYPE",
    "NESTED",
    "SECONDARY",
    "NUM_ROWS",
    "BLOCKS",
    "READ_ONLY",
    "STATUS",
)
_EXTENT_NAMES = (
    "OWNER",
    "SEGMENT_NAME",
    "PARTITION_NAME",
    "SEGMENT_TYPE",
    "TABLESPACE_NAME",
    "EXTENT_ID",
    "FILE_ID",
    "BLOCK_ID",
    "BYTES",
    "BLOCKS",
    "RELATIVE_FNO",
)
CATALOG: dict[str, View] = {
    **CONSTRAINTS,
    "ALL_TAB_COLS": (_COLUMN_NAMES, _columns),
    "ALL_TAB_COLUMNS": (
        _COLUMN_NAMES,
        lambda context: [row for row in _columns(context) if row[16] == "NO"],
    ),
    "ALL_LOG_GROUPS": (
        ("OWNER", "LOG_GROUP_NAME", "TABLE_NAME", "LOG_GROUP_TYPE", "ALWAYS", "GENERATED"),
        _log_groups,
    ),
    "ALL_OBJECTS": (_OBJECT_NAMES, _objects),
    "ALL_TABLES": (_TABLE_NAMES, _all_tables),
    "ALL_USERS": (("USERNAME", "USER_ID", "CREATED", "ORACLE_MAINTAINED"), _users),
    "ALL_TAB_PARTITIONS": (
        (
            "TABLE_OWNER",
            "TABLE_NAME",
            "PARTITION_NAME",
            "PARTITION_POSITION",
            "TABLESPACE_NAME",
            "LOGGING",
        ),
        _partitions,
    ),
    "ALL_MVIEWS": (("OWNER", "MVIEW_NAME"), _nothing),
    "DBA_TABLESPACES": (
        (
            "TABLESPACE_NAME",
            "BLOCK_SIZE",
            "STATUS",
            "CONTENTS",
            "LOGGING",
            "FORCE_LOGGING",
            "BIGFILE",
        ),
        _tablespaces,
    ),
    "DBA_EXTENTS": (_EXTENT_NAMES, _extents),
    "DBA_SEGMENTS": (
        (
            "OWNER",
            "SEGMENT_NAME",
            "PARTITION_NAME",
            "SEGMENT_TYPE",
            "TABLESPACE_NAME",
            "BYTES",
            "BLOCKS",
            "EXTENTS",
        ),
        _segments,
    ),
    "ALL_TAB_IDENTITY_COLS": (
        ("OWNER", "TABLE_NAME", "COLUMN_NAME", "GENERATION_TYPE", "SEQUENCE_NAME"),
        _identity_columns,
    ),
    "ALL_LOBS": (("OWNER", "TABLE_NAME", "COLUMN_NAME", "SECUREFILE", "IN_ROW"), _lobs),
    "ALL_PART_TABLES": (
        ("OWNER", "TABLE_NAME", "PARTITIONING_TYPE", "PARTITION_COUNT", "STATUS"),
        _part_tables,
    ),
    "ALL_PART_KEY_COLUMNS": (
        ("OWNER", "NAME", "OBJECT_TYPE", "COLUMN_NAME", "COLUMN_POSITION"),
        _part_keys,
    ),
    "ALL_TAB_PRIVS": (
        ("GRANTEE", "TABLE_SCHEMA", "TABLE_NAME", "PRIVILEGE", "GRANTABLE"),
        _session_grants,
    ),
    "ALL_MVIEW_LOGS": (("LOG_OWNER", "MASTER", "LOG_TABLE"), _nothing),
    "ALL_QUEUE_TABLES": (("OWNER", "QUEUE_TABLE"), _nothing),
    "ALL_EXTERNAL_TABLES": (("OWNER", "TABLE_NAME"), _nothing),
    "ALL_NESTED_TABLES": (("OWNER", "TABLE_NAME", "PARENT_TABLE_NAME"), _nothing),
    "ALL_OBJECT_TABLES": (("OWNER", "TABLE_NAME"), _nothing),
    "ALL_XML_TABLES": (("OWNER", "TABLE_NAME"), _nothing),
    "ALL_VIEWS": (("OWNER", "VIEW_NAME", "TEXT_VC"), _nothing),
    "ALL_SEQUENCES": (("SEQUENCE_OWNER", "SEQUENCE_NAME", "LAST_NUMBER"), _nothing),
}
# The views of an administrator have the same rows here: a session sees all tables of its PDB.
CATALOG |= {
    name.replace("ALL_", "DBA_", 1): view
    for name, view in list(CATALOG.items())
    if name.startswith("ALL_")
}
