"""Definitions of tables, columns, constraints and indexes, read from tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sim_sqlserver.errors import SqlError
from sim_sqlserver.lexer import Token
from sim_sqlserver.sqltypes import SqlType, parse_type

Name = tuple[str, str]  # schema (empty if not named) and name


@dataclass(slots=True)
class ColumnDef:
    """Column of a table.

    Attributes:
        computed: Expression of a computed column, else empty.
        identity: Seed and increment.
        default: Name of the constraint (may be empty) and expression.
    """

    name: str
    type: SqlType | None = None
    collation: str = ""
    is_nullable: bool | None = None
    identity: tuple[int, int] | None = None
    default: tuple[str, str] | None = None
    computed: str = ""
    is_persisted: bool = False
    is_sparse: bool = False
    with_values: bool = False


@dataclass(slots=True)
class ConstraintDef:
    """Constraint of a table.

    Attributes:
        kind: primary, unique, foreign, check or default.
        columns: Names, each with whether it is descending.
        expression: Condition of a check, value of a default.
        column: Column of a default, or of a check that a column has.
    """

    kind: str
    name: str = ""
    columns: list[tuple[str, bool]] = field(default_factory=list)
    is_clustered: bool | None = None
    expression: str = ""
    referenced: Name = ("", "")
    referenced_columns: list[str] = field(default_factory=list)
    on_delete: str = "no action"
    on_update: str = "no action"
    column: str = ""
    with_values: bool = False


@dataclass(slots=True)
class IndexDef:
    """Index that CREATE INDEX makes."""

    name: str
    table: Name
    columns: list[tuple[str, bool]]
    is_unique: bool = False
    is_clustered: bool = False
    included: list[str] = field(default_factory=list)
    condition: str = ""
    is_columnstore: bool = False


class Reader:
    """Place among the tokens of a statement."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self.text, self.tokens, self.at = text, tokens, 0
        self.offset = tokens[0].start if tokens else 0

    @property
    def is_done(self) -> bool:
        """Return whether all tokens were read."""
        return self.at >= len(self.tokens)

    def word(self, ahead: int = 0) -> str:
        """Return the word at the place, upper case; empty for others."""
        place = self.at + ahead
        return self.tokens[place].upper if place < len(self.tokens) else ""

    def mark(self, ahead: int = 0) -> str:
        """Return the text at the place."""
        place = self.at + ahead
        return self.tokens[place].text if place < len(self.tokens) else ""

    def take(self, *words: str) -> bool:
        """Read these words or marks if they follow."""
        for ahead, word in enumerate(words):
            if (self.word(ahead) or self.mark(ahead)) != word:
                return False
        self.at += len(words)
        return True

    def need(self, *words: str) -> None:
        """Read these words; raises SqlError 102."""
        if not self.take(*words):
            raise SqlError(102, f"Incorrect syntax near '{self.mark()}'.", severity=15)

    def identifier(self) -> str:
        """Read a name."""
        if self.is_done or self.tokens[self.at].kind not in ("word", "name"):
            raise SqlError(102, f"Incorrect syntax near '{self.mark()}'.", severity=15)
        self.at += 1
        return self.tokens[self.at - 1].identifier

    def name(self) -> Name:
        """Read a name with up to two names before it."""
        parts = [self.identifier()]
        while self.take("."):
            parts.append("" if self.mark() == "." else self.identifier())
        return (parts[-2] if len(parts) > 1 else "", parts[-1])

    def read_parenthesised(self) -> str:
        """Read ( .. ) and return the text inside."""
        self.need("(")
        start, depth = self.at, 1
        while depth:
            if self.is_done:
                raise SqlError(102, "Incorrect syntax near ')'.", severity=15)
            depth += {"(": 1, ")": -1}.get(self.mark(), 0)
            self.at += 1
        return self.slice(start, self.at - 1)

    def slice(self, start: int, end: int) -> str:
        """Return the text of tokens."""
        if end <= start:
            return ""
        first, last = self.tokens[start], self.tokens[end - 1]
        return self.text[first.start - self.offset : last.end - self.offset]

    def number(self) -> int:
        """Read a whole number."""
        sign = -1 if self.take("-") else 1
        self.take("+")
        value = int(self.mark())
        self.at += 1
        return sign * value

    def columns(self) -> list[tuple[str, bool]]:
        """Read (a, b DESC)."""
        self.need("(")
        found = []
        while True:
            name = self.identifier()
            is_descending = self.take("DESC")
            self.take("ASC")
            found.append((name, is_descending))
            if not self.take(","):
                break
        self.need(")")
        return found

    def names(self) -> list[str]:
        """Read (a, b)."""
        return [name for name, _ in self.columns()]

    def type(self) -> SqlType:
        """Read a type; raises SqlError 2715."""
        start = self.at
        _, name = self.name()
        words = name
        while self.word() in ("VARYING", "PRECISION", "CHARACTER", "CHAR", "TEXT"):
            words += f" {self.identifier()}"
        arguments = f"({self.read_parenthesised()})" if self.mark() == "(" else ""
        try:
            return parse_type(words + arguments)
        except ValueError as error:
            said = f"Cannot find data type {self.slice(start, self.at)}."
            raise SqlError(2715, said) from error

    def skip_options(self) -> None:
        """Read WITH (..) and ON filegroup, which mean nothing here."""
        while True:
            if self.word() == "WITH" and self.mark(1) == "(":
                self.at += 1
                self.read_parenthesised()
            elif self.word() in ("ON", "TEXTIMAGE_ON", "FILESTREAM_ON"):
                self.at += 1
                self.identifier()
                if self.mark() == "(":
                    self.read_parenthesised()
            else:
                return


def read_column(reader: Reader) -> tuple[ColumnDef, list[ConstraintDef]]:
    """Read a column's definition with the constraints that it has."""
    column = ColumnDef(reader.identifier())
    constraints: list[ConstraintDef] = []
    if reader.take("AS"):
        column.computed = (
            reader.read_parenthesised() if reader.mark() == "(" else _expression(reader)
        )
        column.is_persisted = reader.take("PERSISTED")
        if column.is_persisted and reader.take("NOT", "NULL"):
            column.is_nullable = False
        return column, constraints
    column.type = reader.type()
    name = ""
    while not reader.is_done and reader.mark() not in (",", ")", ";"):
        if reader.take("CONSTRAINT"):
            name = reader.identifier()
        elif _read_property(reader, column, name):
            name = ""
        else:
            constraint = read_constraint(reader, name, column.name)
            constraints.append(constraint)
            name = ""
    return column, constraints


def _read_property(reader: Reader, column: ColumnDef, name: str) -> bool:
    if reader.take("NOT", "NULL"):
        column.is_nullable = False
    elif reader.take("NULL"):
        column.is_nullable = True
    elif reader.take("IDENTITY"):
        column.identity = (1, 1)
        if reader.take("("):
            seed = reader.number()
            reader.need(",")
            column.identity = (seed, reader.number())
            reader.need(")")
    elif reader.take("COLLATE"):
        column.collation = reader.identifier()
    elif reader.take("DEFAULT"):
        column.default = (name, _expression(reader))
    elif reader.take("WITH", "VALUES"):
        column.with_values = True
    elif reader.take("SPARSE"):
        column.is_sparse = True
    elif reader.word() in ("ROWGUIDCOL", "FILESTREAM", "HIDDEN"):
        reader.at += 1
    elif reader.take("NOT", "FOR", "REPLICATION"):
        pass
    else:
        return False
    return True


_ENDS = frozenset(
    [
        "CONSTRAINT",
        "NOT",
        "NULL",
        "PRIMARY",
        "UNIQUE",
        "CHECK",
        "REFERENCES",
        "IDENTITY",
        "WITH",
        "FOR",
        "DEFAULT",
        "COLLATE",
        "PERSISTED",
        "FOREIGN",
        "SPARSE",
        "ROWGUIDCOL",
    ]
)


def _expression(reader: Reader) -> str:
    """Read an expression without commas outside parentheses."""
    start, depth = reader.at, 0
    while not reader.is_done:
        mark, word = reader.mark(), reader.word()
        if depth == 0 and reader.at > start and (mark in (",", ")", ";") or word in _ENDS):
            break
        if mark == ")" and depth == 0:
            break
        depth += {"(": 1, ")": -1}.get(mark, 0)
        reader.at += 1
    return reader.slice(start, reader.at)


def read_constraint(reader: Reader, name: str = "", column: str = "") -> ConstraintDef:
    """Read a constraint, after its name."""
    if reader.take("CONSTRAINT"):
        name = reader.identifier()
    if reader.word() in ("PRIMARY", "UNIQUE"):
        constraint = ConstraintDef("unique" if reader.take("UNIQUE") else "primary", name)
        if constraint.kind == "primary":
            reader.need("PRIMARY", "KEY")
        if reader.take("CLUSTERED"):
            constraint.is_clustered = True
        elif reader.take("NONCLUSTERED"):
            constraint.is_clustered = False
        has_list = reader.mark() == "(" and (not column or reader.mark() == "(")
        constraint.columns = reader.columns() if has_list else [(column, False)]
        reader.skip_options()
        return constraint
    if reader.take("CHECK"):
        reader.take("NOT", "FOR", "REPLICATION")
        return ConstraintDef("check", name, expression=reader.read_parenthesised(), column=column)
    if reader.take("DEFAULT"):
        constraint = ConstraintDef("default", name, expression=_expression(reader))
        if reader.take("FOR"):
            constraint.column = reader.identifier()
        constraint.with_values = reader.take("WITH", "VALUES")
        return constraint
    if reader.take("FOREIGN", "KEY") or reader.word() == "REFERENCES":
        return _read_foreign(reader, name, column)
    raise SqlError(102, f"Incorrect syntax near '{reader.mark()}'.", severity=15)


def _read_foreign(reader: Reader, name: str, column: str) -> ConstraintDef:
    constraint = ConstraintDef("foreign", name)
    constraint.columns = reader.columns() if reader.mark() == "(" else [(column, False)]
    reader.need("REFERENCES")
    constraint.referenced = reader.name()
    if reader.mark() == "(":
        constraint.referenced_columns = reader.names()
    while reader.take("ON"):
        is_delete = reader.take("DELETE")
        if not is_delete:
            reader.need("UPDATE")
        action = reader.identifier().lower()
        if action in ("no", "set"):
            action += f" {reader.identifier().lower()}"
        if is_delete:
            constraint.on_delete = action
        else:
            constraint.on_update = action
    reader.take("NOT", "FOR", "REPLICATION")
    return constraint


_CONSTRAINT_WORDS = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK"})


def read_items(reader: Reader) -> tuple[list[ColumnDef], list[ConstraintDef], list[IndexDef]]:
    """Read columns, constraints and indexes between commas."""
    columns: list[ColumnDef] = []
    constraints: list[ConstraintDef] = []
    indexes: list[IndexDef] = []
    while True:
        if reader.word() in _CONSTRAINT_WORDS or reader.word() == "DEFAULT":
            constraints.append(read_constraint(reader))
        elif reader.word() == "INDEX":
            indexes.append(_read_inline_index(reader))
        elif reader.take("PERIOD", "FOR", "SYSTEM_TIME"):
            reader.read_parenthesised()
        else:
            column, own = read_column(reader)
            columns.append(column)
            constraints += own
        if not reader.take(","):
            return columns, constraints, indexes


def _read_inline_index(reader: Reader) -> IndexDef:
    reader.need("INDEX")
    name = reader.identifier()
    is_unique = reader.take("UNIQUE")
    is_clustered = reader.take("CLUSTERED")
    reader.take("NONCLUSTERED")
    is_columnstore = reader.take("COLUMNSTORE")
    columns = reader.columns() if reader.mark() == "(" else []
    reader.skip_options()
    return IndexDef(name, ("", ""), columns, is_unique, is_clustered, is_columnstore=is_columnstore)


def read_index(reader: Reader) -> IndexDef:
    """Read CREATE INDEX after CREATE."""
    is_unique = reader.take("UNIQUE")
    is_clustered = reader.take("CLUSTERED")
    reader.take("NONCLUSTERED")
    is_columnstore = reader.take("COLUMNSTORE")
    reader.need("INDEX")
    name = reader.identifier()
    reader.need("ON")
    table = reader.name()
    columns = reader.columns() if reader.mark() == "(" else []
    index = IndexDef(name, table, columns, is_unique, is_clustered, is_columnstore=is_columnstore)
    if reader.take("INCLUDE"):
        index.included = reader.names()
    if reader.take("WHERE"):
        start = reader.at
        while not reader.is_done and reader.word() not in ("WITH", "ON"):
            reader.at += 1
        index.condition = reader.slice(start, reader.at)
    reader.skip_options()
    return index
