"""`penstock reset`: undoes what a pipeline made, at both servers and on disk.

First everything is looked at and nothing changed; then the source is released, the target's state
is removed, and last the directory, so that a reset that was killed at any moment can be repeated.
Not here: the question (`penstock.cli.reset`), and the leftovers of each engine (`ports.reset`,
`ports.reset`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.consume.lock import LOCK_FILE
from penstock.control.pipeline.config import need_target
from penstock.control.pipeline.running import (
    LOAD_LOCK,
    RUN_LOCK,
    take_lock,
)
from penstock.control.pipeline.servers import source_tables
from penstock.control.pipeline.table_requests import read_requests
from penstock.host.errors import PrivilegeMissing
from penstock.host.files import REAL_FILES, DirectoryLock, remove_tree
from penstock.host.task_fence import PERMITS_NAME, withdraw_permits
from penstock.log import load_state
from penstock.log.layout import LOCK_NAME
from penstock.log.links import registered_consumers
from penstock.model import PenstockError
from penstock.model.removal import Removal
from penstock.model.table_requests import Capture
from penstock.ports import reset as at_target
from penstock.ports.checks import checks_of
from penstock.ports.config import Config
from penstock.ports.feeds import FEEDS, GROUPS
from penstock.ports.handover import read_handover
from penstock.ports.identity import check_pipeline, stored_identity
from penstock.ports.reset import reset_of
from penstock.ports.target import TargetFollowsAnotherLog, target_name

APPLICATION_NAME = "penstock reset"
REMOVED = "reset.removed"  # name of the directory while it is being deleted


class ResetNotAllowed(PenstockError):
    """The role may not remove something that the pipeline made."""

    code = "CT80"


class ResetUnsure(PenstockError):
    """The findings may be another pipeline's, and no question can be asked."""

    code = "CT81"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Plan of a reset. notes: facts to know before confirming.

    unsure: why an operator has to check and confirm; empty if everything certainly belongs to the
    pipeline.
    """

    source: tuple[Removal, ...]
    target: tuple[Removal, ...]
    paths: tuple[Path, ...]
    notes: tuple[str, ...]
    unsure: str = ""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to remove."""
        return not (self.paths or any(not one.by_hand for one in (*self.source, *self.target)))

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `--json` prints it."""
        return {
            "source": [_removal(one) for one in self.source],
            "target": [_removal(one) for one in self.target],
            "paths": [str(path) for path in self.paths],
            "notes": list(self.notes),
        }


def _removal(one: Removal) -> dict[str, Any]:
    return {"what": one.what, "sql": list(one.statements), "by_hand": one.by_hand}


@contextmanager
def at_rest(config: Config) -> Iterator[None]:
    """Hold the locks of all processes for a with block. Raises AlreadyRunning."""
    layout, locks = config.layout, list[DirectoryLock]()
    try:
        for directory, name in (
            (layout.run, RUN_LOCK),
            (layout.log, LOCK_NAME),
            (layout.state, LOAD_LOCK),
            *(
                (layout.consumers / one, LOCK_FILE)
                for one in registered_consumers(layout.consumers)
            ),
        ):
            locks.append(take_lock(config, directory, name))
        withdraw_permits(layout.run / PERMITS_NAME)
        yield
    finally:
        for lock in locks:
            lock.release()


def look(config: Config, *, with_tables: bool) -> Reset:
    """Return what a reset would remove; change nothing. with_tables: the target's tables, too.

    Raises TargetMissing, TargetFollowsAnotherLog, DirectoryOfOtherPipeline, SlotInUse,
    DirectoryOfOtherSource, SlotOfAnother, and the errors of connecting.
    """
    stored = stored_identity(config)
    if stored is not None:
        check_pipeline(config, stored)
    tables = None
    if with_tables:
        need_target(
            config,
            "no tables are to be emptied",
            instead="Run `penstock reset FILE`, without --target",
        )
        found = source_tables(config)
        tables = [target_name(one.name, config.target.map) for one in found]
    state = load_state(config.layout.log)
    follows = state.log_id if state is not None else ""
    at_source = reset_of(config)
    source = tuple(at_source.find_removals(config, read_handover(config)))
    owner = at_source.owner(config, log_id=follows)
    target = at_target.Leftovers(log_id="", removals=())
    if config.has_target:
        target = at_target.leftovers(config.target.url, tables=tables)
    has_log = bool(follows) or not config.pipeline.mode.has_change
    if has_log and target.log_id and target.log_id != follows:
        raise TargetFollowsAnotherLog(
            f"the target follows change log {target.log_id}, "
            f"{'this pipeline has ' + follows if follows else 'a pipeline of mode data has none'}",
            hint="It is another pipeline's target: reset that one, or, if it no longer exists, "
            f"run at the target: {checks_of(config.target.url).DROP_PROGRESS}",
        )
    return Reset(
        source=source,
        target=target.removals,
        paths=tuple(paths_of(config)),
        notes=_notes(config, with_tables=with_tables),
        unsure="" if follows else _unsure(config, owner, target.log_id),
    )


def _unsure(config: Config, owner: str, log_id: str) -> str:
    """Return why it is unknown who owns the objects at the servers, if the directory has no log.

    Returns an empty text if there are no such objects.
    """
    found = [owner] if owner else []
    if log_id:
        found.append(f"the target follows change log {log_id}")
    if not found:
        return ""
    return (
        f"{', '.join(found)}, and {config.directory} has no log that says whether it is this "
        f"pipeline's"
    )


def paths_of(config: Config) -> Iterator[Path]:
    """Yield the existing parts of the pipeline's directory."""
    layout = config.layout
    ours = (layout.state, layout.log, layout.spill, layout.consumers, layout.run, layout.base)
    staged = (config.directory / GROUPS, config.directory / FEEDS)
    for path in (*ours, *staged, config.directory / REMOVED):
        if path.exists():
            yield path


def _notes(config: Config, *, with_tables: bool) -> tuple[str, ...]:
    notes = []
    if with_tables and not config.pipeline.mode.has_data:
        notes.append("mode change loads no rows: the target's tables stay empty")
    requests = read_requests(config)
    for capture, how in ((Capture.ADDED, "name"), (Capture.REMOVED, "take out")):
        names = sorted(
            str(request.table) for request in requests.tables if request.capture is capture
        )
        if names:
            notes.append(
                f"{', '.join(names)}: {capture} by `penstock table`, which is forgotten with the "
                f"directory; {how} them in [source] tables for the next run"
            )
    if config.change_loader.done_directory:
        notes.append(f"segments in {config.change_loader.done_directory} stay")
    return tuple(notes)


def carry_out(config: Config, reset: Reset, *, on_done: Callable[[str], None]) -> None:
    """Carry the reset out, inside `at_rest`. on_done: called with each removed thing.

    Raises ResetNotAllowed, and the errors of the servers' connections; then run it again.
    """
    for removal in reset.source:
        if removal.by_hand:
            continue
        with as_administrator(removal):
            reset_of(config).remove(config, read_handover(config), removal)
        on_done(removal.what)
    for removal in reset.target:
        with as_administrator(removal):
            at_target.remove(config.target.url, removal)
        on_done(removal.what)
    remove_directory(config)
    if reset.paths:
        on_done(f"directory {config.directory}")


@contextmanager
def as_administrator(removal: Removal) -> Iterator[None]:
    """Name the statements of a removal if the role may not run them. Raises ResetNotAllowed."""
    try:
        yield
    except PrivilegeMissing as error:
        raise ResetNotAllowed(
            f"cannot remove {removal.what}: {error.message}",
            hint="As its owner or an administrator, run: "
            f"{' '.join(removal.statements)} Then run the same command again.",
        ) from error


def remove_directory(config: Config) -> None:
    """Remove the paths that `paths_of` yields.

    All of it is renamed first, so that no starting process finds half of it.
    """
    trash = config.directory / REMOVED
    if trash.exists():
        remove_tree(trash)
    REAL_FILES.make_directory(trash)
    for path in paths_of(config):
        if path != trash:
            REAL_FILES.rename(path, trash / path.name)
    remove_tree(trash)
    if not REAL_FILES.listdir(config.directory):
        config.directory.rmdir()
