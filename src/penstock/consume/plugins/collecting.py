"""Base of plugins that get whole transactions: row images are kept until the commit.

With what these plugins share: their checked sections of the settings, and values of rows as JSON,
exact, and the same text for the same value.
"""

from __future__ import annotations

import base64
import datetime
import difflib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

from penstock.consume.plugins.base import Instance, PluginBase, Row
from penstock.model import PenstockError

_FLAGS = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0", "none", ""), False),
}


class PluginSettingInvalid(PenstockError):
    """A key of a plugin's section is missing, unknown, or has an invalid value."""

    code = "FX14"


class PluginSection:
    """One section: texts by key, with defaults. Unknown keys are refused."""

    def __init__(self, instance: Instance, name: str, defaults: Mapping[str, str | None]) -> None:
        """Read the section. Raises PluginSettingInvalid.

        Args:
            instance: FlexCDC.
            name: of the section.
            defaults: by key; None if it must be given.
        """
        self.name = name
        given = instance.settings.get(name, {})
        for key in given:
            if key not in defaults:
                near = difflib.get_close_matches(key, defaults, n=1, cutoff=0.5)
                known = ", ".join(sorted(defaults))
                raise PluginSettingInvalid(
                    f"[{name}] has an unknown key {key}",
                    hint=f"Did you mean {near[0]}?" if near else f"Known here: {known}.",
                    key=f"{name}.{key}",
                )
        self._texts = {key: given.get(key) or default for key, default in defaults.items()}
        self._texts |= {key: text for key, text in given.items() if defaults[key] is not None}
        for key, text in self._texts.items():
            if text is None:
                raise self.invalid(key, "is missing", f"Write {key} = VALUE below [{name}].")

    def invalid(self, key: str, said: str, hint: str) -> PluginSettingInvalid:
        """Return the error for a key."""
        return PluginSettingInvalid(
            f"[{self.name}] {key} {said}", hint=hint, key=f"{self.name}.{key}"
        )

    def text(self, key: str) -> str:
        """Return the value as it is written."""
        return self._texts[key] or ""

    def flag(self, key: str) -> bool:
        """Return a value that is true or false."""
        text = self.text(key)
        if text.lower() not in _FLAGS:
            raise self.invalid(key, f"is {text!r}", f"Write {key} = true or {key} = false.")
        return _FLAGS[text.lower()]

    def number(self, key: str, *, least: float = 0) -> float:
        """Return a number that is at least `least`."""
        text = self.text(key)
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not least <= number < 2**31:
            raise self.invalid(key, f"is {text!r}", f"Write a number, {least:g} or more.")
        return number

    def tables(self, key: str) -> frozenset[str]:
        """Return a list of `schema.table`, separated by commas."""
        names = [name.strip() for name in self.text(key).split(",") if name.strip()]
        for name in names:
            schema, dot, table = name.partition(".")
            if not (schema and dot and table):
                raise self.invalid(
                    key,
                    f"names {name!r}, which is not a table",
                    f"Write {key} = schema.table, schema.table.",
                )
        return frozenset(names)


class Action(StrEnum):
    """Kind of a row image: FlexCDC's MYSQL_ACTION, and T for a table that was emptied."""

    INSERT = "I"
    DELETE = "D"
    UPDATE_BEFORE = "UB"
    UPDATE_AFTER = "UA"
    TRUNCATE = "T"


@dataclass(frozen=True, slots=True)
class Change:
    """One row image.

    Attributes:
        gsn: its number; of a TRUNCATE that of the previous image.
        key: the names of the key columns.
    """

    action: Action
    db: str
    table: str
    gsn: int
    row: Row
    key: Sequence[str]

    @property
    def name(self) -> str:
        """Name of the table, `schema.table`."""
        return f"{self.db}.{self.table}"


class CollectingPlugin(PluginBase, ABC):
    """Keeps row images in memory, and delivers them in commit_trx.

    Attributes:
        section: the section in the settings.
        keys: the keys of the section with their defaults; None: must be given. All sections have
            `filter`, the tables to skip.
    """

    section: ClassVar[str]
    keys: ClassVar[dict[str, str | None]]

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._skipped: frozenset[str] = frozenset()

    @abstractmethod
    def configure(self, settings: PluginSection, instance: Instance) -> None:
        """Read the settings and open the plugin's resources."""

    @abstractmethod
    def deliver(self, changes: Sequence[Change], uow_id: int, gsn: int, instance: Instance) -> None:
        """Take a transaction for good, which has at least one change.

        Args:
            changes: the changes.
            uow_id: number of the transaction.
            gsn: its last number.
            instance: FlexCDC.
        """

    def close(self) -> None:
        """Close the resources that `configure` opened; also after an error, or if none
        was opened.
        """

    def plugin_init(self, instance: Instance, /) -> None:
        settings = PluginSection(instance, self.section, {"filter": "", **self.keys})
        self._skipped = settings.tables("filter")
        self.configure(settings, instance)

    def plugin_deinit(self, _: Instance, /) -> None:
        self.close()

    def begin_trx(self, _uow_id: int, _gsn: int, _: Instance, /) -> None:
        self._changes.clear()

    def insert(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        self._keep(Action.INSERT, row, db, table, gsn, instance)

    def delete(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        self._keep(Action.DELETE, row, db, table, gsn, instance)

    def update_before(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        self._keep(Action.UPDATE_BEFORE, row, db, table, gsn, instance)

    def update_after(
        self, row: Row, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /
    ) -> None:
        self._keep(Action.UPDATE_AFTER, row, db, table, gsn, instance)

    def truncate(self, db: str, table: str, _trx_id: int, gsn: int, instance: Instance, /) -> None:
        """Keep that a table was emptied."""
        self._keep(Action.TRUNCATE, {}, db, table, gsn, instance)

    def commit_trx(self, uow_id: int, gsn: int, instance: Instance, /) -> None:
        if self._changes:
            self.deliver(self._changes, uow_id, gsn, instance)
        self._changes.clear()

    def rollback_trx(self, _uow_id: int, _: Instance, /) -> None:
        self._changes.clear()

    def _keep(
        self, action: Action, row: Row, db: str, table: str, gsn: int, instance: Instance
    ) -> None:
        if f"{db}.{table}" not in self._skipped:
            key = instance.key(db, table)
            self._changes.append(Change(action, db, table, gsn, row, key))


def json_text(value: Any) -> str:
    """Return one line of JSON, without blanks; see `json_value`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with values that JSON has."""
    return {name: json_value(value) for name, value in row.items()}


def json_value(value: Any) -> Any:
    """Return a value that JSON has. Decimals are text, as JSON numbers are read as floats.

    Bytes are base64; dates and times ISO 8601; a duration `[-]H:MM:SS[.ffffff]`; NaN and the
    infinities text.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            return format(value, "f")
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode("ascii")
        case datetime.date() | datetime.time():  # a datetime is a date
            return value.isoformat()
        case datetime.timedelta():
            return _duration(value)
        case Mapping():
            return {str(name): json_value(inner) for name, inner in value.items()}
        case list() | tuple():
            return [json_value(inner) for inner in value]
    return str(value)


def _duration(value: datetime.timedelta) -> str:
    microseconds = value // datetime.timedelta(microseconds=1)
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    sign = "-" if microseconds < 0 else ""
    text = f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}" if fraction else text
