"""Decode the character sets of MySQL and MariaDB: collation ids to names, bytes to text.

A byte sequence that the server itself cannot convert to Unicode (it would answer `?`) or that is
cut raises UnicodeDecodeError: nothing is replaced. The tables were compared with real servers,
character by character (tests/unit/test_mysql_charsets.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BINARY_COLLATION = 63

# Ranges of collation ids, as the servers list them: MySQL up to 323, MariaDB also 576 and more.
_COLLATIONS: dict[str, tuple[tuple[int, int], ...]] = {
    "armscii8": ((32, 32), (64, 64)),
    "ascii": ((11, 11), (65, 65)),
    "big5": ((1, 1), (84, 84)),
    "binary": ((BINARY_COLLATION, BINARY_COLLATION),),
    "cp1250": ((26, 26), (34, 34), (44, 44), (66, 66), (99, 99)),
    "cp1251": ((14, 14), (23, 23), (50, 52)),
    "cp1256": ((57, 57), (67, 67)),
    "cp1257": ((29, 29), (58, 59)),
    "cp850": ((4, 4), (80, 80)),
    "cp852": ((40, 40), (81, 81)),
    "cp866": ((36, 36), (68, 68)),
    "cp932": ((95, 96),),
    "dec8": ((3, 3), (69, 69)),
    "eucjpms": ((97, 98),),
    "euckr": ((19, 19), (85, 85)),
    "gb18030": ((248, 250),),
    "gb2312": ((24, 24), (86, 86)),
    "gbk": ((28, 28), (87, 87)),
    "geostd8": ((92, 93),),
    "greek": ((25, 25), (70, 70)),
    "hebrew": ((16, 16), (71, 71)),
    "hp8": ((6, 6), (72, 72)),
    "keybcs2": ((37, 37), (73, 73)),
    "koi8r": ((7, 7), (74, 74)),
    "koi8u": ((22, 22), (75, 75)),
    "latin1": ((5, 5), (8, 8), (15, 15), (31, 31), (47, 49), (94, 94)),
    "latin2": ((2, 2), (9, 9), (21, 21), (27, 27), (77, 77)),
    "latin5": ((30, 30), (78, 78)),
    "latin7": ((20, 20), (41, 42), (79, 79)),
    "macce": ((38, 38), (43, 43)),
    "macroman": ((39, 39), (53, 53)),
    "sjis": ((13, 13), (88, 88)),
    "swe7": ((10, 10), (82, 82)),
    "tis620": ((18, 18), (89, 89)),
    "ucs2": ((35, 35), (90, 90), (128, 159), (640, 642)),
    "ujis": ((12, 12), (91, 91)),
    "utf16": ((54, 55), (101, 124), (672, 674)),
    "utf16le": ((56, 56), (62, 62)),
    "utf32": ((60, 61), (160, 183), (736, 738)),
    "utf8mb3": ((33, 33), (76, 76), (83, 83), (192, 215), (223, 223), (576, 578)),
    "utf8mb4": ((45, 46), (224, 247), (255, 323), (608, 610)),
}
_NOPAD = 1024  # MariaDB's collations without padding have the id of the padding one plus this
# MariaDB's Unicode 14 collations: 256 ids for each character set.
_UCA1400 = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
_UCA1400_FIRST, _UCA1400_EACH = 2048, 256

_WIDEST_BYTES = {
    "big5": 2, "cp932": 2, "eucjpms": 3, "euckr": 2, "gb18030": 4, "gb2312": 2, "gbk": 2,
    "sjis": 2, "ucs2": 2, "ujis": 3, "utf16": 4, "utf16le": 4, "utf32": 4, "utf8mb3": 3,
    "utf8mb4": 4,
}  # fmt: skip
_ALIASES = {"utf8": "utf8mb3"}

# Python's codec for each, where it has one.
_CODECS = {
    "ascii": "ascii", "big5": "big5", "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256",
    "cp1257": "cp1257", "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "cp932": "cp932",
    "eucjpms": "euc_jp", "euckr": "cp949", "gb18030": "gb18030", "gb2312": "gb2312", "gbk": "gbk",
    "greek": "iso8859_7", "hebrew": "iso8859_8", "hp8": "hp_roman8", "koi8r": "koi8_r",
    "koi8u": "koi8_u", "latin1": "cp1252", "latin2": "iso8859_2", "latin5": "iso8859_9",
    "latin7": "iso8859_13", "macce": "mac_latin2", "macroman": "mac_roman", "sjis": "shift_jis",
    "tis620": "tis_620", "ujis": "euc_jp", "utf16": "utf_16_be", "utf16le": "utf_16_le",
    "utf32": "utf_32_be", "utf8mb3": "utf_8", "utf8mb4": "utf_8",
}  # fmt: skip

_C1 = "".join(map(chr, range(0x80, 0xA0)))
_GONE = "\ufffd"  # marks a byte that means nothing
# The upper half of those that Python does not know.
_UPPER = {
    "armscii8": _C1 + "\xa0❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջ"
    "ՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'",
    "dec8": _C1 + "\xa0¡¢£\ufffd¥\ufffd§¤©ª«\ufffd\ufffd\ufffd\ufffd°±²³"
    "\ufffdµ¶·\ufffd¹º»¼½\ufffd¿"
    "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏ\ufffdÑÒÓÔÕÖŒØÙÚÛÜŸ\ufffdßàáâãäåæçèéêëìíîï\ufffdñòóôõöœøùúûüÿ\ufffd\ufffd",
    "geostd8": "€\ufffd‚\ufffd„…†‡\ufffd‰\ufffd‹" + _GONE * 5 + "‘’“”•–—" + _GONE * 3 + "›"
    + _GONE * 4 + "\xa0¡¢£¤¥¦§¨©ª«¬\xad®¯°±²³´µ¶·¸¹º»¼½¾¿აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ"
    + _GONE * 23 + "№" + _GONE * 2,
    "keybcs2": "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧"
    "╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0",
    "swe7": _GONE * 128,
}  # fmt: skip
# Bytes that mean something else than Python thinks; None: nothing.
_BYTES: dict[str, dict[int, str | None]] = {
    "cp1256": dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF)),
    "cp866": {0xFC: "ⁿ", 0xFD: "²"},
    "greek": {0xA1: "ʽ", 0xA2: "ʼ", 0xA4: None, 0xA5: None, 0xAA: None},
    "hebrew": {0xAF: "‾"},
    "koi8u": {0x95: "•"},
    "latin1": {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "swe7": dict(zip(b"@[\\]^`{|}~", "ÉÄÖÅÜéäöåü", strict=True)) | {0x7F: None},
}

# Characters of several bytes, likewise.
_BIG5_GONE: dict[bytes, str | None] = dict.fromkeys(
    bytes.fromhex(text) for text in ("a15a", "a1c3", "a1c5", "a1fe", "a240", "a2cc", "a2ce")
)
_CP932_GONE: dict[bytes, str | None] = dict.fromkeys((b"\x80", b"\xa0", b"\xfd", b"\xfe", b"\xff"))
_EUC_IBM = (
    "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10"
    "增寬峵嵓\ufa11德悅愠敎昻晥\ufa12\uf929栁\ufa13\ufa14橫櫢淸淲瀨\ufa15\ufa16甁皂皞"
    "\ufa17礰\ufa18\ufa19\ufa1a\ufa1b竧\ufa1c\ufa1d綠緖\ufa1e荢\ufa1f薰\ufa20\ufa21蠇"
    "\ufa22譿賴赶\ufa23\ufa24\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29霻靍靑\ufa2a\ufa2b"
    "\ufa2c馞髙魲\ufa2d黑"
)
_EUC_OTHER: dict[bytes, str | None] = {
    bytes((0x8F, 0xF3 + (0x52 + index) // 94, 0xA1 + (0x52 + index) % 94)): text
    for index, text in enumerate(_EUC_IBM)
}
_BIG5_OTHER: dict[bytes, str | None] = {
    bytes((0xF9, 0xD6 + index)): text for index, text in enumerate("碁銹裏墻恒粧嫺")
}
_SEQUENCES: dict[str, dict[bytes, str | None]] = {
    "big5": _BIG5_GONE | _BIG5_OTHER,
    "cp932": _CP932_GONE,
    "eucjpms": _EUC_OTHER | {b"\x8f\xa2\xb7": "～", b"\x8f\xa2\xc3": "￤"},
    "gb18030": {b"\xa8\xbc": "ḿ", b"\x81\x35\xf4\x37": "\ue7c7"},
    "sjis": {b"\x81\x5f": "\\"},
    "ujis": {b"\xa1\xc0": "\\"},
}


@lru_cache(maxsize=4096)
def charset_of(collation: int) -> str | None:
    """Return the character set of a collation id; None for one that no known server has."""
    if collation >= _UCA1400_FIRST:
        index = (collation - _UCA1400_FIRST) // _UCA1400_EACH
        return _UCA1400[index] if index < len(_UCA1400) else None
    padding = collation - _NOPAD if collation > _NOPAD else collation
    for name, ranges in _COLLATIONS.items():
        if any(low <= padding <= high for low, high in ranges):
            return name
    return None


def charset_named(name: str) -> str | None:
    """Return the character set's name in this module (`utf8` is `utf8mb3`); None if unknown."""
    name = _ALIASES.get(name.lower(), name.lower())
    return name if name in _COLLATIONS else None


def widest_bytes(charset: str) -> int:
    """Return how many bytes the server reserves for one character."""
    return _WIDEST_BYTES.get(charset, 1)


@lru_cache(maxsize=64)
def single_byte_table(charset: str) -> tuple[str | None, ...] | None:
    """Return the characters of the 256 bytes, None for an unused one; None for a multi-byte set."""
    if charset in _WIDEST_BYTES or charset == "binary":
        return None
    table: list[str | None] = []
    upper = _UPPER.get(charset)
    for byte in range(256):
        if upper is not None:
            text: str | None = chr(byte) if byte < 0x80 else upper[byte - 0x80]
        else:
            text = bytes((byte,)).decode(_CODECS[charset], "replace")
        table.append(None if text == _GONE else text)
    for byte, text in _BYTES.get(charset, {}).items():
        table[byte] = text
    return tuple(table)


def is_ascii_superset(charset: str) -> bool:
    """Return whether text with only bytes below 0x80 is ASCII."""
    return charset != "swe7" and charset not in ("ucs2", "utf16", "utf16le", "utf32", "binary")


def _refuse(charset: str, data: bytes, at: int, end: int) -> UnicodeDecodeError:
    return UnicodeDecodeError(charset, data, at, end, "no such character")


def _single_byte_decoder(charset: str) -> Callable[[bytes], str]:
    table = single_byte_table(charset)
    assert table is not None

    def decode(data: bytes) -> str:
        out = [table[byte] for byte in data]
        if None in out:
            at = out.index(None)
            raise _refuse(charset, data, at, at + 1)
        return "".join(text for text in out if text is not None)

    return decode


def _lengths(charset: str) -> Callable[[bytes, int], int]:
    """Return a function that gives the length in bytes of the character at an offset."""
    if charset in ("sjis", "cp932"):
        return lambda data, at: 1 if data[at] < 0x81 or 0xA0 <= data[at] < 0xE0 else 2
    if charset in ("ujis", "eucjpms"):
        return lambda data, at: 1 if data[at] < 0x80 else 3 if data[at] == 0x8F else 2
    if charset == "gb18030":
        return lambda data, at: (
            1 if data[at] < 0x80 else 4 if data[at + 1 : at + 2].isdigit() else 2
        )
    return lambda data, at: 1 if data[at] < 0x80 else 2


def _euc_extra(charset: str, character: bytes) -> str | None:
    """Return EUC characters that Python's euc_jp lacks: the user-defined rows, NEC's row 13."""
    row, cell = character[-2], character[-1]
    if not 0xA1 <= cell <= 0xFE:
        return None
    if 0xF5 <= row <= 0xFE:
        first = 0xE000 if len(character) == 2 else 0xE000 + 940
        return chr(first + (row - 0xF5) * 94 + cell - 0xA1)
    if charset == "eucjpms" and len(character) == 2 and 0xA1 <= row <= 0xF4:
        # The same rows as in cp932, in another arrangement.
        high, low = row - 0xA1, cell - 0xA1
        lead = high // 2 + (0x81 if high < 62 else 0xC1)
        trail = low + 0x9F if high % 2 else low + 0x40 + (low >= 63)
        try:
            return bytes((lead, trail)).decode("cp932")
        except UnicodeDecodeError:
            return None
    return None


def _character(charset: str, character: bytes) -> str:
    special = _SEQUENCES.get(charset, {})
    if character in special:
        text = special[character]
    else:
        text = None
        if charset in ("ujis", "eucjpms") and len(character) >= 2:
            text = _euc_extra(charset, character)
        if text is None:
            text = character.decode(_CODECS[charset])
    if text is None or len(text) != 1:
        raise _refuse(charset, character, 0, len(character))
    return text


def _multi_byte_decoder(charset: str) -> Callable[[bytes], str]:
    length = _lengths(charset)
    known: dict[bytes, str] = {}  # bounded: no such set has more than 64 K characters of 2 or 3

    def decode(data: bytes) -> str:
        if data.isascii():
            return data.decode("ascii")
        out: list[str] = []
        at = 0
        while at < len(data):
            character = data[at : at + length(data, at)]
            text = known.get(character)
            if text is None:
                text = _character(charset, character)
                if len(character) < 4:
                    known[character] = text
            out.append(text)
            at += len(character)
        return "".join(out)

    return decode


def _decode_ucs2(data: bytes) -> str:
    """Decode UTF-16 without surrogates."""
    text = data.decode("utf_16_be")
    if 2 * len(text) != len(data):
        raise _refuse("ucs2", data, 0, len(data))
    return text


def label_charset(charset: str) -> str:
    """Return the character set of the labels of an ENUM or SET.

    Labels of a binary column are text in an unknown character set, nearly always UTF-8.
    """
    return "utf8mb4" if charset == "binary" else charset


@lru_cache(maxsize=64)
def decoder(charset: str) -> Callable[[bytes], str]:
    """Return the function that turns bytes of a character set into text; it raises
    UnicodeDecodeError.

    Raises KeyError for a character set that is not known, and for `binary`.
    """
    if charset == "ucs2":
        return _decode_ucs2
    if charset in ("utf8mb3", "utf8mb4", "utf16", "utf16le", "utf32"):
        codec = _CODECS[charset]
        return lambda data: data.decode(codec)
    if charset in _WIDEST_BYTES:
        return _multi_byte_decoder(charset)
    if charset not in _COLLATIONS or charset == "binary":
        raise KeyError(charset)
    return _single_byte_decoder(charset)
