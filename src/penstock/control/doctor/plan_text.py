"""A plan as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.control.doctor.plan import ColumnPlan, Plan, PlannedTable
from penstock.model.words import count_words


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield the lines that `penstock plan` prints: every table, then the missing choices."""
    yield f"{plan.source} to {plan.target}: {count_words(len(plan.tables), 'table')}"
    for table in plan.tables:
        yield ""
        yield from _table(table)
    if plan.left_out:
        yield ""
        yield "left out:"
        yield from (f"  {one}" for one in plan.left_out)
    yield ""
    yield from _outcome(plan)


def _table(table: PlannedTable) -> Iterator[str]:
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
