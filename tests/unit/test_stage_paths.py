"""Paths of requests: the meaning of a changefeed's URL and of the names of its files."""

from __future__ import annotations

import pytest

from penstock.feeds.receiver.targets import Kind, PathUnknown, Place, place_of
from penstock.model.hlc import Hlc

SHOP = ("db", "public")
FILE = "202004022058072107140000000000000-56087568dba1e6b8-1-72-00000000-test_table-1f.ndjson"
MARKER = "202011221122335555555556666666666.RESOLVED"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/db/public", Place(group=SHOP, kind=Kind.BATCH)),
        ("//db//public//", Place(group=SHOP, kind=Kind.BATCH)),
        ("/a%2Fb/c+d%20e", Place(group=("a/b", "c d e"), kind=Kind.BATCH)),
        ("/db/public/t%C3%A4", Place(group=SHOP, kind=Kind.QUERY_BATCH, table="tä")),
        (
            f"/db/public/2020-04-02/{FILE}",
            Place(group=SHOP, kind=Kind.LINES, table="test_table"),
        ),
        (
            f"/db/public/2020-04-02/{FILE.replace('test_table', 'x.y.with-dash')}",
            Place(group=SHOP, kind=Kind.LINES, table="x.y.with-dash"),
        ),
        (
            f"/db/public/other/2020-04-02/{FILE}",
            Place(group=SHOP, kind=Kind.QUERY_LINES, table="other"),
        ),
        (
            f"/db/public/2020-04-04/{MARKER}",
            Place(group=SHOP, kind=Kind.RESOLVED, time=Hlc(1606044153_555555555, 6666666666)),
        ),
        (
            f"/db/public/other/2020-04-04/{MARKER}",
            Place(
                group=SHOP,
                kind=Kind.RESOLVED,
                table="other",
                time=Hlc(1606044153_555555555, 6666666666),
            ),
        ),
    ],
)
def test_a_path_names_schema_and_kind(path: str, place: Place) -> None:
    """Empty segments are ignored, as published."""
    assert place_of(path, group_parts=2) == place


def test_a_target_without_schemas_has_one_segment() -> None:
    """The second segment is already a table if the target has no schemas."""
    assert place_of("/db", group_parts=1) == Place(group=("db",), kind=Kind.BATCH)
    place = Place(group=("db",), kind=Kind.QUERY_BATCH, table="public")
    assert place_of("/db/public", group_parts=1) == place


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/db", "/1/2/3/4/5/6/7/8", "/a/b/c/d/e/f/g", "/db/public/a/b", "/_/healthz"),
        *("/%2e%2e", "/db/%2E", "/db/%2e%2e", "/db/public/..", "/./public", "/_/x"),
        *("/_/2020-04-04/" + MARKER, "/db/pub%zzlic", "/db/%ff", "/db/a%00b", "/db/pub%2"),
        *(f"/db/2020-04-02/{FILE}", f"/2020-04-02/{FILE}", f"/db/2020-04-04/{MARKER}"),
        f"/db/public/2020-04-2/{FILE}",
        f"/db/public/a/b/2020-04-02/{FILE}",
        f"/db/public/2020-04-02/{FILE}.gz",
        f"/db/public/2020-04-02/x-{FILE[60:]}",
        "/db/public/2020-04-04/20201122112233555555555666666666.RESOLVED",
        "/db/public/2020-04-04/202013221122335555555556666666666.RESOLVED",
        "/db/public/2020-04-04/999911221122335555555556666666666.RESOLVED",
        "/db/public/2020-04-04/196911221122335555555556666666666.RESOLVED",
        "/db/public/2020-04-04/٢02011221122335555555556666666666.RESOLVED",
    ],
)
def test_other_paths_are_unknown(path: str) -> None:
    """Paths with an invalid time are unknown, too."""
    with pytest.raises(PathUnknown):
        place_of(path, group_parts=2)
