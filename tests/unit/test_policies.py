"""Changes of shape: how they are distinguished, and the names of their policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.policies import BASE, BIG, ID, MORE, NAME, SMALL, TABLE, N, build_shape
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import (
    ConfigKeyUnknown,
    ConfigValueInvalid,
)
from penstock.engines.postgres.target.reshape import TYPES
from penstock.model import LOAD_AFRESH, ComputedColumn, Relation
from penstock.model.policies import ChangeKind, Policies, Policy, SchemaChangeRefused
from penstock.ports.target import TableRecord
from penstock.sql.schema_drift import SchemaDrift
from penstock.sql.shape_changes import (
    DROPPED_ID,
    column_renames,
    computed_changes,
    computed_in,
    is_applied,
    names_in_the_way,
    renamed_columns,
    shape_changes,
    under_new_names,
    with_copied_ids,
    with_names,
)
from penstock.sql.state_store import shape_fields, shape_text

FRESH = TableRecord(source=TABLE, target=TABLE, merge_name="t_wkm", made=True, columns=())
RECORD = SchemaDrift(set(), set(), []).record(FRESH, BASE, log_id="log")
TITLE = replace(NAME, name="title")
AGAIN = replace(NAME, id=9)


def changes_to(after: Relation, record: TableRecord = RECORD) -> list[ChangeKind]:
    """Return the kinds of all changes, renames first, as targets find them."""
    aside = names_in_the_way(record, after, keeps_dropped=False)
    record = with_names(record, aside)
    renames = column_renames(record, after)
    known = under_new_names(record, renames, is_key_kept=True)
    return [change.kind for change in (*renames, *shape_changes(known, after, TYPES))]


@pytest.mark.parametrize(
    ("after", "kinds"),
    [
        (BASE, []),
        (build_shape(ID, NAME, N, MORE, version=2), [ChangeKind.ADD_COLUMN]),
        (build_shape(ID, N, version=2), [ChangeKind.DROP_COLUMN]),
        (build_shape(ID, TITLE, N, version=2), [ChangeKind.RENAME_COLUMN]),
        (build_shape(ID, AGAIN, N, version=2), [ChangeKind.ADD_COLUMN, ChangeKind.DROP_COLUMN]),
        (build_shape(ID, NAME, BIG, version=2), [ChangeKind.WIDEN_TYPE]),
        (build_shape(ID, NAME, SMALL, version=2), [ChangeKind.NARROW_TYPE]),
        (
            build_shape(ID, NAME, replace(N, source_type="date"), version=2),
            [ChangeKind.CHANGE_TYPE],
        ),
        (build_shape(ID, NAME, replace(N, nullable=True), version=2), [ChangeKind.NULLABILITY]),
        (build_shape(ID, replace(NAME, nullable=False), N, version=2), [ChangeKind.NULLABILITY]),
        (build_shape(ID, NAME, N, version=2, key=(0, 2)), [ChangeKind.CHANGE_KEY]),
    ],
)
def test_changes_are_distinguished(after: Relation, kinds: list[ChangeKind]) -> None:
    """Each has its kind, and equal shapes have no change."""
    assert changes_to(after) == kinds
    assert is_applied(RECORD, after, "log") is (not kinds)


def test_each_shape_is_applied_once_and_in_its_own_log() -> None:
    """A version up to the copy's is not new; one of another log is."""
    assert is_applied(RECORD, BASE, "log")
    assert not is_applied(RECORD, BASE, "another log")
    later = replace(RECORD, version=3)
    assert is_applied(later, build_shape(ID, version=3), "log")
    assert not is_applied(later, build_shape(ID, version=4), "log")


def test_names_that_another_column_has_now_are_set_aside() -> None:
    """Examples are two columns that swap names, and one that takes the name of a dropped one."""
    other = replace(MORE, name="other")
    both = SchemaDrift(set(), set(), []).record(
        FRESH, build_shape(ID, NAME, other, version=1), log_id="log"
    )
    swapped = build_shape(ID, replace(NAME, name="other"), replace(other, name="name"), version=2)
    assert names_in_the_way(both, swapped, keeps_dropped=False) == {
        "name": "penstock_column_2",
        "other": "penstock_column_4",
    }
    taken = build_shape(ID, replace(other, name="name"), version=2)
    assert names_in_the_way(both, taken, keeps_dropped=False) == {"name": "penstock_column_2"}
    assert names_in_the_way(both, taken, keeps_dropped=True) == {}
    assert changes_to(swapped, both) == [ChangeKind.RENAME_COLUMN] * 2


def test_columns_of_a_copy_are_found_by_the_names_that_they_had_there() -> None:
    """Columns may have been renamed or dropped since, or taken the name of another one."""
    a = replace(NAME, name="b", names=((0, "a"), (20, "b")))
    b = replace(MORE, name="a", names=((30, "a"),))
    shape = build_shape(ID, a, b, version=3)
    kinds = (("id", "integer"), ("a", "text"), ("B", "text"))
    copied = replace(FRESH, columns=kinds, ids=())
    assert with_copied_ids(copied, shape, {copied.source: 19}).ids == (1, 2, DROPPED_ID + 2)
    assert with_copied_ids(copied, shape, {copied.source: 20}).ids == (1, DROPPED_ID + 1, 2)
    assert with_copied_ids(copied, shape, {copied.source: 30}).ids == (1, MORE.id, 2)
    assert with_copied_ids(copied, shape, {}) == copied
    assert with_copied_ids(RECORD, shape, {RECORD.source: 19}) == RECORD


def test_rows_of_an_older_shape_are_written_by_later_names() -> None:
    """A target whose DDL commits is altered before a transaction that cannot be cut."""
    old, new = build_shape(ID, NAME, version=1), build_shape(ID, TITLE, version=2)
    assert renamed_columns(old, new) == {NAME.name: TITLE.name}
    assert renamed_columns(new, new) == renamed_columns(old, build_shape(ID, version=2)) == {}
    a, b = replace(NAME, name="a"), replace(MORE, name="b")
    swapped = build_shape(ID, replace(NAME, name="b"), replace(MORE, name="a"), version=2)
    assert renamed_columns(build_shape(ID, a, b, version=1), swapped) == {"a": "b", "b": "a"}


def test_a_dropped_unique_key_is_a_change_of_a_key() -> None:
    """The copy must have the key; one that came with it, or is unknown, does not count."""
    keyed = replace(RECORD, unique=(("name",), ("n",)))
    (change,) = shape_changes(keyed, replace(BASE, unique=(("name",),), version=2), TYPES)
    assert (change.kind, change.columns) == (ChangeKind.CHANGE_KEY, ("n",))
    assert shape_changes(keyed, replace(BASE, unique=None, version=2), TYPES) == []


def test_another_collation_is_a_change() -> None:
    """An unknown collation is not a change."""
    collated = replace(RECORD, collations=("", "latin1_swedish_ci", ""))
    binary = build_shape(ID, replace(NAME, collation="utf8mb4_bin"), N, version=2)
    (change,) = shape_changes(collated, binary, TYPES)
    assert change.is_recollated
    assert shape_changes(collated, build_shape(ID, NAME, N, version=2), TYPES) == []


def test_a_record_of_an_earlier_version() -> None:
    """Only its columns are known: no other property counts as changed."""
    old = replace(FRESH, **shape_fields('[["id", "integer"], ["name", "text"], ["n", "integer"]]'))
    assert shape_changes(old, build_shape(ID, NAME, N, version=2, key=(2,)), TYPES) == []
    # so that the key and all other properties are known from here on
    assert not is_applied(old, BASE)


def test_a_record_is_read_as_it_was_written() -> None:
    """The record's departures are read, too."""
    schema_drift = SchemaDrift({"a"}, {"b"}, ["it could not be"])
    record = schema_drift.record(FRESH, BASE, log_id="log")
    assert replace(FRESH, **shape_fields(shape_text(record))) == record


def test_a_kind_without_a_policy_has_the_default() -> None:
    """Only exception raises, and names the change and how to continue."""
    policies = Policies(default=Policy.LENIENT, kinds={ChangeKind.ADD_COLUMN: Policy.EXCEPTION})
    assert policies.of(ChangeKind.DROP_COLUMN) is Policy.LENIENT
    assert policies.keeps_rows
    policies.check(ChangeKind.DROP_COLUMN, "column a was dropped", table="s.t")
    with pytest.raises(SchemaChangeRefused) as caught:
        policies.check(ChangeKind.ADD_COLUMN, "column a was added as text", table="s.t")
    assert "column a was added as text" in caught.value.message
    assert 'addColumn = "evolve"' in caught.value.hint


PIPELINE = """
[pipeline]
name = "shop"
mode = "change"
directory = "shop"

[source]
url = "postgresql://u:p@h/d"
tables = ["*.*"]

[target]
url = "mysql://u:p@h/d"

[schemaChanges]
"""


def write_file(tmp_path: Path, lines: str) -> Path:
    """Return a pipeline file with these lines in its last section."""
    path = tmp_path / "shop.toml"
    path.write_text(PIPELINE + lines)
    return path


def test_the_configuration_says_them(tmp_path: Path) -> None:
    """The section has a default, and policies per kind; without an entry it is evolve."""
    path = write_file(tmp_path, 'default = "lenient"\nnarrowType = "exception"\n')
    policies = load_config(path).schema_changes.policies
    assert policies.of(ChangeKind.ADD_COLUMN) is Policy.LENIENT
    assert policies.of(ChangeKind.NARROW_TYPE) is Policy.EXCEPTION
    assert load_config(write_file(tmp_path, "")).schema_changes.policies == Policies()


@pytest.mark.parametrize("kind", list(ChangeKind), ids=str)
def test_every_kind_may_be_named(tmp_path: Path, kind: ChangeKind) -> None:
    """Each kind has its own name."""
    policies = load_config(
        write_file(tmp_path, f'{kind.value} = "ignore"\n')
    ).schema_changes.policies
    assert policies.kinds == {kind: Policy.IGNORE}


def test_what_is_unknown_is_refused_with_the_nearest(tmp_path: Path) -> None:
    """An unknown kind and an unknown policy are refused with the nearest name."""
    with pytest.raises(ConfigKeyUnknown) as unknown:
        load_config(write_file(tmp_path, 'addColumns = "evolve"\n'))
    assert "addColumn" in unknown.value.hint
    with pytest.raises(ConfigValueInvalid) as invalid:
        load_config(write_file(tmp_path, 'addColumn = "leniant"\n'))
    assert 'Did you mean addColumn = "lenient"?' in invalid.value.hint
    assert "try_evolve" in invalid.value.message


def test_loading_afresh_is_described_for_every_engine() -> None:
    """The loader does not know the source's engine: the text has no engine's statement."""
    assert "pg_" not in LOAD_AFRESH
    assert "penstock reset FILE --target" in LOAD_AFRESH


DOUBLED = ComputedColumn(name="g", source_type="bigint", expression="(n * 2)", is_stored=True, id=7)


@pytest.mark.parametrize(
    ("computed", "source_id", "leaving", "coming"),
    [
        ((DOUBLED,), 1, [], []),
        (None, 1, [], []),  # the source did not tell
        ((), 1, ["g"], []),
        ((replace(DOUBLED, name="h"),), 1, [], ["h"]),
        ((replace(DOUBLED, name="n"),), 1, ["g"], ["n"]),  # a column has, or had, its name
        ((replace(DOUBLED, expression="(n + 1)"),), 1, ["g"], ["g"]),
        ((replace(DOUBLED, id=8),), 1, ["g"], ["g"]),
        ((DOUBLED,), 2, ["g"], ["g"]),  # the table was recreated
    ],
)
def test_generated_columns_are_matched_by_identity(
    computed: tuple[ComputedColumn, ...] | None,
    source_id: int,
    leaving: list[str],
    coming: list[str],
) -> None:
    """One is dropped before the columns from which it is computed change, and added after them."""
    base = replace(BASE, source_id=1)
    record = SchemaDrift(set(), set(), []).record(
        FRESH, replace(base, computed=(DOUBLED,)), log_id="log"
    )
    after = replace(base, source_id=source_id, computed=computed)
    first, last = computed_changes(record, after)
    assert [change.name for change in first] == leaving
    assert [change.computed and change.computed.name for change in last] == coming
    kept = SchemaDrift.of(record).record(record, after, log_id="log").computed
    assert kept == (record.computed if computed is None else computed_in(after))
