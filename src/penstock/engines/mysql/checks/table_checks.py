"""Doctor's checks of the captured tables of a MySQL or MariaDB source."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.codec.mysql.types import parse_type
from penstock.engines.mysql.checks.probe import SOURCE_CHECKS, MySQLProbe, names
from penstock.engines.mysql.connect import quote
from penstock.engines.mysql.source.catalog import Exclusion
from penstock.engines.mysql.source.strategies import WITH_SNAPSHOTS
from penstock.model import Identity
from penstock.ports.checks import Finding, Severity

DATES = frozenset({"date", "datetime", "timestamp"})
FOLLOWING = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})
OLD_FORMATS = ("mariadb-5.3", "5.5 binary format")
HIDDEN_TYPES = frozenset({"uuid", "inet4", "inet6"})


@SOURCE_CHECKS.check("MY019", "keys", change_only=True)
def keys(probe: MySQLProbe) -> Iterator[Finding]:
    """Report tables without a key: their rows are identified by all of their columns."""
    for table in probe.tables:
        if table.identity is Identity.FULL:
            yield probe.make_finding(
                "MY019",
                Severity.WARNING,
                f"{table.name} has no primary key, and no unique key without NULLs",
                "an update or delete looks for a row that is equal in all columns, which is slow; "
                "duplicate rows cannot be distinguished",
                f"alter table {quote(*table.name)} add column id bigint unsigned auto_increment "
                "primary key;",
            )


@SOURCE_CHECKS.check("MY020", "storage engines")
def engines(probe: MySQLProbe) -> Iterator[Finding]:
    """Report storage engines that have no consistent snapshots."""
    for table in probe.tables:
        if table.engine.upper() not in WITH_SNAPSHOTS:
            yield probe.make_finding(
                "MY020",
                Severity.WARNING,
                f"{table.name} uses the storage engine {table.engine}",
                "it has no consistent snapshots, and a statement that fails half way keeps its "
                "first half",
                f"alter table {quote(*table.name)} engine = InnoDB;",
            )


@SOURCE_CHECKS.check("MY021", "cascading foreign keys", change_only=True)
def cascades(probe: MySQLProbe) -> Iterator[Finding]:
    """Report cascading foreign keys: their changes to referencing rows are not in the binlog."""
    if probe.server.mysql(9, 6) and not probe.is_on("innodb_native_foreign_keys"):
        return
    for table in probe.tables:
        for key in table.foreign_keys:
            rules = {
                f"on {what} {rule.lower()}"
                for what, rule in (("update", key.on_update), ("delete", key.on_delete))
                if rule in FOLLOWING
            }
            if rules:
                yield probe.make_finding(
                    "MY021",
                    Severity.ERROR,
                    f"the foreign key {key.name} of {table.name} to {key.target} says "
                    f"{' and '.join(sorted(rules))}",
                    "InnoDB changes the referencing rows without logging it: they would stay as "
                    "they are in the target",
                    f"alter table {quote(*table.name)} drop foreign key {quote(key.name)}, "
                    f"add constraint {quote(key.name)} foreign key "
                    f"({', '.join(map(quote, key.columns))}) references "
                    f"{quote(*key.target)} ({', '.join(map(quote, key.target_columns))});",
                )


@SOURCE_CHECKS.check("MY022", "old temporal formats", change_only=True)
def old_times(probe: MySQLProbe) -> Iterator[Finding]:
    """Report times in the format before MySQL 5.6, which are logged without their number of
    digits.
    """
    if probe.server.is_mariadb and not probe.is_on("mysql56_temporal_format"):
        yield probe.make_finding(
            "MY022",
            Severity.WARNING,
            "mysql56_temporal_format of the source is off",
            "times of new tables are logged without their number of digits",
            probe.setting("mysql56_temporal_format", "1"),
        )
    for table in probe.tables:
        old = [c.name for c in table.columns if any(form in c.base_type for form in OLD_FORMATS)]
        if old:
            yield probe.make_finding(
                "MY022",
                Severity.WARNING,
                f"{table.name} has times in an old format: {names(old)}",
                "the log does not say how many digits they have; the table's definition must",
                f"alter table {quote(*table.name)} force;",
            )


@SOURCE_CHECKS.check("MY023", "zero dates")
def zero_dates(probe: MySQLProbe) -> Iterator[Finding]:
    """Report dates like 0000-00-00, which other engines do not have. Reads the tables, so it runs
    only on request.
    """
    if not probe.wanted.search_zero_dates:
        return
    for table in probe.tables:
        for column in table.columns:
            parsed = parse_type(column.base_type or column.type_text)
            if parsed is None or parsed.base not in DATES:
                continue
            name = quote(column.name)
            zero = f"{name} = 0 or month({name}) = 0 or dayofmonth({name}) = 0"
            if probe.rows(f"select 1 as one from {quote(*table.name)} where {zero} limit 1"):
                yield probe.make_finding(
                    "MY023",
                    Severity.WARNING,
                    f"{table.name} has dates in {column.name} whose year, month or day is zero",
                    "a target of another engine has no such dates: the column becomes text there",
                    f"update {quote(*table.name)} set {name} = null where {zero};",
                )


@SOURCE_CHECKS.check("MY031", "versioned tables and sequences")
def versioned_tables(probe: MySQLProbe) -> Iterator[Finding]:
    """Report tables whose old rows MariaDB keeps, and sequences."""
    for table in probe.tables:
        if table.is_versioned:
            yield probe.make_finding(
                "MY031",
                Severity.WARNING,
                f"{table.name} is system-versioned",
                "its log holds the old rows, too, each as an insert of its own: a pipeline that "
                "follows changes does not start with it",
                f'leave it out: "!{table.name}" in [source] tables',
            )
    for left_out in probe.survey.excluded:
        if left_out.reason is Exclusion.SEQUENCE:
            yield probe.make_finding(
                "MY031",
                Severity.INFO,
                str(left_out),
                "it is left out; numbers in the target begin at the first one again",
            )


@SOURCE_CHECKS.check("MY032", "types that the binlog does not name", change_only=True)
def hidden_types(probe: MySQLProbe) -> Iterator[Finding]:
    """Report types that MariaDB logs as other types. Only the table's definition shows them."""
    if not probe.server.is_mariadb:
        return
    for table in probe.tables:
        hidden = [
            column.name
            for column in table.columns
            if column.type_text in HIDDEN_TYPES
            or (column.type_text == "json" and column.base_type != "json")
        ]
        if hidden:
            yield probe.make_finding(
                "MY032",
                Severity.INFO,
                f"{table.name} has columns whose type is not in the binlog: {names(hidden)}",
                "their types come from the table's definition, which has to be of the same time",
            )
