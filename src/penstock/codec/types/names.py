"""Names of schemas, tables and columns, from one engine to another.

Names that differ in the source and would be one name in the target are refused. A name that is too
long is refused or, by choice, cut. Reserved words need no care: names are always quoted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.codec.types.mapping import NO_CHOICES, SHORTEN, Choices
from penstock.codec.types.source_type import Engine, Server
from penstock.model import PenstockError, TableDefinition, TableName

POSTGRES_BYTES_MAX = 63
MYSQL_CHARACTERS_MAX = 64
ORACLE_BYTES_MAX = 128
ORACLE_BYTES_MAX_BEFORE_12_2 = 30
SQLSERVER_UNITS_MAX = 128  # pairs of bytes of UTF-16
LAKE_BYTES_MAX = 200  # folders have the names of tables
_DIGEST_CHARACTERS = 8
_LOSS = "long names"


class NameRefused(PenstockError):
    """A name of the source is not allowed in the target, or two names would be the same there."""

    code = "CT71"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRules:
    """Target's rules for names.

    Attributes:
        folds: names of tables and schemas that differ only in case are one there
            (lower_case_table_names is not 0; in SQL Server always, as by its usual collations).
        lowers: names are stored in lower case (it is 1).
        shorten: cut a name that is too long instead of refusing it.
        is_before_12_2: the target is an Oracle of a release with short names.
    """

    engine: Engine
    folds: bool = False
    lowers: bool = False
    shorten: bool = False
    is_before_12_2: bool = False

    @classmethod
    def of(
        cls, target: Server, *, lower_case_table_names: int = 0, choices: Choices = NO_CHOICES
    ) -> NameRules:
        """Return the rules of a server, with its variable of that name (MySQL and MariaDB)."""
        return cls(
            engine=target.engine,
            folds=target.engine is Engine.SQLSERVER
            or (target.engine.is_mysql and lower_case_table_names != 0),
            lowers=target.engine.is_mysql and lower_case_table_names == 1,
            shorten=choices.get(_LOSS) == SHORTEN,
            is_before_12_2=target.engine is Engine.ORACLE and () < target.version < (12, 2),
        )

    def fits(self, name: str) -> bool:
        """Return whether a name is short enough."""
        if self.engine.is_mysql:
            return len(name) <= MYSQL_CHARACTERS_MAX
        if self.engine is Engine.SQLSERVER:
            return len(name.encode("utf-16-le")) // 2 <= SQLSERVER_UNITS_MAX
        return len(name.encode()) <= self._bytes_max

    @property
    def _most(self) -> str:
        if self.engine.is_mysql:
            return f"{MYSQL_CHARACTERS_MAX} characters"
        if self.engine is Engine.SQLSERVER:
            return f"{SQLSERVER_UNITS_MAX} characters"
        return f"{self._bytes_max} bytes"

    @property
    def _bytes_max(self) -> int:
        if self.engine is Engine.ORACLE:
            return ORACLE_BYTES_MAX_BEFORE_12_2 if self.is_before_12_2 else ORACLE_BYTES_MAX
        return LAKE_BYTES_MAX if self.engine.is_lake else POSTGRES_BYTES_MAX

    def problem(self, name: str) -> str:
        """Return why a name is not allowed in the target; empty if it is allowed."""
        if not self.fits(name) and not self.shorten:
            return f"is longer than {self._most}, the most in {self.engine.label}"
        if self.engine.is_mysql and any(ord(character) > 0xFFFF for character in name):
            return f"has a character above U+FFFF, which {self.engine.label} does not allow"
        if self.engine is Engine.ORACLE and not {*name}.isdisjoint('"\0'):
            return f"has a double quote or U+0000, which {self.engine.label} does not allow"
        if self.engine.is_mysql and name.endswith(" "):
            return f"ends with a blank, which {self.engine.label} does not allow"
        return ""

    def column(self, name: str) -> str:
        """Return a column's name in the target. Raises NameRefused."""
        return self._name(name, f"column {name}")

    def table(self, name: TableName, namespaces: Mapping[str, str]) -> TableName:
        """Return a table's name in the target, with its schema mapped by [target.map]. Raises
        NameRefused.

        A schema of PostgreSQL becomes a database of MySQL or MariaDB, and vice versa.
        """
        schema = self._name(namespaces.get(name.schema, name.schema), f"schema {name.schema}")
        own = self._name(name.name, f"table {name}")
        return TableName(schema.lower(), own.lower()) if self.lowers else TableName(schema, own)

    def show(self, name: str) -> str:
        """Return a column's name for a plan, whether or not it is allowed."""
        return self._shorten(name) if self.shorten and not self.fits(name) else name

    def table_shown(self, name: TableName, namespaces: Mapping[str, str]) -> TableName:
        """Return a table's name as a plan shows it, whether or not it is allowed."""
        schema = self.show(namespaces.get(name.schema, name.schema))
        own = self.show(name.name)
        return TableName(schema.lower(), own.lower()) if self.lowers else TableName(schema, own)

    def _name(self, name: str, what: str) -> str:
        if problem := self.problem(name):
            raise NameRefused(
                f"{what} {problem}",
                hint='Rename it at the source, or write "long names" = "shorten" in '
                "[target.types].",
            )
        return name if self.fits(name) else self._shorten(name)

    def _shorten(self, name: str) -> str:
        """Return the name's beginning and a hash of the whole name, the same on every run."""
        digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_CHARACTERS // 2).hexdigest()
        kept = name
        while not self.fits(f"{kept}_{digest}"):
            kept = kept[:-1]
        return f"{kept}_{digest}"


def target_names(
    tables: Iterable[TableName], namespaces: Mapping[str, str], rules: NameRules
) -> dict[TableName, TableName]:
    """Return each table's name in the target. Raises NameRefused, with both names if they are
    equal.
    """
    result: dict[TableName, TableName] = {}
    taken: dict[tuple[str, str], TableName] = {}
    for name in tables:
        target = rules.table(name, namespaces)
        same = (target.schema.lower(), target.name.lower()) if rules.folds else tuple(target)
        if other := taken.get(same):  # type: ignore[arg-type]
            raise NameRefused(
                f"{other} and {name} would both be {target} in the target",
                hint="Give their schemas different names in [target.map], or leave one out of "
                "[source] tables.",
                table=str(name),
            )
        taken[same] = name  # type: ignore[index]
        result[name] = target
    return result


def target_columns(definition: TableDefinition, rules: NameRules) -> dict[str, str]:
    """Return a table's columns in the target. Raises NameRefused, with both names if they are
    equal.

    Names of columns are case-insensitive in MySQL and MariaDB, whatever the setting, for Spark, and
    in SQL Server by its usual collations.
    """
    result: dict[str, str] = {}
    taken: dict[str, str] = {}
    for column in definition.columns:
        target = rules.column(column.name)
        is_exact = rules.engine in (Engine.POSTGRESQL, Engine.ORACLE)
        same = target if is_exact else target.lower()
        if other := taken.get(same):
            raise NameRefused(
                f"columns {other} and {column.name} of {definition.name} would be one in "
                f"{rules.engine.label}",
                hint="Rename one of them at the source, or leave the table out of [source] tables.",
                table=str(definition.name),
            )
        taken[same] = column.name
        result[column.name] = target
    return result


def problems(
    definitions: Sequence[TableDefinition], namespaces: Mapping[str, str], rules: NameRules
) -> list[str]:
    """Return all problems with names of these tables in the target, one sentence each."""
    found: list[str] = []
    for definition in definitions:
        try:
            target_columns(definition, rules)
        except NameRefused as error:
            found.append(error.message)
    try:
        target_names([definition.name for definition in definitions], namespaces, rules)
    except NameRefused as error:
        found.append(error.message)
    return found
