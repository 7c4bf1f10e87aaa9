"""Row images into changelogs: rows, units of work and place in one transaction of the destination.

Many transactions of the source may be one transaction of the destination; none is ever divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.consume.flexcdc.captured import Changelogs
from penstock.consume.flexcdc.images import ImageGroup
from penstock.consume.flexcdc.reading import Sink
from penstock.consume.flexcdc.state import Place, State, UnitOfWork, Units
from penstock.host import faults
from penstock.model import Relation, TableName
from penstock.model.sections import FlexCdcSettings
from penstock.ports.changelog import OWN_SCHEMA, RowImages

faults.declare(
    "flexcdc.append.before",
    "flexcdc.append.after",
    "flexcdc.units.before",
    "flexcdc.commit.before",
    "flexcdc.commit.after",
)

IMAGES_MAX = 10_000  # of one write, and about of one transaction if the source's are smaller
# In row mode each image is a statement. A transaction takes about as long as in bulk mode, so a
# writer that is killed repeatedly makes progress.
SINGLE_IMAGES_MAX = 200
TRUNCATED = 0  # dml_type of the row for a table that was emptied


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceServer:
    """Server that is read.

    Attributes:
        number: its server_id.
        has_files: its log has files with names.
    """

    number: int
    has_files: bool


class ChangelogWriter(Sink):
    """Writes into changelogs, in a transaction from the first write until `commit`."""

    images_max = IMAGES_MAX
    one_by_one = False

    def __init__(
        self, state: State, changelogs: Changelogs, settings: FlexCdcSettings, server: SourceServer
    ) -> None:
        self._state = state
        self._changelogs = changelogs
        self._is_bulk = settings.bulk_insert
        if not self._is_bulk:
            self.images_max = min(self.images_max, SINGLE_IMAGES_MAX)
        self._server = server
        self._place: Place | None = None

    def begin(self, place: Place) -> None:
        """Begin a transaction, unless one is open. Raises StateMoved."""
        if self._place is None:
            self._state.session.begin()
            self._state.check_place(place)
            self._place = place

    def write(self, group: ImageGroup, start: int, end: int, units: Units) -> None:
        """Write the images of the rows at these places."""
        faults.point("flexcdc.append.before")
        found = list(group.images(start, end, units.of, self._server.number))
        for table, images in found if self._is_bulk else _in_order(found):
            self._append(table, images)
        faults.point("flexcdc.append.after")

    def _append(self, relation: Relation, images: RowImages) -> None:
        table = TableName(relation.schema, relation.name)
        fitting = self._changelogs.fit_names(relation)
        self._state.session.append(
            self._changelogs.changelog(table), replace(images, relation=fitting)
        )

    def note_emptied(self, table: TableName, uow_id: int, gsn: int) -> None:
        """Write that a table was emptied, after the image of this number."""
        own = [TRUNCATED, uow_id, self._server.number, gsn]
        arrays = [pa.array([v], field.type) for v, field in zip(own, OWN_SCHEMA, strict=True)]
        images = RowImages(
            relation=Relation(schema=table.schema, name=table.name, columns=()),
            own=pa.RecordBatch.from_arrays(arrays, schema=OWN_SCHEMA),
            columns=[],
        )
        self._state.session.append(self._changelogs.changelog(table), images)

    def commit(self, place: Place, units: Sequence[UnitOfWork], where: tuple[str, int]) -> None:
        """Commit with these units and this place.

        Args:
            place: the place.
            units: the units of work.
            where: file and offset of the position.
        """
        assert self._place is not None, "begun"
        faults.point("flexcdc.units.before")
        self._state.put_units(units)
        self._state.move(place)
        self._state.put_position(self._server.number, *where, in_files=self._server.has_files)
        faults.point("flexcdc.commit.before")
        self._state.session.commit()
        self._place = None
        faults.point("flexcdc.commit.after")

    def give_up(self) -> None:
        """Undo everything that is not committed."""
        self._state.session.rollback()
        self._place = None


def _in_order(found: Sequence[tuple[Relation, RowImages]]) -> list[tuple[Relation, RowImages]]:
    """Return the row images in the order of their numbers; the old image of an update precedes the
    new one.
    """
    places = [
        (number, which, at)
        for which, (_, images) in enumerate(found)
        for at, number in enumerate(images.own.column("fv$gsn").to_pylist())
    ]
    return [(found[which][0], found[which][1].slice(at, 1)) for _, which, at in sorted(places)]
