"""Transactions as POST requests, signed, one request for each."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import time
from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

import structlog

from penstock import __version__
from penstock.consume.plugins.base import Instance, RowValues
from penstock.consume.plugins.collecting import (
    Change,
    CollectingPlugin,
    PluginSection,
    json_row,
    json_text,
)
from penstock.model import PenstockError
from penstock.model.whole_number import parse_whole

logger = structlog.get_logger()

SIGNATURE = "X-Penstock-Signature"
_SCHEMES = ("http", "https")
# Temporary failures: every other status that is not 2xx is permanent.
_PASSING = (408, 425, 429)
_ANSWER_BYTES_MAX = 500
_RETRY_AFTER_MAX_S = 86_400


class WebhookFailed(PenstockError):
    """The receiver did not accept a transaction."""

    code = "FX17"


class Webhook(CollectingPlugin):
    """Sends one POST for each transaction; the receiver has it when it answers 2xx.

    `plugin = "penstock.consume.plugins:Webhook"`. A connection is kept open. Redirects are not
    followed: they are an error.
    """

    row_values = RowValues.PYTHON
    section: ClassVar[str] = "webhook"
    keys: ClassVar[dict[str, str | None]] = {
        "url": None,
        "secret": None,
        "timeout": "10",
        "retries": "6",
        "backoff": "0.5",
        "backoff_maximum": "30",
    }

    def __init__(self) -> None:
        super().__init__()
        self._connection: http.client.HTTPConnection | None = None

    def configure(self, settings: PluginSection, _: Instance, /) -> None:
        url = urlsplit(settings.text("url"))
        try:
            is_whole = url.scheme in _SCHEMES and url.hostname and url.port != 0
        except ValueError:
            is_whole = False
        if not is_whole or url.username:
            raise settings.invalid(
                "url", "is not an address of a web server", "Write url = https://HOST/PATH."
            )
        self._timeout_s = settings.number("timeout", least=0.001)
        self._retries = int(settings.number("retries"))
        self._backoff_s = settings.number("backoff")
        self._backoff_max_s = settings.number("backoff_maximum")
        self._secret = settings.text("secret").encode()
        if not self._secret:
            raise settings.invalid("secret", "is empty", "Write secret = TEXT, at least 32 bytes.")
        self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        # It connects at the first use, and again after it was closed.
        self._connection = kinds[url.scheme](url.hostname or "", url.port, timeout=self._timeout_s)

    def deliver(
        self, changes: Sequence[Change], uow_id: int, gsn: int, instance: Instance, /
    ) -> None:
        """Post the rows. Raises WebhookFailed if all attempts failed."""
        time_of = instance.transaction.commit_time
        body = json_text(
            {
                "trx": uow_id,
                "gsn": gsn,
                "commit_time": time_of and f"{time_of.isoformat()}Z",
                "position": instance.transaction.position,
                "changes": [_change(change) for change in changes],
            }
        ).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"penstock/{__version__}",
            "Idempotency-Key": instance.transaction.id,
            SIGNATURE: "sha256=" + hmac.new(self._secret, body, hashlib.sha256).hexdigest(),
        }
        pause_s = self._backoff_s
        for attempt in range(self._retries + 1):
            said, may_pass, asked_s = self._post(body, headers)
            if not said:
                return
            if not may_pass or attempt == self._retries:
                break
            logger.warning("the webhook failed", trx=uow_id, attempt=attempt + 1, error=said)
            time.sleep(min(max(pause_s, asked_s), self._backoff_max_s))
            pause_s *= 2
        raise WebhookFailed(
            f"the webhook did not take transaction {uow_id} in {attempt + 1} attempts: {said}",
            hint="Fix the receiver, or correct [webhook] url, and start again: the transaction is "
            "sent again.",
            retries=attempt,
            trx=uow_id,
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[str, bool, float]:
        """Return the failure or "", whether it may be temporary, and the requested wait in
        seconds.
        """
        assert self._connection is not None, "configured"
        try:
            self._connection.request("POST", self._path, body, headers)
            response = self._connection.getresponse()
            answer = response.read(_ANSWER_BYTES_MAX)
            # An unread rest would be taken for the next answer.
            if response.read(1):
                self._connection.close()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return f"{type(error).__name__}: {error}", True, 0.0
        if 200 <= response.status < 300:
            return "", False, 0.0
        asked = response.headers.get("Retry-After", "")
        text = answer.decode("utf-8", "replace").strip()
        return (
            f"{response.status} {response.reason}: {text}".rstrip(": "),
            response.status >= 500 or response.status in _PASSING,
            float(parse_whole(asked, _RETRY_AFTER_MAX_S, otherwise=0)),
        )


def _change(change: Change) -> dict[str, Any]:
    return {
        "action": str(change.action),
        "schema": change.db,
        "table": change.table,
        "gsn": change.gsn,
        "key": [*change.key],
        "row": json_row(change.row),
    }
