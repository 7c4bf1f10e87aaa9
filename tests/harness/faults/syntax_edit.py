"""Edits of a Python file by its syntax tree: a piece of code below a place becomes another one.

Formatting, comments and the rest of the file are ignored, so an edit keeps fitting until the piece
itself changes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from textwrap import dedent

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ANY_BLOCK = ast.dump(ast.Expr(ast.Constant(...)))


@dataclass(frozen=True, slots=True)
class SyntaxEdit:
    """A piece of Python below a place, and the piece that replaces it.

    Attributes:
        place: qualified name of a function or class; empty for the whole file.
        old: the present expression or statements. A block `...` matches any block.
        new: the expression or statements that replace it; empty to remove statements.
        nth: number of the piece among equal ones, from 1; 0 if it must be the only one.
    """

    place: str
    old: str
    new: str
    nth: int = 0

    def find_in(self, tree: ast.Module) -> tuple[Sequence[ast.expr | ast.stmt], str]:
        """Return the nodes that are replaced, and the text that replaces them.

        Raises:
            ValueError: the place does not exist, or the piece is not in it exactly once.
        """
        scopes = _find_scopes(tree, self.place)
        if not scopes:
            raise ValueError(f"it has no function or class {self.place}")
        old, new = _parse_expression(self.old), _parse_expression(self.new)
        pieces: list[Sequence[ast.expr | ast.stmt]]
        if old and new:
            pieces = [[node] for scope in scopes for node in _walk(scope) if _is_like(old, node)]
            text = f"({ast.unparse(new)})"
        else:
            body = ast.parse(dedent(self.old)).body
            pieces = [run for scope in scopes for run in _find_runs(scope, body)]
            text = ast.unparse(ast.parse(dedent(self.new))) or "pass"
        pieces.sort(key=lambda nodes: _start(nodes[0]))
        if self.nth > len(pieces) or (not self.nth and len(pieces) != 1):
            has = f"has {len(pieces)} times" if pieces else "does not have"
            number = f", number {self.nth} of them" if self.nth else ""
            raise ValueError(f"{self.place or 'it'} {has} the piece{number}: {self.old.strip()}")
        return pieces[self.nth - 1 if self.nth else 0], text


def edit_syntax(source: str, edits: Sequence[SyntaxEdit]) -> str:
    """Return a Python file with all edits made; each is found in the file as it was.

    Raises:
        ValueError: an edit does not fit, or two of them overlap, or the result is not Python.
    """
    tree = _parse(source)
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    changes = []
    for edit in edits:
        nodes, text = edit.find_in(tree)
        (line, column), last = _start(nodes[0]), nodes[-1]
        begin = starts[line - 1] + column
        end = starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0)
        indent = "\n" + " " * column
        if isinstance(nodes[0], ast.If) and data[begin:].startswith(b"elif"):
            text, indent = f"else:\n{text}", f"{indent}    "
        changes.append((begin, end, text.replace("\n", indent).encode()))
    end_after = len(data)
    for begin, end, new in sorted(changes, reverse=True):
        if end > end_after:
            raise ValueError("two of the pieces overlap")
        data = data[:begin] + new + data[end:]
        end_after = begin
    begin, rest = _find_statements(tree, starts, changes)
    try:
        compile(data[begin : len(data) - rest], "<changed>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ValueError(f"the changed file is not Python: {error}") from error
    return data.decode()


def _find_statements(
    tree: ast.Module, starts: Sequence[int], changes: Sequence[tuple[int, int, bytes]]
) -> tuple[int, int]:
    """Return where the file's statements with changes begin, and the bytes that follow them.

    To compile these alone is much faster, and there are more than a thousand edits.
    """
    first, last = min(change[0] for change in changes), max(change[1] for change in changes)
    begin, end = 0, starts[-1]
    for statement in tree.body:
        line, column = _start(statement)
        if starts[line - 1] + column <= first:
            begin = starts[line - 1]
        stop = starts[(statement.end_lineno or 0) - 1] + (statement.end_col_offset or 0)
        if stop >= last:
            end = stop
            break
    return begin, starts[-1] - end


@lru_cache(maxsize=1)  # several edits of a file follow each other
def _parse(source: str) -> ast.Module:
    """Return the tree of a file; nothing may change it."""
    return ast.parse(source)


def _parse_expression(text: str) -> ast.expr | None:
    """Return a text as an expression; None if it is empty, or statements."""
    if not text.strip():
        return None
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return None


def _find_scopes(tree: ast.Module, place: str) -> list[ast.AST]:
    """Return the definitions with a qualified name: several if it is defined several times."""
    scopes: list[ast.AST] = [tree]
    for name in place.split(".") if place else ():
        scopes = [one for scope in scopes for one in _definitions(scope) if one.name == name]
    return scopes


def _definitions(
    node: ast.AST,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield the definitions directly in a scope, also those in its `if` and `try` blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, DEFINITIONS):
            yield child
        else:
            yield from _definitions(child)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, except the parts of f-strings: their positions are unsure."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def _find_runs(scope: ast.AST, wanted: Sequence[ast.stmt]) -> Iterator[Sequence[ast.stmt]]:
    """Yield each run of statements that is like the wanted ones."""
    for node in _walk(scope):
        for _, block in ast.iter_fields(node):
            if isinstance(block, list):
                for at in range(len(block) - len(wanted) + 1):
                    run = block[at : at + len(wanted)]
                    if all(map(_is_like, wanted, run)):
                        yield run


def _is_like(wanted: object, node: object) -> bool:
    """Return whether a tree equals the wanted one, whose blocks `...` equal any block."""
    if isinstance(wanted, list) and isinstance(node, list):
        is_any = len(wanted) == 1 and isinstance(wanted[0], ast.Expr) and node
        if is_any and ast.dump(wanted[0]) == ANY_BLOCK:
            return True
        return len(wanted) == len(node) and all(map(_is_like, wanted, node))
    if isinstance(wanted, ast.AST) and type(wanted) is type(node):
        return all(
            _is_like(getattr(wanted, name, None), getattr(node, name, None))
            for name in wanted._fields
            if name not in ("kind", "type_comment")
        )
    return type(wanted) is type(node) and wanted == node


def _start(node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Return line and column of a node's first character, its decorators' if it has some."""
    decorators = getattr(node, "decorator_list", None)
    return (decorators[0].lineno if decorators else node.lineno), node.col_offset
