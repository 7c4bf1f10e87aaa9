"""Server-sent events: the regions of a page that have changed, sent after each reading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

logger = structlog.get_logger()
LOOK_INTERVAL_S = 0.2
ALIVE_INTERVAL_S = 15.0
LARGE_BYTES = 60_000  # a region of this size is sent seldom: hundreds of tables
LARGE_EVERY = 5

Number = Callable[[], tuple[int, ...]]
Render = Callable[[], dict[str, Any]]


@dataclass(slots=True)
class Sent:
    """Regions and announcements that one browser has; only those that differ are sent again."""

    regions: dict[str, int] = field(default_factory=dict)
    announced: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def new(self, page: dict[str, Any]) -> dict[str, Any]:
        """Return the page's regions and announcements that the browser does not have yet."""
        self.count += 1
        regions = {}
        for name, html in page["regions"].items():
            seldom = len(html) > LARGE_BYTES and self.count % LARGE_EVERY != 1
            if not seldom and self.regions.get(name) != hash(html):
                self.regions[name] = hash(html)
                regions[name] = html
        announced = {
            name: text
            for name, text in page.get("announcements", {}).items()
            if self.announced.get(name) != text
        }
        self.announced.update(announced)
        return {"title": page["title"], "regions": regions, "announcements": announced}


async def stream(number: Number, render: Render, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield events until the server ends.

    Args:
        number: Returns a value that changes whenever there may be something new.
        render: Returns the page as it is now; it is called on another thread.
        ended: Returns whether to end.
    """
    sent, quiet_s = Sent(), 0.0
    seen: tuple[int, ...] = ()
    yield b"retry: 2000\n\n"
    while not ended():
        now = number()
        if now != seen:
            seen, quiet_s = now, 0.0
            try:
                page = await asyncio.to_thread(render)
            except Exception as error:
                logger.error("page not drawn", exc_info=error)
                said = f"this page cannot be drawn: unexpected {type(error).__name__}"
                yield b"event: broken\ndata: " + msgspec.json.encode(said) + b"\n\n"
                return
            yield b"event: page\ndata: " + msgspec.json.encode(sent.new(page)) + b"\n\n"
        elif quiet_s >= ALIVE_INTERVAL_S:
            quiet_s = 0.0
            yield b": alive\n\n"
        await asyncio.sleep(LOOK_INTERVAL_S)
        quiet_s += LOOK_INTERVAL_S
