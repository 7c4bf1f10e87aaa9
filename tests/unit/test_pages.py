"""Every page compared with the code: links, anchors, commands with options, sections and keys."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import click
import pytest

from penstock.cli import cli
from penstock.control.pipeline.config import load_config
from penstock.model.sections import (
    MERGE,
    SERVE,
    ConsumerSection,
    FlexCdcSettings,
    MergeSection,
    ServeSection,
)
from penstock.ports.config import CONSUMERS, FLEXCDC, SECTIONS, STAGING_SECTIONS, camel

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples/README.md",
]


def pages() -> list[pytest.param]:
    """Return every page with its path as id."""
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in PAGES]


@cache
def prose(path: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST form them."""
    seen: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(path), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip())
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        made.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return made


@pytest.mark.parametrize("path", pages())
def test_links_lead_to_files_and_anchors(path: Path) -> None:
    """A relative link names a file that exists and, with #, one of its headings."""
    broken = []
    for name, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)\s]+))?\)", prose(path)):
        target = (path.parent / name).resolve() if name else path
        is_page = target.suffix == ".md"
        if not target.exists() or (anchor and is_page and anchor not in anchors(target)):
            broken.append(f"{name}#{anchor}")
    assert broken == []


def find_commands(path: Path) -> Iterator[str]:
    """Yield each `penstock ...` of a page: in code within a line, and typed in a console."""
    text = path.read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        yield from re.findall(r"^\$ (?:\S*/)?(penstock .*)$", block.replace("\\\n", " "), re.M)
    yield from (code.replace("\n", " ") for code in re.findall(r"`(penstock [^`]+)`", prose(path)))


def check_command(typed: str) -> str | None:
    """Return what a command line has that penstock does not, or None."""
    command: click.Command = cli
    taken: set[str] = set()
    for word in typed.partition("#")[0].split()[1:]:
        bare = word.rstrip(",;:.|")
        if isinstance(command, click.Group) and re.fullmatch("[a-z][a-z-]*", bare):
            context = click.Context(command)
            found = command.get_command(context, bare)
            if found is None:
                return f"no command {bare!r}"
            taken |= _options(command)
            command = found
        elif re.match("--?[a-z]", bare):
            option = bare.partition("=")[0].rstrip("]")
            if option not in taken | _options(command) | {"--help"}:
                return f"no option {option!r}"
    return None


def _options(command: click.Command) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize("path", pages())
def test_commands_and_their_options_exist(path: Path) -> None:
    """A command that a page shows is one that penstock has, and so is each of its options."""
    wrong = {typed: reason for typed in find_commands(path) if (reason := check_command(typed))}
    assert wrong == {}


@cache
def known_keys() -> dict[str, set[str]]:
    """Return the keys of each section, as a file spells them."""
    sections = {**SECTIONS, **STAGING_SECTIONS, MERGE: MergeSection, CONSUMERS: ConsumerSection}
    keys = {name: {camel(one.name) for one in fields(kind)} for name, kind in sections.items()}
    keys[SERVE] = {one.name for one in fields(ServeSection)}
    keys[FLEXCDC] = {one.name for one in fields(FlexCdcSettings)}
    return keys


def find_settings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield section and key of each setting that a page names: `[section] key`, and in files."""
    for section, key in re.findall(r"`\[(\w+)\] (\w+)\b", prose(path)):
        yield section, key
    for block in re.findall(r"^```toml\n(.*?)^```", path.read_text("utf-8"), re.M | re.S):
        for section, value in tomllib.loads(block).items():
            if isinstance(value, dict) and section != "project":  # of a pyproject.toml
                for one in value.values() if section == CONSUMERS else (value,):
                    # A table in [flexcdc] has the settings of a plugin.
                    is_open = section == FLEXCDC
                    yield from (
                        (section, key)
                        for key, given in one.items()
                        if not (is_open and isinstance(given, dict))
                    )


@pytest.mark.parametrize("path", pages())
def test_settings_exist(path: Path) -> None:
    """A setting that a page names is a key of a section that a pipeline file can have."""
    known = known_keys()
    wrong = [
        f"[{section}] {key}"
        for section, key in find_settings(path)
        if key not in known.get(section, ())
    ]
    assert wrong == []


@pytest.mark.parametrize("path", pages())
def test_whole_pipeline_files_are_accepted(path: Path, tmp_path: Path) -> None:
    """A file with a name and a source or a feed is one that commands read."""
    for block in re.findall(r"^```toml\n(.*?)^```", path.read_text("utf-8"), re.M | re.S):
        parts = tomllib.loads(block)
        is_whole = not parts.keys().isdisjoint(("source", "stage"))
        if is_whole and "name" in parts.get("pipeline", {}):
            file = tmp_path / "shop.toml"
            file.write_text(block, encoding="utf-8")
            names = re.findall(r"\$\{(\w+)\}", block)
            load_config(file, environment=dict.fromkeys(names, "sixteen letters or more"))


def find_defaults() -> Iterator[tuple[str, str, str]]:
    """Yield section, key and default of each row of the tables in docs/configuration.md."""
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    for part in page.split("\n## [")[1:]:
        section = part.partition("]")[0].partition(".")[0]
        for key, default in re.findall(r"^\| (\w+) \|[^|]*\|([^|]*)\|", part, re.M):
            if key != "key":
                yield section, key, default.strip('`" ')


def test_the_page_of_settings_has_every_key_and_its_default() -> None:
    """A default on the page, if it is a plain value, is that of the code."""
    kinds = {**SECTIONS, CONSUMERS: ConsumerSection}
    rows = list(find_defaults())
    listed = {(section, key) for section, key, _ in rows if section in kinds}
    known = {(name, camel(one.name)) for name, kind in kinds.items() for one in fields(kind)}
    assert listed == known
    compared = 0
    for section, key, text in rows:
        default = (
            {camel(one.name): one.default for one in fields(kinds[section])}[key]
            if (section in kinds)
            else None
        )
        if isinstance(default, bool | int | float | str) and default not in ("", 0):
            compared += 1
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            assert text.replace(",", "") == shown, f"[{section}] {key}"
    assert compared > 20


def test_the_drawings_are_those_that_the_command_makes() -> None:
    """docs/images has what `make drawings` writes; the packages are those of the contract."""
    drawings = runpy.run_path(str(ROOT / ".ci" / "drawings.py"))["DRAWINGS"]
    for name, draw in drawings.items():
        assert (ROOT / "docs/images" / name).read_text(encoding="utf-8") == draw().to_svg(), name


def test_the_usual_errors_are_those_of_the_classes() -> None:
    """docs/troubleshooting.md has what `make error-page` writes."""
    made = runpy.run_path(str(ROOT / ".ci" / "trouble_page.py"))
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    assert len(made["MARKED"].findall(page)) > 10
    assert made["fill"](page) == page


# Rows of README's comparison: its words, then those of the two rows of docs/performance.md.
FIGURES = {
    "a million changes, PostgreSQL": (
        r"same WAL, 1 million: penstock \| ([\d.]+) s",
        r"same WAL, 1 million: `create subscription` \| ([\d.]+) s",
    ),
    "commit to visible": (
        r"penstock run \| 200 single commits \| ([\d.]+) ms",
        r"`create subscription` \| 200 single commits \| ([\d.]+) ms",
    ),
    "extracting changes of PostgreSQL": (
        r"W: penstock, streaming only \| ([\d,]+) rows/s",
        r"W: `pg_recvlogical` to /dev/null \| ([\d,]+) rows/s",
    ),
    "applying changes to MariaDB": (
        r"MariaDB, W: penstock \| ([\d,]+) changes/s",
        r"MariaDB, W: its own replica \| ([\d,]+) changes/s",
    ),
    "bulk load, PostgreSQL": (
        r"\| penstock \| ([\d,]+) rows/s \| 0.98",
        r"psql COPY binary pipe \| ([\d,]+) rows/s",
    ),
}


@pytest.mark.parametrize("words", FIGURES)
def test_figures_of_the_comparison_are_measured_ones(words: str) -> None:
    """README rounds the figures of docs/performance.md to three digits, and changes none."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    measured = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| {words}[^|]*\| ([\d.,]+)[^|]*\| ([\d.,]+)", readme, re.MULTILINE)
    assert found is not None
    for shown, pattern in zip(found.groups(), FIGURES[words], strict=True):
        match = re.search(pattern, measured)
        assert match is not None, pattern
        exact = float(match[1].replace(",", ""))
        assert abs(float(shown.strip(",").replace(",", "")) - exact) <= 0.006 * exact, shown
