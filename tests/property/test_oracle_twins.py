"""Equality of LogMiner's decoders, twin and kernel, for any text; and their rows read again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.twins.examples import examples
from harness.twins.oracle_rows import (
    BY_KEY,
    DECODERS,
    PASSED,
    PIECES,
    RELATIONS,
    VALUES,
    Texts,
    assert_same,
    check_read,
    is_statement,
    row_of,
)
from penstock.codec.oracle.redo_outcome import Stop

TEXTS_OF_ONE = 250
MUTATED_SHORT, MUTATED_LONG = 10_000, 1_000_000
SYNTAX = {"syntax", "empty", "unlogged", "no_columns", "unsupported", "temporary"}
"""Reasons that a text has if it is not a statement."""
EITHER = ("count", "dictionary", "text")
"""Reasons that are found in the middle of a text, whatever follows."""


def check_mutated(seed: int, count: int) -> int:
    """Decode damaged statements by twin and kernel; return the number of those that are decoded.

    The grammar, which is written independently, has every statement that is not refused as one, and
    no other one.
    """
    texts = Texts(seed)
    decoded = 0
    for number in range(count // TEXTS_OF_ONE):
        relation = RELATIONS[number % len(RELATIONS)]
        group = [
            texts.damage_statement() if texts.dice.random() < 0.9 else texts.statement()
            for _ in range(TEXTS_OF_ONE)
        ]
        refused = {}
        for one in assert_same(group, relation):
            if isinstance(one, tuple) and isinstance(one[1], type):
                refused[one[0]] = one[4]["reason"]
        decoded += TEXTS_OF_ONE - len(refused)
        for at, text in enumerate(group):
            reason = refused.get(at)
            if reason in SYNTAX:
                assert not is_statement(text), (reason, text)
            elif reason not in EITHER:
                assert is_statement(text), (reason, text)
    return decoded


def test_damaged_statements() -> None:
    """Twin and kernel treat damaged statements alike, and neither reads one that is none."""
    assert check_mutated(1, MUTATED_SHORT) > MUTATED_SHORT // 100


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 6))
def test_a_million_damaged_statements(seed: int) -> None:
    """The same with a million texts, in four parts."""
    assert check_mutated(seed, MUTATED_LONG // 4) > MUTATED_LONG // 400


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_pieces_in_any_order(text: str) -> None:
    """Most of them are not statements, alone and behind the begin of one."""
    assert_same([text, f'update "S"."T" set {text}', f'delete from "S"."T" where "ID" = {text}'])


@given(st.text(max_size=40))
def test_any_text_is_kept(text: str) -> None:
    """A text that can be encoded arrives unchanged; an empty one is NULL."""
    quoted = text.replace("'", "''")
    statement = f'insert into "SHOP"."T"("ID","C_VC") values (\'1\',\'{quoted}\')'
    assert_same([statement])
    for kind in DECODERS:
        decoder = kind()
        decoder.bind(1, BY_KEY)
        decoder.decode([row_of(statement)], 1)
        found = decoder.take()[0].batch.column("after")[0].as_py()["C_VC"]
        assert found == (text or None)


GOOD: dict[str, st.SearchStrategy[str]] = {
    "ID": st.integers(-(10**10), 10**10).map(lambda number: f"'{number}'"),
    "C_SMALL": st.integers(-9999, 9999).map(lambda number: f"'{number}'"),
    "C_BIG": st.integers(-(10**18) + 1, 10**18 - 1).map(str),
    "C_HUGE": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda number: f"'{number}'"),
    "C_DEC": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: f"'{n}E-2'"),
    "C_CENTS": st.integers(-999, 999).map(lambda n: f"'{n / 100_000:.5f}'"),
    "C_NUM": st.integers(-(10**20), 10**20).map(lambda n: f"'{n // 10**6}.{n % 10**6:06}'"),
    "C_BF": st.floats(width=32, allow_nan=False).map(lambda n: f"'{n!r}'".upper()),
    "C_BD": st.floats(allow_nan=False).map(lambda n: f"'{n!r}'".upper()),
    "C_VC": st.text(max_size=9).map(lambda text: "'" + text.replace("'", "''") + "'"),
    "C_NVC": st.text(max_size=9).map(
        lambda text: "UNISTR('" + "".join(_escape(letter) for letter in text) + "')"
    ),
    "C_RAW": st.binary(max_size=9).map(lambda data: f"HEXTORAW('{data.hex()}')"),
    "C_DATE": st.datetimes().map(
        lambda moment: f"TO_DATE('{moment.isoformat(' ', 'seconds')}', 'YYYY-MM-DD HH24:MI:SS')"
    ),
    "C_TS6": st.datetimes().map(
        lambda moment: f"TO_TIMESTAMP('{moment.isoformat(' ', 'microseconds')}000')"
    ),
    "C_CLOB": st.sampled_from(["EMPTY_CLOB()", "'short'", "LM_EMPTY_STRING"]),
    "SYS_NC00026$": st.just("'x'"),
}


def _escape(letter: str) -> str:
    if letter in "\\'":
        return letter * 2
    if letter.isascii():
        return letter
    units = letter.encode("utf-16-be")
    return "".join(f"\\{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))


@st.composite
def inserts(draw: st.DrawFn) -> str:
    """Return inserts whose values their columns can have."""
    names = ["ID", *draw(st.lists(st.sampled_from(sorted(GOOD)), unique=True))]
    names = list(dict.fromkeys(names))
    values = [draw(GOOD[name] | st.just("NULL") if name != "ID" else GOOD[name]) for name in names]
    space = draw(st.sampled_from(["", " ", "\n"]))
    columns = f",{space}".join(f'"{name}"' for name in names)
    return f'insert into "SHOP"."T"{space}({columns}) values{space}({f",{space}".join(values)})'


@given(inserts())
@settings(parent=examples(1.0))
def test_rows_are_read_as_an_independent_reading_does(statement: str) -> None:
    """Twin and kernel agree, and the values are those that Python's own types read."""
    outcome = assert_same([statement])
    for kind in DECODERS:
        decoder = kind()
        decoder.bind(1, BY_KEY, PASSED)
        decoder.decode([row_of(statement)], 1)
        if decoder.stop is Stop.WIDEN:
            assert outcome[0][1] is Stop.WIDEN
            continue
        batch = decoder.take()[0].batch
        check_read(statement, _plain(batch.column("after")), BY_KEY)


def _plain(after: Any) -> dict[str, Any]:
    """Return the first row's values; times as microseconds."""
    return {
        field.name: after.field(at).cast(_whole(field.type))[0].as_py()
        for at, field in enumerate(after.type)
    }


def _whole(kind: Any) -> Any:
    return pa.int64() if pa.types.is_timestamp(kind) else kind


@given(st.data())
@settings(parent=examples(0.5))
def test_updates_and_deletes(data: st.DataObject) -> None:
    """Statements of all kinds with all forms of values, in groups that share a batch."""
    texts = Texts(data.draw(st.integers(0, 2**32)))
    relation = data.draw(st.sampled_from(RELATIONS))
    assert_same([texts.statement() for _ in range(20)], relation)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_form_of_every_type(name: str) -> None:
    """Each value of the list is read or refused alike, in each place of a statement."""
    for value in VALUES[name]:
        for other in ("C_VC", "C_NUM"):
            texts = [
                f'insert into "S"."T"("ID","{name}") values (\'1\',{value})',
                f'update "S"."T" set "{other}" = NULL where "ID" = \'1\' and "{name}" = {value}',
                f'update "S"."T" set "{name}" = {value} where "ID" = \'1\'',
                f'delete from "S"."T" a where a."{name}" = {value} and a."ID" = 7;',
            ]
            for relation in RELATIONS:
                assert_same(texts, relation)
