"""The work of `penstock consumers`: consumers are registered, removed, disabled, paused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.consume.lock import LOCK_FILE
from penstock.consume.lost import Lost, delete_lost_links
from penstock.consume.registration import register
from penstock.control.pipeline.consumers import log_place, section_of, unknown
from penstock.host.files import REAL_FILES, DirectoryLocked, FileMissing, remove_tree
from penstock.log import links
from penstock.model import PenstockError
from penstock.ports.config import Config


class ConsumerRuns(PenstockError):
    """A consumer that should be removed is running. fields: consumer, holder_pid."""

    code = "CN15"
    retry = "operator"


class NoConsumers(PenstockError):
    """The pipeline's directory has no consumer."""

    code = "CN16"
    retry = "operator"


def add(config: Config, name: str) -> bool:
    """Register a consumer of the file; return False if it was. Raises ConsumerUnknown."""
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
