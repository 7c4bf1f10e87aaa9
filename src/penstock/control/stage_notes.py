"""What the instance that works for a target schema has decided, noted in the staging database.

The mode of the moment and the last problem are nobody's but the worker's. They are in the table
memo, so that every instance can show them, and they say who wrote them and when.
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
    """An error that a tenure ended with. at_us: UTC, microseconds since 1970."""

    at_us: int
    code: str
    error: str
    hint: str = ""


class GroupNote(msgspec.Struct, frozen=True, kw_only=True):
    """mode: empty before there was one; since mode_us, by hostname. dead_letters: their table."""

    mode: str = ""
    mode_us: int = 0
    hostname: str = ""
    dead_letters: str = ""
    problem: Problem | None = None


def read_note(session: StagingSession, group: Group) -> GroupNote:
    """The note of a group; an empty one where there is none, or another release's."""
    found = session.get_memo(KEY + group_name(group))
    if found is None:
        return GroupNote()
    try:
        return msgspec.json.decode(found, type=GroupNote)
    except msgspec.DecodeError:
        logger.warning("note of a group not readable", group=group_name(group))
        return GroupNote()


class Notes:
    """Writes the note of one group, when something has changed. Used by one thread.

    A note that cannot be written is written with the next one: it never holds up the work.
    """

    def __init__(
        self,
        database: StagingDatabase,
        group: Group,
        *,
        dead_letters: str,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Nothing is written yet."""
        self._database, self._group, self._clock = database, group, clock
        self._dead_letters = dead_letters
        self._mode = ""
        self._problem: Problem | None = None

    def mode_is(self, session: StagingSession, mode: str) -> None:
        """The mode that the group is in now."""
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
        """What the group's work has just ended with."""
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
