"""Parts of random histories: statements by name and weight, and a model of the tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.pipelines.ddl_types import ColumnType

NAMES = ("a", "b", "c1", "c2", "v", "x", "Foo", "order", "sp ace", 'q"uote', "ünï", "to", "a'p")
TABLE_NAMES = ("t", "Item", "or der", "r2", "täble", "group", "log'1", "n", "p 1", "k9", "w", "Z")
STEPS_MAX = 14
# How often a statement is drawn, by the name of its feature.
ROWS = {"insert": 6, "update": 4, "delete": 1, "update_all": 2}
ALTERS = {
    "add": 5,
    "add_default": 6,
    "add_not_null": 3,
    "add_computed": 1,
    "drop": 4,
    "rename": 4,
    "drop_add": 3,
    "retype": 3,
    "using": 2,
    "set_not_null": 2,
    "drop_not_null": 1,
    "set_default": 1,
    "unique": 1,
    "drop_unique": 1,
    "change_key": 1,
    "drop_key": 1,
    "modify_case": 1,
    "collation": 2,
    "labels": 1,
    "auto_increment": 2,
    "add_generated": 1,
    "identity": 1,
}
WHOLE = {
    "swap": 2,
    "rename_chain": 1,
    "convert": 1,
    "truncate": 2,
    "recreate": 1,
    "recreate_other": 1,
    "enum_value": 3,
    "enum_rename": 1,
    "replica_identity": 1,
    "temporary": 1,
    "comment": 1,
    "table_swap": 1,
    "rename_table": 1,
    "replace_table": 1,
}
OTHER = ("session", "keyless", "several_actions", "several_per_transaction", "odd_names", "pause")
OTHER += ("text_keys", "names_with_quotes")
FEATURES = (*ROWS, *ALTERS, *WHOLE, *OTHER)
NOT_IN_ORACLE = {"text_keys", "names_with_quotes"}
"""What its tables cannot have: the empty text in a key, and a quotation mark in a name."""
MY_ONLY = {"modify_case", "collation", "convert", "auto_increment", "table_swap", "temporary"}
MY_ONLY |= {"labels", "replace_table"}
PG_ONLY = {"using", "enum_value", "enum_rename", "replica_identity", "identity"}
MY_SESSIONS = (
    "set time_zone = '+05:00'",
    "set time_zone = '-08:30'",
    "set sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'",
    "set sql_mode = 'NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES'",
    "set sql_mode = ''",
    "set names latin1",
    "set names utf8mb4",
    "set sql_mode = default",
)
PG_SESSIONS = (
    "set timezone = 'Asia/Karachi'",
    "set timezone = 'America/Caracas'",
    "set datestyle = 'German'",
    "set intervalstyle = 'iso_8601'",
    "set bytea_output = 'escape'",
    "set extra_float_digits = 0",
    "reset all",
)


@dataclass(slots=True)
class Made:
    """A column of the model."""

    name: str
    type: ColumnType
    nullable: bool = True
    has_default: bool = False
    is_generated: bool = False


@dataclass(slots=True)
class Table:
    """A table of the model.

    Attributes:
        id: Name of the column whose values are unique.
    """

    name: str
    id: str
    columns: list[Made] = field(default_factory=list)
    key: tuple[str, ...] = ()
    uniques: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    counter: int = 0

    def column(self, name: str) -> Made:
        """Return the column of this name."""
        return next(one for one in self.columns if one.name == name)

    @property
    def settable_columns(self) -> list[Made]:
        """Columns that an update may set: not the one that identifies rows."""
        return [one for one in self.others if not one.is_generated]

    @property
    def others(self) -> list[Made]:
        """All columns except the one that identifies rows."""
        return [one for one in self.columns if one.name != self.id]
