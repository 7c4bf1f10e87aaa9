"""`penstock plan --ddl`: the tables that a subscriber of the served log needs, as statements.

The shapes are those of the log; a table without any change in the log has the shape that the source
has now. Reads only. Not here: serving (`serve_process.py`).
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass

from penstock.control.pipeline.servers import source_tables
from penstock.control.run.serve_process import check_serve, relation_of, type_choices
from penstock.model import PenstockError, Relation
from penstock.ports.config import Config
from penstock.ports.registry import types_at
from penstock.serve.catalog.publications import Publication
from penstock.serve.entries import parse_entries
from penstock.serve.saved_state import SavedState, Shapes
from penstock.serve.slots import NAME
from penstock.serve.source_log import LogNotBegun, SegmentGone, SourceLog
from penstock.serve.subscriber_ddl import subscriber_ddl
from penstock.serve.tables import served_relation


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberTables:
    """Statements for a subscriber.

    Attributes:
        statements: Each creates a schema or a table.
        unread: Why the source's tables could not be read; empty if they were. Then a table without
            changes in the log is missing.
    """

    statements: tuple[str, ...]
    unread: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the form of `--json`."""
        return {"statements": list(self.statements), "unread": self.unread or None}

    def as_sql(self) -> str:
        """Return the statements as a script."""
        why = " ".join(self.unread.split())  # a comment ends with its line
        comment = f"-- The source's tables were not read: {why}\n" if why else ""
        return comment + "\n".join(self.statements)


class _UnsavedState(SavedState):
    """State of the server, read and never written."""

    def save(self, name: str, part: object) -> None:
        """Ignore what was learnt."""


def read_subscriber_tables(config: Config) -> SubscriberTables:
    """Return the statements for the publications of [serve].

    Raises ServeSectionMissing, ServeNotInstalled, PublicationInvalid, ServedOtherLog, and the
    errors of reading the log.
    """
    section = check_serve(config)
    publications = []
    for name, one in section.publications.items():
        entries = parse_entries(one.tables)
        publications.append(
            Publication(
                name=name, oid=0, owner="", patterns=entries.patterns, tables=entries.tables
            )
        )
    relations, engine, unread = _read_shapes(config)
    choices = type_choices(config)
    announced = [served_relation(one, engine, choices).relation for one in relations]
    return SubscriberTables(
        statements=tuple(subscriber_ddl(announced, publications)), unread=unread
    )


def _read_shapes(config: Config) -> tuple[list[Relation], str, str]:
    """Return the newest shapes, the engine whose types they have, and why some may be missing."""
    unread = ""
    present: list[Relation] = []
    try:
        present = [relation_of(one) for one in source_tables(config)]
    except PenstockError as error:
        unread = error.message
    log = SourceLog(
        config.layout.log,
        config.layout.consumers / NAME,
        extension=config.change_loader.change_file_extension,
    )
    with closing(log):
        try:
            head = log.head()
        except LogNotBegun:
            if unread:
                raise
            return present, types_at(config.source.url), ""
        shapes = Shapes(_UnsavedState(config.layout.state, log_id=head.log_id))
        shapes.begin(present)
        first = log.first_kept()
        for number in range(head.number if first is None else first, head.number + 1):
            with suppress(SegmentGone), log.segment(number, head) as segment:
                shapes.learn(segment)
        return shapes.all(), head.engine, unread
