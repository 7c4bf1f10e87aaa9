"""Facts of the project's Python modules for the tests of its conventions, read once for each text.

To parse all modules takes ten seconds. So the facts are kept in `build/source-facts`, each under a
hash of the module's text and of this file: a changed module is read again, and so is every module
after a change here. Tests never read a tree themselves, except those of few modules.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("src", "tests", "docs", "bench", "examples", ".ci", "changelog.d")
CACHE = ROOT / "build" / "source-facts"
GENERATED = {"__pycache__", "penstock.egg-info", "build"}
THIS_CODE = f"{sys.version} {Path(__file__).read_text(encoding='utf-8')}".encode()
ENGINES = re.compile("postgres|psycopg|mysql|mariadb", re.IGNORECASE)
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # lists of statements in a statement
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Function(msgspec.Struct, frozen=True, array_like=True):
    """A function or method.

    Attributes:
        lines: Number of its lines, without decorators.
        decorators: Source text of its decorators.
        is_overriding: Whether a base class may give its name: a public method without a docstring,
            of a class with bases.
    """

    line: int
    name: str
    lines: int
    decorators: str
    is_overriding: bool


class Import(msgspec.Struct, frozen=True, array_like=True):
    """An import statement, in a function or for annotations too.

    Attributes:
        source: None for `import NAMES`; the module that `from` names, empty for `from . import`.
        level: Number of leading dots.
    """

    line: int
    source: str | None
    names: tuple[str, ...]
    level: int


class Method(msgspec.Struct, frozen=True, array_like=True):
    """A public method without a docstring, of a public class at the top of its module."""

    line: int
    owner: str
    name: str


class Facts(msgspec.Struct, array_like=True):
    """Facts of one module.

    Attributes:
        docstrings: Line of the module, class or function, and the first line of its docstring.
        prints: Lines with a call of print().
        codes: Class and its error code.
        dotted: Texts that could name a module of penstock.
        names_engine: Whether a name or a text, except docstrings, has an engine's name.
    """

    functions: list[Function] = []
    docstrings: list[tuple[int, str]] = []
    imports: list[Import] = []
    silent: list[Method] = []
    prints: list[int] = []
    codes: list[tuple[str, str]] = []
    dotted: list[str] = []
    names_engine: bool = False


def read_facts(text: str) -> Facts:
    """Return the facts of a module's text."""
    tree = ast.parse(text)
    facts = Facts(silent=list(_find_silent(tree)))
    overriding: set[int] = set()
    for node in find_statements(tree):
        if isinstance(node, DOCUMENTED) and (given := ast.get_docstring(node)):
            facts.docstrings.append((getattr(node, "lineno", 1), given.splitlines()[0]))
        if isinstance(node, ast.ClassDef):
            overriding |= set(_find_overriding(node))
            facts.codes += [(node.name, code) for one in node.body if (code := _code(one))]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            facts.functions.append(_describe(node, id(node) in overriding))
        elif isinstance(node, ast.Import):
            names = tuple(alias.name for alias in node.names)
            facts.imports.append(Import(node.lineno, None, names, 0))
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            facts.imports.append(Import(node.lineno, node.module or "", names, node.level))
    _read_expressions(tree, facts)
    return facts


def find_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and every statement in it, outer ones first: expressions hold none."""
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in BLOCKS:
            waiting += getattr(node, block, ())


def _describe(node: ast.FunctionDef | ast.AsyncFunctionDef, is_overriding: bool) -> Function:
    return Function(
        line=node.lineno,
        name=node.name,
        lines=(node.end_lineno or 0) - node.lineno + 1,
        decorators=" ".join(map(ast.unparse, node.decorator_list)),
        is_overriding=is_overriding,
    )


def _find_overriding(node: ast.ClassDef) -> Iterator[int]:
    """Yield the identity of each method whose name a base may give."""
    yield from map(id, _find_undocumented(node) if node.bases else ())


def _find_silent(tree: ast.Module) -> Iterator[Method]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in _find_undocumented(node):
                yield Method(method.lineno, node.name, method.name)


def _find_undocumented(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public methods without a docstring."""
    for method in node.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not method.name.startswith("_") and not ast.get_docstring(method):
            yield method


def _code(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign):
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    value = statement.value
    is_code = isinstance(target, ast.Name) and target.id == "code"
    if is_code and isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    return None


def _read_expressions(tree: ast.Module, facts: Facts) -> None:
    """Note calls of print() and the words of the code: names, attributes, imports, and texts."""
    explained: set[int] = set()
    for node in ast.walk(tree):  # each before its children
        if isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr):
            explained.add(id(node.body[0].value))
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "print":
                facts.prints.append(node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            facts.dotted += [node.value] if node.value.startswith("penstock.") else []
        if not facts.names_engine and id(node) not in explained:
            facts.names_engine = any(map(ENGINES.search, _words(node)))


def _words(node: ast.AST) -> Iterable[str]:
    fields = ("id", "attr", "arg", "name", "module", "value")
    words = (getattr(node, field, None) for field in fields)
    return (word for word in words if isinstance(word, str))


@cache
def module_facts() -> dict[Path, Facts]:
    """Return the facts of every Python module of the project, by its path below the root."""
    decoder = msgspec.msgpack.Decoder(dict[str, Facts])
    try:
        kept = decoder.decode(CACHE.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):  # another version has written it
        kept = {}
    by_key: dict[str, Facts] = {}
    found: dict[Path, Facts] = {}
    collects = gc.isenabled()
    gc.disable()  # it would look through each tree again and again
    try:
        for path in _modules():
            text = (ROOT / path).read_bytes()
            key = hashlib.sha256(THIS_CODE + text).hexdigest()
            facts = kept[key] if key in kept else read_facts(text.decode())
            found[path] = by_key[key] = facts
    finally:
        if collects:
            gc.enable()
    if by_key.keys() != kept.keys():
        CACHE.parent.mkdir(exist_ok=True)
        part = CACHE.with_name(f"{CACHE.name}.{os.getpid()}")
        part.write_bytes(msgspec.msgpack.encode(by_key))
        part.replace(CACHE)
    return found


def _modules() -> list[Path]:
    found = list(ROOT.glob("*.py"))
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*.py")
    relative = (path.relative_to(ROOT) for path in found)
    return sorted(path for path in relative if not GENERATED & set(path.parts))
