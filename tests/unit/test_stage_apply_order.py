"""Order in which mutations are written to tables with foreign keys, and changes of the mode."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feeds.apply.order import (
    TablesInCycle,
    components_of,
    levels_of,
    parents_of,
    steps_of,
)
from penstock.feeds.apply.sequencer import first_mode, next_mode
from penstock.model import ForeignKey, TableDefinition, TableName
from penstock.model.hlc import Hlc
from penstock.model.sections import StageMode
from penstock.ports.feeds import Mutation, StagedTable, batch_of

G = ("shop", "public")


def table(name: str) -> StagedTable:
    """Return a table of the schema."""
    return StagedTable(G, name)


def definition(name: str, *parents: str, schema: str = "public") -> TableDefinition:
    """Return a table with foreign keys."""
    return TableDefinition(
        name=TableName("public", name),
        source_id=1,
        columns=(),
        foreign_keys=tuple(
            ForeignKey(
                name=f"fk_{one}",
                columns=("p",),
                target=TableName(schema, one),
                target_columns=("id",),
                definition="",
            )
            for one in parents
        ),
    )


def shape(**parents: str) -> dict[str, TableDefinition]:
    """Return tables by name, each with the names of its parents."""
    return {name: definition(name, *above.split()) for name, above in parents.items()}


def levels(**parents: str) -> dict[str, int]:
    """Return levels by name."""
    found = levels_of(parents_of(G, shape(**parents)))
    return {one.name: level for one, level in found.items()}


def test_a_level_is_the_longest_way_to_a_root() -> None:
    """A shorter way does not count, nor does a reference to the table itself."""
    assert levels(a="", b="a", c="a b c", d="", e="c d") == {"a": 0, "d": 0, "b": 1, "c": 2, "e": 3}


def test_parents_in_other_schemas_are_not_in_the_batch() -> None:
    """Their own group writes them."""
    tables = {"a": definition("a", "b", schema="other"), "b": definition("b")}
    assert levels_of(parents_of(G, tables)) == {table("a"): 0, table("b"): 0}


def test_a_circle_is_an_error_that_names_its_tables() -> None:
    """Tables that only refer to them are not named."""
    with pytest.raises(TablesInCycle) as caught:
        levels(a="c", b="a", c="b", d="a", e="")
    assert caught.value.message == (
        "cycle detected in tables: shop.public.a, shop.public.b, shop.public.c"
    )


def test_components_are_what_foreign_keys_connect() -> None:
    """The direction does not count."""
    found = components_of(parents_of(G, shape(a="", b="a", c="a", d="", e="e")))
    names = {one.name: {other.name for other in some} for one, some in found.items()}
    assert names == {"a": {"a", "b", "c"}, "b": {"a", "b", "c"}, "c": {"a", "b", "c"},
                     "d": {"d"}, "e": {"e"}}  # fmt: skip


def put(time: int, name: str, key: int, **more: object) -> tuple[str, Mutation]:
    """Return an upsert."""
    after = json.dumps({"id": key, **more}).encode()
    return name, Mutation(time=Hlc(time), key=f"[{key}]", after=after)


def make_delete(time: int, name: str, key: int) -> tuple[str, Mutation]:
    """Return a delete."""
    return name, Mutation(time=Hlc(time), key=f"[{key}]", after=None)


def steps(*mutations: tuple[str, Mutation], **parents: str) -> list[tuple[str, str, list[str]]]:
    """Return the writes, as kind, table and keys."""
    by_table: dict[StagedTable, list[Mutation]] = {}
    for name, one in mutations:
        by_table.setdefault(table(name), []).append(one)
    found = steps_of(
        {name: batch_of(some) for name, some in by_table.items()},
        levels_of(parents_of(G, shape(**parents))),
    )
    return [
        ("delete" if s.is_delete else "upsert", s.table.name, [m.key for m in s.mutations])
        for s in found
    ]


def test_upserts_of_several_times_go_parents_first() -> None:
    """Their order of arrival does not count."""
    assert steps(put(1, "b", 1), put(2, "a", 2), put(3, "b", 3), a="", b="a") == [
        ("upsert", "a", ["[2]"]),
        ("upsert", "b", ["[1]", "[3]"]),
    ]


def test_deletes_wait_for_the_upserts_before_them_and_go_children_first() -> None:
    """Upserts of their own time follow, with those of later times."""
    found = steps(
        put(1, "a", 1), put(1, "b", 1),
        make_delete(2, "a", 1), make_delete(2, "b", 1), put(2, "a", 2),
        put(3, "b", 3),
        a="", b="a",
    )  # fmt: skip
    assert found == [
        ("upsert", "a", ["[1]"]),
        ("upsert", "b", ["[1]"]),
        ("delete", "b", ["[1]"]),
        ("delete", "a", ["[1]"]),
        ("upsert", "a", ["[2]"]),
        ("upsert", "b", ["[3]"]),
    ]


def test_the_last_write_of_a_key_wins_by_property() -> None:
    """The before image is that of the first mutation."""
    first = Mutation(time=Hlc(1), key="[1]", after=b'{"id":1,"a":1,"b":1}', before=b'{"b":0}')
    last = Mutation(time=Hlc(2), key="[1]", after=b'{"id":1,"b":2.50}', before=b'{"b":1}')
    (step,) = steps_of({table("t"): batch_of([first, last])}, {})
    (one,) = step.mutations
    assert (one.after, one.before, one.time) == (b'{"id":1,"a":1,"b":2.50}', b'{"b":0}', Hlc(2))


@given(
    history=st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from("ab"), st.integers(0, 2), st.booleans()),
        max_size=30,
    ),
    seed=st.integers(),
)
def test_the_end_is_that_of_the_history(
    history: list[tuple[int, str, int, bool]], seed: int
) -> None:
    """Each key has the value of its last time, however times and tables are mixed."""
    last = {(time, name, key): is_delete for time, name, key, is_delete in history}
    mutations = [
        make_delete(time, name, key) if is_delete else put(time, name, key, v=time)
        for (time, name, key), is_delete in last.items()
    ]
    random.Random(seed).shuffle(mutations)
    by_table: dict[StagedTable, list[Mutation]] = {}
    for name, one in mutations:
        by_table.setdefault(table(name), []).append(one)
    state: dict[tuple[str, str], int] = {}
    parents: Mapping[StagedTable, int] = {table("a"): 0, table("b"): 1}
    for step in steps_of({name: batch_of(some) for name, some in by_table.items()}, parents):
        for one in step.mutations:
            if step.is_delete:
                state.pop((step.table.name, one.key), None)
            else:
                state[step.table.name, one.key] = json.loads(one.after or b"")["v"]
    model: dict[tuple[str, str], int] = {}
    for (time, name, key), is_delete in sorted(last.items()):
        if is_delete:
            model.pop((name, f"[{key}]"), None)
        else:
            model[name, f"[{key}]"] = time
    assert state == model


BEST, CONSISTENT = StageMode.BEST_EFFORT, StageMode.CONSISTENT
HOUR = 3600.0


@pytest.mark.parametrize(
    ("lag_s", "window_s", "from_best", "from_consistent"),
    [
        (HOUR, HOUR, BEST, BEST),
        (HOUR + 1, HOUR, BEST, BEST),
        (HOUR - 1, HOUR, BEST, CONSISTENT),
        (HOUR / 4 + 1, HOUR, BEST, CONSISTENT),
        (HOUR / 4, HOUR, CONSISTENT, CONSISTENT),
        (0, HOUR, CONSISTENT, CONSISTENT),
        (-5, HOUR, CONSISTENT, CONSISTENT),
        (10 * HOUR, 0, CONSISTENT, CONSISTENT),
        (40, 40, BEST, BEST),
        (10, 40, CONSISTENT, CONSISTENT),
    ],
)
def test_the_mode_follows_the_lag(
    lag_s: float, window_s: float, from_best: StageMode, from_consistent: StageMode
) -> None:
    """Best effort holds from the window on, consistent at a quarter of it; no change in between."""
    assert next_mode(BEST, lag_s, window_s) is from_best
    assert next_mode(CONSISTENT, lag_s, window_s) is from_consistent


def test_auto_begins_with_best_effort() -> None:
    """Mode auto does so unless best effort is switched off."""
    assert first_mode(HOUR) is BEST
    assert first_mode(0) is CONSISTENT
