"""Shipping: a paid order is sent to the shipping service."""

import json
import urllib.request
from collections.abc import Iterator

from penstock.consume import CdcConsumer, CdcEvent

TIMEOUT_S = 10


class Shipping(CdcConsumer):
    """Consumer that calls the service once for each order, and again only if an answer was lost."""

    def __init__(self, url: str) -> None:
        """Store the URL of the service, which accepts orders by POST."""
        self.url = url

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        """Send the next order that was paid; the state is saved after it."""
        for event in events:
            if event.value is not None and is_paid_by(event):
                self.send(event.key[0], event.value["address"])
                break
        return True

    def send(self, number: int, address: str) -> None:
        """Send an order. If the service refuses it, raise: nothing is saved, and it is repeated."""
        request = urllib.request.Request(
            self.url,
            data=json.dumps({"order": number, "address": address}).encode(),
            headers={
                "Content-Type": "application/json",
                "Idempotency-Key": f"ship-order-{number}",
            },
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            pass  # the answer is 2xx; other answers are raised

    def on_truncate(self, table: str, gsn: int) -> None:
        """Ignore the TRUNCATE: orders that were sent stay sent."""


def is_paid_by(event: CdcEvent) -> bool:
    """Return whether an order became paid by this change."""
    if event.resent or event.value is None or event.value["status"] != "paid":
        return False
    if event.op == "I" and event.before is None:
        return True
    if event.before is None or "status" not in event.before:
        raise ValueError(f"alter table {event.table} replica identity full")
    return bool(event.before["status"] != "paid")
