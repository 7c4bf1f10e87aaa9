"""Schema registry: registers the schemas of subjects, over the API that Confluent documents."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Protocol

import structlog

from penstock.kafka.errors import RegistryUnreachable, SchemaRefused, TopicOptionInvalid
from penstock.kafka.options import Options

logger = structlog.get_logger(__name__)
CONTENT = "application/vnd.schemaregistry.v1+json"
TIMEOUT_S = 10.0
PAUSE_S = 0.5
AVRO, PROTOBUF = "AVRO", "PROTOBUF"


class SchemaIds(Protocol):
    """Ids of schemas."""

    def register(self, subject: str, schema: str, kind: str) -> int:
        """Return the id of a schema of a subject; register it if that is wanted."""
        ...

    def latest(self, subject: str) -> int | None:
        """Return the id of a subject's latest schema; None if it has none."""
        ...


class Registry:
    """Client of a schema registry."""

    def __init__(self, options: Options) -> None:
        """Set the options; nothing is asked yet.

        Args:
            options: the consumer's.
        """
        self._urls = [
            one.strip().rstrip("/") for one in options.text("schema.registry.url").split(",")
        ]
        for url in self._urls:
            if not url.startswith(("http://", "https://")):
                raise TopicOptionInvalid.of(
                    "schema.registry.url", "is not an address with http or https"
                )
        self._wait_s = options.number("broker.wait.ms", 60_000) / 1000
        self._registers = options.flag("auto.register.schemas", default=True)
        self._headers = {"Content-Type": CONTENT, "Accept": CONTENT}
        user = options.text("schema.registry.user")
        if user:
            pair = f"{user}:{options.text('schema.registry.password')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()

    def register(self, subject: str, schema: str, kind: str) -> int:
        """Return the id of a schema. Raises SchemaRefused, RegistryUnreachable."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}"
        if self._registers:
            path += "/versions"
        body = {"schema": schema, **({} if kind == AVRO else {"schemaType": kind})}
        found = self._ask(path, subject, body)
        logger.info("schema registered", subject=subject, id=found["id"])
        return int(found["id"])

    def latest(self, subject: str) -> int | None:
        """Return the id of the latest schema. Raises SchemaRefused, RegistryUnreachable."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest"
        try:
            return int(self._ask(path, subject, None)["id"])
        except SchemaRefused as error:
            if error.fields["status"] == 404:
                return None
            raise

    def _ask(self, path: str, subject: str, body: Any) -> Any:
        deadline_s = time.monotonic() + self._wait_s
        data = None if body is None else json.dumps(body).encode()
        while True:
            why = ""
            for url in self._urls:
                request = urllib.request.Request(url + path, data, self._headers)  # noqa: S310
                try:
                    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                        return json.loads(answer.read())
                except urllib.error.HTTPError as error:
                    text = error.read().decode("utf-8", "replace")[:500]
                    if error.code < 500 and error.code != 429:
                        raise SchemaRefused.of(subject, error.code, _message(text)) from error
                    why = f"{error.code} {_message(text)}"
                except (OSError, ValueError) as error:
                    why = str(getattr(error, "reason", error))
            if time.monotonic() > deadline_s:
                raise RegistryUnreachable.of(", ".join(self._urls), why)
            logger.warning("the schema registry does not answer; trying again", why=why)
            time.sleep(PAUSE_S)


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text
