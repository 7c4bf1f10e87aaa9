"""The plan of a pipeline: how each column is written to the target, said before anything runs.

Asks both servers and changes nothing. A run between engines refuses to start if the plan has
a refused column, or a possible loss without a choice. Not here: the table of types
(`codec.types`).
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
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.registry import engine_at, same_types
from penstock.ports.tables import plan_notes, plan_problems, planned_at
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
        """Return whether every column has the source's type, unchanged."""
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
        notes: Facts that readers of the target must know, one sentence each.
    """

    source: Server
    target: Server
    tables: tuple[PlannedTable, ...]
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

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
        """Return whether the pipeline may start."""
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
            "notes": list(self.notes),
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
    kinds = {
        table.source: {column.name: column.mapping.target_type for column in table.columns}
        for table in tables
    }
    found += plan_problems(config.target.url, kinds, whole=whole)
    return Plan(
        source=source,
        target=target,
        tables=tuple(tables),
        problems=tuple(found),
        left_out=facts.left_out,
        notes=tuple(plan_notes(config.target.url, _types_of(tables))),
    )


def _types_of(tables: Sequence[PlannedTable]) -> set[str]:
    return {column.mapping.target_type for table in tables for column in table.columns}


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


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield the lines that `penstock plan` prints: every table, then the missing choices."""
    yield f"{plan.source} to {plan.target}: {count_words(len(plan.tables), 'table')}"
    for table in plan.tables:
        yield ""
        yield from _table_lines(table)
    if plan.left_out:
        yield ""
        yield "left out:"
        yield from (f"  {one}" for one in plan.left_out)
    if plan.notes:
        yield ""
        yield "for readers of the target:"
        yield from (f"  {one}" for one in plan.notes)
    yield ""
    yield from _outcome(plan)


def _table_lines(table: PlannedTable) -> Iterator[str]:
    title = f"{table.source} to {table.target}"
    if table.is_same:
        yield f"{title}: same types"
        yield from _lacking(table)
        return
    yield title
    rows = [(column.name, *_types(column), _verdict(column)) for column in table.columns]
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    for row in rows:
        padded = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False))
        yield f"  {padded}  {row[3]}".rstrip()
    yield from _lacking(table)


def _lacking(table: PlannedTable) -> Iterator[str]:
    """Yield the parts of the table that the target's table will not have."""
    yield from (f"  not translated: {one}" for one in table.lacking)


def _types(column: ColumnPlan) -> tuple[str, str]:
    return column.mapping.source_type, column.mapping.target_type or "-"


def _verdict(column: ColumnPlan) -> str:
    """Return "exact", or the possible losses with their choices."""
    mapping = column.mapping
    if mapping.refused:
        return f"REFUSED: {mapping.refused}"
    parts = [
        f"{loss.name}: {mapping.chosen.get(loss.name, 'TO BE CHOSEN')}" for loss in mapping.losses
    ]
    parts += [f"{name}: {choice}" for name, choice in mapping.chosen.items() if mapping.exact]
    text = "; ".join(parts) or "exact"
    if column.is_generated:
        text += "; computed by the source"
    if column.target != column.name:
        text += f"; named {column.target}"
    return f"{text} ({mapping.note})" if mapping.note else text


def _outcome(plan: Plan) -> Iterator[str]:
    for problem in (*plan.problems, *plan.refusals):
        yield f"cannot run: {problem}"
    if plan.missing:
        yield "What may get lost has to be chosen first. Below [target.types], for all columns, or"
        yield 'for a type ("date zero dates") or a column ("shop.orders.day zero dates") alone:'
        yield ""
        yield "[target.types]"
        for loss in plan.missing.values():
            yield f"# {loss.what}"
            choices = list(loss.choices.items())
            yield f'"{loss.name}" = "{choices[0][0]}"'
            yield from (f"#   {name}: {meaning}" for name, meaning in choices)
    if plan.may_run:
        yield "nothing is lost that was not chosen: this pipeline may run"
