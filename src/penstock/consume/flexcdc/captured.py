"""Captured tables and their changelogs: create, find, and change them to the shape of the rows.

A changelog keeps all row images that it ever got, so a column never gets a type that holds less
than the previous one. The steps from one shape to another are found without I/O.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

import structlog

from penstock.consume.flexcdc.state import Mvlog, State
from penstock.host.errors import ConnectionLost
from penstock.model import Column, PenstockError, Relation, TableDefinition, TableName
from penstock.model.sections import ChangelogNames, FlexCdcSettings
from penstock.ports.changelog import GSN, OWN_COLUMNS

NAME_MAX = 63  # PostgreSQL's; of MySQL and MariaDB 64


class ChangelogNameTooLong(PenstockError):
    """The name `<schema>_<table>` is longer than the name of a table may be."""

    code = "FX22"


def changelog_name(table: TableName, style: ChangelogNames) -> str:
    """Return the changelog's name. Raises ChangelogNameTooLong."""
    if style is ChangelogNames.MD5:
        return f"mvlog_{_md5(_md5(table.schema) + _md5(table.name))}"
    name = f"{table.schema}_{table.name}"
    if len(name.encode()) > NAME_MAX:
        raise ChangelogNameTooLong(
            f"the changelog of {table} cannot be called {name}: {len(name.encode())} bytes",
            hint='Set changelog_names = "md5": these names are 38 characters long for any table.',
            table=str(table),
        )
    return name


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


logger = structlog.get_logger()

# Flexviews' own tables, with the results of its computations on changelogs.
_DELTA = "_delta"

BYTES = "binary"
"""Neutral type of columns whose values are no text."""


class ChangelogMissing(PenstockError):
    """A changelog's table does not exist, although the state says that its table is captured."""

    code = "FX04"


class ColumnNameTaken(PenstockError):
    """A column of the source has the name of one of a changelog's own columns."""

    code = "FX23"


class DatabaseLeftOut(PenstockError):
    """The table is in a database that only_databases does not name."""

    code = "FX24"


class TableUnknown(PenstockError):
    """The source has no table of that name, or none that may be captured."""

    code = "FX25"


class ChangelogNameTaken(PenstockError):
    """The changelog's name is that of another table. Fields: table, changelog."""

    code = "FX26"


Define = Callable[[TableName], TableDefinition | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """Source columns that a changelog's columns hold.

    Attributes:
        source_id: the table's, as the log has it.
        names: by identity the column's name in the changelog.
    """

    source_id: int = 0
    names: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, relation: Relation) -> Identities:
        """Return the identities of a changelog that has a relation's shape."""
        names = {column.id: column.name for column in relation.columns if column.id}
        return cls(source_id=relation.source_id, names=names)

    @classmethod
    def parse(cls, text: str) -> Identities:
        """Return the identities of a `text`; empty for an empty one."""
        if not text:
            return cls()
        found = json.loads(text)
        names = {int(number): str(name) for number, name in found["names"].items()}
        return cls(source_id=int(found["source_id"]), names=names)

    @property
    def text(self) -> str:
        """Text in which they are stored."""
        return json.dumps({"source_id": self.source_id, "names": dict(self.names)})

    def in_table_of(self, relation: Relation) -> Identities:
        """Return the identities; empty if the relation is of a table created again."""
        if self.source_id == relation.source_id:
            return self
        return Identities(source_id=relation.source_id)

    def rename(self, old: str, new: str) -> Identities:
        """Return the identities with a column under another name."""
        names = {number: new if name == old else name for number, name in self.names.items()}
        return replace(self, names=names)


class Changelogs:
    """Changelogs of one destination. Tables are changed outside of transactions."""

    def __init__(
        self,
        state: State,
        settings: FlexCdcSettings,
        define: Define,
        warn: Callable[[str], None],
        *,
        may_drop: bool,
    ) -> None:
        """Read the captured tables.

        Args:
            state: the state tables.
            settings: settings of FlexCDC.
            define: returns a table's present definition at the source.
            warn: receives warnings of raise_warnings.
            may_drop: a column that the relation does not have was dropped; otherwise it may have
                another name now, and stays in the changelog with its values.
        """
        self._may_drop = may_drop
        self._state = state
        self._session = state.session
        self._settings = settings
        self._define = define
        self._warn = warn
        self._known: dict[TableName, TableName] = {}
        self._shaped: dict[TableName, tuple[Relation, bool]] = {}
        self._identities: dict[TableName, Identities] = {}

    @property
    def by_table(self) -> dict[TableName, TableName]:
        """Changelog of each captured table."""
        return dict(self._known)

    def refresh(self) -> None:
        """Read the captured tables again."""
        found = [one for one in self._state.mvlogs() if self.is_wanted(one.table)]
        self._known = {one.table: self._state.names.table(one.name) for one in found}
        self._identities = {one.table: Identities.parse(one.identities) for one in found}
        self._shaped = {table: it for table, it in self._shaped.items() if table in self._known}

    def is_wanted(self, table: TableName) -> bool:
        """Return whether only_databases allows a table that is not one of FlexCDC's own."""
        only = self._settings.only_databases
        return table.schema != self._settings.database and (not only or table.schema in only)

    def is_captured(self, table: TableName) -> bool:
        """Return whether rows of a table are captured: with auto_changelog those of any table."""
        return table in self._known or self._is_auto(table)

    def _is_auto(self, table: TableName) -> bool:
        return self._settings.auto_changelog and self.is_wanted(table) and _DELTA not in table.name

    def changelog(self, table: TableName) -> TableName:
        """Return the changelog of a captured table."""
        return self._known[table]

    # -- creation and removal --------------------------------------------------------------------

    def add(self, table: TableName) -> TableName:
        """Capture a table as the source has it now; an existing changelog is dropped first.

        Raises TableUnknown, DatabaseLeftOut, and the errors of its types and names.
        """
        if not self.is_wanted(table):
            raise DatabaseLeftOut(
                f"{table} is in a database that only_databases leaves out",
                hint="Add it to only_databases in [flexcdc], or capture another table.",
                table=str(table),
            )
        definition = self._define(table)
        if definition is None:
            raise TableUnknown(
                f"TABLE NOT EXISTS OR ACCESS DENIED: {table}",
                hint="Write the names as the source has them (case counts), and let the account "
                "see the table.",
                table=str(table),
            )
        return self._create(table, relation_of(definition), definition)

    def _create(
        self, table: TableName, relation: Relation, definition: TableDefinition | None
    ) -> TableName:
        taken = [c.name for c in relation.columns if c.name.lower() in OWN_COLUMNS]
        if taken:
            raise ColumnNameTaken(
                f"column {taken[0]} of {table} has the name of a changelog's own column",
                hint="Rename it at the source, or leave the table out.",
                table=str(table),
                column=taken[0],
            )
        name = changelog_name(table, self._settings.changelog_names)
        changelog = self._state.names.table(name)
        self._check_free(table, changelog)
        types = self._session.types_of(relation, definition)
        self._session.drop(changelog)
        self._session.create_changelog(changelog, list(zip(_names(relation), types, strict=True)))
        identities = Identities.of(relation)
        self._state.put_mvlog(Mvlog(table=table, name=name, identities=identities.text))
        self._known[table] = changelog
        self._identities[table] = identities
        self._shaped[table] = (relation, True)
        logger.info("changelog made", table=str(table), changelog=str(changelog))
        return changelog

    def _check_free(self, table: TableName, changelog: TableName) -> None:
        """Check that no other table would be replaced. Raises ChangelogNameTaken."""
        shape = self._session.shape(changelog)
        if shape is None:
            return
        folded = changelog.name.casefold()  # some servers ignore case
        owners = [
            mvlog.table
            for mvlog in self._state.mvlogs()
            if mvlog.table != table and mvlog.name.casefold() == folded
        ]
        if not owners and tuple(shape)[: len(OWN_COLUMNS)] == OWN_COLUMNS:
            return  # left by an earlier setup
        what = f"the changelog of {owners[0]}" if owners else "a table that is not a changelog"
        raise ChangelogNameTaken(
            f"the changelog of {table} would replace {changelog}, which is {what}",
            hint='Set changelog_names = "md5" in [flexcdc] and run `penstock flexcdc --ini FILE '
            "setup --force`: these names differ for any two tables. Or leave the table out.",
            table=str(table),
            changelog=str(changelog),
        )

    def remove(self, table: TableName) -> bool:
        """Stop capturing a table, and drop its changelog; return whether it was captured."""
        found = {mvlog.table: mvlog.name for mvlog in self._state.mvlogs()}.get(table)
        if found is None:
            return False
        self._state.remove_mvlog(table)
        self._session.drop(self._state.names.table(found))
        self._known.pop(table, None)
        return True

    # -- shapes ----------------------------------------------------------------------------------

    def meet(self, table: TableName, relation: Relation | None) -> None:
        """Create the changelog of a table that is captured on sight.

        Raises TableUnknown if neither the log nor the source has its shape.

        Args:
            table: the table.
            relation: its shape, if known.
        """
        if relation is None:
            self.add(table)
        else:
            self.ensure(relation, drops=False)

    def is_new(self, relation: Relation) -> bool:
        """Return whether the changelog may not be able to hold rows of this relation yet."""
        shaped = self._shaped.get(_name(relation))
        return shaped is None or shaped[0] != relation

    def ensure(self, relation: Relation, *, drops: bool, beside: Sequence[Relation] = ()) -> None:
        """Change a captured table's changelog to a shape that holds rows of this relation.

        Repeating it changes nothing. Raises ChangelogMissing.

        Args:
            relation: the relation.
            drops: drop columns that the relation does not have.
            beside: further shapes whose rows are in the same transaction: columns of one name
                hold the values of all of them.
        """
        table = TableName(relation.schema, relation.name)
        if self._shaped.get(table) in ((relation, True), (relation, drops)):
            return
        if table not in self._known:
            self._create(table, relation, self._define(table))
            return
        changelog = self._known[table]
        shape = self._session.shape(changelog)
        if shape is None:
            raise ChangelogMissing(
                f"the changelog {changelog} of {table} is not there",
                hint=f"Capture the table again: penstock flexcdc --ini FILE add-table --schema "
                f"{table.schema} --table {table.name}; its changes until then are lost.",
                table=str(table),
            )
        is_dropping = drops and self._may_drop
        known = self._identities.get(table, Identities()).in_table_of(relation)
        for step in steps(
            shape,
            relation,
            self._common_types(relation, shape, beside),
            same=self._session.same_type,
            holds=self._session.holds,
            fold=self._session.fold,
            drops=is_dropping,
            names=known.names,
        ):
            self._do(changelog, table, step)
            if step.does is StepKind.RENAME:  # after a crash it is not repeated
                known = known.rename(step.column, step.to)
                self._keep(table, known)
        own = Identities.of(relation)
        kept = {} if is_dropping else known.names
        self._keep(table, replace(own, names={**kept, **own.names}))
        self._shaped[table] = (relation, drops)

    def _keep(self, table: TableName, identities: Identities) -> None:
        """Store the identities of a changelog's columns."""
        if identities != self._identities.get(table):
            self._state.put_identities(table, identities.text)
            self._identities[table] = identities

    def fit_names(self, relation: Relation) -> Relation:
        """Return a relation with the present names of its columns in the changelog.

        The result differs if a column was renamed in the middle of a transaction.
        """
        shaped = self._shaped.get(_name(relation))
        if shaped is None or shaped[0] == relation:
            return relation
        return self.fit_to(relation, shaped[0])

    def fit_to(self, relation: Relation, later: Relation) -> Relation:
        """Return a relation whose columns have the names of a later version of the table.

        A column that the later version lacks gets a free name if another column took its name. So
        does a column of bytes that the later version has as another type, or the other way round:
        no type holds both.
        """
        fold = self._session.fold
        is_same = relation.source_id == later.source_id  # else the table was created again
        names = {column.id: column.name for column in later.columns if column.id and is_same}
        taken = {fold(name) for name in names.values()}
        used = {fold(names[one.id]) for one in relation.columns if one.id in names}

        has_bytes = {fold(column.name): column.neutral == BYTES for column in later.columns}

        def rename(column: Column) -> Column:
            name = names.get(column.id, column.name)
            is_taken = fold(name) in (taken if column.id else used) and column.id not in names
            if is_taken:
                return replace(column, name=name_aside(name, column.id))
            is_bytes = column.neutral == BYTES
            if has_bytes.get(fold(name), is_bytes) != is_bytes:
                return replace(column, name=name_aside(name, column.id), id=0)
            return replace(column, name=name)

        columns = tuple(map(rename, relation.columns))
        return relation if columns == relation.columns else replace(relation, columns=columns)

    def _common_types(
        self, relation: Relation, shape: object, beside: Sequence[Relation]
    ) -> Sequence[str]:
        """Return the wanted types, wide enough for the rows of further shapes."""
        session, types = self._session, list(self._types(relation, shape))
        places = {session.fold(name): place for place, name in enumerate(_names(relation))}
        for other in beside:
            for name, kind in zip(_names(other), self._types(other, shape), strict=True):
                place = places.get(session.fold(name))
                if place is None or session.same_type(types[place], kind):
                    continue
                if not session.holds(types[place], kind):
                    is_wider = session.holds(kind, types[place])
                    types[place] = kind if is_wider else session.text_type
        return types

    def _types(self, relation: Relation, shape: object) -> Sequence[str]:
        """Return the wanted types; the source is asked only if the shape differs."""
        types = self._session.types_of(relation, None)
        known = dict(shape) if isinstance(shape, dict) else {}
        settled = all(
            name in known and self._session.same_type(known[name], kind)
            for name, kind in zip(_names(relation), types, strict=True)
        )
        if settled:
            return types
        return self._session.types_of(relation, self._define(_name(relation)))

    def _do(self, changelog: TableName, table: TableName, step: Step) -> None:
        session = self._session
        logger.info("changelog altered", table=str(table), does=str(step.does), column=step.column)
        if step.does is StepKind.RENAME:
            session.rename_column(changelog, step.column, step.to)
        elif step.does is StepKind.ADD:
            session.add_column(changelog, step.column, step.kind, after=step.after)
        elif step.does is StepKind.DROP:
            session.drop_column(changelog, step.column)
        else:
            self._retype(changelog, table, step)

    def _retype(self, changelog: TableName, table: TableName, step: Step) -> None:
        """Give a column the new type; text if old images have values that the type lacks.

        A column whose values are no text either, such as bytes, gets another name.
        """
        reason = ""
        for kind in (step.kind, self._session.text_type):
            try:
                self._session.retype_column(changelog, step.column, kind)
            except ConnectionLost:
                raise
            except PenstockError as error:
                if error.retry == "backoff":
                    raise
                reason = error.message
            else:
                if kind != step.kind:
                    self._warn(
                        f"column {step.column} of {table} is {step.kind} now, and its changelog "
                        "has values that this type does not: the column is kept as text"
                    )
                return
        taken = {self._session.fold(name) for name in self._session.shape(changelog) or ()}
        numbers = itertools.count(1)
        names = (f"{step.column}_penstock_old{number}" for number in numbers)
        aside = next(name for name in names if self._session.fold(name) not in taken)
        self._session.rename_column(changelog, step.column, aside)
        self._session.add_column(changelog, step.column, step.kind, after=aside)
        self._warn(
            f"column {step.column} of {table} is {step.kind} now, and its changelog has values "
            f"that are no text ({reason}): they are kept in {aside}"
        )


def relation_of(definition: TableDefinition) -> Relation:
    """Return the shape of a table's rows from the catalogue, as far as a changelog needs it."""
    return Relation(
        schema=definition.name.schema,
        name=definition.name.name,
        columns=tuple(
            Column(
                name=column.name,
                source_type=column.type_text,
                neutral=column.neutral,
                base_type=column.base_type,
                id=column.id,
            )
            for column in definition.columns
        ),
        source_id=definition.source_id,
    )


def _name(relation: Relation) -> TableName:
    return TableName(relation.schema, relation.name)


def _names(relation: Relation) -> list[str]:
    return [column.name for column in relation.columns]


class StepKind(StrEnum):
    """Kind of a step."""

    RENAME = "rename"
    ADD = "add"
    RETYPE = "retype"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of a changelog.

    Attributes:
        column: its name now; of RENAME the old one.
        to: the new name of RENAME.
        kind: the type of ADD and RETYPE.
        after: of ADD, the previous column.
    """

    does: StepKind
    column: str
    to: str = ""
    kind: str = ""
    after: str = ""


def name_aside(name: str, number: int) -> str:
    """Return a free name for a column whose name now belongs to another column."""
    return f"{name}_penstock_{number}"


def steps(
    shape: Mapping[str, str],
    relation: Relation,
    types: Sequence[str],
    *,
    same: Callable[[str, str], bool],
    holds: Callable[[str, str], bool],
    fold: Callable[[str], str],
    drops: bool,
    names: Mapping[int, str] = MappingProxyType({}),
) -> list[Step]:
    """Return the steps from a changelog's shape to one that holds the relation's rows.

    Steps that were done before a crash are not returned again.

    Args:
        shape: the changelog's columns with their types.
        relation: the relation.
        types: types that the relation's columns get.
        same: returns whether two texts are the same type.
        holds: returns whether the first type holds all values of the second.
        fold: returns a name in a form that is equal for names that the server takes as one.
        drops: drop columns that the relation does not have; otherwise they stay, for earlier rows.
        names: by identity the column's name in the changelog, as far as it is known.
    """
    now = {name: kind for name, kind in shape.items() if name not in OWN_COLUMNS}
    wanted = {fold(column.name): column.id for column in relation.columns}
    found: list[Step] = []

    def rename(old: str, new: str) -> None:
        found.append(Step(does=StepKind.RENAME, column=old, to=new))
        now[new] = now.pop(old)

    known = dict(names)
    for number, name in names.items():
        aside = name_aside(name, number)
        if wanted.get(fold(name), number) != number:
            # Its name belongs to another column now: old images must not mix with new ones.
            if name in now and aside not in now:
                rename(name, aside)
            known[number] = aside
    before = GSN
    for column, kind in zip(relation.columns, types, strict=True):
        there = {fold(name): name for name in now}
        old = known.get(column.id, there.get(fold(column.name), column.name))
        if old != column.name and old in now and there.get(fold(column.name), old) == old:
            rename(old, column.name)
        if column.name not in now:
            found.append(Step(does=StepKind.ADD, column=column.name, kind=kind, after=before))
        elif not same(now[column.name], kind) and not holds(now[column.name], kind):
            found.append(Step(does=StepKind.RETYPE, column=column.name, kind=kind))
        before = column.name
    if drops:
        gone = [name for name in now if fold(name) not in wanted]
        found += [Step(does=StepKind.DROP, column=name) for name in gone]
    return found
