"""The built HTML: it builds without a warning, links lead somewhere, and search finds words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the tag refers to, and its id."""
        given = dict(attrs)
        if found := given.get("id"):
            self.anchors.add(found)
        if tag == "a" and (name := given.get("name")):
            self.anchors.add(name)
        for key in ("href", "src"):
            if given.get(key):
                self.links.append(str(given[key]))


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as HTML; a warning is an error, as with `make docs`."""
    out = tmp_path_factory.mktemp("html")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-b", "html", DOCS, out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


@cache
def read_page(path: Path) -> Page:
    """Return a built page."""
    return Page(path.read_text(encoding="utf-8"))


def broken_links(html: Path) -> Iterator[str]:
    """Yield each link within the pages to a file or an anchor that does not exist."""
    for path in sorted(html.rglob("*.html")):
        for link in read_page(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            shown = f"{path.relative_to(html)}: {link}"
            if not target.is_file() or (
                parts.fragment
                and target.suffix == ".html"
                and unquote(parts.fragment) not in read_page(target).anchors
            ):
                yield shown


def test_each_link_leads_to_a_file_and_an_anchor(html: Path) -> None:
    """Links of every page, of its menu and of its images are whole."""
    assert sum(len(read_page(path).links) for path in html.rglob("*.html")) > 2000
    assert list(broken_links(html)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """The search for broken links finds both kinds."""
    (tmp_path / "a.html").write_text('<a href="b.html#no">1</a> <a href="c.html">2</a>')
    (tmp_path / "b.html").write_text('<p id="yes">')
    assert [one.partition(": ")[2] for one in broken_links(tmp_path)] == ["b.html#no", "c.html"]


def test_every_page_is_in_the_menu(html: Path) -> None:
    """Each Markdown page is built, and the start page links it."""
    start = {urlsplit(link).path for link in read_page(html / "index.html").links}
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert (html / name).is_file()
        assert name == "index.html" or name in start, name


def test_the_search_finds_codes_and_words(html: Path) -> None:
    """The index knows error codes, settings and commands, each with its page."""
    text = (html / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(re.sub(r"^Search\.setIndex\((.*)\)\s*$", r"\1", text, flags=re.DOTALL))
    pages = index["docnames"]
    for word, page in (("pg51", "errors"), ("pg51", "troubleshooting"), ("curl", "stage")):
        found = [index[kind].get(word, []) for kind in ("terms", "titleterms")]
        numbers = [n for one in found for n in (one if isinstance(one, list) else [one])]
        assert page in [pages[number] for number in numbers], (word, page)
