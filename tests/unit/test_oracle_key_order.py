"""Updates of keys: whatever one statement moves, a reader that finds rows by keys loses none."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from penstock.codec.oracle.mined_rows import Operation
from penstock.codec.oracle.statements import scan_statement
from penstock.engines.oracle.source.entries import Entry
from penstock.engines.oracle.source.errors import KeysSwapped
from penstock.engines.oracle.source.key_order import TableKey, order_moves

KEY = TableKey.of(["ID"], ["ID", "A"])


def move(old: int, new: int, value: str = "x", *, row: str = "", has_all: bool = True) -> Entry:
    """Return an update of a key."""
    rest = f" and \"A\" = '{value}'" if has_all else ""
    text = f'update "S"."T" set "ID" = \'{new}\' where "ID" = \'{old}\'{rest}'
    return Entry(1, text, 7, "01", " 0x1.1.1 ", Operation.UPDATE, row or f"row{old}")


def replay(rows: dict[str, str], entries: list[Entry]) -> dict[str, str]:
    """Apply changes by key, as a target does."""
    rows = dict(rows)
    for entry in entries:
        text = entry.text.encode()
        statement = scan_statement(text)
        old = {one.name: text[one.value.first : one.value.last].decode() for one in statement.old}
        new = {one.name: text[one.value.first : one.value.last].decode() for one in statement.new}
        if old:
            rows.pop(old[b"ID"], None)
        if statement.op != ord("D"):
            merged = {**old, **new}
            rows[merged[b"ID"]] = merged[b"A"]
    return rows


@pytest.mark.parametrize("first_seed", range(0, 60, 15))
def test_any_moves(first_seed: int) -> None:
    """Permutations and shifts of keys keep every row."""
    for seed in range(first_seed, first_seed + 15):
        check_moves(seed)


def check_moves(seed: int) -> None:
    """Check the random moves of a seed."""
    rng = random.Random(seed)
    rows = {str(at): f"value {at}" for at in range(8)}
    chosen = rng.sample(range(8), rng.randrange(2, 9))
    targets = [one + 1 for one in chosen] if seed % 2 else rng.sample(chosen, len(chosen))
    if seed % 2:
        keep = [one for one in rows if int(one) in chosen or int(one) - 1 not in chosen]
        rows = {one: rows[one] for one in keep}
    moves = [move(old, new, rows[str(old)]) for old, new in zip(chosen, targets, strict=True)]
    expected = {one: rows[one] for one in rows if int(one) not in chosen}
    for old, new in zip(chosen, targets, strict=True):
        expected[str(new)] = rows[str(old)]
    assert replay(rows, list(order_moves(moves, lambda _: KEY))) == expected


def test_one_row_that_moves_twice() -> None:
    """Two statements over one row keep their order."""
    moves = [move(1, 2, row="A"), move(2, 3, row="A")]
    assert list(order_moves(moves, lambda _: KEY)) == moves


def test_rows_of_other_tables() -> None:
    """A row that a trigger writes between two rows of a statement does not end it."""
    other = Entry(2, 'delete from "S"."U" where "ID" = \'1\'', 7, "01", "", Operation.DELETE, "u")
    moves = [move(1, 2), other, move(2, 3)]
    found = list(order_moves(moves, lambda _: KEY))
    assert [one for one in found if one.table == 1] == [moves[2], moves[0]]
    assert other in found


def test_a_circle_without_all_columns() -> None:
    """Keys that were exchanged need whole rows."""
    moves = [move(1, 2, has_all=False), move(2, 1, has_all=False)]
    with pytest.raises(KeysSwapped):
        list(order_moves(moves, lambda _: KEY))


def test_an_update_that_does_not_move() -> None:
    """A key that is set to itself does not move, whatever texts the row has."""
    same = move(1, 1)
    quoted = structs.replace(move(2, 2, value='"ID" = '), row_id="row2")
    assert list(order_moves([same, quoted, move(3, 4)], lambda _: KEY)) == [
        same, quoted, move(3, 4),
    ]  # fmt: skip
    assert list(order_moves([same], lambda _: None)) == [same]
