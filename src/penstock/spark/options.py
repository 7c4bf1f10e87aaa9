"""Options of the data source `ckt`: names as users write them, in any case, and their values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from penstock.model import PenstockError
from penstock.model.sections import Start
from penstock.model.whole_number import parse_whole

_INTEGERS = ("gsnAfter", "gsnThrough")
_CHOICES: dict[str, tuple[str, ...]] = {
    "keyChanges": ("update", "split"),
    "start": tuple(one.value for one in Start if one is not Start.SNAPSHOT),
}


class OptionInvalid(PenstockError):
    """Error: the format `ckt` lacks this option, or it has a wrong value. Fields: option."""

    code = "SK01"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one data frame or stream.

    Attributes:
        path: A pipeline's directory, its file, or a directory of segments.
        table: The table, `schema.table`; None for all tables in one shape, with JSON rows.
        tables: Patterns of tables, separated by commas, if there is no `table`.
        gsnAfter: Number of the row change after which changes are read.
        gsnThrough: Number of the last row change.
        since: First commit time, as ISO text.
        until: Commit time before which changes are read.
        columns: Names of columns, separated by commas or as a JSON array; None for all.
        keyChanges: `split` for an update of the key as a delete and an insert, else `update`.
        consumer: Name of the stream as a consumer of the log.
        start: Where a new consumer begins: `now` or `beginning`.
    """

    path: str
    table: str | None = None
    tables: str | None = None
    gsnAfter: int | None = None  # noqa: N815 - options are spelt as in Spark
    gsnThrough: int | None = None  # noqa: N815
    since: str | None = None
    until: str | None = None
    columns: str | None = None
    keyChanges: str = "update"  # noqa: N815
    consumer: str | None = None
    start: str = Start.NOW.value

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Return the options that Spark passes. Raises OptionInvalid."""
        names = {field.name.lower(): field.name for field in fields(cls)}
        found: dict[str, Any] = {}
        for name, text in given.items():
            known = names.get(name.lower())
            if known is None:
                close = difflib.get_close_matches(name.lower(), names, n=1)
                shown = [names[one] for one in close] or list(names.values())
                raise OptionInvalid(
                    f"the format ckt has no option {name}",
                    hint=f"Write one of: {', '.join(shown)}.",
                    option=name,
                )
            found[known] = _value(known, text)
        if not found.get("path"):
            raise OptionInvalid(
                "the format ckt needs a path",
                hint='Name a pipeline\'s directory or its file: .load("shop").',
                option="path",
            )
        options = cls(**found)
        if options.columns is not None and options.table is None:
            raise OptionInvalid(
                "the option columns needs the option table",
                hint='Name one table: .option("table", "public.orders").',
                option="columns",
            )
        return options

    @property
    def splits(self) -> bool:
        """Return whether an update of the key is a delete and an insert."""
        return self.keyChanges == "split"

    @property
    def column_names(self) -> tuple[str, ...] | None:
        """Return the names of the columns; None for all."""
        return None if self.columns is None else _split(self.columns)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the patterns of tables; none for all."""
        if self.table is not None:
            return (self.table,)
        return _split(self.tables or "")


def _split(text: str) -> tuple[str, ...]:
    if text.startswith("["):  # names that have commas
        try:
            return msgspec.json.decode(text, type=tuple[str, ...])
        except msgspec.MsgspecError as error:
            raise OptionInvalid(
                f"a list of names is not a JSON array of texts: {error}",
                hint='Write it like ["id", "a, b"].',
                option="columns",
            ) from error
    return tuple(one for part in text.split(",") if (one := part.strip()))


def _value(name: str, text: str) -> Any:
    if name in _INTEGERS:
        number = parse_whole(text)
        if number is None:
            raise OptionInvalid(
                f"the option {name} is {text!r}, not a number",
                hint="Pass the _gsn of a change.",
                option=name,
            )
        return number
    choices = _CHOICES.get(name)
    if choices is not None:
        if text.lower() not in choices:
            raise OptionInvalid(
                f"the option {name} is {text!r}",
                hint=f"Write one of: {', '.join(choices)}.",
                option=name,
            )
        return text.lower()
    return text
