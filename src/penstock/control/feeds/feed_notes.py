"""Decisions of the instance that works for a target schema, noted in the staging database.

Only the worker knows the present mode and the last problem. They are in the table
memo, with their writer and time, so that every instance can show them.
"""

from __future__ import annotations

import socket

import msgspec
import structlog

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.ports.staging import Group, StagingDatabase, StagingSession, group_name

logger = structlog.get_logger(__name__)
KEY = "stage "


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Error that ended a tenure. at_us: UTC, microseconds since 1970."""

    at_us: int
    code: str
    error: str
    hint: str = ""


class GroupNote(msgspec.Struct, frozen=True, kw_only=True):
    """Note about a group.

    Attributes:
        mode: Empty before there was one; in force since mode_us, set by hostname.
        dead_letters: Their table.
    """

    mode: str = ""
    mode_us: int = 0
    hostname: str = ""
    dead_letters: str = ""
    problem: Problem | None = None


def read_note(session: StagingSession, group: Group) -> GroupNote:
    """Return the note of a group; an empty one if there is none, or another release's."""
    found = session.get_memo(KEY + group_name(group))
    if found is None:
        return GroupNote()
    try:
        return msgspec.json.decode(found, type=GroupNote)
    except msgspec.DecodeError:
        logger.warning("note of a group not readable", group=group_name(group))
        return GroupNote()


class Notes:
    """Writer of one group's note, if something has changed. Used by one thread.

    If a note cannot be written, it is written with the next one: it never delays the work.
    """

    def __init__(
        self,
        database: StagingDatabase,
        group: Group,
        *,
        dead_letters: str,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Begin; nothing is written yet."""
        self._database, self._group, self._clock = database, group, clock
        self._dead_letters = dead_letters
        self._mode = ""
        self._problem: Problem | None = None

    def mode_is(self, session: StagingSession, mode: str) -> None:
        """Note the present mode of the group."""
        if mode == self._mode:
            return
        try:
            known = read_note(session, self._group)
            hostname = socket.gethostname()
            is_new = (known.mode, known.hostname) != (mode, hostname)
            self._write(
                session,
                msgspec.structs.replace(
                    known,
                    mode=mode,
                    mode_us=self._clock.now_us() if is_new else known.mode_us,
                    hostname=hostname,
                    dead_letters=self._dead_letters,
                    problem=self._problem or known.problem,
                ),
            )
        except PenstockError as error:
            self._not_written(error)
        else:
            self._mode = mode

    def note_problem(self, error: PenstockError) -> None:
        """Note the error with which the group's work has just ended."""
        shown = error.as_dict()
        self._problem = Problem(
            at_us=self._clock.now_us(),
            code=str(shown["code"]),
            error=str(shown["error"]),
            hint=error.hint,
        )
        self._mode = ""  # so that the next tenure says in which mode it is
        try:
            with self._database.open_session() as session:
                known = read_note(session, self._group)
                self._write(session, msgspec.structs.replace(known, problem=self._problem))
        except PenstockError as failed:
            self._not_written(failed)

    def _write(self, session: StagingSession, note: GroupNote) -> None:
        session.put_memo(KEY + group_name(self._group), msgspec.json.encode(note))

    def _not_written(self, error: PenstockError) -> None:
        logger.warning("note not written", group=group_name(self._group), error=error.message)
