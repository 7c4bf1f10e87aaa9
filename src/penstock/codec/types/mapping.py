"""Mapping of a column to the target: the result of a rule, and of the user's choices.

Not here: the rules (`to_postgres`, `to_mysql`, `among_mysql`).
"""

from __future__ import annotations

from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass, field, replace

from penstock.codec.types.forms import VALUE, Form, fill_template
from penstock.codec.types.losses import ERROR, LOSSES, NULL, TEXT, Choices, Loss
from penstock.codec.types.source_type import Engine, SourceType

AS_IS = "as is"
AS_TEXT = "as text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Conversion of a value for the target's column.

    Attributes:
        sql: template over the staged value, used where it is written to the column. On PostgreSQL
            the staged value has its neutral type (text for `string`, `uint32` and `uint64`). On
            MySQL and MariaDB it is text in utf8mb4, or bytes for `binary`: `1` and `0` for bool,
            times as `2024-02-29 12:34:56.789` (UTC, without an offset, for timestamptz), others as
            usual.
        prepare: change that our own process makes to the text before it is sent, or empty: see
            `prepare_values`.
        needs_text: on MySQL and MariaDB the value must be staged as text, because its staging type
            does not hold all of the source's values either.
    """

    name: str = AS_IS
    sql: str = VALUE
    prepare: str = ""
    needs_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """Texts to compare. name: kind of the text. source, target: templates."""

    name: str
    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """Mapping of one column to the target.

    Attributes:
        target_type: as in CREATE TABLE, with character set and collation; empty if refused.
        losses: values that may not arrive, whatever was chosen.
        chosen: loss to choice.
        missing: losses without a choice: a pipeline with one does not start.
        refused: reason why no mapping is possible.
        note: for the reader of a plan.
    """

    source_type: str
    target_type: str = ""
    losses: tuple[Loss, ...] = ()
    chosen: AbstractMapping[str, str] = field(default_factory=dict)
    refused: str = ""
    note: str = ""
    write: Write = field(default_factory=Write)
    equal: Equality = field(default_factory=lambda: Equality(name="", source="", target=""))

    @property
    def exact(self) -> bool:
        """Return whether every value of the source's type arrives unchanged."""
        return not self.losses and not self.refused

    @property
    def missing(self) -> tuple[Loss, ...]:
        """Losses without a choice."""
        return tuple(loss for loss in self.losses if loss.name not in self.chosen)

    @property
    def may_be_null(self) -> bool:
        """Return whether a value that is not NULL in the source may be NULL in the target."""
        return NULL in self.chosen.values()

    @property
    def may_run(self) -> bool:
        """Return whether a pipeline with this column may start."""
        return not self.refused and not self.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Values that a rule cannot hold.

    Attributes:
        waiting: condition over the staged value; empty if such a value is never staged, or if the
            target refuses it anyway.
        stored: condition over the source's column.
        refusal: text that the target's type refuses, to stop with.
        instead: choice to (write, source's form).
        prepare: choice to the change that our process makes.
    """

    loss: str
    waiting: str = ""
    stored: str = ""
    refusal: str = ""
    instead: AbstractMapping[str, tuple[str, str]] = field(default_factory=dict)
    prepare: AbstractMapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Result of a rule for a type. `cast` follows the whole expression. `text` is the mapping as
    text.
    """

    target_type: str
    source_form: Form
    target_form: Form
    write: Write = field(default_factory=Write)
    cast: str = ""
    cases: tuple[Case, ...] = ()
    note: str = ""
    text: Held | None = None


def refuse(kind: SourceType, reason: str) -> Mapping:
    """Return the mapping of a type that the target cannot hold."""
    return Mapping(source_type=kind.text, refused=reason)


def resolve(
    held: Held, kind: SourceType, target: Engine, choices: Choices, column: str = ""
) -> Mapping:
    """Return a rule's mapping with the user's choices. column: `schema.table.column`, or empty."""
    losses = tuple(_offer(LOSSES[case.loss], held) for case in held.cases)
    chosen = {
        loss.name: choice
        for loss in losses
        if (choice := choices.get(loss.name, kind, column)) in loss.choices
    }
    shown = held.text if TEXT in chosen.values() and held.text is not None else held
    if shown is not held:
        inner = resolve(shown, kind, target, choices, column)
        extra = tuple(loss for loss in losses if chosen.get(loss.name) == TEXT)
        return Mapping(
            source_type=kind.text,
            target_type=inner.target_type,
            losses=inner.losses,
            chosen={**{loss.name: TEXT for loss in extra}, **inner.chosen},
            note=shown.note or "kept as text",
            write=inner.write,
            equal=inner.equal,
        )
    write, source = _expressions(held, kind, chosen)
    return Mapping(
        source_type=kind.text,
        target_type=held.target_type,
        losses=losses,
        chosen=chosen,
        note=held.note,
        write=write,
        equal=Equality(
            name=held.target_form.kind.value, source=source, target=held.target_form.sql(target)
        ),
    )


def _offer(loss: Loss, held: Held) -> Loss:
    """Return a loss with this type's choices: only some types can be held as text."""
    if held.text is not None:
        return loss
    return replace(loss, choices={k: v for k, v in loss.choices.items() if k != TEXT})


def _expressions(
    held: Held, kind: SourceType, chosen: AbstractMapping[str, str]
) -> tuple[Write, str]:
    """Return the conversion of values, and the source's text of them, with the choices."""
    sql, source = held.write.sql, held.source_form.sql(kind.engine)
    prepare = held.write.prepare
    for case in held.cases:
        choice = chosen.get(case.loss, ERROR)
        prepare = case.prepare.get(choice, prepare)
        if choice in case.instead:
            instead = case.instead[choice]
            sql = _guard(case.waiting, instead[0], sql)
            source = _guard(case.stored, instead[1], source)
        elif choice == NULL:
            sql, source = _guard(case.waiting, "null", sql), _guard(case.stored, "null", source)
        elif case.refusal:
            sql = _guard(case.waiting, f"'{case.refusal}'", sql)
    if held.cast:
        sql = f"({sql}){held.cast}"
    needs_text = any(case.waiting for case in held.cases)
    return replace(held.write, sql=sql, prepare=prepare, needs_text=needs_text), source


def _guard(condition: str, then: str, otherwise: str) -> str:
    if not condition:
        return otherwise
    return f"case when {condition} then {then} else {otherwise} end"


__all__ = [
    "AS_IS",
    "AS_TEXT",
    "Case",
    "Equality",
    "Held",
    "Mapping",
    "Write",
    "fill_template",
    "refuse",
    "resolve",
]
