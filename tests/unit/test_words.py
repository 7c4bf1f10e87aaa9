"""The language of the project, as far as a program can check it: first words, word list, names.

`python tests/unit/test_words.py [FOLDER...]` prints each finding below these folders.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/penstock", "tests", "bench", "docs", "examples", "README.md", "ARCHITECTURE.md")

LISTS = tomllib.loads((ROOT / "tests/words.toml").read_text(encoding="utf-8"))


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


def find_plain_words(text: str) -> Iterator[str]:
    """Yield each expression of the list that a text has, with the plain one."""
    for pattern, plain in LISTS["plain_words"].items():
        if found := re.search(rf"\b{pattern}\b", text, re.IGNORECASE):
            yield f"{found[0]!r} ({plain})"


def find_in_module(path: Path, text: str) -> Iterator[Finding]:
    """Yield the findings of a Python module: docstrings, names of functions, comments, strings."""
    place = path.relative_to(ROOT).as_posix()
    tree = ast.parse(text)
    overriding = {id(node) for node in find_overriding(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            at = f"{place}:{node.lineno}"
            if is_participle(node.name) and not is_forced(node) and id(node) not in overriding:
                yield Finding(at, "a participle names a function", node.name)
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
        ) and (given := ast.get_docstring(node)):
            at = f"{place}:{getattr(node, 'lineno', 1)}"
            if wrong := check_docstring(given):
                yield Finding(at, "first word", f"{wrong}: {given.splitlines()[0]}")
    for number, line in enumerate(text.splitlines(), 1):
        for wrong in find_plain_words(line):
            yield Finding(f"{place}:{number}", "plain words", f"{wrong}: {line.strip()}")


def is_forced(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether something else gives the name: a decorator."""
    texts = " ".join(ast.unparse(one) for one in node.decorator_list)
    return any(word in texts for word in ("override", "setter"))


def find_overriding(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield methods whose name a base gives: public ones without a docstring (`test_tidy.py`)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.bases:
            for method in node.body:
                if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if method.name[0] != "_" and not ast.get_docstring(method):
                    yield method


def find_in_page(path: Path, text: str) -> Iterator[Finding]:
    """Yield the findings of a page or kernel: words of the list."""
    place = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(text.splitlines(), 1):
        for wrong in find_plain_words(line):
            yield Finding(f"{place}:{number}", "plain words", f"{wrong}: {line.strip()}")


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


def test_what_is_written_reads_plainly() -> None:
    """Folders that do not wait have no finding."""
    found = [str(one) for one in find_below(FOLDERS, tuple(LISTS["waiting"]))]
    assert not found, "\n".join(found)


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
