"""Changes of shape: told apart, and what their policies are called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fix_policies import BASE, BIG, ID, MORE, NAME, SMALL, TABLE, N, shaped
from penstock.control.config import load_config
from penstock.control.config_errors import (
    ConfigKeyUnknown,
    ConfigValueInvalid,
)
from penstock.engines.postgres.target.reshape import TYPES
from penstock.model import LOAD_AFRESH, Relation
from penstock.ports.policies import ChangeKind, Policies, Policy, SchemaChangeRefused
from penstock.ports.target import TableRecord
from penstock.sql.record_text import shape_fields, shape_text
from penstock.sql.schema_drift import SchemaDrift
from penstock.sql.shape_changes import is_applied, shape_changes

FRESH = TableRecord(source=TABLE, target=TABLE, merge_name="t_wkm", made=True, columns=())
RECORD = SchemaDrift(set(), set(), []).record(FRESH, BASE)
TITLE = replace(NAME, name="title")


@pytest.mark.parametrize(
    ("after", "renamed", "kinds"),
    [
        (BASE, False, []),
        (shaped(ID, NAME, N, MORE, version=2), False, [ChangeKind.ADD_COLUMN]),
        (shaped(ID, N, version=2), False, [ChangeKind.DROP_COLUMN]),
        (shaped(ID, TITLE, N, version=2), True, [ChangeKind.RENAME_COLUMN]),
        (shaped(ID, TITLE, N, version=2), False, [ChangeKind.DROP_COLUMN, ChangeKind.ADD_COLUMN]),
        (shaped(ID, NAME, BIG, version=2), False, [ChangeKind.WIDEN_TYPE]),
        (shaped(ID, NAME, SMALL, version=2), False, [ChangeKind.NARROW_TYPE]),
        (
            shaped(ID, NAME, replace(N, source_type="date"), version=2),
            False,
            [ChangeKind.CHANGE_TYPE],
        ),
        (shaped(ID, NAME, replace(N, nullable=True), version=2), False, [ChangeKind.NULLABILITY]),
        (shaped(ID, replace(NAME, nullable=False), N, version=2), False, [ChangeKind.NULLABILITY]),
        (shaped(ID, NAME, N, version=2, key=(0, 2)), False, [ChangeKind.CHANGE_KEY]),
    ],
)
def test_changes_are_distinguished(after: Relation, renamed: bool, kinds: list[ChangeKind]) -> None:
    """Each by its kind, and none where nothing changed."""
    found = shape_changes(RECORD, after, TYPES, renamed=renamed)
    assert [change.kind for change in found] == kinds
    assert is_applied(RECORD, after) is (not kinds)


def test_a_record_of_an_earlier_version() -> None:
    """Of which columns are known and nothing else: nothing else is taken for changed."""
    old = replace(FRESH, **shape_fields('[["id", "integer"], ["name", "text"], ["n", "integer"]]'))
    assert shape_changes(old, shaped(ID, NAME, N, version=2, key=(2,)), TYPES) == []
    assert not is_applied(old, BASE)  # so that key and all are known from here on


def test_a_record_is_read_as_it_was_written() -> None:
    """With its departures."""
    schema_drift = SchemaDrift({"a"}, {"b"}, ["it could not be"])
    record = schema_drift.record(FRESH, BASE)
    assert replace(FRESH, **shape_fields(shape_text(record))) == record


def test_a_kind_without_a_policy_has_the_default() -> None:
    """And exception alone raises, naming the change and how to go on."""
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


def written(tmp_path: Path, lines: str) -> Path:
    """A pipeline file with these lines in its last section."""
    path = tmp_path / "shop.toml"
    path.write_text(PIPELINE + lines)
    return path


def test_the_configuration_says_them(tmp_path: Path) -> None:
    """A default, and one for a kind; nothing said is evolve."""
    path = written(tmp_path, 'default = "lenient"\nnarrowType = "exception"\n')
    policies = load_config(path).schema_changes.policies
    assert policies.of(ChangeKind.ADD_COLUMN) is Policy.LENIENT
    assert policies.of(ChangeKind.NARROW_TYPE) is Policy.EXCEPTION
    assert load_config(written(tmp_path, "")).schema_changes.policies == Policies()


@pytest.mark.parametrize("kind", list(ChangeKind), ids=str)
def test_every_kind_may_be_named(tmp_path: Path, kind: ChangeKind) -> None:
    """Under its name."""
    policies = load_config(written(tmp_path, f'{kind.value} = "ignore"\n')).schema_changes.policies
    assert policies.kinds == {kind: Policy.IGNORE}


def test_what_is_unknown_is_refused_with_the_nearest(tmp_path: Path) -> None:
    """A kind and a policy."""
    with pytest.raises(ConfigKeyUnknown) as unknown:
        load_config(written(tmp_path, 'addColumns = "evolve"\n'))
    assert "addColumn" in unknown.value.hint
    with pytest.raises(ConfigValueInvalid) as invalid:
        load_config(written(tmp_path, 'addColumn = "leniant"\n'))
    assert 'Did you mean addColumn = "lenient"?' in invalid.value.hint
    assert "try_evolve" in invalid.value.message


def test_loading_afresh_is_described_for_every_engine() -> None:
    """The loader does not know the source's engine: no statement of one engine stands there."""
    assert "pg_" not in LOAD_AFRESH
    assert "penstock reset FILE --target" in LOAD_AFRESH
