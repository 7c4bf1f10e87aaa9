"""The language of the project, as far as a program can check it: first words, word list, names.

`python tests/unit/test_words.py [FOLDER...]` prints each finding below these folders.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.modules.facts import ROOT, Function, module_facts, read_facts

pytestmark = pytest.mark.always

FOLDERS = ("src/penstock", "tests", "bench", "docs", "examples", "README.md", "ARCHITECTURE.md")

LISTS = tomllib.loads((ROOT / "tests/words.toml").read_text(encoding="utf-8"))
EXPRESSIONS = {
    re.compile(rf"\b{pattern}\b", re.IGNORECASE): plain
    for pattern, plain in LISTS["plain_words"].items()
}
# Almost no file has any, and one search of a whole file is much faster than all searches of a line.
ANY_EXPRESSION = re.compile(rf"\b(?:{'|'.join(LISTS['plain_words'])})\b", re.IGNORECASE)


class Finding(NamedTuple):
    """A place that is not written as the rules say."""

    place: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {self.text}"


def check_docstring(text: str) -> str | None:
    """Return what is wrong with a docstring's first words, or None."""
    first = text.strip().split(None, 1)[0].strip("`\"'(),.:;").lower() if text.strip() else ""
    return f"begins with {first!r}" if first in LISTS["first_words"] else None


def is_participle(name: str) -> bool:
    """Return whether a function's name is a participle and nothing else."""
    bare = name.strip("_")
    if "_" in bare or bare in LISTS["given_names"]:
        return False
    return bare in LISTS["participles"] or (len(bare) > 4 and bare.endswith("ed"))


def find_plain_words(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each expression of the list that a line of a text has: number, finding, the line."""
    if not ANY_EXPRESSION.search(text):
        return
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, plain in EXPRESSIONS.items():
            if found := pattern.search(line):
                yield number, f"{found[0]!r} ({plain})", line.strip()


def find_in_module(path: Path, text: str) -> Iterator[Finding]:
    """Yield the findings of a Python module: docstrings, names of functions, comments, strings."""
    place = path.relative_to(ROOT).as_posix()
    facts = module_facts().get(path.relative_to(ROOT)) or read_facts(text)
    for function in facts.functions:
        if is_participle(function.name) and not is_forced(function):
            at = f"{place}:{function.line}"
            yield Finding(at, "a participle names a function", function.name)
    for line, first in facts.docstrings:
        if wrong := check_docstring(first):
            yield Finding(f"{place}:{line}", "first word", f"{wrong}: {first}")
    yield from find_in_lines(place, text)


def is_forced(function: Function) -> bool:
    """Return whether something else gives the name: a base class or a decorator."""
    is_decorated = any(word in function.decorators for word in ("override", "setter"))
    return is_decorated or function.is_overriding


def find_in_page(path: Path, text: str) -> Iterator[Finding]:
    """Yield the findings of a page or kernel: words of the list."""
    yield from find_in_lines(path.relative_to(ROOT).as_posix(), text)


def find_in_notebook(path: Path, text: str) -> Iterator[Finding]:
    """Yield the findings of a notebook: of its text as in a page, of its code as in a module."""
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        place, source = (
            f"{path.relative_to(ROOT).as_posix()} cell {number}",
            "".join(cell["source"]),
        )
        if cell["cell_type"] == "code":
            for _, first in read_facts(source).docstrings:
                if wrong := check_docstring(first):
                    yield Finding(place, "first word", f"{wrong}: {first}")
        yield from find_in_lines(place, source)


def find_in_lines(place: str, text: str) -> Iterator[Finding]:
    """Yield the lines that have words of the list."""
    for number, wrong, line in find_plain_words(text):
        yield Finding(f"{place}:{number}", "plain words", f"{wrong}: {line}")


def find_below(folders: Sequence[str], without: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Yield the findings below some folders, or in some files, without those of other folders."""
    skipped = {ROOT / folder for folder in without}
    for folder in folders:
        start = ROOT / folder
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            if path == Path(__file__).resolve() or skipped & {path, *path.parents}:
                continue
            if path.suffix == ".py":
                yield from find_in_module(path, path.read_text(encoding="utf-8"))
            elif path.suffix in (".md", ".pyx", ".pxi", ".pxd"):
                yield from find_in_page(path, path.read_text(encoding="utf-8"))
            elif path.suffix == ".ipynb":
                yield from find_in_notebook(path, path.read_text(encoding="utf-8"))


def test_what_is_written_reads_plainly() -> None:
    """Folders that do not wait have no finding."""
    found = [str(one) for one in find_below(FOLDERS, tuple(LISTS["waiting"]))]
    assert not found, "\n".join(found)


def test_a_notebook_is_read() -> None:
    """Its markdown, its comments and its docstrings are."""
    cells = [
        {"cell_type": "markdown", "source": ["# A page\n", "Who reads it is somebody."]},
        {"cell_type": "code", "source": ['def find():\n    """What is found."""\n', "# by itself"]},
    ]
    found = find_in_notebook(ROOT / "examples/one.ipynb", json.dumps({"cells": cells}))
    assert [(one.place.partition(" ")[2], one.rule) for one in found] == [
        ("cell 1:2", "plain words"),
        ("cell 2", "first word"),
        ("cell 2:3", "plain words"),
    ]


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("Return whether a slot is there.", True),
        ("Position of a consumer in the log.", True),
        ("Whether a slot is there.", False),
        ("What becomes of it.", False),
        ("See `Position`.", False),
    ],
)
def test_a_first_word_is_judged(text: str, is_right: bool) -> None:
    """Verbs and nouns are right; relative words and references are not."""
    assert (check_docstring(text) is None) is is_right


@pytest.mark.parametrize(
    ("name", "is_wrong"),
    [("_tried", True), ("made", True), ("is_held", False), ("read_rows", False), ("feed", False)],
)
def test_a_participle_is_judged(name: str, is_wrong: bool) -> None:
    """A participle alone tells neither predicate nor factory nor action."""
    assert is_participle(name) is is_wrong


if __name__ == "__main__":
    for one in find_below(sys.argv[1:] or list(FOLDERS)):
        sys.stdout.write(f"{one}\n")
