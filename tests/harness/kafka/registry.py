"""Schema registry for tests: the part of the API that Confluent documents which clients use.

Ids, subjects, versions, lookup and the compatibility BACKWARD of Avro records: a new field needs a
default, and a field keeps its type.
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

CONTENT = "application/vnd.schemaregistry.v1+json"


class RegistryServer:
    """Registry on a port of its own. Attributes may be changed while it runs.

    Attributes:
        schemas: kind and text by id.
        subjects: ids by subject.
        failing: the number of requests that get 500.
        user: `name:password`, or empty.
        requests: paths that were asked for.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, tuple[str, str]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.levels: dict[str, str] = {}
        self.failing = 0
        self.user = ""
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> RegistryServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return status and body for a request."""
        parts = [unquote(one) for one in path.strip("/").split("/")]
        if parts[0] == "config" and method == "PUT":
            self.levels[parts[1]] = body["compatibility"]
            return 200, body
        if parts[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(parts[2]))
            return (
                (200, {"schema": found[1]}) if found else (404, _error(40403, "Schema not found"))
            )
        if parts[0] != "subjects":
            return 404, _error(404, "HTTP 404 Not Found")
        if len(parts) == 1:
            return 200, sorted(self.subjects)
        return self._of_subject(method, parts[1], parts[2:], body)

    def _of_subject(self, method: str, subject: str, rest: list[str], body: Any) -> tuple[int, Any]:
        known = self.subjects.get(subject, [])
        if method == "GET":
            if not known:
                return 404, _error(40401, f"Subject '{subject}' not found.")
            return 200, {"subject": subject, "version": len(known), "id": known[-1]}
        one = body.get("schemaType", "AVRO"), body["schema"]
        number = next((number for number in known if self.schemas[number] == one), None)
        if rest == ["versions"] and number is None:
            if known and not self._is_compatible(subject, self.schemas[known[-1]], one):
                return 409, _error(
                    409, "Schema being registered is incompatible with an earlier one"
                )
            ids = {text: number for number, text in self.schemas.items()}
            number = ids.get(one, len(ids) + 1)
            self.schemas[number] = one
            self.subjects.setdefault(subject, []).append(number)
        if number is None:
            return 404, _error(40403, "Schema not found")
        return 200, {"id": number}

    def _is_compatible(self, subject: str, old: tuple[str, str], new: tuple[str, str]) -> bool:
        if self.levels.get(subject) == "NONE":
            return True
        if old[0] != new[0]:
            return False
        return old[0] != "AVRO" or _reads(json.loads(new[1]), json.loads(old[1]), {}, {})


def _reads(new: Any, old: Any, news: dict[str, Any], olds: dict[str, Any]) -> bool:
    """Return whether a reader of one schema reads the other's data."""
    if isinstance(new, str):
        new = news.get(new, new)
    if isinstance(old, str):
        old = olds.get(old, old)
    if isinstance(new, list) or isinstance(old, list):
        branches = new if isinstance(new, list) else [new]
        given = old if isinstance(old, list) else [old]
        return all(any(_reads(one, each, news, olds) for one in branches) for each in given)
    kinds = [one["type"] if isinstance(one, dict) else one for one in (new, old)]
    if kinds != ["record", "record"]:
        return kinds[0] == kinds[1] or tuple(kinds) in {("long", "int"), ("double", "float")}
    for one, names in ((new, news), (old, olds)):
        full = f"{one.get('namespace', '')}.{one['name']}".strip(".")
        if names.get(full) is one:
            return True
        names[full] = one
    before = {field["name"]: field["type"] for field in old["fields"]}
    return all(
        _reads(field["type"], before[field["name"]], news, olds)
        if field["name"] in before
        else "default" in field
        for field in new["fields"]
    )


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


def _handler(registry: RegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            registry.requests.append(f"{self.command} {self.path}")
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else None
            given = self.headers.get("Authorization", "")
            wanted = "Basic " + base64.b64encode(registry.user.encode()).decode()
            if registry.failing:
                registry.failing -= 1
                status, answer = 500, _error(50001, "Error in the backend data store")
            elif registry.user and given != wanted:
                status, answer = 401, _error(40101, "Unauthorized")
            else:
                status, answer = registry.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _do  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
