"""Row images as lines of JSON, with the keys of FlexCDC's plugin json_file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.consume.plugins.base import Instance
from penstock.consume.plugins.collecting import (
    Action,
    Change,
    CollectingPlugin,
    PluginSection,
    json_row,
    json_text,
)
from penstock.consume.plugins.line_file import LineFile
from penstock.model import PenstockError

ACTION, TABLE, SCHEMA = "MYSQL_ACTION", "MYSQL_TABLE", "MYSQL_SCHEMA"
TRX, SEQ = "MYSQL_TRX", "MYSQL_SEQ"


class ColumnNameTaken(PenstockError):
    """A column has the name of a key that the plugin writes."""

    code = "FX16"


class JsonFile(CollectingPlugin):
    """File with one line per row image: columns and MYSQL_ACTION, with metadata four more keys.

    `plugin = "penstock.consume.plugins:JsonFile"`.
    """

    section: ClassVar[str] = "json_file"
    keys: ClassVar[dict[str, str | None]] = {"path": None, "add_metadata": "1"}

    def __init__(self) -> None:
        super().__init__()
        self._file: LineFile | None = None
        self._adds_metadata = True

    def configure(self, settings: PluginSection, instance: Instance) -> None:
        self._adds_metadata = settings.flag("add_metadata")
        self._file = LineFile(
            instance.directory / settings.text("path"),
            _unit_of if self._adds_metadata else None,
            section=self.section,
        )

    def deliver(self, changes: Sequence[Change], uow_id: int, _gsn: int, _: Instance, /) -> None:
        assert self._file is not None, "configured"
        self._file.append(uow_id, [self._line(change, uow_id) for change in changes])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _line(self, change: Change, uow_id: int) -> bytes:
        ours: dict[str, Any] = {ACTION: str(change.action)}
        if self._adds_metadata or change.action is Action.TRUNCATE:
            ours |= {TABLE: change.table, SCHEMA: change.db, TRX: uow_id, SEQ: change.gsn}
        taken = ours.keys() & change.row.keys()
        if taken:
            raise ColumnNameTaken(
                f"{change.name} has a column {min(taken)}, which is a key of ours",
                hint=f"Skip the table: filter = {change.name} below [{self.section}].",
                table=change.name,
            )
        return json_text({**json_row(change.row), **ours}).encode()


def _unit_of(line: bytes) -> int | None:
    unit = json.loads(line)[TRX]
    return int(unit)
