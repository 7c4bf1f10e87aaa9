"""Edits of the pipeline file between two runs: carried out, reported or refused.

A directory keeps the settings that its rows and changes depend on, as the last start read them. A
table that the file no longer names is removed as by `penstock table remove`, so that it is copied
again if the file names it later; otherwise its changes in between would be missing without a word.
Not here: tables that are new at the source (`tables/new_table_watch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import structlog

from penstock.control.pipeline.servers import followed_tables
from penstock.control.pipeline.table_requests import (
    forget_request,
    make_add_request,
    put_request,
    read_requests,
    with_requests,
)
from penstock.host.files import REAL_FILES
from penstock.host.state_file import StateFile
from penstock.load.ledger import read_ledger
from penstock.log.layout import load_state
from penstock.model import LOAD_AGAIN, PenstockError, TableName
from penstock.model.patterns import Selection, as_pattern
from penstock.model.table_requests import Capture, TableRequest
from penstock.ports.config import Config, Mode
from penstock.ports.handover import read_handover
from penstock.ports.progress import open_target_reader
from penstock.ports.tables import Followed, tables_at
from penstock.ports.target import target_name

logger = structlog.get_logger()

SETTINGS_FILE = "settings.json"
APPLICATION_NAME = "penstock settings"


class TableLeftByFile(PenstockError):
    """A table is not captured, because [source] tables no longer names it."""

    code = "CT65"
    retry = "operator"


class EditRefused(PenstockError):
    """An edit of the pipeline file would lose rows or changes."""

    code = "CT66"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Settings that rows and changes of a directory depend on, as its last start read them.

    Attributes:
        tables: patterns of [source] tables.
        map: source namespace to target namespace. While the pipeline has no target, map, types
            and target are those of its last one, where the rows are.
        types: choices of [target.types].
        target: scheme, host, port and database of the target, without user and password; empty
            if there has been none.
        extension: file extension of segments.
    """

    tables: tuple[str, ...] = ()
    map: dict[str, str]
    types: dict[str, str]
    target: str
    extension: str

    @classmethod
    def of(cls, config: Config) -> FileSettings:
        """Return those of a configuration."""
        return cls(
            tables=config.file_tables,
            map=config.target.map,
            types=config.target.types,
            target=_place_of(config.target.url) if config.has_target else "",
            extension=config.change_loader.change_file_extension,
        )


def _settings_file(config: Config) -> StateFile[FileSettings]:
    return StateFile(config.layout.state / SETTINGS_FILE, FileSettings)


def load_settings(config: Config) -> FileSettings | None:
    """Return the settings of the last start; None before the first. Raises CheckpointCorrupt."""
    return _settings_file(config).load()


def _place_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def settle_file_edits(
    config: Config, tell: Callable[[str], None] = lambda text: logger.warning(text)
) -> Config:
    """Carry out or refuse the edits since the last start; return the configuration after them.

    tell: gets a sentence for each edit that has an effect. Raises EditRefused, and the errors of
    asking the source or the target.
    """
    if config.stage is not None:
        return config
    last = load_settings(config)
    now = _read_settings(config, last)
    error = find_refusal(config)
    if error is not None:
        raise error
    if last == now:
        return config
    if last is not None and last.target != now.target:
        _check_target(config, last)
    if config.pipeline.mode.has_change and config.merge is None:
        _settle_tables(config, last, tell)
    if last is not None and last.types != now.types and _has_begun(config):
        tell(
            "[target.types] was edited: changes from now on are translated by it, and rows that "
            "are in the target stay as they are; to translate a table's rows again: "
            f"penstock table resync {config.path.name} TABLE"
        )
    if last is not None:
        _settings_file(config).save(now)
    return with_requests(config)


def _read_settings(config: Config, last: FileSettings | None) -> FileSettings:
    """Return the settings of a configuration. Without a target, settings of the target are those of
    the last start.
    """
    now = FileSettings.of(config)
    if config.has_target or last is None:
        return now
    return replace(now, map=last.map, types=last.types, target=last.target)


def keep_first_settings(config: Config) -> None:
    """Keep the settings of a pipeline's first start, once it has passed all checks.

    A start that is refused earlier leaves nothing. config: as it was read from the file.
    """
    if config.stage is None and load_settings(config) is None:
        REAL_FILES.make_directory(config.layout.state)
        _settings_file(config).save(FileSettings.of(config))


def _has_begun(config: Config) -> bool:
    """Return whether there are rows in the target, or changes in the log, from earlier runs."""
    return load_state(config.layout.log) is not None or bool(read_ledger(config.layout.state).plans)


# -- refusals --------------------------------------------------------------------------------------


def find_refusal(config: Config) -> EditRefused | None:
    """Return the error for an edit that would lose rows, or None. Asks no server."""
    last = load_settings(config)
    return _find_mode_refusal(config) or (
        _find_setting_refusal(config, last) if last is not None else None
    )


def _find_mode_refusal(config: Config) -> EditRefused | None:
    mode, name = config.pipeline.mode, config.path.name
    log = load_state(config.layout.log)
    ledger = read_ledger(config.layout.state)
    handover = read_handover(config)
    again = LOAD_AGAIN.replace("FILE", name)
    if not mode.has_change:
        if log is None and handover is None:
            return None
        return EditRefused(
            f"[pipeline] mode is data, and {config.directory} has the change log of an earlier "
            "mode: the source would keep its changes for a log that is not extracted any more",
            hint=f'Set mode = "data+change" or "change" again, or {again}',
        )
    if not config.has_target:
        return None
    if handover is None and log is None and ledger.plans:
        return EditRefused(
            f"[pipeline] mode is {mode}, and the rows in the target were loaded in mode data: "
            "changes since then would be missing",
            hint=f'Set mode = "data" again, or {again}',
        )
    if mode is Mode.CHANGE and handover is not None:
        if ledger.finished and ledger.foreign_keys_done:
            return None
        return EditRefused(
            "[pipeline] mode is change, and the bulk load of mode data+change is not finished: "
            "rows would be missing",
            hint='Set mode = "data+change" again; once `penstock status` says that the bulk load '
            "is done, both modes do the same.",
        )
    return None


def _find_setting_refusal(config: Config, last: FileSettings) -> EditRefused | None:
    now, name = _read_settings(config, last), config.path.name
    if last.extension != now.extension and load_state(config.layout.log) is not None:
        return EditRefused(
            f"[changeLoader] changeFileExtension is {now.extension}, and the segments in "
            f"{config.layout.log} end in .{last.extension}",
            hint=f'Set changeFileExtension = "{last.extension}" again.',
        )
    if not last.target or last.map == now.map:
        return None
    known = followed_tables(config)
    places = {plan.source: plan.target for plan in read_ledger(config.layout.state).plans}
    for table in known.names if known is not None else ():
        places.setdefault(table, target_name(table, last.map))
    for table, was in sorted(places.items()):
        would_be = target_name(table, now.map)
        if was != would_be:
            return EditRefused(
                f"[target.map] was edited: the rows of {table} are in {was}, its changes would go "
                f"to {would_be}",
                hint="Undo the edit, or load all rows into the new place: "
                + LOAD_AGAIN.replace("FILE", name),
                table=str(table),
            )
    return None


def _check_target(config: Config, last: FileSettings) -> None:
    """Refuse another target in mode change, unless it follows this log, too.

    In the other modes the bulk load fills the tables that a new target lacks.
    """
    log = load_state(config.layout.log)
    if config.pipeline.mode.has_data or not config.has_target or not last.target or log is None:
        return
    with closing(
        open_target_reader(config.target.url, application_name=APPLICATION_NAME)
    ) as target:
        if target.present()[0] and target.log_id() == log.log_id:
            return
    raise EditRefused(
        f"target.url was edited: {_place_of(config.target.url)} does not follow this change log, "
        f"which is applied to {last.target}; in mode change no rows are copied to a new target",
        hint="Name the old target again, or give a pipeline of mode data+change, with a directory "
        "and a slot of its own, this target.",
    )


# -- tables ----------------------------------------------------------------------------------------


def _settle_tables(config: Config, last: FileSettings | None, tell: Callable[[str], None]) -> None:
    """Remove followed tables that the file no longer names, and add those that it names again."""
    known = followed_tables(config)
    if known is None:
        if last is not None and last.tables != config.file_tables and _has_begun(config):
            tell(
                "[source] tables was edited: a table that it did not match before is captured from "
                "now on, and its earlier changes are not in the log"
            )
        return
    left, back = find_edited(config, known, last)
    if left and not config.source.engine.has_table_requests:
        raise EditRefused(
            f"[source] tables no longer matches {left[0]}, and a log of "
            f"{config.source.engine.shown} keeps the tables that it began with",
            hint=f'Name it again: "{as_pattern(left[0])}", or '
            + LOAD_AGAIN.replace("FILE", config.path.name),
            table=str(left[0]),
        )
    present = _present(config, [*left, *back], known)
    for table in left:
        # A table that has another name by now is followed under that name.
        if table in present:
            error = make_left_error(config, table)
            _remove(config, table, error)
            tell(f"{error.message}. {error.hint}")
    for table in back:
        if table not in present:
            forget_request(config, table)
            continue
        put_request(
            config,
            table,
            lambda last, number: make_add_request(config, last.table, number, replaces=True),
        )
        rows = (
            "its rows are copied again, then its changes are applied"
            if config.has_target
            else "its changes since it was left out are not in the log; to put its rows into it: "
            f"penstock resend {config.path.name} {table}"
        )
        tell(f"{table} is captured again, because [source] tables matches it again: {rows}")


def find_edited(
    config: Config, known: Followed, last: FileSettings | None
) -> tuple[list[TableName], list[TableName]]:
    """Return the tables that the file no longer names, and separately those that it names again."""
    takes = Selection.parse(config.file_tables).takes
    took = Selection.parse(last.tables).takes if last is not None else None
    requests = read_requests(config)

    def is_left(request: TableRequest) -> bool:
        if takes(request.table):
            return False
        if request.capture is Capture.ADDED:  # by a command, if the file never named it
            return took is not None and took(request.table)
        if request.capture is Capture.REMOVED:
            return request.code != TableLeftByFile.code
        return request.capture is Capture.FILE

    names = known.names | {one.table for one in requests.tables}
    left = [name for name in names if is_left(requests.of(name))]
    back = [
        one.table
        for one in requests.tables
        if one.capture is Capture.REMOVED and one.code == TableLeftByFile.code and takes(one.table)
    ]
    return sorted(left), sorted(back)


def make_left_error(config: Config, table: TableName) -> TableLeftByFile:
    """Return the reason that is kept and shown for a table that the file no longer names."""
    later = (
        "its rows are copied again" if config.has_target else "its rows are put into the log again"
    )
    return TableLeftByFile(
        f"{table} is not captured any more, because [source] tables no longer matches it",
        hint=f'To follow it again, add "{as_pattern(table)}" to [source] tables in '
        f"{config.path.name} and start again: {later}.",
        table=str(table),
    )


def _remove(config: Config, table: TableName, error: TableLeftByFile) -> None:
    def change(last: TableRequest, number: int) -> TableRequest:
        return TableRequest(
            table=table,
            capture=Capture.REMOVED,
            capture_id=last.capture_id if last.capture is Capture.REMOVED else number,
            code=error.code,
            error=error.message,
            hint=error.hint,
        )

    put_request(config, table, change)


def _present(config: Config, tables: Collection[TableName], known: Followed) -> set[TableName]:
    """Return those of these tables that the source's catalogue has under their names."""
    if not tables:
        return set()
    only = replace(known, names=frozenset(tables), missing=frozenset())
    source = tables_at(config.source.url)
    try:
        found = source.present(config, [as_pattern(table) for table in tables], only)
    except PenstockError as error:
        if error.retry == "backoff" or len(tables) == 1:
            raise
        found = None
    if found is None and len(tables) > 1:
        return set().union(*(_present(config, [table], known) for table in tables))
    return set(found.names) & set(tables) if found is not None else set()
