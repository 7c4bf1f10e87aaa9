"""Calls of plugins with row images: each transaction is acknowledged before its place is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog

from penstock.codec.literals import literals
from penstock.consume.flexcdc.captured import Changelogs
from penstock.consume.flexcdc.images import ImageGroup
from penstock.consume.flexcdc.reading import Sink
from penstock.consume.flexcdc.state import Place, State, UnitOfWork, Units
from penstock.consume.flexcdc.writing import IMAGES_MAX, ChangelogWriter, SourceServer
from penstock.consume.plugins import Instance, Plugin, RowValues, Transaction, row_values_of
from penstock.host import faults
from penstock.log.python_values import python_values
from penstock.model import Column, PenstockError, Relation, TableName
from penstock.model.sections import FlexCdcSettings
from penstock.ports.changelog import GSN, RowImages

logger = structlog.get_logger()
faults.declare("flexcdc.plugin.row", "flexcdc.plugin.before_commit", "flexcdc.plugin.committed")


class PluginFailed(PenstockError):
    """A callback of a plugin raised an exception."""

    code = "FX12"


class TruncateNotTaken(PenstockError):
    """A table was emptied, and a plugin does not say what to do then."""

    code = "FX13"


class PluginCaller(Sink):
    """Calls plugins instead of writing changelogs; state tables are kept as usual."""

    images_max = IMAGES_MAX
    one_by_one = True

    def __init__(
        self,
        state: State,
        changelogs: Changelogs,
        settings: FlexCdcSettings,
        server: SourceServer,
        plugins: Sequence[tuple[str, Plugin]],
        instance: Instance,
    ) -> None:
        # State is written in the same way, whatever happens to the rows.
        self._inner = ChangelogWriter(state, changelogs, settings, server)
        self._skips = settings.skip_before_update
        self._plugins = plugins
        self._kinds = {row_values_of(plugin, settings.row_values) for _, plugin in plugins}
        self._default = settings.row_values
        self._instance = instance
        self._server = server
        self._begun: int | None = None
        self._hwm = 0
        self._keys: dict[tuple[str, str], tuple[str, ...]] = {}
        self._transaction: Transaction | None = None

    def key(self, db: str, table: str) -> Sequence[str]:
        """Return the present row's key columns; see `Instance.key`."""
        return self._keys.get((db, table), ())

    @property
    def transaction(self) -> Transaction:
        """Transaction that is being committed, for `Instance.transaction`."""
        assert self._transaction is not None, "in commit_trx only"
        return self._transaction

    def begin(self, place: Place) -> None:
        self._inner.begin(place)

    def begin_unit(self, uow_id: int, hwm: int) -> None:
        """Call begin_trx of the plugins, unless that was done."""
        if self._begun is None:
            self._begun = uow_id
            for name, plugin in self._plugins:
                with failures_of(name, "begin_trx"):
                    plugin.begin_trx(uow_id, hwm, self._instance)

    def write(self, group: ImageGroup, start: int, end: int, units: Units) -> None:
        """Call the plugins for the rows at these places, which are of one transaction."""
        uow_id = units.number(int(group.trx[start]))
        self.begin_unit(uow_id, int(group.first[start]) - 1)
        for number, callback, relation, rows, at in self._rows(group, start, end, units):
            faults.point("flexcdc.plugin.row")
            self._keys[relation.schema, relation.name] = tuple(
                relation.columns[at].name for at in relation.key
            )
            for name, plugin in self._plugins:
                row = rows[row_values_of(plugin, self._default)][at]
                with failures_of(name, callback):
                    getattr(plugin, callback)(
                        row, relation.schema, relation.name, uow_id, number, self._instance
                    )

    def _rows(
        self, group: ImageGroup, start: int, end: int, units: Units
    ) -> list[tuple[int, str, Relation, Mapping[RowValues, list[dict[str, Any]]], int]]:
        """Return by number the callback and the place of the row."""
        found = []
        for relation, images in group.images(start, end, units.of, self._server.number):
            rows = {kind: _rows_of(images, kind) for kind in self._kinds}
            callbacks = group.callbacks(relation, start, end)
            numbers = images.own.column(GSN).to_pylist()
            for at, number in enumerate(numbers):
                found.append((number, callbacks[number], relation, rows, at))
        return sorted(found, key=lambda one: one[0])

    def note_emptied(self, table: TableName, uow_id: int, gsn: int) -> None:
        """Call `truncate` of the plugins. Raises TruncateNotTaken."""
        self.begin_unit(uow_id, gsn)
        for name, plugin in self._plugins:
            truncate = getattr(plugin, "truncate", None)
            if truncate is None:
                raise TruncateNotTaken(
                    f"{table} was emptied by TRUNCATE, and plugin {name} has no method truncate",
                    hint="Give the plugin one: def truncate(self, db, table, trx_id, gsn, "
                    "instance); then start again: penstock flexcdc --ini FILE run.",
                    plugin=name,
                    table=str(table),
                )
            with failures_of(name, "truncate"):
                truncate(table.schema, table.name, uow_id, gsn, self._instance)

    def commit(self, place: Place, units: Sequence[UnitOfWork], where: tuple[str, int]) -> None:
        """Call commit_trx. Plugins receive the transaction before its position is stored."""
        for unit in units:
            self.begin_unit(unit.uow_id, self._hwm or unit.gsn_hwm)
            faults.point("flexcdc.plugin.before_commit")
            self._transaction = Transaction(
                commit_time=unit.commit_time,
                position=place.position,
                file=where[0],
                offset=where[1],
                id=f"{place.log_id}-{place.trx}",
            )
            for name, plugin in self._plugins:
                with failures_of(name, "commit_trx"):
                    plugin.commit_trx(unit.uow_id, unit.gsn_hwm, self._instance)
            self._begun, self._hwm = None, unit.gsn_hwm
        faults.point("flexcdc.plugin.committed")
        self._inner.commit(place, units, where)

    def give_up(self) -> None:
        """Call rollback_trx for begun transactions."""
        self._inner.give_up()
        begun, self._begun = self._begun, None
        if begun is not None:
            for name, plugin in self._plugins:
                try:
                    with failures_of(name, "rollback_trx"):
                        plugin.rollback_trx(begun, self._instance)
                except PenstockError as error:  # the first error is reported
                    logger.warning("plugin failed", plugin=name, error=error.message)


def _rows_of(images: RowImages, kind: RowValues) -> list[dict[str, Any]]:
    columns = images.relation.columns
    values = [
        _values(values, column, kind)
        for values, column in zip(images.columns, columns, strict=True)
    ]
    names = [column.name for column in columns]
    if not names:
        return [{} for _ in range(images.own.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _values(values: Any, column: Column, kind: RowValues) -> Sequence[Any]:
    if kind is RowValues.SQL:
        return literals(values, column)
    return python_values(values, column.neutral)


@contextmanager
def failures_of(name: str, callback: str) -> Iterator[None]:
    """Turn a plugin's exception into an error with the plugin's name, which ends the run."""
    try:
        yield
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginFailed(
            f"plugin {name} failed in {callback}: {type(error).__name__}: {error}",
            hint="Fix the plugin and start again: penstock flexcdc --ini FILE run; the open "
            "transaction is repeated, with the same numbers.",
            plugin=name,
            callback=callback,
        ) from error
