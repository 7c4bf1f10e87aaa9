"""T-SQL queries and data changes as PostgreSQL statements.

Tokens are prepared first: hints are taken out, functions get names of the simulator's own, and
casts become calls. Then sqlglot parses, the tree is changed where PostgreSQL differs, and variables
become marks that are replaced by values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from sim_sqlserver import tree
from sim_sqlserver.errors import SqlError
from sim_sqlserver.lexer import Token, tokenize
from sim_sqlserver.names import literal
from sim_sqlserver.sqltypes import SqlType

FUNCTIONS = frozenset(
    [
        "LEN",
        "DATALENGTH",
        "SYSUTCDATETIME",
        "SYSDATETIME",
        "GETDATE",
        "GETUTCDATE",
        "SYSDATETIMEOFFSET",
        "NEWID",
        "DATEADD",
        "DATEDIFF",
        "DATEDIFF_BIG",
        "DATEPART",
        "YEAR",
        "MONTH",
        "DAY",
        "SWITCHOFFSET",
        "TODATETIMEOFFSET",
        "EOMONTH",
        "CHARINDEX",
        "LEFT",
        "RIGHT",
        "SUBSTRING",
        "REPLACE",
        "UPPER",
        "LOWER",
        "LTRIM",
        "RTRIM",
        "TRIM",
        "STUFF",
        "REPLICATE",
        "REVERSE",
        "SPACE",
        "CHAR",
        "NCHAR",
        "UNICODE",
        "ASCII",
        "QUOTENAME",
        "PARSENAME",
        "HASHBYTES",
        "SCHEMA_ID",
        "SCHEMA_NAME",
        "OBJECT_ID",
        "OBJECT_NAME",
        "OBJECT_SCHEMA_NAME",
        "COL_NAME",
        "COL_LENGTH",
        "COLUMNPROPERTY",
        "OBJECTPROPERTY",
        "OBJECTPROPERTYEX",
        "TYPE_NAME",
        "TYPE_ID",
        "IDENT_CURRENT",
        "IDENT_SEED",
        "IDENT_INCR",
        "DB_ID",
        "DB_NAME",
        "ORIGINAL_DB_NAME",
        "APP_NAME",
        "HOST_NAME",
        "SUSER_SNAME",
        "SUSER_NAME",
        "ORIGINAL_LOGIN",
        "USER_NAME",
        "SERVERPROPERTY",
        "DATABASEPROPERTYEX",
        "CONNECTIONPROPERTY",
        "IS_SRVROLEMEMBER",
        "IS_MEMBER",
        "IS_ROLEMEMBER",
        "HAS_PERMS_BY_NAME",
        "HAS_DBACCESS",
        "BINARY_CHECKSUM",
        "CHECKSUM",
        "CHECKSUM_AGG",
        "ISJSON",
        "ISNUMERIC",
        "FORMAT",
        "SCOPE_IDENTITY",
        "XACT_STATE",
        "CURRENT_TIMEZONE",
        "RAND",
        "SQL_VARIANT_PROPERTY",
    ]
)
# Methods of types that are classes of .NET, each a function of its own.
METHODS = {
    "TOSTRING": "ms_to_string",
    "STSRID": "ms_srid",
    "ASBINARYZM": "ms_wkb",
    "STASBINARY": "ms_wkb",
    "STASTEXT": "ms_wkt",
}
STATIC_METHODS = {
    ("HIERARCHYID", "PARSE"): "ms_hierarchyid",
    ("GEOMETRY", "STGEOMFROMWKB"): "ms_geometry_of_wkb",
    ("GEOGRAPHY", "STGEOMFROMWKB"): "ms_geography_of_wkb",
    ("GEOMETRY", "STGEOMFROMTEXT"): "ms_geometry_of_text",
    ("GEOGRAPHY", "STGEOMFROMTEXT"): "ms_geography_of_text",
    ("GEOMETRY", "POINT"): "ms_geometry_point",
    ("GEOGRAPHY", "POINT"): "ms_geography_point",
}
_DATE_PARTS = frozenset({"DATEADD", "DATEDIFF", "DATEDIFF_BIG", "DATEPART"})
_HINTS = frozenset(
    [
        "NOLOCK",
        "TABLOCK",
        "TABLOCKX",
        "UPDLOCK",
        "HOLDLOCK",
        "XLOCK",
        "ROWLOCK",
        "READPAST",
        "PAGLOCK",
        "READCOMMITTED",
        "READCOMMITTEDLOCK",
        "READUNCOMMITTED",
        "REPEATABLEREAD",
        "SERIALIZABLE",
        "SNAPSHOT",
        "FORCESEEK",
        "FORCESCAN",
        "NOEXPAND",
        "NOWAIT",
        "KEEPIDENTITY",
        "KEEPDEFAULTS",
        "IGNORE_TRIGGERS",
        "IGNORE_CONSTRAINTS",
        "INDEX",
    ]
)
MARK = re.compile(r'"ms\$([vg])\$([^"]+)"')


@dataclass(slots=True)
class Rewritten:
    """A statement for PostgreSQL.

    Attributes:
        sql: Text with marks of variables.
        kind: select, insert, update, delete or merge.
        types: Known types of the result's columns, by position.
        targets: Variables that `SELECT @x = ..` assigns.
        locks: Tables with hints, as (text of the name, hints).
        table: Changed table as (schema, name), of a change.
        columns: Columns that an INSERT names; None if it names none.
        into: Table that SELECT INTO creates.
    """

    sql: str
    kind: str
    types: dict[int, SqlType] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    locks: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    table: tuple[str, str] | None = None
    columns: list[str] | None = None
    into: tuple[str, str] | None = None
    has_output: bool = False
    unnamed: frozenset[int] = frozenset()
    can_lock_rows: bool = False


@dataclass(slots=True)
class Prepared:
    """Text for the parser, and what was taken out."""

    text: str
    locks: list[tuple[str, frozenset[str]]]
    top: str = ""


def prepare(text: str) -> Prepared:
    """Return the text that sqlglot reads."""
    return _Preparation(text, tokenize(text)).run()


class _Preparation:
    def __init__(self, text: str, tokens: tuple[Token, ...]) -> None:
        self.text, self.tokens = text, tokens
        self.out: list[str] = []
        self.locks: list[tuple[str, frozenset[str]]] = []
        self.top = ""
        self.at = 0

    def run(self) -> Prepared:
        tokens = self.tokens
        while self.at < len(tokens):
            token = tokens[self.at]
            word = token.upper
            following = tokens[self.at + 1].text if self.at + 1 < len(tokens) else ""
            before = tokens[self.at - 1].text if self.at else ""
            if word in ("CAST", "CONVERT", "TRY_CAST", "TRY_CONVERT") and following == "(":
                self._cast(word)
            elif word == "WITH" and following == "(" and self._hints():
                continue
            elif word == "OPTION" and following == "(":
                self.at = self._close(self.at + 1) + 1
                continue
            elif following == "::" and self._static_method():
                continue
            elif token.text == "." and following.upper() in METHODS:
                self._method(METHODS[following.upper()])
                continue
            elif word == "TOP" and before.upper() in ("DELETE", "UPDATE", "INSERT"):
                self._top()
                continue
            else:
                self._plain(token, following, before)
            self.at += 1
        return Prepared(_join(self.out), self.locks, self.top)

    def _plain(self, token: Token, following: str, before: str) -> None:
        """Add a token, or what stands for it."""
        word = token.upper
        if word.startswith("ERROR_") and following == "(":
            self.out.append(f"[ms$g${word.lower()}]")
            self.at += 2
        elif word in FUNCTIONS and following == "(" and before != ".":
            self.out.append("ms_" + word.lower())
            if word in _DATE_PARTS:
                self.out += ["(", f"'{self.tokens[self.at + 2].text}'"]
                self.at += 2
        elif token.kind == "variable":
            name = token.text.lstrip("@").lower()
            kind = "g" if token.text.startswith("@@") else "v"
            self.out.append(f"[ms${kind}${name}]")
        elif word == "CURRENT_TIMESTAMP":
            self.out.append("ms_current_timestamp()")
        elif token.kind == "hex" and token.text.lower() == "0x":
            self.out.append("ms_cast('', 'varbinary')")
        elif token.text == "!=":
            self.out.append("<>")
        else:
            self.out.append(token.text)

    def _static_method(self) -> bool:
        """Add the function that stands for a method of a type: type::method(..)."""
        method = self.tokens[self.at + 2].upper if self.at + 2 < len(self.tokens) else ""
        found = STATIC_METHODS.get((self.tokens[self.at].upper, method))
        if found is None:
            said = f"Could not find method '{method}' for type '{self.tokens[self.at].text}'."
            raise SqlError(6506, said)
        self.out.append(found)
        self.at += 3
        return True

    def _method(self, name: str) -> None:
        """Add the function that stands for a method or property of the value before it."""
        value = [self.out.pop()]
        while len(self.out) > 1 and self.out[-1] == ".":
            value = [self.out.pop(-2), self.out.pop(), *value]
        self.out.append(f"{name}({_join(value)})")
        self.at += 2
        if [token.text for token in self.tokens[self.at : self.at + 2]] == ["(", ")"]:
            self.at += 2

    def _close(self, opening: int) -> int:
        depth = 0
        for place in range(opening, len(self.tokens)):
            depth += {"(": 1, ")": -1}.get(self.tokens[place].text, 0)
            if depth == 0:
                return place
        raise SqlError(102, "Incorrect syntax near ')'.", severity=15)

    def _inner(self, start: int, end: int) -> str:
        inner = _Preparation(self.text, self.tokens[start:end])
        prepared = inner.run()
        self.locks += prepared.locks
        return prepared.text

    def _cast(self, word: str) -> None:
        opening = self.at + 1
        closing = self._close(opening)
        depth, split = 0, None
        wanted = "AS" if word.endswith("CAST") else ","
        for place in range(opening + 1, closing):
            token = self.tokens[place]
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0 and (token.upper or token.text) == wanted:
                split = place
                if wanted == ",":
                    break
        if split is None:
            raise SqlError(102, f"Incorrect syntax near '{word}'.", severity=15)
        if wanted == "AS":
            value = self._inner(opening + 1, split)
            spelling = "".join(token.text + " " for token in self.tokens[split + 1 : closing])
            style = ""
        else:
            spelling = "".join(token.text + " " for token in self.tokens[opening + 1 : split])
            value, style = self._split_style(split + 1, closing)
        name = "ms_try_cast" if word.startswith("TRY") else "ms_cast"
        self.out.append(f"{name}({value}, {literal(spelling.strip())}{style})")
        self.at = closing

    def _split_style(self, start: int, closing: int) -> tuple[str, str]:
        depth = 0
        for place in range(start, closing):
            token = self.tokens[place]
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0 and token.text == ",":
                style = f", {self._inner(place + 1, closing)}"
                return self._inner(start, place), style
        return self._inner(start, closing), ""

    def _hints(self) -> bool:
        closing = self._close(self.at + 1)
        words = [t.upper for t in self.tokens[self.at + 2 : closing] if t.upper]
        if not words or words[0] not in _HINTS:
            return False
        self.locks.append((self._table_before(), frozenset(words)))
        self.at = closing + 1
        return True

    def _table_before(self) -> str:
        """Return the table's name that stands before a hint, before its alias."""
        end = self.at
        parts: list[str] = []
        place = end - 1
        while place >= 0 and (
            self.tokens[place].kind in ("word", "name") or self.tokens[place].text == "."
        ):
            if self.tokens[place].upper in ("FROM", "JOIN", "INTO", "UPDATE", "MERGE", "DELETE"):
                break
            parts.insert(0, self.tokens[place].text)
            place -= 1
        out = ""
        for text in parts:
            if out and out[-1] != "." and text != ".":
                break
            out += text
        return out

    def _top(self) -> None:
        if self.tokens[self.at + 1].text == "(":
            closing = self._close(self.at + 1)
            self.top = self._inner(self.at + 2, closing)
            self.at = closing + 1
        else:
            self.top = self.tokens[self.at + 1].text
            self.at += 2


def _join(parts: list[str]) -> str:
    """Join tokens; nothing may stand between the parts of a name with dots."""
    out: list[str] = []
    for part in parts:
        if out and part not in (".", "(", ",", ")") and out[-1] not in (".", "("):
            out.append(" ")
        out.append(part)
    return "".join(out)


def rewrite(
    text: str,
    spelling: Callable[[str], str],
    columns: Callable[[str, str], list[str]],
    database: str,
    *,
    scope: Iterable[str] = (),
) -> Rewritten:
    """Return the PostgreSQL statement for a query or a change; raises SqlError.

    Args:
        text: T-SQL.
        database: Name of the database.
        spelling: Returns the existing spelling of a name.
        columns: Returns the columns of a table, by schema and name.
        scope: Columns that the text may name without a table.
    """
    prepared = prepare(text)
    try:
        parsed = sqlglot.parse_one(prepared.text, read="tsql")
    except SqlglotError as error:
        raise SqlError(102, f"Incorrect syntax: {error}"[:400], severity=15) from error
    if not isinstance(parsed, exp.Query | exp.DML):
        raise SqlError(102, f"The simulator does not know {text[:200]!r}.", severity=15)
    names = tree.Names(spelling, columns, database)
    names.add_columns(scope)
    return tree.convert(parsed, prepared, names)
