"""Functions that queries may call: their declaration, and the choice for a call.

A declaration is written as in SQL: `name(type, type?) -> type`, `?` for an optional argument,
`variadic` before the last one, `setof type` or `setof (name type, ...)` for rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.answers import AsksServer, ServerState, Session
from penstock.serve.catalog.facts import Facts
from penstock.serve.catalog.model import Model
from penstock.serve.catalog.publications import Comment, Publication
from penstock.serve.catalog.types import ANYARRAY, ANYELEMENT, UNKNOWN, Types


@dataclass(slots=True, kw_only=True)
class Context:
    """View of the server for functions.

    Attributes:
        session: of the present query, replaced for each one.
        held: settings of the server, by name in lower case.
    """

    facts: Facts
    types: Types
    model: Model
    state: ServerState
    session: Session
    database: str
    dialect: str
    held: Mapping[str, str] = field(default_factory=dict)
    reports: dict[str, str] = field(default_factory=dict)

    def carry_out(self, function: str, *arguments: Any) -> Any:
        """Return the outcome of the server's work for a function. Raises AsksServer until it is
        done.
        """
        key = (function, *arguments)
        if key not in self.session.carried_out:
            raise AsksServer(*key)
        return self.session.carried_out[key]

    def publications(self) -> dict[str, Publication]:
        """Return the session's view of publications, with changes of its transaction."""
        found = self.model.publications.current()
        for name, publication in self.session.pending:
            if isinstance(publication, Comment):
                continue
            if publication is None:
                found.pop(name, None)
            else:
                found[name] = publication
        return found

    def comment(self, oid: int) -> str | None:
        """Return the comment of a publication, in the session's view."""
        for _, what in reversed(self.session.pending):
            if isinstance(what, Comment) and what.oid == oid:
                return what.text or None
        return self.model.comment(oid)

    def commit_publications(self) -> None:
        """Make the session's changes durable, for all. Raises DiskFull, FileFailed."""
        pending, self.session.pending = self.session.pending, []
        if not pending:
            return
        self.model.change(self.state.position(), pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function.

    Attributes:
        columns: of the rows that it returns; empty for a plain value.
        call: takes the context and the arguments; for a set it returns all rows as lists of
            values.
    """

    name: str
    schema: str
    arguments: tuple[str, ...]
    required: int
    variadic: bool
    result: str
    returns_set: bool
    columns: tuple[tuple[str, str], ...]
    strict: bool
    call: Callable[..., Any]
    since: int = 0
    until: int = 99

    @property
    def key(self) -> str:
        """Name in SQLite: one for each declaration."""
        return f"{self.schema}_{self.name}_{'_'.join(self.arguments)}_{self.since}".replace(
            "[]", "_array"
        )


_DECLARATION = re.compile(
    r"(?:(?P<schema>\w+)\.)?(?P<name>\w+)\((?P<arguments>[^)]*)\) -> (?P<set>setof )?(?P<result>.+)"
)
REGISTRY: dict[str, list[Function]] = {}
_Call = Callable[..., Any]


def function(
    declaration: str, *, strict: bool = True, since: int = 0, until: int = 99
) -> Callable[[_Call], _Call]:
    """Declare a function of some versions. If it is strict, a NULL argument gives NULL."""
    match = _DECLARATION.fullmatch(declaration)
    if match is None:
        raise ValueError(f"not a declaration: {declaration}")
    words = [word.strip() for word in match["arguments"].split(",") if word.strip()]
    variadic = bool(words) and words[-1].startswith("variadic ")
    names = tuple(word.removeprefix("variadic ").removesuffix("?") for word in words)
    result = match["result"]
    columns: tuple[tuple[str, str], ...] = ()
    if result.startswith("("):
        parts = (part.split() for part in result.strip("()").split(","))
        columns = tuple((name, kind) for name, kind in parts)
        result = "record"

    def declare(call: _Call) -> _Call:
        declared = Function(
            name=match["name"],
            schema=match["schema"] or "pg_catalog",
            arguments=names,
            required=sum(not word.endswith("?") for word in words),
            variadic=variadic,
            result=result,
            returns_set=bool(match["set"]),
            columns=columns,
            strict=strict,
            call=call,
            since=since,
            until=until,
        )
        REGISTRY.setdefault(declared.name, []).append(declared)
        return call

    return declare


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Function for one call.

    Attributes:
        arguments: types by oid.
        result: type by oid.
        packed: the remaining arguments are one array.
    """

    function: Function
    arguments: tuple[int, ...]
    result: int
    packed: bool = False


def choose(
    types: Types,
    version: int,
    name: str,
    schema: str | None,
    given: Sequence[int],
    *,
    variadic: bool = False,
) -> Chosen:
    """Return the function for a call. Raises Refused: 42883, 42725."""
    best: list[tuple[int, Chosen]] = []
    for candidate in REGISTRY.get(name, ()):
        if not candidate.since <= version <= candidate.until or candidate.schema != (
            schema or "pg_catalog"
        ):
            continue
        found = _match(types, candidate, given, variadic)
        if found is not None:
            best.append(found)
    if not best:
        shown = ", ".join(types.name(oid) if oid != UNKNOWN else "unknown" for oid in given)
        full = name if schema is None else f"{schema}.{name}"
        raise Refused(
            "42883",
            f"function {full}({shown}) does not exist",
            hint="No function matches the given name and argument types. You might need to add "
            "explicit type casts.",
        )
    return min(best, key=lambda pair: pair[0])[1]


def _match(
    types: Types, candidate: Function, given: Sequence[int], variadic: bool
) -> tuple[int, Chosen] | None:
    wanted = [types.find_oid(word) for word in candidate.arguments]
    packed = False
    if candidate.variadic and not variadic:
        element = types.element_of(wanted[-1]) or wanted[-1]
        if len(given) < len(wanted):
            return None
        wanted[-1:] = [element] * (len(given) - len(wanted) + 1)
        packed = True
    elif variadic and not candidate.variadic:
        return None
    if not candidate.required <= len(given) <= len(wanted):
        return None
    wanted = wanted[: len(given)]
    cost = 0
    for one, other in zip(given, wanted, strict=True):
        fit = types.fits(one, other)
        if fit is None:
            return None
        cost += fit
    result, wanted = _polymorphic(types, candidate, given, wanted)
    return cost, Chosen(function=candidate, arguments=tuple(wanted), result=result, packed=packed)


def _polymorphic(
    types: Types, candidate: Function, given: Sequence[int], wanted: list[int]
) -> tuple[int, list[int]]:
    """Return the types of result and arguments, as far as they follow from the given ones."""
    element = 0
    for one, other in zip(given, wanted, strict=True):
        base = types.base_of(one)[0]
        if other == ANYARRAY and base != UNKNOWN:
            element = types.element_of(base)
        elif other == ANYELEMENT and base != UNKNOWN and not element:
            element = base
    element = element or types.find_oid("text")
    result = types.find_oid(candidate.result)
    if result == ANYELEMENT:
        result = element
    elif result == ANYARRAY:
        result = types.array_of(element)
    resolved = []
    for one, other in zip(given, wanted, strict=True):
        if other == ANYARRAY:
            known = types.base_of(one)[0] != UNKNOWN
            resolved.append(types.base_of(one)[0] if known else types.array_of(element))
        elif other == ANYELEMENT:
            resolved.append(element)
        else:
            resolved.append(other)
    return result, resolved
