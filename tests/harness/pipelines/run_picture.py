"""Picture of the live view of `penstock run` as an SVG: text in a window of 80 columns."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from harness.pipelines.run_states import Hands, told_run
from penstock.control.status.drawing import indent
from penstock.control.status.live import LiveView

TERMINAL = Path(__file__).resolve().parents[3] / "docs" / "images" / "terminal.svg"
COLUMNS = 80
TITLE_HEIGHT = 32
THEME = TerminalTheme(
    (16, 21, 29),
    (221, 228, 238),
    [
        *((42, 51, 64), (255, 138, 128), (143, 227, 179), (246, 217, 140)),
        *((127, 186, 255), (214, 170, 255), (134, 214, 226), (221, 228, 238)),
    ],
    [
        *((122, 134, 152), (255, 138, 128), (143, 227, 179), (246, 217, 140)),
        *((127, 186, 255), (214, 170, 255), (134, 214, 226), (255, 255, 255)),
    ],
)
# Without a font from another server; each run of characters has its width, whatever font there is.
FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" \
role="img" aria-label="penstock run in a terminal">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; \
font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<rect fill="#10151d" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, 9)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class _Told(LiveView):
    """View that keeps its events."""

    def __init__(self, out: Console, *, clock: Hands) -> None:
        super().__init__(out, clock=clock)
        self.events: list[str] = []

    def event(self, text: str, kind: str = "note", **_fields: Any) -> None:
        """Keep it."""
        del kind
        self.events.append(text)


def draw_terminal() -> str:
    """Return the picture of a run's first two minutes: its events, and the view below them."""
    clock = Hands()
    screen = Console(file=io.StringIO(), force_terminal=True, width=COLUMNS, height=30)
    paper = Console(
        file=io.StringIO(), width=COLUMNS, record=True, force_terminal=True, color_system="standard"
    )
    view = _Told(screen, clock=clock)
    view.close()
    for status, seconds in told_run():
        view.show(status)
        clock.now_s += seconds
    paper.print("$ penstock run shop.toml", highlight=False)
    for text in view.events:
        paper.print(indent(text), highlight=False)
    paper.print(view.draw(status))
    drawn = paper.export_svg(
        title="", theme=THEME, code_format=FORMAT, unique_id="terminal", font_aspect_ratio=0.61
    )
    # The line of the window's title, which the library leaves room for, is not there; nor are the
    # paths that cut each line at the window's edge, because no line goes beyond it.
    height = re.search(r'viewBox="0 0 \d+ ([\d.]+)"', drawn)
    assert height
    drawn = drawn.replace(height[1], f"{float(height[1]) - TITLE_HEIGHT:.0f}")
    return re.sub(r' clip-path="url\(#[^)]*\)"', "", drawn)
