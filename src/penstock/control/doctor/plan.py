"""The plan of a pipeline: how each column is written to the target, said before anything runs.

Asks both servers and changes nothing. A run between engines refuses to start if the plan has
a refused column, or a possible loss without a choice. Not here: the table
of types (`codec.types`), the printing of a plan (`plan_text.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.codec.types import (
    Choices,
    Loss,
    Mapping,
    NameRules,
    Server,
    map_table,
    parse_choices,
    problems,
)
from penstock.control.pipeline.config import need_target
from penstock.control.pipeline.servers import followed_names, pipeline_of
from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.registry import engine_at, same_types
from penstock.ports.tables import planned_at
from penstock.sql.schema_translation import extras_of


class PlanRefused(PenstockError):
    """The plan has a refused column, or a possible loss without a choice."""

    code = "CT72"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """Column. target: its name there. is_generated: the source computes it."""

    name: str
    target: str
    mapping: Mapping
    is_generated: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the column as `penstock plan --json` prints it."""
        mapping = self.mapping
        return {
            "column": self.name,
            "target": self.target,
            "source_type": mapping.source_type,
            "target_type": mapping.target_type,
            "exact": mapping.exact,
            "losses": [loss.name for loss in mapping.losses],
            "chosen": dict(mapping.chosen),
            "missing": {loss.name: dict(loss.choices) for loss in mapping.missing},
            "refused": mapping.refused,
            "note": mapping.note,
            "generated": self.is_generated,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """Table. target: its name there. lacking: parts that the target will not have."""

    source: TableName
    target: TableName
    columns: tuple[ColumnPlan, ...]
    lacking: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """True if every column has the source's type, unchanged."""
        return all(
            found.exact
            and not found.note
            and found.target_type.partition(" character set ")[0] == found.source_type
            for found in (column.mapping for column in self.columns)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the table as `penstock plan --json` prints it."""
        return {
            "table": str(self.source),
            "target": str(self.target),
            "same_types": self.is_same,
            "columns": [column.as_dict() for column in self.columns],
            "not_carried": list(self.lacking),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Tables of a pipeline, and reasons why it cannot start.

    Attributes:
        problems: About names, and entries of [target.types] that fit nothing.
        left_out: Tables that match a pattern and are not captured, each with its reason.
    """

    source: Server
    target: Server
    tables: tuple[PlannedTable, ...]
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def missing(self) -> dict[str, Loss]:
        """Losses that need a choice, by name."""
        return {loss.name: loss for _, column in self.each() for loss in column.mapping.missing}

    @property
    def refusals(self) -> list[str]:
        """Columns that have no form in the target, one sentence each."""
        return [
            f"{table.source}.{column.name} {column.mapping.source_type}: {column.mapping.refused}"
            for table, column in self.each()
            if column.mapping.refused
        ]

    @property
    def may_run(self) -> bool:
        """True if the pipeline may start."""
        return not self.problems and not self.missing and not self.refusals

    def each(self) -> Iterator[tuple[PlannedTable, ColumnPlan]]:
        """Yield all columns with their tables."""
        for table in self.tables:
            for column in table.columns:
                yield table, column

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as `penstock plan --json` prints it."""
        return {
            "ok": self.may_run,
            "source": str(self.source),
            "target": str(self.target),
            "tables": [table.as_dict() for table in self.tables],
            "missing": {loss.name: dict(loss.choices) for loss in self.missing.values()},
            "refused": self.refusals,
            "problems": list(self.problems),
            "left_out": list(self.left_out),
        }

    def require(self) -> None:
        """Raise PlanRefused, naming the first reason why the pipeline cannot start."""
        for reason in (*self.problems, *self.refusals):
            raise PlanRefused(
                f"this pipeline cannot run: {reason}",
                hint="Run `penstock plan`, which shows every column; leave the table out of "
                "[source] tables, or fix what it names.",
            )
        for table, column in self.each():
            for loss in column.mapping.missing:
                first = next(iter(loss.choices))
                raise PlanRefused(
                    f"{table.source}.{column.name} {column.mapping.source_type} may lose something "
                    f"in the target, and no choice is made about it: {loss.name}",
                    hint=f'Write "{loss.name}" = "{first}" below [target.types] (or '
                    f"{', '.join(list(loss.choices)[1:]) or 'nothing else'}); `penstock plan` "
                    "shows all of them.",
                    loss=loss.name,
                    table=str(table.source),
                    column=column.name,
                )


def check(config: Config, *, whole: bool = True) -> Plan | None:
    """Refuse a pipeline between engines with a possible loss without a choice.

    whole: False if the configuration is narrowed to some of its tables. Returns None between
    servers where every type is the same, without asking them. Raises PlanRefused, and the errors of
    `make_plan`.
    """
    if not is_planned(config):
        return None
    plan = make_plan(config, whole=whole)
    plan.require()
    return plan


def make_plan(config: Config, *, whole: bool = True) -> Plan:
    """Ask both servers and return how each captured column is written.

    whole: see `check`.
    Raises TargetMissing, the errors of connecting, of the catalogue readers and of [target.types].
    """
    need_target(
        config,
        "a plan says how each column is written there",
        instead="See what is captured with `penstock doctor FILE`",
    )
    facts = planned_at(config.source.url).read_source(config, dropped=followed_names(config))
    source, definitions = facts.server, facts.tables
    target, folding = planned_at(config.target.url).read_target(config)
    choices = parse_choices(config.target.types, source.engine)
    rules = NameRules.of(target, lower_case_table_names=folding, choices=choices)
    if source.engine is target.engine:
        rules = NameRules.of(target, lower_case_table_names=folding)
    found = [*facts.problems, *problems(definitions, config.target.map, rules)]
    if whole:
        found += _unfit_choices(choices, definitions)
    if config.pipeline.mode.has_data and source.engine is target.engine:
        planned = pipeline_of(config).bulk().planned
        found += planned_at(config.source.url).problems_between(
            config, definitions, planned=planned
        )
    is_same = config.source.engine is engine_at(config.target.url)
    tables = [
        replace(
            _table(definition, mappings, config, rules),
            lacking=()
            if is_same
            else tuple(extras_of(definition, source, target, mappings).lacking),
        )
        for definition in definitions
        for mappings in [map_table(definition, source, target, choices=choices)]
    ]
    return Plan(
        source=source,
        target=target,
        tables=tuple(tables),
        problems=tuple(found),
        left_out=facts.left_out,
    )


def is_planned(config: Config) -> bool:
    """Return whether there is a choice: there is a target, and its types differ."""
    return config.has_target and not same_types(config.source.url, config.target.url)


def _table(
    definition: TableDefinition, mappings: dict[str, Mapping], config: Config, rules: NameRules
) -> PlannedTable:
    generated = {column.name: bool(column.generated) for column in definition.columns}
    return PlannedTable(
        source=definition.name,
        target=rules.table_shown(definition.name, config.target.map),
        columns=tuple(
            ColumnPlan(
                name=name,
                target=rules.show(name),
                mapping=mapping,
                is_generated=generated[name],
            )
            for name, mapping in mappings.items()
        ),
    )


def _unfit_choices(choices: Choices, definitions: Sequence[TableDefinition]) -> list[str]:
    columns = {f"{d.name}.{column.name}" for d in definitions for column in d.columns}
    return [
        f"[target.types] names {column}, which is not a column of a captured table"
        for column in sorted(set(choices.columns()) - columns)
    ]
