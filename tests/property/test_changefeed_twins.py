"""The JSON of changefeeds: twin and kernel find the same places, and refuse the same ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import _changefeed, changefeed
from penstock.codec.changefeed import FIELDS, Refused, Trouble

SAMPLES = [
    json.loads(line)["body"].encode()
    for line in (Path(__file__).parents[1] / "data/changefeed/samples.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()[1:]
]
PIECES = st.sampled_from(
    [b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\\u12", b"\n", b" ", b"\t", b"\0", b"-",
     b"0", b"1", b".", b"e", b"E+", b"null", b"true", b"nul", b'"after":', b'"before":', b'"key":',
     b'"updated":"7.0000000001"', b'"topic":"a"', b'"payload":[', b'"length":1',
     b'"resolved":"1.0"',
     b'"__crdb__":', b'"After":', b'"updated":"', b"\xc3\xa9", b"\xff",
     b"\\ud83d", b"\\uDe00", b"\\uda", b"1e16383", b"-1.5E-016384", b'{"after":{},"key":[1],']
)  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=12,
)
SPACE = st.sampled_from(["", " ", "\n", "\r\t "])


def outcome(function: Callable[..., Any], *arguments: object) -> tuple[object, ...]:
    """Return the function's result, or what it refuses and where."""
    try:
        return ("found", function(*arguments))
    except Refused as refused:
        return (refused.trouble, refused.start, refused.end)


def check(body: bytes, line_bytes_max: int = 300) -> None:
    """Check that both give the same result for a body, whatever it is parsed as."""
    for strict in (True, False):
        twin = outcome(changefeed.scan_batch, body, strict)
        assert outcome(_changefeed.scan_batch, body, strict) == twin
    twin = outcome(changefeed.scan_lines, body, line_bytes_max)
    assert outcome(_changefeed.scan_lines, body, line_bytes_max) == twin


@given(st.lists(PIECES, max_size=30).map(b"".join))
def test_pieces_in_any_order(body: bytes) -> None:
    """Most of them are not JSON."""
    check(body)


@given(st.sampled_from(SAMPLES), st.data())
def test_samples_that_were_damaged(body: bytes, data: st.DataObject) -> None:
    """The samples are cut, or have bytes removed, added or changed."""
    place = data.draw(st.integers(0, len(body)))
    until = data.draw(st.integers(place, min(place + 9, len(body))))
    check(body[:place] + data.draw(PIECES | st.just(b"")) + body[until:])
    check(body[:place])


@given(st.lists(VALUES, min_size=1, max_size=4), SPACE, st.booleans())
def test_images_are_found_as_they_were_written(
    images: list[Any], space: str, ascii_only: bool
) -> None:
    """Both keep every byte, whatever JSON the images have and whatever space surrounds them."""
    raws = [json.dumps({"v": image}, ensure_ascii=ascii_only).encode() for image in images]
    body = b",".join(
        b'{"after":%s%s%s,"key":[1],"topic":"t","updated":"%d.0"}'
        % (space.encode(), raw, space.encode(), n + 1)
        for n, raw in enumerate(raws)
    )
    whole = b'{"payload":[' + body + b"]}"
    check(whole)
    rows = memoryview(changefeed.scan_batch(whole, True)[0]).cast("q")
    assert len(rows) == FIELDS * len(raws)
    for n, raw in enumerate(raws):
        row = rows[n * FIELDS : (n + 1) * FIELDS]
        assert whole[row[changefeed.AFTER] : row[changefeed.AFTER_END]] == raw
        assert row[changefeed.NANOS] == n + 1


@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_an_image_is_taken_exactly_when_it_is_json(text: bytes) -> None:
    """An image is accepted exactly if Python's reader accepts it without NaN and Infinity."""
    body = b'{"payload":[{"after":{"v":' + text + b'},"key":[1],"topic":"t","updated":"1.0"}]}'

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads((b'{"v":' + text + b"}").decode(), parse_constant=refuse)
        is_json = True
    except UnicodeDecodeError:
        return  # this is checked before the scan
    except ValueError:
        is_json = False
    if not is_json and b'"' in text:
        return  # it may have closed the image, and the rest may be fields of the line
    found = outcome(changefeed.scan_batch, body, True)[0]
    if found in (Trouble.HALF, Trouble.HUGE):
        return  # it may be JSON, but a value that no column has
    assert (found == "found") == is_json
