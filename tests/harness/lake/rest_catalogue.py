"""REST catalogue of Iceberg for tests: HTTP in Python, around the reference's own handlers in Java.

The handlers (`org.apache.iceberg.rest.CatalogHandlers`) are in Iceberg's jar; its test server is in
no jar that Maven has. Tables are in a catalogue that is a folder.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.engines.iceberg.java import Iceberg
from penstock.engines.lake.java import class_names
from penstock.ports.jobs import Jobs

_STATUS = {
    "NoSuchTableException": 404,
    "NoSuchNamespaceException": 404,
    "AlreadyExistsException": 409,
    "CommitFailedException": 409,
}
_LEVEL_END = "\x1f"


_NAMESPACES = "/v1/{prefix}/namespaces"
_TABLES = f"{_NAMESPACES}/{{namespace}}/tables"
ENDPOINTS = (
    f"GET {_NAMESPACES}",
    f"POST {_NAMESPACES}",
    f"GET {_NAMESPACES}/{{namespace}}",
    f"HEAD {_NAMESPACES}/{{namespace}}",
    f"GET {_TABLES}",
    f"POST {_TABLES}",
    *(f"{method} {_TABLES}/{{table}}" for method in ("GET", "HEAD", "POST", "DELETE")),
)
TRANSACTIONS = "POST /v1/{prefix}/transactions/commit"


class RestCatalogue:
    """Answers to requests, one after the other.

    Attributes:
        transaction_count: Number of commits of several tables.
    """

    transaction_count = 0

    def __init__(self, jobs: Jobs, folder: Path, *, has_transactions: bool = True) -> None:
        """Build the catalogue behind the answers."""
        self._endpoints = [*ENDPOINTS, *([TRANSACTIONS] if has_transactions else [])]
        self._lock = threading.Lock()
        jvm: Any = jobs.jvm
        self._iceberg = Iceberg(jvm)
        self._rest = self._iceberg.classes.rest
        self._handlers = self._rest.CatalogHandlers
        self._class = jvm.java.lang.Class.forName
        properties = {"type": "hadoop", "warehouse": str(folder)}
        self._catalogue = self._iceberg.classes.CatalogUtil.buildIcebergCatalog(
            "served", self._iceberg.map_of(properties), jobs.hadoop_conf
        )
        jackson = self._iceberg.classes.shaded.com.fasterxml.jackson
        self._mapper = jackson.databind.ObjectMapper()
        visibility = getattr(jackson.annotation, "JsonAutoDetect$Visibility")
        self._mapper.setVisibility(jackson.annotation.PropertyAccessor.FIELD, visibility.ANY)
        kebab = getattr(jackson.databind, "PropertyNamingStrategies$KebabCaseStrategy")
        self._mapper.setPropertyNamingStrategy(kebab())
        self._rest.RESTSerializers.registerAll(self._mapper)
        self._all = getattr(self._rest, "RESTCatalogProperties$SnapshotMode").ALL

    def answer(self, method: str, target: str, body: str) -> tuple[int, str]:
        """Return status and body of the response."""
        try:
            parts = urlsplit(target)
            path = [unquote(part) for part in parts.path.strip("/").split("/")][1:]
            with self._lock:
                return 200, self._route(method, path, parse_qs(parts.query), body)
        except LookupError as error:
            shown = {"message": str(error), "type": "NotFoundException", "code": 404}
            return 404, json.dumps({"error": shown})
        except Exception as error:  # any exception of Java is a response
            names = class_names(error)
            kind = next((name for name in names if name in _STATUS), "")
            status = _STATUS.get(kind, 500)
            shown = {"message": str(error)[:500], "type": kind, "code": status}
            return status, json.dumps({"error": shown})

    def _route(self, method: str, path: list[str], query: dict[str, list[str]], body: str) -> str:
        levels = path[1].split(_LEVEL_END) if len(path) > 1 else []
        parents = query.get("parent", [""])[0].split(_LEVEL_END)
        handlers, catalogue = self._handlers, self._catalogue
        match (method, *path):
            case ("GET", "config"):
                return json.dumps({"defaults": {}, "overrides": {}, "endpoints": self._endpoints})
            case ("POST", "transactions", "commit") if TRANSACTIONS in self._endpoints:
                self._commit(body)
                return ""
            case ("GET", "namespaces"):
                return self._json(handlers.listNamespaces(catalogue, self._namespace(parents)))
            case ("POST", "namespaces"):
                request = self._parse(body, "CreateNamespaceRequest")
                return self._json(handlers.createNamespace(catalogue, request))
            case ("GET" | "HEAD", "namespaces", _):
                return self._json(handlers.loadNamespace(catalogue, self._namespace(levels)))
            case ("GET", "namespaces", _, "tables"):
                return self._json(handlers.listTables(catalogue, self._namespace(levels)))
            case ("POST", "namespaces", _, "tables"):
                request = self._parse(body, "CreateTableRequest")
                created = handlers.createTable(catalogue, self._namespace(levels), request)
                return self._json(created)
            case (_, "namespaces", _, "tables", name):
                return self._table(method, self._iceberg.identifier(levels, name), body)
            case ("POST", *_, "metrics"):
                return ""
        raise LookupError(f"no such endpoint: {method} {'/'.join(path)}")

    def _commit(self, body: str) -> None:
        """Commit several tables, or none: all requirements are checked before the first."""
        request = self._rest.requests.CommitTransactionRequestParser.fromJson(body)
        changes = list(request.tableChanges())
        for change in changes:
            metadata = self._catalogue.loadTable(change.identifier()).operations().current()
            for requirement in list(change.requirements()):
                requirement.validate(metadata)
        for change in changes:
            self._handlers.updateTable(self._catalogue, change.identifier(), change)
        self.transaction_count += 1

    def _table(self, method: str, identifier: Any, body: str) -> str:
        if method == "DELETE":
            self._handlers.purgeTable(self._catalogue, identifier)
            return ""
        if method == "POST":
            request = self._rest.requests.UpdateTableRequestParser.fromJson(body)
            return self._json(self._handlers.updateTable(self._catalogue, identifier, request))
        return self._json(self._handlers.loadTable(self._catalogue, identifier, self._all))

    def _namespace(self, levels: list[str]) -> Any:
        return self._iceberg.namespace([level for level in levels if level])

    def _parse(self, body: str, name: str) -> Any:
        kind = self._class(f"org.apache.iceberg.rest.requests.{name}")
        return self._mapper.readValue(body, kind)

    def _json(self, response: Any) -> str:
        return str(self._mapper.writeValueAsString(response))


@contextmanager
def serve_rest_catalogue(jobs: Jobs, folder: Path) -> Iterator[str]:
    """Serve a catalogue of the tables in a folder that commits them one by one; yield its URI."""
    with serve_catalogue(RestCatalogue(jobs, folder, has_transactions=False)) as uri:
        yield uri


@contextmanager
def serve_catalogue(catalogue: RestCatalogue) -> Iterator[str]:
    """Serve a catalogue; yield its URI."""

    class Handler(BaseHTTPRequestHandler):
        """One connection."""

        def answer(self) -> None:
            """Answer a request."""
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size).decode()
            status, text = catalogue.answer(self.command, self.path, body)
            content = b"" if self.command == "HEAD" else text.encode()
            self.send_response(status if content or status != 200 else 204)
            self.send_header("Content-Type", "application/json")
            if content:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 (names of http.server)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
