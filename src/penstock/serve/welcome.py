"""Catalogue for the server's connections, and the start of a session."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.types.mapping import NO_CHOICES, Choices
from penstock.model import Relation, TableName
from penstock.serve.catalog.answers import Answer, Session
from penstock.serve.catalog.catalog import Catalog, Prepared
from penstock.serve.catalog.grammar import split
from penstock.serve.catalog.model import Model
from penstock.serve.catalog.publications import Publication
from penstock.serve.entries import parse_entries
from penstock.serve.running import Answers
from penstock.serve.server import Welcome
from penstock.serve.tables import served_relation

_NO_SETTINGS = ("user", "database", "options", "replication")
_WORD = re.compile(r"(?:[^\s\\]|\\.)+", re.DOTALL)
# They ask for every kind of object that a server may have; a log has tables and keys.
_DUMPS = ("pg_dump", "pg_dumpall")
_ASSIGNED = re.compile(r"(?:-c\s*|--)([^=]+)=(.*)", re.DOTALL)


class CatalogAnswers(Answers):
    """Answers of the catalogue."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def split(self, sql: str) -> Sequence[Any]:
        """Return the statements of a simple query. Raises Refused."""
        return split(sql)

    def answer(self, statement: Any, session: Session) -> Answer:
        """Return the answer to one of the statements. Raises Refused."""
        return self._catalog.answer(statement, session)

    def prepare(self, sql: str, types: Sequence[int], session: Session) -> Prepared:
        """Read one statement. Raises Refused."""
        return self._catalog.prepare(sql, session, types)


class CatalogWelcome(Welcome):
    """Welcome for clients of the catalogue."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog, self._answers = catalog, CatalogAnswers(catalog)

    def answers(self) -> CatalogAnswers:
        """Return the catalogue for a session's SQL."""
        return self._answers

    def begin(self, session: Session, parameters: dict[str, str]) -> dict[str, str]:
        """Apply the settings of the start-up packet; return those to report. Raises Refused."""
        given = _options(parameters.get("options", ""))
        given |= {name: value for name, value in parameters.items() if name not in _NO_SETTINGS}
        if (program := given.get("application_name", "")) in _DUMPS:
            raise Refused(
                "0A000",
                f"{program} cannot dump a served change log, which has tables and keys and no "
                "other objects",
                hint="Run `penstock plan FILE --ddl` where the log is: it prints the statements "
                "that create the published tables.",
            )
        self._catalog.set_startup(session, given)
        return self._catalog.reports(session)


class TableOids:
    """Oids that the catalogue gives to tables. Used by any thread but the catalogue's own."""

    def __init__(self, model: Model, answering: ThreadPoolExecutor) -> None:
        """Set the model and the catalogue's thread."""
        self._model, self._answering = model, answering
        self._known: dict[TableName, int] = {}

    def of(self, name: TableName) -> int:
        """Return the number of a table; a new one is durable. Raises DiskFull, FileFailed."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._answering.submit(self._give, name).result()
        return found

    def _give(self, name: TableName) -> int:
        found = self._model.oid("table", name.schema, name.name)
        self._model.save_oids()
        return found


def _options(text: str) -> dict[str, str]:
    """Return settings of a server's command line: `-c name=value`, `--name=value`."""
    words = _WORD.findall(text)
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            word += words.pop(0)
        match = _ASSIGNED.fullmatch(re.sub(r"\\(.)", r"\1", word))
        if match is not None:
            found[match[1].strip().replace("-", "_")] = match[2]
    return found


def set_relations(
    catalog: Catalog, relations: Sequence[Relation], engine: str, choices: Choices = NO_CHOICES
) -> None:
    """Show tables as the stream sends them. Raises DiskFull, FileFailed."""
    catalog.set_relations(
        [served_relation(relation, engine, choices).relation for relation in relations]
    )


def take_publications(
    catalog: Catalog, given: Mapping[str, Sequence[str]], *, owner: str, position: int
) -> None:
    """Apply the pipeline file's publications, by name. Raises PublicationInvalid."""
    model = catalog.model
    made = {}
    for name, texts in given.items():
        entries = parse_entries(texts)
        made[name] = Publication(
            name=name,
            oid=model.oid("publication", "", name),
            owner=owner,
            patterns=entries.patterns,
            tables=entries.tables,
        )
    wanted = {name: tuple(texts) for name, texts in given.items()}
    model.take_from_file(wanted, made, position)
