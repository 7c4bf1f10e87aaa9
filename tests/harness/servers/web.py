"""The web interface as a separate process, and a real browser that shows it.

The browser is Debian's Chromium, driven without a window through its WebDriver. Not here: the
pipeline it shows (`harness/pipelines/end_to_end.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

WAIT_S = 60.0
DESKTOP = (1280, 900)
PHONE = (320, 640)
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
# Foreground and background of every visible text, as the browser computed them.
CONTRASTS = r"""
const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const found = parse(getComputedStyle(e).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found;
  }
  return [255, 255, 255];
};
const poor = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !e.checkVisibility() || e.closest(".unseen, .skip, noscript")) continue;
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor.push(`${e.tagName}.${e.className}: ${ratio.toFixed(2)} ${e.innerText}`);
}
return poor;
"""
OUTLINE = """
const all = (s) => [...document.querySelectorAll(s)];
return {
  h1: all("h1").length,
  tables: all("table").filter((t) => !t.caption || !t.caption.textContent.trim()).length,
  levels: all("h1, h2, h3, h4").filter((h) => h.checkVisibility()).map((h) => +h.tagName[1]),
  images: all("img:not([alt])").length,
  twice: all("[id]").map((e) => e.id).filter((id, i, ids) => ids.indexOf(id) !== i),
  wide: document.documentElement.scrollWidth - innerWidth,
};
"""
# Counts the updates that a page has got, because a picture must be of what it shows afterwards.
COUNT_UPDATES = """
window.updateCount = 0;
window.EventSource = class extends EventSource {
  constructor(...given) {
    super(...given);
    this.addEventListener("page", () => { window.updateCount += 1; });
  }
};
"""
Found = TypeVar("Found")


class WebProcess:
    """A `penstock web FILE... --port 0 --json`, or another command that serves."""

    def __init__(
        self,
        *arguments: object,
        command: str = "web",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it, and wait until it prints its address."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", command, *map(str, arguments), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.pid = self._process.pid
        self.out: list[str] = []
        self.err: list[str] = []
        streams = ((self._process.stdout, self.out), (self._process.stderr, self.err))
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True) for pair in streams
        ]
        for reader in self._readers:
            reader.start()
        try:
            self.told = until(self._read_address, "the web interface answers")
        except BaseException:
            self.kill()
            raise
        self.url = str(self.told["url"]).rstrip("/")

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        with stream:
            lines.extend(iter(stream.readline, ""))

    def _read_address(self) -> dict[str, Any] | None:
        if self._process.poll() is not None:
            raise AssertionError(f"ended with {self._process.returncode}: {self.err}")
        told = [json.loads(line) for line in list(self.out)]
        return next((line for line in told if "url" in line), None)

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.poll()

    def stop(self, number: signal.Signals = signal.SIGINT, within_s: float = 15.0) -> int:
        """Stop it, and return the exit code."""
        self._process.send_signal(number)
        code = self._process.wait(within_s)
        for reader in self._readers:
            reader.join(5)
        return code

    def kill(self) -> None:
        """Kill it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(5)

    def __enter__(self) -> WebProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def until(look: Callable[[], Found | None], what: str, within_s: float = WAIT_S) -> Found:
    """Look repeatedly until there is a result, and return it."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.05)


class Browser:
    """Chromium, and the actions of a person with it."""

    def __init__(self, driver: WebDriver) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open a page."""
        self.driver.get(url)

    def size(self, width: int, height: int) -> None:
        """Show pages as on a screen of this size, even narrower than a window may be."""
        self.driver.execute_cdp_cmd(  # type: ignore[attr-defined]
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def calm(self, wanted: bool) -> None:
        """Ask for reduced motion, or stop asking."""
        self.media("prefers-reduced-motion", "reduce" if wanted else "")

    def media(self, feature: str, value: str) -> None:
        """Set a media feature that a style sheet may query, and reset all others."""
        self.all_media({feature: value})

    def all_media(self, values: Mapping[str, str]) -> None:
        """Set several media features."""
        features = [{"name": name, "value": value} for name, value in values.items()]
        self.driver.execute_cdp_cmd(  # type: ignore[attr-defined]
            "Emulation.setEmulatedMedia", {"features": features}
        )

    def scripts(self, wanted: bool) -> None:
        """Allow or forbid JavaScript, from the next page on."""
        self.driver.execute_cdp_cmd(  # type: ignore[attr-defined]
            "Emulation.setScriptExecutionDisabled", {"value": not wanted}
        )

    def one(self, selector: str) -> WebElement:
        """Return the element; fails if there is none."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """Return all elements, including hidden ones."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the text that an element shows now, even while it is replaced."""
        shown = self.run(
            "const e = document.querySelector(arguments[0]);"
            "return e && !e.closest('[hidden]') ? e.innerText : ''",
            selector,
        )
        return str(shown)

    def click(self, selector: str) -> None:
        """Click the visible element; try again if an update replaced it."""
        for _ in range(20):
            try:
                return self.one(selector).click()
            except StaleElementReferenceException:
                continue
        raise AssertionError(f"{selector} does not stand still")

    def keys(self, *keys: str) -> None:
        """Press keys where the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def read_focus(self) -> str:
        """Return the id of the focused element."""
        return str(self.run("return document.activeElement.id"))

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and return its result."""
        return self.driver.execute_script(script, *arguments)  # type: ignore[no-untyped-call]

    def until_text(self, selector: str, wanted: str, within_s: float = WAIT_S) -> str:
        """Wait until an element shows a text, and return all of its text."""

        def look() -> str:
            shown = self.text(selector)
            return shown if wanted in shown else ""

        try:
            return until(look, f"{selector} shows {wanted!r}", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {self.text(selector)!r}") from None

    def wait_for_update(self) -> None:
        """Wait until a page that is updated has got its first update."""
        script = "return updateCount > 0 || !document.querySelector('[data-events]')"
        until(lambda: self.run(script), "the page was updated")

    def complaints(self) -> list[str]:
        """Return the browser's own complaints about the page: errors, refused loads."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[attr-defined]

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save a picture of the page, or of all of it."""
        if not whole:
            assert self.driver.save_screenshot(str(path))
            return
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        self.size(width, height)
        assert self.driver.save_screenshot(str(path))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Open a browser with a fresh profile below a folder, for the block."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "these tests need Chromium: apt-get install chromium chromium-driver"
    assert driver, "these tests need Chromium: apt-get install chromium chromium-driver"
    options = Options()
    options.binary_location = program
    for argument in (*ARGUMENTS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(executable_path=driver)
    opened = webdriver.Chrome(options=options, service=service)
    try:
        opened.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": COUNT_UPDATES})
        yield Browser(opened)
    finally:
        opened.quit()
