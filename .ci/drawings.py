"""Write the drawings of README.md and ARCHITECTURE.md: `make drawings`. Standard library only."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
# Contents of each package. The six drivers, in one row, share a text.
ROOMS = {
    "cli": "arguments and output",
    "web": "pages and metrics",
    "control": "configuration, supervisor, doctor, verify, status",
    "extract": "the drivers",
    "base": "the tables of a log at any position",
    "engines": "one folder for each engine",
    "sql": "what engines for SQL databases share",
    "ports": "interfaces of engines, and their registry",
    "log": "segments: writer, reader, recovery, links",
    "codec": "bytes and values",
    "host": "files, sockets, clock",
    "model": "basic data types",
}
# Each drawing has a background of its own, so that it can be read on a page of any colour.
STYLE = """<style>
.ground { fill: #ffffff }
.box { fill: #f3f6fa; stroke: #57606a }
.key { fill: #dcecff; stroke: #0550ae }
text { fill: #1f2328; font: 14px sans-serif }
.title { font-weight: bold }
.small { font-size: 12px; fill: #454c54 }
.line { stroke: #454c54; stroke-width: 1.5; fill: none }
.head { fill: #454c54 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 }
.box { fill: #1c2430; stroke: #8b949e }
.key { fill: #12335c; stroke: #79c0ff }
text { fill: #f0f6fc }
.small { fill: #c3ccd6 }
.line { stroke: #c3ccd6 }
.head { fill: #c3ccd6 }
}
</style>"""


class Drawing:
    """Boxes, arrows and texts of one picture. All measures are in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            STYLE,
            '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" '
            'orient="auto"><path class="head" d="M0 0L9 4L0 8z"/></marker></defs>',
            f'<rect class="ground" width="{width}" height="{height}"/>',
        ]

    def add_box(
        self, x: int, y: int, wide: int, tall: int, lines: Sequence[str], kind: str = "box"
    ) -> None:
        """Draw a box with a bold first line and small ones below it, centred."""
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{wide}" height="{tall}" rx="6"/>'
        )
        at = y + tall / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            style = "small" if number else "title"
            self.add_text(x + wide / 2, at + 18 * number, line, style, anchor="middle")

    def add_text(
        self, x: float, y: float, text: str, style: str = "small", anchor: str = "start"
    ) -> None:
        """Draw one line of text; y is its baseline."""
        self._parts.append(
            f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def add_arrow(self, *points: tuple[int, int]) -> None:
        """Draw a line through points, with a head at the last one."""
        path = "L".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'<path class="line" d="M{path}" marker-end="url(#head)"/>')

    def to_svg(self) -> str:
        """Return the picture as the text of an SVG file."""
        return "\n".join([*self._parts, "</svg>", ""])


def draw_flow() -> Drawing:
    """Draw where changes come from and where they can go."""
    picture = Drawing(900, 466, "Sources, the change log, and what reads it")
    sources = [
        ("PostgreSQL", "and YugabyteDB"),
        ("MySQL", "and MariaDB"),
        ("SQL Server", "and Oracle: previews"),
        ("Apache Ignite", "the logs of its nodes"),
        ("CockroachDB", "changefeeds, staged first"),
        ("other change logs", "merged into one"),
    ]
    readers = [
        ("load, on Spark", "into databases and lakes"),
        ("consume", "Python classes, plugins"),
        ("read_log", "Arrow, pandas, Spark"),
        ("serve", "a PostgreSQL publisher"),
        ("merge", "one log of several"),
    ]
    top, step, middle = 60, 66, 251
    for number, lines in enumerate(sources):
        y = top + step * number
        picture.add_box(20, y, 180, 52, lines)
        picture.add_arrow((200, y + 26), (230, y + 26), (230, middle), (261, middle))
    picture.add_box(262, middle - 45, 140, 90, ("extract", "decodes, numbers,", "in commit order"))
    picture.add_arrow((402, middle), (441, middle))
    log = ("change log", ".ckt segments on disk:", "every committed", "change, once")
    picture.add_box(442, middle - 55, 160, 110, log, "key")
    for number, lines in enumerate(readers):
        y = top + step // 2 + step * number  # one fewer than the sources
        picture.add_arrow((602, middle), (630, middle), (630, y + 26), (659, y + 26))
        picture.add_box(660, y, 220, 52, lines)
    picture.add_arrow((110, top), (110, 32), (770, 32), (770, top + step // 2 - 1))
    picture.add_text(440, 22, "bulk load of tables through Spark, at one position", anchor="middle")
    return picture


def read_rooms() -> list[list[str]]:
    """Return the packages in rows, from the contract that import-linter checks."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    rows = next(one["layers"] for one in contracts if one["type"] == "layers")
    return [row.split(" | ") for row in rows]


def draw_rooms() -> Drawing:
    """Draw the packages: each imports only from the rows below it."""
    rooms = read_rooms()
    picture = Drawing(900, 20 + 40 * len(rooms), "The packages of penstock, from top to bottom")
    for number, names in enumerate(rooms):
        y = 12 + 40 * number
        wide = (530 - 8 * (len(names) - 1)) // len(names)
        for place, name in enumerate(names):
            kind = "key" if name == "log" else "box"
            picture.add_box(20 + place * (wide + 8), y, wide, 32, (name,), kind)
        text = "; ".join(ROOMS[name] for name in names if name in ROOMS)
        picture.add_text(570, y + 21, text)
    return picture


def draw_walk() -> Drawing:
    """Draw the path of one change, in the steps that ARCHITECTURE.md numbers."""
    upper = [
        ("1. out of the server", "engines/.../source", "whole blocks of messages"),
        ("2. bytes to columns", "codec/...", "a kernel, without the GIL"),
        ("3. a run", "model/change.py", "Arrow batches, at a commit"),
        ("4. into the log", "log/writer.py", "written, synced, confirmed"),
    ]
    lower = [
        ("7. one transaction", "engines/.../target", "rows and progress together"),
        ("6. one Spark job", "load/job.py", "folds, fills merge tables"),
        ("5. a batch", "load/sql_target.py", "segments, phases, tasks"),
    ]
    picture = Drawing(900, 236, "The path of one change, from the source's log to the target")
    for number, lines in enumerate(upper):
        x = 16 + 222 * number
        picture.add_box(x, 16, 202, 80, lines, "key" if number == 3 else "box")
        if number:
            picture.add_arrow((x - 20, 56), (x - 1, 56))
    picture.add_arrow((783, 96), (783, 190), (663, 190))
    picture.add_text(775, 144, "read as far as it is durable", anchor="end")
    for number, lines in enumerate(lower):
        x = 16 + 222 * number
        picture.add_box(x, 156, 202, 68, lines)
        if number:
            picture.add_arrow((x, 190), (x - 19, 190))
    return picture


DRAWINGS = {"flow.svg": draw_flow, "rooms.svg": draw_rooms, "walk.svg": draw_walk}


def main(names: Iterable[str] = DRAWINGS) -> None:
    """Write the drawings into docs/images."""
    for name in names:
        (IMAGES / name).write_text(DRAWINGS[name]().to_svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
