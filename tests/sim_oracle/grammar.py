"""Oracle's texts for sqlglot: what its dialect lacks is taken out or quoted first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from sim_oracle.errors import OraError
from sim_oracle.function_names import NAMES

_TOKENS = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<text>[nN]?'(?:[^']|'')*')
    |(?P<name>"[^"]+")
    |(?P<bind>:[A-Za-z_]\w*|:\d+)
    |(?P<number>\d+(?:\.\d+)?)
    |(?P<word>[A-Za-z_][\w$\#]*)
    |(?P<sign><>|!=|<=|>=|=>|:=|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)
_AS_OF = re.compile(r"\bAS\s+OF\s+SCN\s+(:\w+|\d+)", re.IGNORECASE)
_VERSIONS = re.compile(r"\bVERSIONS\s+BETWEEN\s+SCN\s+(:\w+|\d+)\s+AND\s+(:\w+|\d+)", re.IGNORECASE)
# Functions that sqlglot would translate into others; query.py has them under these names.
_FUNCTIONS = re.compile(rf"(?i)(?<![.\w])({'|'.join(sorted(NAMES, reverse=True))})(?=\s*\()")
_MERGE_DELETE = re.compile(
    r"(?is)^(?P<head>MERGE\s.*?)WHEN\s+MATCHED\s+THEN\s+UPDATE\s+SET(?P<sets>.*?)"
    r"(?:\sWHERE\s(?P<where>(?:(?!\bDELETE\b).)*?))?"
    r"(?:\sDELETE\s+WHERE\s(?P<gone>.*?))?"
    r"(?P<rest>WHEN\s+NOT\s+MATCHED.*|)$"
)
_INSERT_WHERE = re.compile(
    r"(?is)^WHEN\s+NOT\s+MATCHED\s+THEN\s+(?P<insert>INSERT.*?)(?:\sWHERE\s(?P<where>.*))?$"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text.

    Attributes:
        kind: text, name, bind, number, word or sign.
    """

    kind: str
    text: str


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, without blanks and comments."""
    for match in _TOKENS.finditer(text):
        kind = match.lastgroup
        assert kind is not None
        if kind != "space":
            yield Token(kind, match[0])


def bind_names(text: str) -> list[str]:
    """Return the names of a text's binds in upper case, each once, in order."""
    names: dict[str, None] = {}
    for token in tokenize(text):
        if token.kind == "bind":
            names[token.text[1:].upper()] = None
    return list(names)


def outside_literals(text: str, change: Callable[[str], str]) -> str:
    """Return a text whose parts outside of literals and quoted names were changed."""
    parts = re.split(r"""((?:[nN]?'(?:[^']|'')*')|"[^"]+")""", text)
    return "".join(part if at % 2 else change(part) for at, part in enumerate(parts))


@dataclass(slots=True)
class Prepared:
    """A statement as a tree.

    Attributes:
        tree: Tree of sqlglot.
        as_of: Bind or number of AS OF SCN; None without it.
        versions: Binds or numbers of VERSIONS BETWEEN SCN; None without it.
        binds: Names of binds, in order.
    """

    tree: exp.Expr
    as_of: str | None
    binds: list[str] = field(default_factory=list)
    versions: tuple[str, str] | None = None


@lru_cache(maxsize=512)
def prepare(text: str) -> Prepared:
    """Return the tree of a query or of a change; raises OraError 900 if it is neither."""
    plain = text.strip().rstrip(";")
    as_of = _find_as_of(plain)
    between = _VERSIONS.search(plain)
    readable = outside_literals(plain, _simplify)
    if readable.upper().startswith("MERGE"):
        readable = _split_merge(readable)
    try:
        tree = sqlglot.parse_one(readable, read="oracle")
    except SqlglotError as error:
        raise OraError(900, text=f"invalid SQL statement: {str(error)[:200]}") from error
    versions = None if between is None else (between[1], between[2])
    return Prepared(tree, as_of, bind_names(text), versions)


def _find_as_of(text: str) -> str | None:
    found: list[str] = []

    def look(part: str) -> str:
        found.extend(_AS_OF.findall(part))
        return part

    outside_literals(text, look)
    if len(set(found)) > 1:
        raise OraError(900, text="the simulator reads all tables as of one SCN")
    return found[0] if found else None


def _simplify(part: str) -> str:
    part = re.sub(r"/\*\+.*?\*/", " ", part, flags=re.DOTALL)
    part = _VERSIONS.sub(" ", _AS_OF.sub(" ", part))
    part = re.sub(r"(?i)(?<![\w.\"])((?:\w+\.)?)ROLLBACK\b", r'\1"ROLLBACK"', part)
    part = re.sub(r"(?i)\bDBMS_ROWID\s*\.\s*", "", part)
    part = re.sub(r"(?i)\bDBMS_LOB\s*\.\s*", "ORA_LOB_", part)
    part = re.sub(r"(?i)\bUTL_RAW\s*\.\s*", "ORA_", part)
    part = _FUNCTIONS.sub(r"ORA_\1", part)
    part = re.sub(r":(\d+)\b", r":b_\1", part)
    return re.sub(r"(?i)\bSYS\s*\.\s*(?=G?V_?\$|ALL_|DBA_|DUAL)", "", part)


def _split_merge(text: str) -> str:
    """Return a MERGE with one WHEN per action, in place of WHERE and DELETE WHERE."""
    match = _MERGE_DELETE.match(text)
    if match is None:
        return text
    out = match["head"]
    if match["gone"]:
        out += f"WHEN MATCHED AND {match['gone']} THEN DELETE "
    condition = f" AND {match['where']}" if match["where"] else ""
    out += f"WHEN MATCHED{condition} THEN UPDATE SET{match['sets']} "
    rest = _INSERT_WHERE.match(match["rest"].strip())
    if rest is None:
        return out + match["rest"]
    condition = f" AND {rest['where']}" if rest["where"] else ""
    return f"{out}WHEN NOT MATCHED{condition} THEN {rest['insert']}"
