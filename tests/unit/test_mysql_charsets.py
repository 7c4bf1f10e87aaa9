"""Character sets of MySQL, compared with the answers of real servers for every character."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest

from harness.twins.binlog import DATA
from penstock.codec.mysql import charsets as mysql_charsets
from penstock.codec.mysql.charsets import charset_named, charset_of, decoder, widest_bytes

# SHA-256 over every byte sequence that the server knows, each followed by its text as UTF-8.
DIGESTS: dict[str, dict[str, int | str]] = json.loads((DATA / "charsets.json").read_text())


def sequences(charset: str) -> Iterator[bytes]:
    """Yield every character that may exist, ordered by its bytes; of gb18030 those of two bytes."""
    length = mysql_charsets._lengths(charset) if widest_bytes(charset) > 1 else lambda _, __: 1
    every = [bytes((first,)) for first in range(256)]
    if widest_bytes(charset) > 1:
        every += [bytes(pair) for pair in ((a, b) for a in range(128, 256) for b in range(256))]
    if charset in ("ujis", "eucjpms"):
        every += [bytes((0x8F, a, b)) for a in range(128, 256) for b in range(256)]
    yield from sorted(one for one in every if length(one, 0) == len(one))


@pytest.mark.parametrize("charset", sorted(DIGESTS))
def test_every_character_is_the_servers(charset: str) -> None:
    """A character that the server does not know raises."""
    decode = decoder(charset)
    digest = hashlib.sha256()
    count = 0
    for one in sequences(charset):
        try:
            text = decode(one)
        except UnicodeDecodeError:
            continue
        digest.update(one + text.encode())
        count += 1
    assert (count, digest.hexdigest()) == (DIGESTS[charset]["count"], DIGESTS[charset]["sha256"])


def test_texts_of_several_characters() -> None:
    """Texts have mixed lengths, and the wide forms."""
    assert decoder("gb18030")("a中".encode("gb18030") + b"\xa8\xbc\x94\x39\xfc\x36") == "a中ḿ😀"
    assert decoder("ujis")(b"a\x8e\xb1\xa4\xa2\x8f\xb0\xa1\xf5\xa1") == "aｱあ丂\ue000"
    assert decoder("sjis")(b"\x81\x5f\x5c\xb1\x88\x9f") == "\\\\ｱ亜"
    assert decoder("ucs2")("añ日".encode("utf-16-be")) == "añ日"
    assert decoder("utf16le")("\U0001f600".encode("utf-16-le")) == "\U0001f600"
    assert decoder("utf32")("\U0001f600".encode("utf-32-be")) == "\U0001f600"
    assert decoder("swe7")(b"{}|[]") == "äåöÄÅ"
    assert decoder("latin1")(b"\x80\x81") == "€\x81"


@pytest.mark.parametrize(
    ("charset", "data"),
    [
        ("gbk", b"a\xd6"),
        ("sjis", b"\x81"),
        ("ujis", b"\x8f\xb0"),
        ("ujis", b"\xa4\x41"),
        ("gb18030", b"\x81\x30\x81"),
        ("ucs2", b"\xd8\x3d\xde\x00"),
        ("utf16", b"\xd8\x3d"),
        ("utf32", b"\0\x11\0\0"),
        ("utf8mb4", b"\xc3"),
        ("ascii", b"\x80"),
        ("greek", b"\xff"),
        ("swe7", b"\x7f"),
    ],
)
def test_cut_and_unknown_characters_raise(charset: str, data: bytes) -> None:
    """No character is replaced."""
    with pytest.raises(UnicodeDecodeError):
        decoder(charset)(data)


def test_collations_name_their_character_set() -> None:
    """This covers MySQL, MariaDB without padding, and its newest; unknown ones are None."""
    expected = {
        8: "latin1", 45: "utf8mb4", 255: "utf8mb4", 323: "utf8mb4", 33: "utf8mb3", 63: "binary",
        28: "gbk", 248: "gb18030", 1069: "utf8mb4", 1032: "latin1", 2048: "utf8mb3",
        2304: "utf8mb4", 2816: "utf16", 3072: "utf32", 5: "latin1", 17: None, 400: None, 9999: None,
    }  # fmt: skip
    assert {number: charset_of(number) for number in expected} == expected
    assert charset_named("utf8") == "utf8mb3"
    assert charset_named("LATIN1") == "latin1"
    assert charset_named("klingon") is None
