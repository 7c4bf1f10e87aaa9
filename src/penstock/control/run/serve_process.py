"""`penstock serve`: the change log over PostgreSQL's protocol, until it is stopped."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import structlog

from penstock.base.held import Holder
from penstock.codec.types import NO_CHOICES, Choices, Engine, parse_choices
from penstock.consume.lock import LOCK_FILE
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.control.pipeline.extras import SERVE, install_line, missing_libraries
from penstock.control.pipeline.log_facts import read_watermark
from penstock.control.pipeline.servers import base_holder, source_tables
from penstock.control.status.serve_status import ServeReport, ServeReportFile
from penstock.host.files import REAL_FILES, DirectoryLocked
from penstock.model import Column, ColumnDefinition, PenstockError, Relation, TableDefinition
from penstock.model.sections import ServeSection, seconds
from penstock.ports.config import Config
from penstock.ports.registry import types_at
from penstock.serve.saved_state import SavedState, Shapes
from penstock.serve.server import binding_of
from penstock.serve.settings import ServeSettings, verifiers
from penstock.serve.slots import NAME, Retention, Slots
from penstock.serve.source_log import Head, LogNotBegun, SourceLog

if TYPE_CHECKING:
    from penstock.serve.serving import Serving

logger = structlog.get_logger()
_LOOK_S = 0.5


class ServeSectionMissing(PenstockError):
    """The pipeline file has no section [serve]."""

    code = "SV05"


class ServeNotInstalled(PenstockError):
    """The library with which the catalogue reads SQL is not installed."""

    code = "SV06"


class ServeRunning(PenstockError):
    """Another process serves this log. fields: holder_pid."""

    code = "SV07"
    retry = "operator"


class TlsUnusable(PenstockError):
    """Certificate or key of [serve] cannot be used."""

    code = "SV08"


def serve(config: Config, *, on_served: Callable[[str], None]) -> None:
    """Serve the log until a signal arrives. on_served: gets the address, as soon as it answers.

    Raises ServeSectionMissing, ServeNotInstalled, ServeRunning, TlsUnusable, and the errors of the
    log, the slots and the socket.
    """
    section = check_serve(config)
    settings = serve_settings(config, section)
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop, hurry=False))
        links = config.layout.consumers / NAME
        for directory in (links, config.layout.state):
            REAL_FILES.make_directory(directory)
        try:
            lock = REAL_FILES.lock(links, LOCK_FILE)
        except DirectoryLocked as error:
            pid = int(error.fields.get("holder_pid", 0))
            raise ServeRunning(
                f"the log of {config.pipeline.name} is served already, by process {pid}",
                hint=f"End it first: kill {pid or '<pid>'}",
                holder_pid=pid,
            ) from error
        stack.callback(lock.release)
        log = SourceLog(
            config.layout.log, links, extension=config.change_loader.change_file_extension
        )
        stack.callback(log.close)
        head = _await_log(log, stop)
        if head is not None:
            asyncio.run(_Served(config, section, settings, log, stop, on_served).run(head))


def check_serve(config: Config) -> ServeSection:
    """Return the section. Raises ServeSectionMissing, ServeNotInstalled."""
    if config.serve is None:
        raise ServeSectionMissing(
            f"{config.path.name} has no [serve]",
            hint="Add [serve] with its users; docs/serve.md shows a whole file.",
        )
    missing = missing_libraries(SERVE)
    if missing:
        raise ServeNotInstalled(
            f"serving the log needs {', '.join(missing)}, which is not installed",
            hint=f"Run: {install_line([SERVE])}",
        )
    return config.serve


def serve_settings(config: Config, section: ServeSection) -> ServeSettings:
    """Return the server's settings, with verifiers in place of passwords.

    Raises TlsUnusable.
    """
    keep = section.max_slot_wal_keep_size
    tls, binding = _encryption(config, section)
    return ServeSettings(
        database=config.pipeline.name,
        users=verifiers(section.users),
        server_version=section.server_version,
        dialect=section.dialect.value,
        tls=tls,
        binding=binding,
        keep_bytes=None if keep < 0 else keep,
        sync_slot_s=seconds(section.sync_slot_age),
        choices=type_choices(config),
    )


def type_choices(config: Config) -> Choices:
    """Return what [target.types] chooses for values that PostgreSQL cannot hold."""
    if not config.target.types:
        return NO_CHOICES
    return parse_choices(config.target.types, Engine(types_at(config.source.url)))


def _encryption(
    config: Config, section: ServeSection
) -> tuple[ssl.SSLContext | None, bytes | None]:
    """Return the context of TLS, and the binding of passwords. Raises TlsUnusable."""
    if section.tls is None or isinstance(section.tls, str):
        return None, None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    files = {key: config.path.parent / name for key, name in section.tls.items()}
    try:
        context.load_cert_chain(files["certificate"], files["key"])
        return context, binding_of(files["certificate"])
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        why = getattr(error, "strerror", None) or error
        raise TlsUnusable(
            f"the certificate {files['certificate']} with the key {files['key']} cannot be used: "
            f"{why}",
            hint="Give files in PEM form: the certificate with its chain, and its key without a "
            "password.",
        ) from error


def _await_log(log: SourceLog, stop: StopRequest) -> Head | None:
    """Return the log's end, once there is a log; None if stopped before."""
    said = False
    while not stop():
        try:
            return log.head()
        except LogNotBegun:
            if not said:
                logger.info("waiting until the log begins", directory=str(log.directory))
                said = True
            stop.wait(_LOOK_S)
    return None


class _Served:
    """One run of the server."""

    def __init__(
        self,
        config: Config,
        section: ServeSection,
        settings: ServeSettings,
        log: SourceLog,
        stop: StopRequest,
        on_served: Callable[[str], None],
    ) -> None:
        self._config, self._section, self._settings = config, section, settings
        self._log, self._stop, self._on_served = log, stop, on_served

    async def run(self, head: Head) -> None:
        """Serve until it is stopped."""
        from penstock.serve.catalog.catalog import Catalog
        from penstock.serve.server import Server
        from penstock.serve.serving import Serving
        from penstock.serve.statistics import State
        from penstock.serve.welcome import (
            CatalogWelcome,
            TableOids,
            set_relations,
            take_publications,
        )

        settings = self._settings
        state = SavedState(self._config.layout.state, log_id=head.log_id)
        shapes = Shapes(state)
        shapes.begin(self._relations())
        standing = State()
        given = {name: one.tables for name, one in self._section.publications.items()}
        answering = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        loop = asyncio.get_running_loop()

        def begin() -> Catalog:
            made = Catalog(
                state,
                database=settings.database,
                users=list(settings.users),
                state=standing,
                version=int(settings.server_version.split(".")[0]),
                dialect=settings.dialect,
                held={
                    "max_replication_slots": f"{settings.limits.slots}",
                    "max_wal_senders": f"{settings.limits.senders}",
                    "max_connections": f"{settings.limits.connections}",
                },
            )
            owner = next(iter(settings.users))
            take_publications(made, given, owner=owner, position=head.position)
            set_relations(made, shapes.all(), head.engine, settings.choices)
            return made

        def show() -> None:
            set_relations(catalog, shapes.all(), head.engine, settings.choices)

        catalog = await loop.run_in_executor(answering, begin)
        slots = Slots(state, slots_max=settings.limits.slots)
        retention = Retention(self._log, keep_bytes=settings.keep_bytes)
        async with Serving(
            settings,
            self._log,
            slots,
            retention,
            catalog.model.publications,
            shapes=shapes,
            table_oid=TableOids(catalog.model, answering).of,
            on_shapes=show,
            answering=answering,
            holder=self._holder(),
            known_us=lambda: read_watermark(self._config),
        ) as serving:
            standing.of(serving)
            server = Server(serving, CatalogWelcome(catalog))
            host, _ = self._section.address
            port = await server.start(*self._section.address)
            logger.info("serving", address=f"{host}:{port}", position=head.position)
            self._on_served(f"{host}:{port}")
            await self._until_stopped(serving, f"{host}:{port}")
            await server.stop()

    def _holder(self) -> Holder | None:
        """Return the holder of states of the base, if the pipeline has one."""
        if not self._config.has_base:
            return None
        return base_holder(self._config, NAME, self._log.links)

    async def _until_stopped(self, serving: Serving, address: str) -> None:
        """Wait for the stop, and report connected clients meanwhile."""
        file = ServeReportFile(self._config.layout.run)
        while not self._stop():
            if file.is_due():
                report = ServeReport(
                    pid=os.getpid(),
                    address=address,
                    connections=len(serving.clients),
                    streaming=tuple(one.saved.name for one in serving.slots.all() if one.owner),
                )
                await serving.in_thread(file.write, report)
            done, _ = await asyncio.wait([serving.failed], timeout=_LOOK_S)
            if done:
                serving.failed.result()

    def _relations(self) -> list[Relation]:
        """Return the present tables of the source, so that those without changes are known, too."""
        try:
            return [relation_of(one) for one in source_tables(self._config)]
        except PenstockError as error:
            # The log is enough to continue; a table that has never changed is seen later.
            logger.warning("the source's tables are not read", error=error.message)
            return []


def relation_of(definition: TableDefinition) -> Relation:
    """Return a table as the log will have it, from its definition."""
    columns = [one for one in definition.columns if not one.generated]
    places = {column.name: place for place, column in enumerate(columns)}
    key = tuple(places[name] for name in definition.key_of_changes if name in places)
    before = tuple(places[name] for name in definition.identity_columns if name in places)
    return Relation(
        schema=definition.name.schema,
        name=definition.name.name,
        columns=tuple(_column(one) for one in columns),
        key=key,
        before=before,
        identity=definition.identity,
        source_id=definition.source_id,
    )


def _column(one: ColumnDefinition) -> Column:
    return Column(
        name=one.name,
        source_type=one.type_text,
        neutral=one.neutral,
        base_type=one.base_type,
        type_oid=one.type_oid,
        typmod=one.typmod,
        nullable=not one.not_null,
        missing=one.missing,
    )
