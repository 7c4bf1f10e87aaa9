"""The user's module: its calls, which say how feeds become rows, and the rows as it sees them.

The module is named by `userModule` in [stage]. It is imported once, at the start, and states its
rules by calling `configure_source` and `configure_table`. Its functions are called in any thread.

```python
from penstock.stage.script import configure_table, standard_merge

configure_table("orders", cas=["version"], merge=standard_merge())
```

Rows are dicts of JSON's values, every number exact. Not here: the reasons for a refusal
(`ports.row_apply`), and writing the result of a merge (`apply/tables.py`).
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from penstock.model import PenstockError, Retry
from penstock.model.sections import seconds
from penstock.ports.feeds import Mutation, StagedTable
from penstock.ports.row_apply import STATEMENT_ROWS, RowRules

Document = dict[str, Any]
"""A row by property. Numbers are int or Decimal, absent properties are absent."""

_INT64_DIGITS = 18
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def document_of(text: bytes) -> Any:
    """Return the content of a JSON text."""
    return json.loads(text, parse_float=Decimal, parse_int=_integer)


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= _INT64_DIGITS else Decimal(text)


def text_of(document: Any) -> bytes:
    """Return the JSON text. Raises TypeError or ValueError for values that JSON does not have."""
    return _ENCODER.encode(document)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values of documents are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def meta_of(mutation: Mutation, schema: str, table: str) -> Document:
    """Return the second argument of the user's functions: schema, table, updated and key."""
    return {
        "schema": schema,
        "table": table,
        "updated": str(mutation.time),
        "key": document_of(mutation.key.encode()),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOperation:
    """Conflict, as a merge function gets it.

    All three rows have the target's spelling of values.

    Attributes:
        target: The existing row; after a failed standard_merge, with the merged properties.
        proposed: The source's row after the change.
        before: The source's row before the change, None if the feed sent none.
        unmerged: Properties that standard_merge could not merge.
    """

    before: Document | None
    meta: Document
    proposed: Document
    target: Document
    unmerged: list[str] = field(default_factory=list)


MergeResult = dict[str, Any]
"""{"apply": row} | {"dlq": name} | {"drop": True}"""
MergeFunction = Callable[[MergeOperation], MergeResult]


class Unmerged(Exception):
    """Properties changed on both sides, and there is no function to decide."""

    def __init__(self, properties: list[str]) -> None:
        super().__init__(", ".join(properties))
        self.properties = properties


@dataclass(frozen=True, slots=True)
class StandardMerge:
    """Three-way merge by property; see `standard_merge`."""

    fallback: MergeFunction | None = None

    def merge(self, operation: MergeOperation, *, key: Collection[str]) -> MergeResult:
        """Return the result of a merge. key: the columns of the primary key. Raises Unmerged."""
        if not operation.target:
            return {"apply": operation.proposed}
        merged, unmerged = three_way(
            operation.before or {}, operation.proposed, operation.target, key=key
        )
        if not unmerged:
            return {"apply": merged}
        if self.fallback is None:
            raise Unmerged(unmerged)
        return self.fallback(replace(operation, target=merged, unmerged=unmerged))


_ABSENT = object()


def three_way(
    before: Document, proposed: Document, target: Document, *, key: Collection[str]
) -> tuple[Document, list[str]]:
    """Return the target's row with the changes from before to proposed, and unmerged properties.

    A property that did not change, or already has the proposed value, stays. If the target lacks
    the property, or still has its old value, it gets the proposed value; without one, the property
    is removed.
    """
    merged, unmerged = dict(target), []
    for name in sorted({*before, *proposed, *target} - set(key)):
        old, new, there = (one.get(name, _ABSENT) for one in (before, proposed, target))
        if is_same(old, new) or is_same(there, new):
            continue
        if there is not _ABSENT and not is_same(old, there):
            unmerged.append(name)
        elif new is _ABSENT:
            del merged[name]
        else:
            merged[name] = new
    return merged, unmerged


Dispatched = Mapping[str, Sequence[Document]] | None
Dispatch = Callable[[Document, Document], Dispatched]
ApplyOperation = dict[str, Any]
OPTIONS = frozenset({"mode", "bestEffortWindow", "dlqTableName"})
_PART = re.compile(r'"(?:[^"]|"")+"|[^."]+')
PARTS_MAX = 3


class UserModuleInvalid(PenstockError):
    """The user's module cannot be imported, or makes a call with a wrong argument."""

    code = "ST66"
    retry: ClassVar[Retry] = "operator"


class UserModuleFailed(PenstockError):
    """A function of the user's module raised an error or returned a wrong value."""

    code = "ST67"
    retry: ClassVar[Retry] = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRules:
    """Arguments of `configure_source`."""

    name: tuple[str, ...]
    dispatch: Dispatch | None = None
    deletes_to: str | Dispatch | None = None
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """Arguments of `configure_table`."""

    name: tuple[str, ...] = ()
    apply: Callable[[list[ApplyOperation]], Any] | None = None
    delete_key: Callable[[list[Any], Document], Sequence[Any] | None] | None = None
    map: Callable[[Document, Document], Document | None] | None = None
    merge: MergeFunction | StandardMerge | None = None
    rows: RowRules = field(default_factory=RowRules)

    def may_be_of(self, group: Sequence[str]) -> bool:
        """Return whether the table may be one of a target schema."""
        return _ends((*group, self.name[-1]), self.name)

    @property
    def is_rowwise(self) -> bool:
        """Return whether rows must be written one by one, after a look at existing rows."""
        return bool(
            self.apply
            or self.delete_key
            or self.map
            or self.rows.has_conditions
            or self.rows.exprs
            or self.rows.extras
            or self.rows.ignore
        )


PLAIN = TableRules()


@dataclass(slots=True)
class Script:
    """Calls that a module has made. Empty if there is none."""

    sources: list[SourceRules] = field(default_factory=list)
    tables: list[TableRules] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    def source(self, table: StagedTable) -> SourceRules | None:
        """Return the rules for mutations that a feed sends for a table, or for its whole schema."""
        named = [one for one in self.sources if _ends((*table.group, table.name), one.name)]
        return next(iter([*named, *(one for one in self.sources if one.name == table.group)]), None)

    def table(self, table: StagedTable) -> TableRules:
        """Return the rules for writing a table."""
        path = (*table.group, table.name)
        return next((one for one in self.tables if _ends(path, one.name)), PLAIN)

    def is_source(self, group: Sequence[str], name: str) -> bool:
        """Return whether the module sends mutations of this name to other tables, so it need not
        exist.
        """
        return self.source(StagedTable(tuple(group), name)) is not None


def _ends(path: Sequence[str], name: Sequence[str]) -> bool:
    folded = [part.lower() for part in path]
    return folded[-len(name) :] == [part.lower() for part in name]


_collecting: ContextVar[Script | None] = ContextVar("collecting", default=None)


def load_script(module: str, *, beside: Path) -> Script:
    """Import a module and gather its calls. beside: the folder where it is looked for first.

    Raises UserModuleInvalid.
    """
    if not module:
        return Script()
    folder = str(beside)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules.pop(module, None)  # a module imported before would make no calls
    script = Script()
    token = _collecting.set(script)
    try:
        importlib.invalidate_caches()
        importlib.import_module(module)
    except UserModuleInvalid:
        raise
    except (Exception, SystemExit) as error:
        raise UserModuleInvalid(
            f'userModule = "{module}" cannot be imported: {type(error).__name__}: {error}',
            hint=f"Put it beside the pipeline file, in {beside}, or install it; then start again.",
            module=module,
        ) from error
    finally:
        _collecting.reset(token)
    return script


def _script(call: str) -> Script:
    script = _collecting.get()
    if script is None:
        raise _invalid(f"{call} was called outside of the import of userModule")
    return script


def _invalid(what: str) -> UserModuleInvalid:
    return UserModuleInvalid(
        what,
        hint="docs/stage.md has the calls and their arguments; correct the module named by "
        "userModule, then start again.",
    )


def name_of(text: object) -> tuple[str, ...]:
    """Return the parts of a table's name: `table`, `schema.table`, `database.schema."ta.ble"`.

    Raises UserModuleInvalid.
    """
    parts: list[str] = []
    place = 0
    while isinstance(text, str) and len(parts) < PARTS_MAX:
        match = _PART.match(text, place)
        if match is None:
            break
        part = match[0]
        parts.append(part[1:-1].replace('""', '"') if part.startswith('"') else part)
        place = match.end()
        if place == len(text):
            return tuple(parts)
        if text[place] != ".":
            break
        place += 1
    raise _invalid(f"{text!r} is not the name of a table")


# --- calls ----------------------------------------------------------------------------------------


def configure_source(
    name: str,
    *,
    dispatch: Dispatch | None = None,
    deletes_to: str | Dispatch | None = None,
    target: str = "",
    recurse: bool = False,  # noqa: ARG001 - changefeeds have no documents within others
) -> None:
    """Send a feed's mutations for a table elsewhere.

    name: of the table, or of the whole target schema. target: the table for all of them. Or
    dispatch: called with a row and its meta, returns rows by table, or None to discard it. With
    that deletes_to: the table where rows are deleted, or a function like dispatch, which is called
    with the key's columns.
    """
    call = f"configure_source({name!r})"
    if (dispatch is not None) == bool(target):
        raise _invalid(f"{call}: one of dispatch and target must be given")
    if (dispatch is not None) == (deletes_to is None):
        raise _invalid(f"{call}: deletes_to belongs to dispatch, and dispatch needs it")
    _check_function(call, "dispatch", dispatch, 2)
    if isinstance(deletes_to, str):
        name_of(deletes_to)
    else:
        _check_function(call, "deletes_to", deletes_to, 2)
    if target:
        name_of(target)
    _script(call).sources.append(
        SourceRules(name=name_of(name), dispatch=dispatch, deletes_to=deletes_to, target=target)
    )


def configure_table(
    name: str,
    *,
    apply: Callable[[list[ApplyOperation]], Any] | None = None,
    cas: Sequence[str] = (),
    deadlines: Mapping[str, str | float | timedelta] | None = None,
    delete_key: Callable[[list[Any], Document], Sequence[Any] | None] | None = None,
    exprs: Mapping[str, str] | None = None,
    extras: str = "",
    ignore: Mapping[str, bool] | Sequence[str] = (),
    map: Callable[[Document, Document], Document | None] | None = None,
    merge: MergeFunction | StandardMerge | None = None,
    row_limit: int = STATEMENT_ROWS,
) -> None:
    """Set how a table of the target is written.

    apply: gets all operations and writes them itself, through get_tx(). cas, deadlines
    (`1h`, seconds or timedelta), exprs, extras, ignore, row_limit: see RowRules. delete_key: is
    called with the key of a delete and its meta, returns the key to delete, or None. map: is called
    with a row and its meta, returns the row to write, or None. merge: is called with a
    MergeOperation if cas or a deadline has refused a row.
    """
    call = f"configure_table({name!r})"
    _check_function(call, "apply", apply, 1)
    _check_function(call, "delete_key", delete_key, 2)
    _check_function(call, "map", map, 2)
    if not isinstance(merge, StandardMerge):
        _check_function(call, "merge", merge, 1)
    if merge is not None and not (cas or deadlines):
        raise _invalid(f"{call}: merge needs cas or deadlines")
    if isinstance(cas, str) or not all(isinstance(one, str) for one in cas):
        raise _invalid(f"{call}: cas is a list of columns")
    if not isinstance(row_limit, int) or row_limit < 1:
        raise _invalid(f"{call}: row_limit is a whole number from 1")
    ignored = [key for key, on in ignore.items() if on] if isinstance(ignore, Mapping) else ignore
    rules = RowRules(
        cas=tuple(cas),
        deadlines={key: _seconds(call, value) for key, value in (deadlines or {}).items()},
        exprs=dict(exprs or {}),
        extras=extras,
        ignore=frozenset(ignored),
        row_limit=row_limit,
        wants_target=merge is not None,
    )
    found = TableRules(
        name=name_of(name), apply=apply, delete_key=delete_key, map=map, merge=merge, rows=rules
    )
    _script(call).tables.append(found)


def _seconds(call: str, duration: object) -> float:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    try:
        if isinstance(duration, str | int | float):
            return seconds(duration)
    except ValueError:
        pass
    raise _invalid(f"{call}: a deadline is like 1h, 90s, a number of seconds or a timedelta")


def _check_function(call: str, name: str, function: object, count: int) -> None:
    if function is None:
        return
    if not callable(function):
        raise _invalid(f"{call}: {name} is not a function")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise _invalid(f"{call}: {name} is async or a generator, not a plain function")
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        raise _invalid(f"{call}: {name} does not take {count} arguments: {error}") from error


def standard_merge(fallback: MergeFunction | None = None) -> StandardMerge:
    """Merge the source's changes with the target's changes, property by property.

    fallback: is called if a property changed on both sides; without it that is an error.
    """
    _check_function("standard_merge", "fallback", fallback, 1)
    return StandardMerge(fallback)


def set_options(options: Mapping[str, str]) -> None:
    """Set keys of [stage]: mode, bestEffortWindow, dlqTableName. The file's own keys win."""
    unknown = sorted(options.keys() - OPTIONS)
    if unknown:
        known = ", ".join(sorted(OPTIONS))
        raise _invalid(f"set_options: {', '.join(unknown)} cannot be set there; only {known}")
    _script("set_options").options.update(options)


def random_uuid() -> str:
    """Return a random UUID as text."""
    return str(uuid.uuid4())


def replication_key(meta: Document) -> list[Any]:
    """Return the key of the row that a function's `meta` is about, as the feed sent it."""
    return list(meta["key"])


class TargetTransaction(Protocol):
    """Transaction in which rows are written; see `get_tx`."""

    @abstractmethod
    def apply(self, operations: Sequence[ApplyOperation]) -> None:
        """Write operations in the way of a table without a function apply."""
        ...

    @abstractmethod
    def columns(self) -> list[Document]:
        """Return the columns, those of the key first: name, type, primary, ignored, default."""
        ...

    @abstractmethod
    def exec(self, sql: str, *parameters: Any) -> None:
        """Run a statement; its parameters are `%s`."""
        ...

    @abstractmethod
    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        ...

    @abstractmethod
    def schema(self) -> str:
        """Return the target schema's name as SQL."""
        ...

    @abstractmethod
    def table(self) -> str:
        """Return the table's name as SQL."""
        ...


_transaction: ContextVar[TargetTransaction | None] = ContextVar("transaction", default=None)


def get_tx() -> TargetTransaction:
    """Return the transaction, within a function given to configure_table."""
    found = _transaction.get()
    if found is None:
        raise _invalid("get_tx() was called outside of a function of configure_table")
    return found


@contextmanager
def in_transaction(transaction: TargetTransaction) -> Iterator[None]:
    """Let get_tx() return this while the block runs."""
    token = _transaction.set(transaction)
    try:
        yield
    finally:
        _transaction.reset(token)


@contextmanager
def calling(function: str, table: StagedTable) -> Iterator[None]:
    """Convert errors of a module's function to UserModuleFailed."""
    try:
        yield
    except (PenstockError, Unmerged):
        raise
    except Exception as error:
        raise UserModuleFailed(
            f"{function} of {table} in the user's module: {type(error).__name__}: {error}",
            hint="Correct the function and start again; nothing of the batch was written.",
            table=str(table),
        ) from error
