"""Types and collations that hold text in MySQL and MariaDB, inside and outside keys."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.codec.types.mapping import Case
from penstock.codec.types.source_type import Engine, Server

CHARACTER_BYTES = 4  # of utf8mb4
KEY_BYTES_MAX = 3072  # of InnoDB's index, all columns together
ROW_BYTES_MAX = 65_535  # of all columns but blobs and long texts
VARCHAR_MAX = 16_383
# The shortest digits of the greatest float are a little more than it is, and out of its range.
_FLOAT_MAX = "3.4028234663852886e38"
_FLOAT_DIGITS = 38  # in front of the point no type of so many has values out of a float's range
_DOUBLE_DIGITS = 308


def _within(most: str) -> str:
    return f"case when abs({{}} + 0e0) > {most} then sign({{}} + 0e0) * {most} else {{}} end"


WITHIN_FLOAT = _within(_FLOAT_MAX)


def within_digits(base: str, digits: int, scale: int) -> str:
    """Return the template for a FLOAT(digits, scale), or DOUBLE, in a column of the same type.

    The greatest value is stored as the nearest number, which may be outside the type's own range.
    """
    if digits - scale > (_FLOAT_DIGITS if base == "float" else _DOUBLE_DIGITS):
        return WITHIN_FLOAT if base == "float" else "{}"
    whole, fraction = "9" * (digits - scale) or "0", "9" * scale
    return _within(f"{whole}.{fraction}e0" if scale else f"{whole}e0")


CHAR_MAX = 255
_MARIADB_ALONE = ("uca1400", "nopad", "_520_w2", "croatian_mysql561")
_SINCE_8_0_30 = ("_bg_0900", "_bs_0900", "_gl_0900", "_mn_cyrl_0900", "_nb_0900", "_nn_0900",
                 "_sr_latn_0900")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Collated:
    """Text compared by its bytes. sql: character set and collation. pads: whether blanks at the end
    are ignored.
    """

    sql: str
    pads: bool


def by_bytes(server: Server) -> Collated:
    """Return the collation that compares bytes, also blanks at the end if the server has one."""
    if server.engine is Engine.MARIADB:
        return Collated(sql="character set utf8mb4 collate utf8mb4_nopad_bin", pads=False)
    if server.mysql(8, 0, 17):
        return Collated(sql="character set utf8mb4 collate utf8mb4_0900_bin", pads=False)
    return Collated(sql="character set utf8mb4 collate utf8mb4_bin", pads=True)


def known_collation(collation: str, server: Server) -> str | None:
    """Return a source's collation by the server's name for it; None if the server lacks it."""
    if server.engine is Engine.MARIADB:
        if "0900" in collation or collation.startswith("gb18030"):
            return None
        old = not server.mariadb(10, 6)
        if "uca1400" in collation and not server.mariadb(10, 10):
            return None
    else:
        if any(part in collation for part in _MARIADB_ALONE):
            return None
        if "0900" in collation and not server.mysql(8):
            return None
        if any(part in collation for part in _SINCE_8_0_30) and not server.mysql(8, 0, 30):
            return None
        if collation == "utf8mb4_0900_bin" and not server.mysql(8, 0, 17):
            return None
        old = not server.mysql(8, 0, 30)
    for prefix in ("utf8mb3_", "utf8_"):
        if collation.startswith(prefix):
            return ("utf8_" if old else "utf8mb3_") + collation.removeprefix(prefix)
    return collation


def text_type(
    server: Server, characters: int | None, key_bytes: int | None
) -> tuple[str, tuple[Case, ...]]:
    """Return the type for text of at most this many characters, and its possible losses.

    characters: None for any number. key_bytes: the column's room in a key; None outside keys.
    """
    collated = by_bytes(server)
    cases: list[Case] = []
    if key_bytes is not None:
        room = key_bytes // CHARACTER_BYTES
        if characters is None or characters > room:
            characters = room
            cases.append(Case(loss="long keys"))  # strict mode refuses them anyway
        if collated.pads:
            cases.append(Case(loss="blanks in keys"))
    if characters is None or characters > VARCHAR_MAX:
        return f"longtext {collated.sql}", ()
    return f"varchar({characters}) {collated.sql}", tuple(cases)


def bytes_type(maximum: int | None, key_bytes: int | None) -> tuple[str, tuple[Case, ...]]:
    """Return the type for at most this many bytes, and its losses; arguments as for text_type."""
    if key_bytes is None:
        return "longblob", ()
    if maximum is not None and maximum <= key_bytes:
        return f"varbinary({maximum})", ()
    return f"varbinary({key_bytes})", (Case(loss="long keys"),)
