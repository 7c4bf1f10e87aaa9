"""Take the pictures of docs/web.md: `make screenshots`. It needs what the browser tests need."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from harness.servers.web import Browser, WebProcess, browser
from harness.servers.web_shop import Shop
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from plugins.postgres import Server

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
PHONE = (320, 900)
SCREEN = (1000, 860)
CUSTOMERS_S = 75.0
IMAGE_BYTES_MAX = 200_000


def picture(seen: Browser, name: str) -> None:
    """Save the upper part of the page once its colours no longer change."""
    seen.run("scrollTo(0, 0)")
    time.sleep(0.5)
    seen.picture(FOLDER / f"web-{name}.png")


def shoot(seen: Browser, page: str) -> None:
    """Take all pictures of a pipeline that has followed customers for a while."""
    seen.size(*SCREEN)
    seen.open(f"{page}#replication")
    seen.until_text("[data-region=lag]", "now, at most")
    time.sleep(CUSTOMERS_S)
    picture(seen, "replication")
    seen.click("#tab-bulk")
    picture(seen, "bulk")
    seen.click("#tab-doctor")
    seen.click("#doctor-button")
    seen.until_text("[data-region=doctor]", "checks done")
    picture(seen, "doctor")
    time.sleep(1)
    seen.click("#tab-verify")
    seen.click("#verify-button")
    seen.until_text("[data-region=verify]", "are equal", 120)
    seen.media("prefers-color-scheme", "dark")
    picture(seen, "verify")
    seen.media("prefers-color-scheme", "light")
    seen.size(*PHONE)
    seen.click("#tab-replication")
    picture(seen, "phone")


def main() -> int:
    """Make a shop, run its pipeline, take the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made, EmbeddedPostgres(major=18) as embedded:
        shop = Shop(Path(made), Server(embedded=embedded))
        try:
            shop.pair.start()
            with (
                WebProcess(shop.pair.path, "--port", 0) as web,
                browser(Path(made) / "browser") as seen,
            ):
                shop.pair.settle()
                shop.let_customers_in()
                shoot(seen, f"{web.url}/pipelines/shop")
                web.stop()
            shop.pair.stop()
        finally:
            shop.close()
    images = FOLDER.glob("web-*.png")
    return 1 if any(image.stat().st_size > IMAGE_BYTES_MAX for image in images) else 0


if __name__ == "__main__":
    sys.exit(main())
