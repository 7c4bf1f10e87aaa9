"""The table of dead letters in a target schema, which an operator creates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from penstock.model import PenstockError, Retry, TableDefinition
from penstock.ports.staging import Group, group_name

COLUMNS = ("dlq_name", "source_nanos", "source_logical", "data_after", "data_before")
DEFAULT_NAME = "replicator_dlq"


class DeadLetterTableUnfit(PenstockError):
    """The table of dead letters is missing, or some of its columns are."""

    code = "ST68"
    retry: ClassVar[Retry] = "operator"


def dead_letter_table(
    group: Group, tables: Mapping[str, TableDefinition], name: str
) -> TableDefinition:
    """Return the table. Raises DeadLetterTableUnfit, which names the missing parts."""
    full = f"{group_name(group)}.{name}"
    found = tables.get(name)
    if found is None:
        raise DeadLetterTableUnfit(
            f"dead-letter table {full} is missing",
            hint=f"Create it in the target: create table {name} (event char(36) primary key "
            "default (...), dlq_name varchar(255) not null, source_nanos bigint not null, "
            "source_logical bigint not null, data_after json not null, data_before json not null);",
            table=full,
        )
    there = {column.name for column in found.columns}
    missing = [column for column in COLUMNS if column not in there]
    if missing:
        raise DeadLetterTableUnfit(
            f"dead-letter table {full} lacks the columns {', '.join(missing)}",
            hint=f"Add them in the target: alter table {name} add column ...;",
            table=full,
        )
    return found
