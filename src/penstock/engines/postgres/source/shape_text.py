"""The shape of a table out of the text that the catalogue query prints."""

from __future__ import annotations

import json

from penstock.engines.postgres.source.table_shape import AttributeShape, PartShape, TableShape
from penstock.engines.postgres.source.type_shape import TypeShape
from penstock.model import TableName


def read_shape(digest: str, text: str) -> TableShape:
    """Return the shape that a row of `shapes_sql` holds."""
    raw = json.loads(text)
    return TableShape(
        digest=digest,
        source_id=raw["source_id"],
        name=TableName(raw["schema"], raw["name"]),
        kind=raw["kind"],
        persistence=raw["persistence"],
        identity=raw["identity"],
        identity_columns=_names(raw["identity_columns"]),
        key_columns=tuple(raw["key_columns"]),
        types=tuple(
            TypeShape(
                id=t[0],
                name=TableName(t[1], t[2]),
                is_enum=t[4] == "e",
                parts=tuple((p[0], p[1]) for p in t[3] or ()),
            )
            for t in raw["types"] or ()
        ),
        file=raw["file"],
        published=raw["published"],
        keys=tuple((key[0], key[1], key[2]) for key in raw["keys"] or ()),
        attributes=tuple(
            AttributeShape(
                number=a[0],
                name=a[1],
                type_oid=a[2],
                typmod=a[3],
                not_null=a[4],
                generated=a[5],
                expression=a[6] or 0,
                xid=a[7],
            )
            for a in raw["attributes"] or ()
        ),
        parts=tuple(
            PartShape(
                id=p[0],
                parent=p[1],
                name=TableName(p[2], p[3]),
                kind=p[4],
                persistence=p[5],
                file=p[6],
                created_xid=p[7],
                link_xid=p[8],
                link_command=p[9],
                changed_xid=p[10],
                identity_columns=_names(p[11]),
            )
            for p in raw["parts"] or ()
        ),
    )


def _names(columns: list[str] | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(columns)
