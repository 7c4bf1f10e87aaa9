"""Types of Oracle that hold texts, bytes, numbers and dates of other engines, with their losses.

An empty text and an empty RAW are NULL in Oracle, so every text and every run of bytes that may be
empty has the loss `empty values`. A VARCHAR2 has at most 4,000 bytes unless the server extends it;
longer texts are CLOBs, which no key can have. Values that a type cannot hold are found in our own
process (`prepare.py`). Follows the reference oracle-sqlserver, section 4 F5.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.codec.types.mapping import (
    AS_TEXT,
    ERROR,
    NULL,
    ROUND,
    Case,
    Form,
    Held,
    Kind,
    Write,
)
from penstock.codec.types.source_type import (
    STORED_NOT_A_NUMBER,
    STORED_OUT_OF_RANGE,
    STORED_YEAR_ZERO,
    SourceType,
)
from penstock.codec.types.to_postgres import STORED_NO_DAY
from penstock.codec.types.to_sqlserver import (
    AS_SOURCE_PRINTS,
    DATES,
    NOT_A_NUMBER,
    ZERO_DATES,
)

DIGITS_MAX = 38
KEY_BYTES_MAX = 6000  # of an index in blocks of 8 KB, which has room for 6,398 with its own bytes
COLUMNS_MAX = 1000
VARCHAR_BYTES_MAX = 4000
RAW_BYTES_MAX = 2000
CHARACTER_BYTES = 4
FRACTION_MAX = 9
UUID_LENGTH = 36
CLOB, BLOB = "CLOB", "BLOB"

# Names of checks and changes in `prepare.py`; each but the last three is followed by `=` and the
# choice.
EMPTY = "empty"
DIGITS = "digits"
MOMENT_TEXTS = "moments as Oracle reads them"
INTERVAL_TEXTS = "intervals as Oracle reads them"
BYTES_OF_DIGITS = "the bytes of hexadecimal digits"

DATE_SQL = "TO_DATE({}, 'SYYYY-MM-DD')"
DAY_SQL = "CAST({} AS DATE)"
TIMESTAMP_SQL = "TO_TIMESTAMP({}, 'SYYYY-MM-DD HH24:MI:SS.FF')"
ZONED_SQL = "TO_TIMESTAMP_TZ({}, 'SYYYY-MM-DD HH24:MI:SS.FF TZH:TZM')"
UTC_SQL = "FROM_TZ({}, '+00:00')"
NUMBER_SQL = "TO_NUMBER({})"

_ROUNDED = f"round({{}}, {DIGITS_MAX - 1} - floor(log(abs({{}})))::int)"
_HAS_DIGITS = "{} <> 0 and {}::text not in ('NaN', 'Infinity', '-Infinity')"


def check_case(loss: str, check: str, *choices: str, stored: str = "") -> Case:
    """Return a case that our process finds.

    check: of `prepare.py`, followed by the choice. stored: condition over the source's column.
    """
    return Case(
        loss=loss, stored=stored, prepare={choice: f"{check}={choice}" for choice in choices}
    )


EMPTY_CASE = check_case("empty values", EMPTY, ERROR, NULL, stored="octet_length({}) = 0")
"""Case of PostgreSQL's, MySQL's and MariaDB's texts and bytes."""
PRINTED_EMPTY_CASE = replace(EMPTY_CASE, stored="octet_length({}::text) = 0")
"""Case of PostgreSQL's types that are held as what it prints."""
OWN_EMPTY_CASE = replace(EMPTY_CASE, stored="empty")
"""Case of engines whose texts penstock prints itself (`codec.row_images`)."""
NOT_A_NUMBER_CASE = check_case(
    "not a number", NOT_A_NUMBER, ERROR, NULL, stored=STORED_NOT_A_NUMBER
)
ZERO_DATES_CASE = check_case("zero dates", ZERO_DATES, ERROR, NULL, stored=STORED_NO_DAY)
YEAR_ZERO_CASE = check_case("dates out of range", DATES, ERROR, NULL, stored=STORED_YEAR_ZERO)
DIGITS_CASE = replace(
    check_case("digits", DIGITS, ERROR, ROUND, stored=f"({_HAS_DIGITS} and {{}} <> {_ROUNDED})"),
    instead={ROUND: ("{}", f"trim_scale({_ROUNDED})::text")},
)


def out_of_range_case(base: str) -> Case:
    """Return the case of PostgreSQL's dates outside of the years 1 to 9999."""
    return check_case("dates out of range", DATES, ERROR, NULL, stored=STORED_OUT_OF_RANGE[base])


def plain(target: str, kind: Kind, *, note: str = "", sql: str = "{}", fraction: int = 0) -> Held:
    """Return a type that holds every value, with the conversion of the staged one."""
    form = Form(kind=kind, fraction=fraction)
    return Held(
        target_type=target, source_form=form, target_form=form, write=Write(sql=sql), note=note
    )


def text_type(characters: int | None, key_bytes: int | None) -> tuple[str, tuple[Case, ...]]:
    """Return the type for text, and its losses.

    characters: the most that it has; None for any number. key_bytes: its room in a key; None
    outside keys.
    """
    need = None if characters is None else characters * CHARACTER_BYTES
    room = VARCHAR_BYTES_MAX if key_bytes is None else min(key_bytes, VARCHAR_BYTES_MAX)
    if characters is not None and need is not None and need <= room:
        return f"VARCHAR2({max(characters, 1)} CHAR)", ()
    if key_bytes is None:
        return CLOB, ()
    return f"VARCHAR2({room} BYTE)", (Case(loss="long keys"),)


def bytes_type(maximum: int | None, key_bytes: int | None) -> tuple[str, tuple[Case, ...]]:
    """Return the type for at most this many bytes, and its losses; arguments as for text_type."""
    room = RAW_BYTES_MAX if key_bytes is None else min(key_bytes, RAW_BYTES_MAX)
    if maximum is not None and maximum <= room:
        return f"RAW({max(maximum, 1)})", ()
    return (BLOB, ()) if key_bytes is None else (f"RAW({room})", (Case(loss="long keys"),))


def text(
    characters: int | None,
    key_bytes: int | None,
    form: Kind,
    *,
    empty: Case | None = None,
    note: str = "",
    write: Write | None = None,
) -> Held:
    """Return how text is held. empty: the case of its empty values; None if it has none."""
    target, cases = text_type(characters, key_bytes)
    if empty is not None:
        cases = (*cases, empty)
    return replace(plain(target, form, note=note), cases=cases, write=write or Write(name=AS_TEXT))


def run_of_bytes(
    maximum: int | None, key_bytes: int | None, *, empty: Case | None, note: str = ""
) -> Held:
    """Return how bytes are held; arguments as for `text`."""
    target, cases = bytes_type(maximum, key_bytes)
    if empty is not None:
        cases = (*cases, empty)
    return replace(plain(target, Kind.BYTES, note=note), cases=cases)


def number(precision: int, scale: int, kind: SourceType, form: Kind = Kind.DECIMAL) -> Held:
    """Return a NUMBER of so many digits."""
    sql = NUMBER_SQL if is_moved(kind) else "{}"
    return plain(f"NUMBER({precision},{scale})" if scale else f"NUMBER({precision})", form, sql=sql)


def uuid() -> Held:
    """Return how a UUID is held: as its text."""
    target = f"VARCHAR2({UUID_LENGTH} CHAR)"
    write = Write(name=AS_TEXT, needs_text=True)
    return replace(plain(target, Kind.TEXT, note="the text"), write=write)


def with_text(held: Held, form: Kind, prepare: str, *, name: str) -> Held:
    """Return a type that does not hold all values, and its text, which does.

    prepare: of values that are not text. name: the source's.
    """
    note = f"the text that {name} prints"
    write = Write(name=AS_TEXT, prepare=prepare, needs_text=True)
    return replace(held, text=text(None, None, form, note=note, write=write))


def as_source_prints(zone: str = "") -> str:
    """Return the change of values to the text that the source prints. zone: of a moment."""
    return f"{AS_SOURCE_PRINTS}={zone}"


def moment(form: Kind, digits: int, *, from_text: bool) -> Held:
    """Return a date and time, with the offset from UTC if form is TIMESTAMPTZ.

    digits: after the second. from_text: its values are staged as text, in which they have all
    digits and their offset.
    """
    is_zoned = form is Kind.TIMESTAMPTZ
    target = f"TIMESTAMP({min(digits, FRACTION_MAX)})" + " WITH TIME ZONE" * is_zoned
    sql = (ZONED_SQL if is_zoned else TIMESTAMP_SQL) if from_text else UTC_SQL * is_zoned or "{}"
    held = plain(target, form, sql=sql, fraction=digits)
    if not from_text:
        return held
    return replace(held, write=replace(held.write, prepare=MOMENT_TEXTS))


def day(kind: SourceType) -> Held:
    """Return a day, as a DATE at midnight."""
    held = plain("DATE", Kind.DATE, sql=DATE_SQL if is_moved(kind) else "{}")
    return (
        replace(held, write=replace(held.write, prepare=MOMENT_TEXTS)) if is_moved(kind) else held
    )


def is_moved(kind: SourceType) -> bool:
    """Return whether values are staged as text, because one of them did not fit its type."""
    return kind.neutral == "string"
