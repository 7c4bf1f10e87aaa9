"""Session of a logged-in client: its queries and replication commands, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from uuid import UUID

import structlog

from penstock.codec.postgres import pgwire_extended as extended
from penstock.codec.postgres import replication_commands as commands
from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire_server import (
    EMPTY_QUERY,
    Refused,
    command_complete,
    data_row,
    error_response,
    message,
    parameter_status,
    query_text,
    ready,
    row_description,
)
from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError, TableName
from penstock.serve.catalog.answers import Answer, AsksServer, Notice, Session
from penstock.serve.catalog.grammar import Statement
from penstock.serve.catalog.masked import mask_sql
from penstock.serve.catalog.tables import TableRead
from penstock.serve.extended import Extended
from penstock.serve.forms import check_lsn_type, check_plugin, stream_options
from penstock.serve.hybrid import HYBRID_TIME, hybrid_time
from penstock.serve.own_statements import SqlCursors, is_own, make_own
from penstock.serve.running import (
    AnswerRows,
    Answers,
    CatalogPrepared,
    PreparedStatements,
    Rows,
    Runnable,
)
from penstock.serve.sender import Sender
from penstock.serve.server_functions import carry_out
from penstock.serve.serving import Ended, Serving
from penstock.serve.settings import YUGABYTE
from penstock.serve.slots import Slot
from penstock.serve.snapshots import SessionSnapshots, Snapshot
from penstock.serve.statistics import Client
from penstock.serve.table_query import is_copy, read_copy
from penstock.serve.table_statement import TableStatement, lookup, table_statement
from penstock.serve.wire import Gone, Wire

_TEXT, _INT4, _INT8 = 25, 23, 20
_SYSTEM_IDS = 1 << 63
_COMMANDS = (b"Q", b"P", b"E")  # end what the session has exported
_LEFT_OVERS = (b"d", b"c", b"f")  # of a copy that has failed: the protocol says to ignore them

T = TypeVar("T")
logger = structlog.get_logger(__name__)


class ClientSession(Ended):
    """One client, until it disconnects."""

    def __init__(
        self, serving: Serving, wire: Wire, client: Client, session: Session, answers: Answers
    ) -> None:
        self._serving, self._wire, self._client = serving, wire, client
        self.session, self._answers = session, answers
        self._extended = Extended(self)
        self.statements, self.cursors = PreparedStatements(), SqlCursors()
        self._sender: Sender | None = None
        self._cancelled: Refused | None = None
        self._terminated: Refused | None = None
        self.snapshots = SessionSnapshots(serving.snapshots, session, client.process_id)

    def cancel(self) -> None:
        """Abort the running command, if there is one."""
        self.end(Refused("57014", "canceling statement due to user request"))

    def terminate(self) -> None:
        """End the connection, at its next statement at the latest."""
        reason = Refused("57P01", "terminating connection due to administrator command")
        self._terminated = reason
        self.end(reason)
        if self._client.state == "idle":
            with suppress(Gone):
                self.write(error_response(reason, severity="FATAL"))
            self._wire.writer.close()

    def end(self, reason: Refused) -> None:
        """End it for this reason."""
        if self._sender is not None:
            self._sender.end(reason)
        elif self._client.state == "active":
            self._cancelled = reason

    async def run(self) -> None:
        """Answer until the client disconnects. Raises Gone, Refused if that ends the connection."""
        try:
            while True:
                await self._wire.drain()
                self.check_terminated()
                incoming = await self._wire.message()
                if incoming.kind == b"X":
                    return
                if incoming.kind in _LEFT_OVERS:
                    continue
                if incoming.kind in _COMMANDS:
                    await self.snapshots.command_begins()
                if incoming.kind == b"Q":
                    if self._extended.skips:
                        continue
                    await self._simple(incoming.body)
                    self._wire.write(ready(self.session.transaction))
                elif not await self._extended.take(incoming):
                    raise Refused("08P01", f"invalid frontend message type {incoming.kind[0]}")
        finally:
            await self._drop_temporary()
            await self._extended.close()
            await self.cursors.close()
            await self.snapshots.close()

    def check_terminated(self) -> None:
        """Raise Refused if the connection was ended."""
        if self._terminated is not None:
            raise self._terminated

    def write(self, data: bytes) -> None:
        """Write to the client. Raises Gone."""
        self._wire.write(data)

    def refuse(self, refused: Refused) -> None:
        """Send an error to the client; a transaction has failed with it."""
        if self.session.transaction != "I":
            self.session.transaction = "E"
        self.write(error_response(refused))

    async def ask(self, work: Callable[..., T], *arguments: object) -> T:
        """Run work of the catalogue. Raises Refused."""
        with self.working():
            try:
                found = await self._serving.answer(work, *arguments)
                self.check_cancelled()
                return found
            except (Refused, Gone):
                raise
            except PenstockError as error:
                raise Refused("58000", error.message, hint=error.hint) from error
            except Exception as error:
                # A defect in the catalogue affects only this client, and gives no wrong answer.
                logger.exception("a query failed", query=mask_sql(self._client.query))
                said = f"internal error: {type(error).__name__}: {error}"
                raise Refused("XX000", said) from error

    @property
    def answers(self) -> Answers:
        """The catalogue."""
        return self._answers

    @property
    def serving(self) -> Serving:
        """Shared state of all connections."""
        return self._serving

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark work that the client may cancel."""
        self._client.state, self._cancelled = "active", None
        try:
            yield
        finally:
            self._client.state = "idle"

    def check_cancelled(self) -> None:
        """Raise Refused if the client has cancelled it."""
        if self._cancelled is not None:
            raise self._cancelled

    async def drain(self) -> None:
        """Wait until the client has read enough. Raises Gone."""
        async with asyncio.timeout(self._serving.settings.limits.sender_s):
            await self._wire.drain()

    @property
    def process_id(self) -> int:
        """Number among the connections."""
        return self._client.process_id

    @property
    def is_replication(self) -> bool:
        """Return whether it takes replication commands, and no extended protocol."""
        return self._client.replication

    def note_query(self, text: str) -> None:
        """Set the text that pg_stat_activity shows."""
        self._client.query = text

    # -- the simple protocol ---------------------------------------------------------------------

    async def _simple(self, body: bytes) -> None:
        try:
            text = query_text(body)
            self.note_query(text)
            command = commands.parse(text) if self.is_replication else None
            if command is None or isinstance(command, commands.Show):
                await self._sql(text)
            else:
                await self._command(command)
        except Refused as refused:
            self.check_terminated()
            if refused.sqlstate == "0A000":
                logger.warning(
                    "not answered", query=mask_sql(self._client.query), reason=refused.message
                )
            self.refuse(refused)
        except PenstockError as error:
            logger.warning(
                "command failed", query=mask_sql(self._client.query), error=error.message
            )
            self.refuse(Refused("58000", error.message, hint=error.hint))

    async def _sql(self, text: str) -> None:
        statements = await self.ask(self._answers.split, text)
        if not statements:
            self.write(EMPTY_QUERY)
        for statement in statements:
            rows = await self._open(statement)
            try:
                if rows.columns is not None:
                    self.write(extended.row_description(rows.columns))
                await rows.send(0)
                self.write(command_complete(rows.tag) if rows.tag else EMPTY_QUERY)
            finally:
                await rows.close()

    async def _open(self, statement: Any) -> Rows:
        """Begin to answer a statement that has no parameters. Raises Refused, Gone."""
        if is_own(statement) or is_copy(statement):
            return await (await self.make(statement, ())).open(self, ())
        try:
            return await self.run_catalog(self._answers.answer, statement, self.session)
        except TableRead as read:
            found = await self._of_table(read, statement, ())
            if found.parameters:
                raise Refused("42P02", "there is no parameter $1") from None
            return await found.open(self, ())

    async def prepare(self, sql: str, types: Sequence[int]) -> Runnable:
        """Read one statement of the extended protocol. Raises Refused."""
        statements = await self.ask(self._answers.split, sql)
        if len(statements) == 1 and (is_own(statements[0]) or is_copy(statements[0])):
            return await self.make(statements[0], types)
        return await self._prepare(sql, statements, types)

    async def make(self, statement: Statement, types: Sequence[int]) -> Runnable:
        """Read one statement; `types` are oids of the client, 0 if open. Raises Refused."""
        own = await make_own(self, statement, types)
        if own is not None:
            return own
        if not is_copy(statement):
            return await self._prepare(statement.text, [statement], types)
        self.check_not_failed()
        found = await self.ask(lookup, await self.ask(read_copy, statement))
        try:
            await self.ask(self._answers.answer, found, self.session)
        except TableRead as read:
            return await self._of_table(read, statement, types)
        raise Refused("0A000", "COPY of a table of the catalogue is not supported")

    async def _prepare(self, sql: str, statements: Sequence[Any], types: Sequence[int]) -> Runnable:
        try:
            found = await self.ask(self._answers.prepare, sql, types, self.session)
        except TableRead as read:
            return await self._of_table(read, statements[0], types)
        return CatalogPrepared(found)

    async def _of_table(
        self, read: TableRead, statement: Statement, types: Sequence[int]
    ) -> TableStatement:
        table = TableName(read.schema, read.name)
        return await self.ask(table_statement, self, table, statement, types)

    async def run_catalog(self, work: Callable[..., Answer], *arguments: object) -> AnswerRows:
        """Run work of the catalogue, and carry out what its functions request. Raises Refused."""
        done = self.session.carried_out
        try:
            while True:
                try:
                    answer = await self.ask(work, *arguments)
                    break
                except AsksServer as asked:
                    with self.working():
                        done[asked.key] = await carry_out(self, *asked.key)
                    self.check_terminated()
        finally:
            done.clear()
        self.tell(answer)
        self.statements.forget(answer.forgets)
        await self.snapshots.statement_ends()
        if self.session.transaction == "I":
            await self.cursors.transaction_ends(is_committed=answer.tag != "ROLLBACK")
        return AnswerRows(self, answer)

    def check_not_failed(self) -> None:
        """Refuse a statement in a transaction that has failed. Raises Refused: 25P02."""
        if self.session.transaction == "E":
            raise Refused(
                "25P02",
                "current transaction is aborted, commands ignored until end of transaction block",
            )

    def tell(self, answer: Answer) -> None:
        """Send the messages before an answer: notices, and changed settings."""
        for notice in answer.notices:
            self.write(_notice(notice))
        for name, value in answer.reports.items():
            self.write(parameter_status(name, value))

    # -- replication commands --------------------------------------------------------------------

    async def _command(self, command: commands.Command) -> None:
        self.check_not_failed()
        if isinstance(command, commands.IdentifySystem):
            await self._identify()
        elif isinstance(command, commands.CreateSlot):
            await self._create(command)
        elif isinstance(command, commands.AlterSlot):
            await self._alter(command)
        elif isinstance(command, commands.DropSlot):
            await self._drop(command)
        elif isinstance(command, commands.ReadSlot):
            self._read_slot(command)
        elif isinstance(command, commands.StartReplication):
            await self._start(command)
        elif isinstance(command, commands.StartPhysical):
            self._refuse_physical(command.slot)
        elif isinstance(command, commands.BaseBackup):
            raise Refused("0A000", "BASE_BACKUP is not supported")
        elif isinstance(command, commands.TimelineHistory):
            name = f"pg_wal/{command.timeline:08X}.history"
            raise Refused("58P01", f'could not open file "{name}": No such file or directory')

    async def _identify(self) -> None:
        head = await self._serving.look()
        values = [str(system_id(head.log_id)), "1", str(Lsn(head.position)), self._client.database]
        # The claimed version decides the type of the timeline's number.
        timeline = (
            _INT8 if int(self._serving.settings.server_version.split(".")[0]) >= 16 else _INT4
        )
        columns = [("systemid", _TEXT), ("timeline", timeline), ("xlogpos", _TEXT)]
        self._rows([*columns, ("dbname", _TEXT)], values, "IDENTIFY_SYSTEM")

    def _rows(
        self, columns: Sequence[tuple[str, int]], values: Sequence[str | None], tag: str
    ) -> None:
        self.write(row_description(columns) + data_row(values) + command_complete(tag))

    async def _create(self, command: commands.CreateSlot) -> None:
        check_plugin(command.plugin, dialect=self._serving.settings.dialect)
        if command.two_phase:
            raise Refused(
                "0A000",
                "two_phase is not served: the log holds a prepared transaction when it is "
                "committed",
            )
        check_lsn_type(command.lsn_type, dialect=self._serving.settings.dialect)
        self._check_snapshot(command.snapshot)
        slot, snapshot = await self._serving.create_slot(
            command.slot,
            command.plugin,
            failover=command.failover,
            temporary=self._client.process_id if command.temporary else 0,
            with_snapshot=command.snapshot != "nothing",
            hybrid=command.lsn_type == HYBRID_TIME,
        )
        exported = None
        if snapshot is not None and command.snapshot == "use":
            await self.snapshots.use(snapshot)
        elif snapshot is not None:
            exported = self._export(snapshot, command.slot)
        names = ("slot_name", "consistent_point", "snapshot_name", "output_plugin")
        values = [command.slot, str(Lsn(slot.saved.lsn)), exported, command.plugin]
        self._rows([(name, _TEXT) for name in names], values, "CREATE_REPLICATION_SLOT")

    def _export(self, snapshot: Snapshot, slot: str) -> str:
        if self._serving.settings.dialect == YUGABYTE:
            return self._serving.snapshots.export_at_time(snapshot, slot)
        return self.snapshots.export(snapshot)

    def _check_snapshot(self, wanted: str) -> None:
        in_transaction = self.session.transaction != "I"
        shown = f"CREATE_REPLICATION_SLOT ... (SNAPSHOT '{wanted}')"
        if wanted == "export" and in_transaction:
            raise Refused("XX000", f"{shown} must not be called inside a transaction")
        if wanted != "use":
            return
        if not in_transaction:
            raise Refused("XX000", f"{shown} must be called inside a transaction")
        level = self.session.settings.get("transaction_isolation", "read committed")
        if level != "repeatable read":
            raise Refused(
                "XX000", f"{shown} must be called in REPEATABLE READ isolation mode transaction"
            )

    async def _alter(self, command: commands.AlterSlot) -> None:
        if command.two_phase:
            raise Refused("0A000", "two_phase is not served")
        slots = self._serving.slots
        before = slots.get(command.slot).saved.failover
        slots.alter(command.slot, failover=command.failover)
        try:
            await slots.save()
        except PenstockError:
            slots.alter(command.slot, failover=before)
            raise
        self.write(command_complete("ALTER_REPLICATION_SLOT"))

    async def _drop(self, command: commands.DropSlot) -> None:
        await self._serving.drop_slot(command.slot, self._client.process_id, wait=command.wait)
        self.write(command_complete("DROP_REPLICATION_SLOT"))

    def _refuse_physical(self, slot: str | None) -> None:
        if slot is None:
            raise Refused("0A000", "physical replication is not supported")
        self._serving.slots.get(slot)
        raise Refused("55000", "cannot use a logical replication slot for physical replication")

    def _read_slot(self, command: commands.ReadSlot) -> None:
        if any(slot.saved.name == command.slot for slot in self._serving.slots.all()):
            raise Refused(
                "0A000", "cannot use READ_REPLICATION_SLOT with a logical replication slot"
            )
        columns = [("slot_type", _TEXT), ("restart_lsn", _TEXT), ("restart_tli", _INT8)]
        self._rows(columns, [None, None, None], "READ_REPLICATION_SLOT")

    async def _start(self, command: commands.StartReplication) -> None:
        serving, process_id = self._serving, self._client.process_id
        slot = serving.slots.own(command.slot, process_id)
        try:
            await serving.snapshots.slot_begins(command.slot)
            is_hybrid = slot.saved.is_hybrid
            options = stream_options(
                slot.saved.plugin,
                command.options,
                hybrid=is_hybrid,
                repeated=command.repeated,
            )
            if slot.saved.lost:
                raise Refused(
                    "55000",
                    f'can no longer get changes from replication slot "{command.slot}"',
                    hint="It has lost what it needs. Drop it, and let the client copy again.",
                )
            head = await serving.look()
            end = head.position
            if is_hybrid:  # a client may begin at any time, up to now
                end = max(await serving.hybrid_head(), hybrid_time(REAL_CLOCK.now_us()))
            if command.position > end:
                raise Refused(
                    "55000",
                    f"requested starting point {Lsn(command.position)} is ahead of the log's end "
                    f"{Lsn(end)}",
                    hint="The log was created again, or the client followed another server: let it "
                    "copy again.",
                )
            start = max(command.position, slot.saved.lsn)
            timeout_s = serving.settings.limits.sender_s
            sender = Sender(serving, self._wire, slot, start, options, timeout_s=timeout_s)
            await self._stream(slot, sender)
        finally:
            serving.slots.disown(slot)

    async def _stream(self, slot: Slot, sender: Sender) -> None:
        process_id = self._client.process_id
        # There is no wait between the count and its change.
        if len(self._serving.senders) >= self._serving.settings.limits.senders:
            raise Refused(
                "53300", "number of requested standby connections exceeds max_wal_senders"
            )
        self._sender = self._serving.senders[process_id] = sender
        self._client.state = "active"
        try:
            await sender.run()
        finally:
            self._sender = None
            self._client.state = "idle"
            del self._serving.senders[process_id]
            self._serving.save_soon()
            logger.info("stream ended", slot=slot.saved.name, sent=str(Lsn(sender.progress.sent)))

    async def _drop_temporary(self) -> None:
        for slot in self._serving.slots.all():
            if slot.temporary == self._client.process_id:
                self._serving.slots.remove(slot)
                self._serving.save_soon()
                await self._serving.snapshots.slot_begins(slot.saved.name)


def system_id(log_id: str) -> int:
    """Return the number of a log for clients: always the same, and different for other logs."""
    return UUID(log_id).int % _SYSTEM_IDS


def _notice(notice: Notice) -> bytes:
    fields = {
        "S": notice.severity,
        "V": notice.severity,
        "C": notice.sqlstate,
        "M": notice.message,
    }
    body = b"".join(
        key.encode() + value.replace("\0", "?").encode() + b"\0" for key, value in fields.items()
    )
    return message(b"N", body + b"\0")
