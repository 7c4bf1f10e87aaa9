"""`penstock consume` and `penstock consumers`: one consumer as a process, and work on its state.

Wires the configuration and the class to the application; `penstock.consume.run` does so inside a
process of the user's. Consumers are registered, removed, disabled and paused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from penstock.consume.api import CdcConsumer
from penstock.consume.application import Application, ApplicationOptions
from penstock.consume.classes import check_consumer, make_consumer
from penstock.consume.direct import (
    DirectApplication,
    DirectOptions,
    check_delivers_directly,
)
from penstock.consume.lock import LOCK_FILE
from penstock.consume.lost import Lost, delete_lost_links
from penstock.consume.registration import register
from penstock.consume.report import DirectReport, Report
from penstock.control.pipeline.actions import StopRequest, stop_on_signals
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.consumers import (
    is_direct,
    log_place,
    register_configured,
    section_of,
    select_log,
    unknown,
)
from penstock.control.pipeline.diagnostics import diagnostics_to
from penstock.control.pipeline.table_requests import removed_tables
from penstock.control.run.consumer_snapshot import ensure_snapshot
from penstock.host.files import REAL_FILES, DirectoryLocked, FileMissing, remove_tree
from penstock.host.process import holder_of
from penstock.log import links
from penstock.model import PenstockError, TableName
from penstock.model.patterns import Selection
from penstock.model.sections import ConsumerSection
from penstock.ports.config import Config
from penstock.ports.direct import DIRECT_PART
from penstock.ports.registry import part

logger = structlog.get_logger()


class NothingToConsume(PenstockError):
    """The pipeline is of mode data, so it has no changes to consume."""

    code = "CN13"
    retry = "never"


def consume(config: Config, name: str, *, standby: bool = False, checked: bool = False) -> None:
    """Run one consumer of the file until a signal arrives or the consumer ends.

    standby: wait until no other process runs it. checked: `penstock run` gathers the messages.
    Raises ConsumerUnknown, NothingToConsume, and all errors that end a consumer.
    """
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        section = section_of(config, name)
        REAL_FILES.make_directory(config.layout.run)
        if checked:
            sys.stdout = sys.stderr  # the class's prints are sent where its messages are
        else:
            path = config.layout.run / f"consume-{name}.log"
            stack.enter_context(diagnostics_to(path, verbose=True))
        _run(config, name, section, None, stop, standby=standby)


def run(
    file: str | Path,
    name: str,
    consumer: CdcConsumer | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
    standby: bool = False,
    group: str = "",
) -> None:
    """Run one consumer of a pipeline inside this program; return when stop() returns true.

    Raises PenstockError.

    Args:
        file: The pipeline file.
        name: The name of its section [consumers.NAME].
        consumer: Used in place of the class that the section names.
        stop: Called repeatedly, from this thread; no signal handler is set.
        standby: Wait until no other process runs it.
        group: For a file with [stage]: the target schema, if there are several.
    """
    config = select_log(load_config(Path(file)), group)
    REAL_FILES.make_directory(config.layout.run)
    _run(config, name, section_of(config, name), consumer, stop, standby=standby)


def _run(
    config: Config,
    name: str,
    section: ConsumerSection,
    consumer: CdcConsumer | None,
    stop: Callable[[], bool],
    *,
    standby: bool,
) -> None:
    if not config.pipeline.mode.has_change:
        raise NothingToConsume(
            "this pipeline is of mode data: there are no changes to consume",
            hint='Set mode = "data+change" or "change" in the pipeline file.',
        )
    if is_direct(config, section):
        _run_direct(config, name, section, consumer, stop, standby=standby)
        return
    directory = config.layout.consumers / name
    report = Report(name, config.layout.run, directory=directory)
    try:
        if consumer is None:
            consumer = make_consumer(section.class_, section.options, beside=config.path.parent)
        else:
            check_consumer(consumer)
        register_configured(config)
        options = options_of(config, name, section, standby=standby)
        ensure_snapshot(
            config,
            log_place(config),
            name,
            options.takes,
            stop=stop,
            lock_timeout_s=None if standby else options.lock_timeout_ms / 1000,
        )
    except PenstockError as error:
        _with_name(error, name)
        if not holder_of(directory / LOCK_FILE):  # else another process reports about itself
            report.note_refused(_as_shown(error, config.path))
        raise
    application = Application(
        consumer,
        directory=directory,
        log_directory=config.layout.log,
        report=report,
        options=options,
        stop=stop,
    )
    try:
        application.run()
    except BaseException as error:
        if isinstance(error, PenstockError):
            _with_name(error, name)
        report.note_end(_as_shown(error, config.path))
        raise
    report.note_end()


def _run_direct(
    config: Config,
    name: str,
    section: ConsumerSection,
    consumer: CdcConsumer | None,
    stop: Callable[[], bool],
    *,
    standby: bool,
) -> None:
    """Run a consumer on the directory of the source's node."""
    report: DirectReport | None = None
    try:
        if consumer is None:
            consumer = make_consumer(section.class_, section.options, beside=config.path.parent)
        else:
            check_consumer(consumer)
        check_delivers_directly(consumer)
        log = part(config.source.url, DIRECT_PART)(config.source.url)
        report = DirectReport(name, config.layout.run, directory=log.directory)
        patterns = (config.source.tables, section.tables or config.source.tables)
        selections = [Selection.parse(one) for one in patterns]
        log.know_tables([name for one in selections for name in one.names()])
        if not section.keep_binary:
            log.give_plain()
        DirectApplication(
            consumer,
            log,
            report=report,
            options=DirectOptions(
                takes=lambda table: all(one.takes(TableName("", table)) for one in selections),
                takes_all=all("*.*" in one and not _excludes(one) for one in patterns),
                lock_timeout_ms=section.lock_timeout,
                check_frequency_ms=section.check_frequency,
                standby=standby,
            ),
            stop=stop,
        ).run()
    except BaseException as error:
        if isinstance(error, PenstockError):
            _with_name(error, name)
        if report is not None:
            report.note_end(_as_shown(error, config.path))
        raise
    report.note_end()


def _excludes(patterns: tuple[str, ...]) -> bool:
    return any(pattern.startswith("!") for pattern in patterns)


def options_of(
    config: Config, name: str, section: ConsumerSection, *, standby: bool = False
) -> ApplicationOptions:
    """Return the application's options from the configuration."""
    directory = config.layout.consumers / name
    selection = Selection.parse(section.tables) if section.tables else None

    def takes(table: TableName) -> bool:
        return selection is None or selection.takes(table)

    def is_held() -> bool:
        known = links.load_consumer(directory)
        return known is not None and known.paused

    return ApplicationOptions(
        takes=takes,
        lock_timeout_ms=section.lock_timeout,
        check_frequency_ms=section.check_frequency,
        keep_binary=section.keep_binary,
        standby=standby,
        reads_open=config.change_loader.read_open_segment,
        exit_when_done=config.change_extractor.exit_when_idle,
        extension=config.change_loader.change_file_extension,
        is_held=is_held,
        gone=lambda: frozenset(".".join(table) for table in removed_tables(config)),
    )


def _with_name(error: PenstockError, name: str) -> PenstockError:
    """Return the error, with its hint for this consumer."""
    error.hint = error.hint.replace("FILE NAME", f"FILE {name}")
    return error


def _as_shown(error: BaseException, path: Path) -> dict[str, Any]:
    """Return an error for the status file, with a hint for its reader, who used another command
    than this process.
    """
    if isinstance(error, PenstockError):
        return {**error.as_dict(), "hint": re.sub(r"\bFILE\b", lambda _: str(path), error.hint)}
    return {"code": "PS99", "error": f"unexpected {type(error).__name__}: {error}", "hint": ""}


class ConsumerRuns(PenstockError):
    """A consumer that should be removed is running. fields: consumer, holder_pid."""

    code = "CN15"
    retry = "operator"


class NoConsumers(PenstockError):
    """The pipeline's directory has no consumer."""

    code = "CN16"
    retry = "operator"


def add(config: Config, name: str) -> bool:
    """Register a consumer of the file; return False if it was registered already. Raises
    ConsumerUnknown.
    """
    section = section_of(config, name)
    return register(
        log_place(config), name, start=section.start, size_bytes_max=section.size_bytes_max
    )


def remove(config: Config, name: str) -> None:
    """Remove a consumer with its links and its saved state. Raises ConsumerRuns."""
    directory = config.layout.consumers / _check_known(config, name)
    try:
        lock = REAL_FILES.lock(directory, LOCK_FILE)
    except DirectoryLocked as error:
        pid = int(error.fields.get("holder_pid", 0))
        raise ConsumerRuns(
            f"the consumer {name} runs, as process {pid or 'unknown'}",
            hint=f"End it first: kill {pid or '<pid>'}; then run the same command again.",
            consumer=name,
            holder_pid=pid,
        ) from error
    try:
        # Its settings are removed first: a half that a crash leaves gets no more links.
        REAL_FILES.unlink(directory / links.CONSUMER_FILE)
        REAL_FILES.fsync_directory(directory)
        remove_tree(directory)
    finally:
        lock.release()


def enable(config: Config, name: str) -> None:
    """Let a consumer have links from the next rotation on."""
    _change(config, name, enabled=True)


def disable(config: Config, name: str) -> None:
    """Give a consumer no further links: it misses the changes."""
    _change(config, name, enabled=False)


def enable_all(config: Config) -> None:
    """Undo `disable_all`; consumers that are disabled one by one stay so."""
    links.enable_all(config.layout.consumers)


def disable_all(config: Config) -> None:
    """Give no consumer further links: the published property cdc.disabled."""
    links.disable_all(config.layout.consumers)


def pause(config: Config, name: str) -> None:
    """Give a consumer no events for now; it keeps its links."""
    _change(config, name, paused=True)


def resume(config: Config, name: str) -> None:
    """Let a paused consumer continue after the last event that it was given."""
    _change(config, name, paused=False)


def delete_lost(config: Config, name: str | None) -> list[Lost]:
    """Let one or all consumers pass the last hole. Raises NoConsumers, LostLinksLocked."""
    place = log_place(config)
    known = links.registered_consumers(place.consumers)
    if name is not None:
        known = [_check_known(config, name)]
    if not known:
        raise NoConsumers(
            f"pipeline {config.path.stem} has no consumer: no link can be lost",
            hint="This pipeline has no consumer: add a section [consumers.NAME] to FILE, then "
            "penstock consumers add FILE NAME.",
        )
    return [delete_lost_links(place, one) for one in known]


def _check_known(config: Config, name: str) -> str:
    known = links.registered_consumers(config.layout.consumers)
    if name not in known:
        error = unknown(config, name, tuple(known))
        if name in config.consumers:
            error.message = f"the consumer {name} is not registered yet"
            error.hint = f"Register it: penstock consumers add FILE {name}."
        raise error
    return name


def _change(config: Config, name: str, **fields: Any) -> None:
    directory = config.layout.consumers / _check_known(config, name)
    found = links.load_consumer(directory)
    if found is None:
        raise FileMissing(f"{directory} was removed meanwhile")
    links.save_consumer(directory, replace(found, **fields))
