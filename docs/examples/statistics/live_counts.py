"""Running counts: number and value of the orders in each status."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.consume import CdcConsumer, CdcEvent


class LiveCounts(CdcConsumer):
    """Consumer that keeps the counts in a file, with their position in the log."""

    def __init__(self, file: str) -> None:
        """Load the file; a relative path starts at the folder in which penstock is started."""
        self.file = Path(file)
        saved = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.gsn = saved.get("gsn", -(2**63))
        self.orders = Counter(saved.get("orders", {}))
        worth = saved.get("worth", {})
        self.worth = Counter({status: Decimal(text) for status, text in worth.items()})

    def start(self, metrics: Any) -> None:
        """Show a count to Prometheus."""
        metrics.gauge("orders_open", "Orders to be paid.", lambda: self.orders["open"])

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        """Subtract the old row from the counts and add the new one."""
        done = self.gsn
        for event in events:
            if event.gsn <= done:
                continue  # delivered again after a crash
            if event.op != "I":
                if event.before is None or "status" not in event.before:
                    raise ValueError(f"alter table {event.table} replica identity full")
                self.count(event.before, -1)
            if event.value is not None:
                self.count(event.value, 1)
            self.gsn = event.gsn
        if self.gsn != done:
            self.save()
        return True

    def count(self, row: Mapping[str, Any], times: int) -> None:
        """Add a row to the counts, or subtract it."""
        self.orders[row["status"]] += times
        self.worth[row["status"]] += times * row["amount"]

    def on_truncate(self, table: str, gsn: int) -> None:
        """Clear the counts."""
        if gsn < self.gsn:
            return  # repeated after a crash
        self.orders.clear()
        self.worth.clear()
        self.save()

    def on_reload(self, table: str, gsn: int) -> None:
        """Clear the counts: all rows follow again."""
        self.on_truncate(table, gsn)

    def save(self) -> None:
        """Replace the file, so that a crash leaves the old or the new one."""
        worth = {status: str(amount) for status, amount in self.worth.items()}
        saved = {"gsn": self.gsn, "orders": self.orders, "worth": worth}
        making = self.file.with_suffix(".tmp")
        with making.open("w") as file:
            json.dump(saved, file)
            file.flush()
            os.fsync(file.fileno())
        making.replace(self.file)
