"""Noticing what the server changes without sending rows.

pgoutput reports another shape only with the next row, and rewritten rows, attached partitions and
dropped tables not at all. So the catalogue is looked at every few seconds and compared with the
last look; each difference becomes an action, to be carried out when the stream has passed the
position by which it was certainly true. Not here: what a difference means (`table_shape.py`),
reading a table again (`reload.py`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import is_table_in_motion, quote, server_errors
from penstock.engines.postgres.source.definitions import definitions_of
from penstock.engines.postgres.source.shape_text import read_shape
from penstock.engines.postgres.source.table_shape import (
    ChangesNotLogged,
    PartitionIdentityDiffers,
    ReloadReason,
    ShapeDifference,
    TableRenamed,
    TableShape,
    TableWithoutColumns,
    compare,
    new_links,
    renamed_error,
    shapes_sql,
    why_not_followed,
)
from penstock.host.request_files import table_not_captured, table_unknown
from penstock.model import PenstockError, TableDefinition, TableName

logger = structlog.get_logger()
ATTEMPTS_MAX = 5
LOCK_TIMEOUT_MS = 2000
UNKNOWN_ID = 0  # no table has this oid
# Rows of the transaction that made a table are at its beginning: no other transaction could write
# before.
PROBE_BLOCKS = 1024

# Why a table may not be captured any more although the configuration names it.
LEFT_BY_ITSELF = (
    ChangesNotLogged,
    PartitionIdentityDiffers,
    TableRenamed,
    TableWithoutColumns,
)

POSITION = """
    select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                else pg_current_wal_insert_lsn()
           end,
           current_setting('wal_block_size')::int,
           pg_size_bytes(current_setting('wal_segment_size'))
"""
PAGE_HEAD_BYTES, SEGMENT_HEAD_BYTES = 24, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Action when the stream has passed a position (an LSN).

    Attributes:
        table: the captured name.
        shape: the known shape once it is done; None: the table is gone.
    """

    position: int
    table: TableName
    shape: TableShape | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationChanged(Action):
    """The shape differs but no row does: call `RelationResolver.adopt(definition)` and write its
    result.
    """

    definition: TableDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload(Action):
    """Rows changed without being sent: read the whole table again.

    Attributes:
        of_source: the log's base may lack changes of the table, which was not captured before.
    """

    definition: TableDefinition
    reason: ReloadReason
    of_source: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone(Action):
    """The table was dropped or renamed: nothing more will come. The target keeps what it has.

    Attributes:
        renamed: the table under its new name; None if it was dropped.
    """

    renamed: TableDefinition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPipeline(Action):
    """A change that cannot be replicated: make the log durable, call done(), raise error."""

    error: PenstockError


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """State that survives a restart (a state file).

    Attributes:
        position: of the last look that is settled.
        gone: captured tables that were dropped or renamed, and not created again since.
        waiting: captured tables whose first look, or what it leads to, is not settled.
    """

    shapes: tuple[TableShape, ...] = ()
    position: int = 0
    gone: tuple[TableName, ...] = ()
    waiting: tuple[TableName, ...] = ()

    @property
    def names(self) -> frozenset[TableName]:
        """The tables that are followed or were when they were dropped."""
        return frozenset((*self.gone, *self.waiting, *(shape.name for shape in self.shapes)))


@dataclass(slots=True, kw_only=True)
class _Pending:
    """Pending action. unless_truncated_after: the action is not needed if a TRUNCATE follows this
    position.
    """

    action: Action
    unless_truncated_after: int | None = None


class DdlWatch:
    """Watch that looks at the catalogue and queues the necessary actions. Used by one thread.

    connection: a connection from `open_catalog` that nothing else uses. With the state of an
    earlier run, the first poll notices what changed meanwhile. Without one, it accepts the tables
    as they are.
    """

    def __init__(
        self,
        connection: psycopg.Connection,
        tables: Iterable[TableDefinition],
        *,
        publication: str,
        state: WatchState | None = None,
        takes: Callable[[TableName], bool] = lambda _: True,
        takes_renamed: Callable[[TableName], bool] = lambda _: True,
        reads_renamed: bool = False,
        as_is: Collection[TableName] = (),
    ) -> None:
        """Begin with these tables.

        Args:
            connection: see the class.
            tables: what is captured.
            publication: the name of it.
            state: of an earlier run.
            takes: whether the configuration captures a name.
            takes_renamed: whether it captures a table that gets this name, when it is asked for.
                Until then its changes keep the old name: the log has each of them.
            reads_renamed: such a table is captured at once and read again, because no request
                names it.
            as_is: tables that were not followed before, whose rows need not be read.
        """
        self.connection = connection
        self._publication = publication
        self._takes, self._takes_renamed = takes, takes_renamed
        self._reads_renamed = reads_renamed
        tables = list(tables)
        self._wanted = {table.name for table in tables}
        self.changed = False
        # Tables dropped while the watch was stopped are not among `tables`, yet must be reported.
        self._seen = {shape.name: shape for shape in state.shapes} if state else {}
        self._settled = dict(self._seen)
        # What the first look finds is compared with these: the bulk load may have read one of them.
        self._given = {table.name: table for table in tables} if state is None else {}
        # The log may have rows of these, which were dropped or renamed before the first look.
        self._unseen = set(self._given if state is None else state.waiting)
        self._ids = dict.fromkeys(self._wanted | self._unseen, UNKNOWN_ID)
        self._ids |= {name: table.source_id for name, table in self._given.items()}
        self._ids |= {name: shape.source_id for name, shape in self._seen.items()}
        self._gone = {name for name in (state.gone if state else ()) if takes(name)}
        self._gone -= self._ids.keys()
        self._ids |= dict.fromkeys(self._gone, UNKNOWN_ID)  # they may be made again
        self._as_is = set(as_is)
        self._position = state.position if state else 0
        self._looked_at = self._position
        self._pending: deque[_Pending] = deque()
        self._truncated: dict[TableName, int] = {}

    # -- what the extractor calls ----------------------------------------------------------------

    def admit(self, name: TableName, source_id: int) -> None:
        """Follow one more table from now on, in its present shape. Raises an error if it cannot be
        followed.
        """
        with server_errors(f"looking at {name}"):
            digest, text = self._query([source_id], [name], with_text=True)[source_id]
        shape = read_shape(digest, text or "")
        stop = why_not_followed(shape)
        if stop is not None:
            raise stop
        self._wanted.add(name)
        self._gone.discard(name)
        self._take(name, shape)

    def release(self, name: TableName) -> bool:
        """Stop following a table. Returns False, and does nothing, while an action on it waits."""
        if any(pending.action.table == name for pending in self._pending):
            return False
        self._wanted.discard(name)
        if name in self._ids:
            self._forget(name)
        return True

    def ask_again(
        self,
        name: TableName,
        reason: ReloadReason = ReloadReason.RESENT,
        *,
        of_source: bool = False,
    ) -> Reload | None:
        """Queue reading a table again; return None as long as another action on it is pending.

        of_source: see `Reload`. Raises ResendRefused for a table that is not followed or does not
        exist.
        """
        if any(pending.action.table == name for pending in self._pending):
            return None
        shape = self._seen.get(name)
        if shape is None:
            raise table_not_captured(name, self._publication)
        with server_errors(f"looking at {name}"):
            found = definitions_of(self.connection, [shape.source_id], shape_only=True)
            position = self._read_position()
        definition = found.get(shape.source_id)
        if definition is None:
            raise table_unknown(name)
        position = max([position, *(pending.action.position for pending in self._pending)])
        action = Reload(
            position=position,
            table=name,
            shape=shape,
            definition=definition,
            reason=reason,
            of_source=of_source,
        )
        self._pending.append(_Pending(action=action))
        return action

    def follows(self, name: TableName) -> bool:
        """Return whether a name is followed, whether the table is there or was dropped."""
        return name in self._ids

    def is_pending(self, action: Action) -> bool:
        """Return whether an action is not done."""
        return any(pending.action is action for pending in self._pending)

    def is_created_again(self, action: Action) -> bool:
        """Return whether an action's table has the name of a table that was dropped."""
        known = self._settled.get(action.table)
        return action.shape is not None and not (
            known and known.source_id == action.shape.source_id
        )

    @property
    def pending_count(self) -> int:
        """Actions whose position the stream has not passed, or that are not done."""
        return len(self._pending)

    @property
    def next_position(self) -> int | None:
        """The position of the next action; None when nothing is pending."""
        return self._pending[0].action.position if self._pending else None

    def state(self) -> WatchState:
        """Return the state to be stored whenever `changed` is set; clears that flag."""
        self.changed = False
        return WatchState(
            shapes=tuple(self._settled.values()),
            position=self._position,
            gone=tuple(sorted(self._gone)),
            waiting=tuple(sorted(self._ids.keys() - self._settled.keys() - self._gone)),
        )

    def saw_truncate(self, table: TableName, position: int) -> None:
        """Note a TRUNCATE in the stream: it explains new files of partitions."""
        self._truncated[table] = max(position, self._truncated.get(table, 0))

    def due(self, position: int) -> Action | None:
        """Return the next action if the stream has passed its position; then call settle() with it.

        Everything before `position` must have been seen, and TRUNCATEs noted.
        """
        while self._pending and self._pending[0].action.position <= position:
            pending = self._pending[0]
            after = pending.unless_truncated_after
            if after is None or self._truncated.get(pending.action.table, -1) < after:
                return pending.action
            self.settle(pending.action)
        return None

    def settle(self, action: Action) -> None:
        """Note that the action's consequences are in the log: its shape is the known one."""
        if not self._pending or self._pending[0].action is not action:
            raise ValueError("actions are done in their order, once")
        self._pending.popleft()
        if isinstance(action, Gone):
            self._gone.add(action.table)
        # A table whose new name is not captured stays known under its old one: the operator may
        # undo it.
        if not (isinstance(action, StopPipeline) and isinstance(action.error, TableRenamed)):
            self._settle(action.table, action.shape)
        self._position = action.position

    def poll(self) -> int:
        """Look at the catalogue once; returns how many actions were added.

        One query when nothing changed. Raises typed errors when the server cannot be asked.
        """
        with server_errors("looking for changed tables"):
            try:
                digests = self._query(list(self._ids.values()), list(self._ids))
                found = self._changed_names(digests)
                return self._examine(found) if found else self._nothing_found()
            except psycopg.Error as error:
                if not is_table_in_motion(error):
                    raise
                logger.info("a table is being altered, looking again later")
                return 0

    def _nothing_found(self) -> int:
        self._looked_at = self._read_position()
        if not self._pending:
            self._position = self._looked_at
        return 0

    # -- looking -----------------------------------------------------------------------------------

    def _query(
        self, ids: Sequence[int], names: Sequence[TableName], *, with_text: bool = False
    ) -> dict[int, tuple[str, str | None]]:
        rows = self.connection.execute(
            shapes_sql(self.connection.info.server_version, with_text=with_text),
            {
                "ids": ids,
                "schemas": [name.schema for name in names],
                "names": [name.name for name in names],
                "publication": self._publication,
            },
        ).fetchall()
        return {row[0]: (row[1], row[2]) for row in rows}

    def _changed_names(self, digests: dict[int, tuple[str, str | None]]) -> list[TableName]:
        def is_changed(name: TableName, id_: int) -> bool:
            if id_ not in digests:
                return id_ != UNKNOWN_ID or name in self._unseen
            # By name, because a renamed table has two until its old one is gone.
            seen = self._seen.get(name)
            return seen is None or seen.digest != digests[id_][0]

        # An unknown oid is a recreated table: any of them may be its old self.
        strange = bool(digests.keys() - set(self._ids.values()))
        waiting = {pending.action.table for pending in self._pending}
        return [
            name
            for name, id_ in self._ids.items()
            if strange
            or is_changed(name, id_)
            or (name not in waiting and name in self._seen and why_not_followed(self._seen[name]))
        ]

    def _examine(self, names: list[TableName]) -> int:
        """Read the shapes of these tables, and their definitions, as of one position.

        Returns how many actions were added. Tables that change during each attempt are left to the
        next look.
        """
        ids = [self._ids[name] for name in names]
        for _ in range(ATTEMPTS_MAX):
            texts = self._query(ids, names, with_text=True)
            shapes = {id_: read_shape(digest, text or "") for id_, (digest, text) in texts.items()}
            self.connection.execute(f"set lock_timeout = '{LOCK_TIMEOUT_MS}ms'")
            definitions = definitions_of(
                self.connection, list(shapes), shape_only=True, expressions=True
            )
            position = self._read_position()
            # A definition is read by several queries: nothing may have changed in between.
            again = {i: digest for i, (digest, _) in self._query(ids, names).items()}
            moving = {i for i, shape in shapes.items() if again.get(i) != shape.digest}
            moving |= (again.keys() - shapes.keys()) | (shapes.keys() ^ definitions.keys())
            if not moving:
                break
        by_name = {shape.name: shape for shape in shapes.values()}
        before = len(self._pending)
        taken_over: list[TableName] = []  # followed names that a renamed table has now
        for name in itertools.chain(names, taken_over):
            shape = shapes.get(self._ids[name]) or by_name.get(name)
            renamed = None
            if shape is not None and shape.name != name and self._takes_renamed(shape.name):
                renamed, shape = definitions[shape.source_id], by_name.get(name)
                if self._reads_renamed:
                    self._wanted.add(renamed.name)
                    self._ids.setdefault(renamed.name, UNKNOWN_ID)
                if shape is None and renamed.name not in self._ids:
                    continue  # it keeps the old name until its new one is asked for
                if renamed.name in self._ids and renamed.name not in names:
                    taken_over.append(renamed.name)
            if not {self._ids[name], shape.source_id if shape else UNKNOWN_ID} & moving:
                self._compare(name, shape, definitions, position, renamed)
        # What cannot be replicated comes before other things of the same look.
        self._pending = deque(
            sorted(
                self._pending,
                key=lambda p: (p.action.position, not isinstance(p.action, StopPipeline)),
            )
        )
        self._looked_at = position
        return len(self._pending) - before

    def _compare(
        self,
        name: TableName,
        shape: TableShape | None,
        definitions: dict[int, TableDefinition],
        position: int,
        renamed: TableDefinition | None,
    ) -> None:
        last = self._seen.get(name)
        if shape is None:
            if last is None and name not in self._unseen:
                return
            if not self._takes(name):
                self._forget(name)
            else:
                gone = Gone(position=position, table=name, shape=None, renamed=renamed)
                self._add(_Pending(action=gone), None)
            return
        difference = self._difference(name, last, shape)
        if not self._is_wanted(name, last, difference):
            self._forget(name)
            return
        if difference is None:
            return
        definition = definitions[shape.source_id]
        difference = self._with_given(name, difference, definition)
        reason = difference.reload
        if last is not None and reason is None and difference.stop is None:
            reason = self._brought_rows(last, shape, difference)
        common: dict[str, Any] = {"position": position, "table": name, "shape": shape}
        unless = None
        if reason is None and difference.truncated_leaves:
            reason, unless = ReloadReason.PARTITION_REWRITTEN, self._looked_at
        if difference.stop is not None:
            action: Action = StopPipeline(error=difference.stop, **common)
        elif reason is not None:
            action = Reload(definition=definition, reason=reason, **common)
        elif difference.changed:
            action = RelationChanged(definition=definition, **common)
        else:
            self._take(name, shape)
            return
        self._add(_Pending(action=action, unless_truncated_after=unless), shape)

    def _difference(
        self, name: TableName, last: TableShape | None, shape: TableShape
    ) -> ShapeDifference | None:
        """Return the difference, or why the table cannot be followed at all; None if nothing
        changed.
        """
        if last is not None and last.digest != shape.digest:
            return compare(last, shape)
        is_renamed = last is None and shape.name != name  # before the first look
        stop = renamed_error(name, shape.name) if is_renamed else why_not_followed(shape)
        if stop is not None:
            return ShapeDifference(stop=stop)
        if last is not None:
            return None
        as_is = shape.name in self._given or shape.name in self._as_is
        self._as_is.discard(shape.name)
        return ShapeDifference(reload=None if as_is else ReloadReason.NEW)

    def _with_given(
        self, name: TableName, difference: ShapeDifference, definition: TableDefinition
    ) -> ShapeDifference:
        """Return a first look's difference from the definition that the extractor began with."""
        given = self._given.pop(name, None)
        if given is None or difference.stop is not None:
            return difference
        return _since_given(given, definition) or difference

    def _is_wanted(
        self, name: TableName, last: TableShape | None, difference: ShapeDifference | None
    ) -> bool:
        """Return whether a table is to be followed, or was and left for another reason than its
        name.
        """
        if name in self._wanted:
            return True
        if not self._takes(name):
            return False
        stop = difference.stop if difference is not None else None
        return last is None or isinstance(stop, LEFT_BY_ITSELF)  # None: it was dropped before

    def _brought_rows(
        self, before: TableShape, after: TableShape, difference: ShapeDifference
    ) -> ReloadReason | None:
        for leaf in difference.new_leaves:
            links = list(new_links(before, after, leaf))
            table = quote(*leaf.name)
            if all(link.made_in_place for link in links):
                # Made and linked by one transaction: only what it wrote in between was not sent.
                rows = " union all ".join(
                    f"(select 1 from only {table} where ctid < '({PROBE_BLOCKS},0)'::tid and "
                    f"xmin = '{link.link_xid}'::xid and cmin::text::bigint < {link.link_command}"
                    " limit 1)"
                    for link in links
                )
            else:
                rows = f"select 1 from only {table} limit 1"
            self.connection.execute(f"set lock_timeout = '{LOCK_TIMEOUT_MS}ms'")
            if self.connection.execute(f"select exists ({rows})").fetchone() == (True,):
                return ReloadReason.PARTITION_ATTACHED
        return None

    def _read_position(self) -> int:
        """Return a position after all commits that have been visible so far.

        After a page's head nothing was written yet: an idle stream stays at the page before.
        """
        row = self.connection.execute(POSITION).fetchone()
        if row is None or row[0] is None:
            return self._looked_at
        position, block, segment = Lsn.parse(row[0]).ordinal, row[1], row[2]
        if position % segment == SEGMENT_HEAD_BYTES:
            return position - SEGMENT_HEAD_BYTES
        if position % block == PAGE_HEAD_BYTES:
            return position - PAGE_HEAD_BYTES
        return position

    # -- remembering -------------------------------------------------------------------------------

    def _add(self, pending: _Pending, shape: TableShape | None) -> None:
        action = pending.action
        self._pending.append(pending)
        self.changed |= action.table not in self._settled
        self._see(action.table, shape)
        logger.info(
            "table changed at the source",
            table=str(action.table),
            action=type(action).__name__,
            reason=str(action.reason) if isinstance(action, Reload) else "",
            position=str(Lsn(action.position)),
        )

    def _see(self, name: TableName, shape: TableShape | None) -> None:
        self._unseen.discard(name)
        if shape is None:
            self._seen.pop(name, None)
            self._ids[name] = UNKNOWN_ID  # one recreated under this name will be noticed
        else:
            self._seen[name] = shape
            self._ids[name] = shape.source_id

    def _take(self, name: TableName, shape: TableShape) -> None:
        """Note a shape that needs no action."""
        self._see(name, shape)
        if not any(pending.action.table == name for pending in self._pending):
            self._settle(name, shape)

    def _forget(self, name: TableName) -> None:
        """Forget a table that the configuration no longer names."""
        self._seen.pop(name, None)
        self._unseen.discard(name)
        del self._ids[name]
        self._gone.discard(name)
        self._settle(name, None)

    def _settle(self, name: TableName, shape: TableShape | None) -> None:
        if shape is None or shape.name != name:
            self._settled.pop(name, None)
        if shape is not None:
            self._settled[shape.name] = shape
            self._gone.discard(shape.name)
        self.changed = True


def _since_given(given: TableDefinition, now: TableDefinition) -> ShapeDifference | None:
    """Return what changed between a table's first definition and the first look; None if nothing
    did.

    If no row follows, the stream does not show such a change. The values that existing rows got in
    between are not known, so a new or retyped column causes the table to be read again.
    """
    if given.source_id != now.source_id:
        return ShapeDifference(reload=ReloadReason.NEW)
    types = {(column.id, column.type_oid, column.typmod) for column in given.columns}
    if not {(column.id, column.type_oid, column.typmod) for column in now.columns} <= types:
        return ShapeDifference(reload=ReloadReason.REWRITTEN)

    def shape_of(table: TableDefinition) -> tuple[object, ...]:
        columns = [(one.id, one.name, one.not_null, one.generated) for one in table.columns]
        keys = (table.primary_key, table.unique_keys)
        return table.identity, table.identity_columns, keys, columns

    return ShapeDifference(changed=True) if shape_of(given) != shape_of(now) else None
