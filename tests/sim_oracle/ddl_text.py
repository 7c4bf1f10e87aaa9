"""Texts of CREATE TABLE and ALTER TABLE as definitions."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim_oracle.errors import OraError
from sim_oracle.grammar import Token, tokenize

_ENDS = frozenset(
    [
        *("DEFAULT", "NOT", "NULL", "PRIMARY", "UNIQUE", "CONSTRAINT", "CHECK", "REFERENCES"),
        *("GENERATED", "AS", "INVISIBLE", "VISIBLE", "ENABLE", "DISABLE", "COLLATE", "DEFERRABLE"),
    ]
)
# Words that cannot be names without quotes.
RESERVED = frozenset(
    """
    ACCESS ADD ALL ALTER AND ANY AS ASC AUDIT BETWEEN BY CHAR CHECK CLUSTER COLUMN COMMENT COMPRESS
    CONNECT CREATE CURRENT DATE DECIMAL DEFAULT DELETE DESC DISTINCT DROP ELSE EXCLUSIVE EXISTS FILE
    FLOAT FOR FROM GRANT GROUP HAVING IDENTIFIED IMMEDIATE IN INCREMENT INDEX INITIAL INSERT INTEGER
    INTERSECT INTO IS LEVEL LIKE LOCK LONG MAXEXTENTS MINUS MLSLABEL MODE MODIFY NOAUDIT NOCOMPRESS
    NOT NOWAIT NULL NUMBER OF OFFLINE ON ONLINE OPTION OR ORDER PCTFREE PRIOR PUBLIC RAW RENAME
    RESOURCE REVOKE ROW ROWID ROWNUM ROWS SELECT SESSION SET SHARE SIZE SMALLINT START SUCCESSFUL
    SYNONYM SYSDATE TABLE THEN TO TRIGGER UID UNION UNIQUE UPDATE USER VALIDATE VALUES VARCHAR
    VARCHAR2 VIEW WHENEVER WHERE WITH
    """.split()  # noqa: SIM905 - one list of words
)
_TABLE_PARTS = frozenset(["CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK", "SUPPLEMENTAL"])


@dataclass(slots=True)
class ConstraintText:
    """A constraint of a definition; `columns` is empty where a column's own is meant.

    Attributes:
        kind: P, U, R or C.
        parent: Owner, which may be empty, and name of the referred table.
    """

    kind: str
    name: str | None = None
    columns: list[str] = field(default_factory=list)
    condition: str | None = None
    parent: tuple[str, str] | None = None
    parent_columns: list[str] = field(default_factory=list)
    on_delete: str = "NO ACTION"
    is_deferrable: bool = False
    is_deferred: bool = False
    is_enabled: bool = True
    is_validated: bool = True


@dataclass(slots=True)
class ColumnText:
    """A column of a definition.

    Attributes:
        type: Declaration; empty if MODIFY leaves it as it is.
        is_nullable: Whether NULL may be stored; None if it is not said.
        default: Expression; None without one.
    """

    name: str
    type: str
    is_nullable: bool | None = None
    default: str | None = None
    identity: str | None = None
    is_virtual: bool = False
    is_invisible: bool = False
    constraints: list[ConstraintText] = field(default_factory=list)


@dataclass(slots=True)
class TableText:
    """Content of the brackets of CREATE TABLE.

    Attributes:
        supplemental: ALL or PRIMARY KEY, if columns are logged; None without.
    """

    columns: list[ColumnText] = field(default_factory=list)
    constraints: list[ConstraintText] = field(default_factory=list)
    supplemental: str | None = None


class Words:
    """Tokens of a statement, read from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens: list[Token] = list(tokenize(text))
        self.at = 0

    def __bool__(self) -> bool:
        return self.at < len(self.tokens)

    def peek(self, ahead: int = 0) -> str:
        """Return a token in upper case, or an empty text after the last."""
        place = self.at + ahead
        return self.tokens[place].text.upper() if place < len(self.tokens) else ""

    def accept(self, *words: str) -> bool:
        """Skip these words if they are next; return whether they were."""
        if all(self.peek(number) == word for number, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def expect(self, *words: str) -> None:
        """Skip these words; raises OraError 922 if they are not next."""
        if not self.accept(*words):
            raise OraError(922, text=f"missing or invalid option near {self.peek()!r}")

    def take(self) -> Token:
        """Return the next token."""
        if not self:
            raise OraError(900, text="the statement ends early")
        self.at += 1
        return self.tokens[self.at - 1]

    def name(self) -> str:
        """Return a name, in upper case without quotes."""
        token = self.take()
        if token.kind == "name":
            return token.text[1:-1]
        if token.kind != "word":
            raise OraError(903, text="invalid table or column name")
        if token.text.upper() in RESERVED:
            raise OraError(904, token.text.upper())
        return token.text.upper()

    def full_name(self) -> tuple[str, str]:
        """Return owner, which may be empty, and name."""
        first = self.name()
        return (first, self.name()) if self.accept(".") else ("", first)

    def names(self) -> list[str]:
        """Return the names in brackets."""
        self.expect("(")
        out = [self.name()]
        while self.accept(","):
            out.append(self.name())
        self.expect(")")
        return out

    def brackets(self) -> str:
        """Return the text in brackets, without the outer ones."""
        self.expect("(")
        out: list[str] = []
        depth = 1
        while True:
            text = self.take().text
            depth += {"(": 1, ")": -1}.get(text, 0)
            if not depth:
                return " ".join(out).replace("- ", "-")
            out.append(text)

    def expression(self, ends: frozenset[str]) -> str:
        """Return the text up to a word, a comma or a bracket of the outer level."""
        out: list[str] = []
        while self and self.peek() not in ends and self.peek() not in (",", ")"):
            out.append("(" + self.brackets() + ")" if self.peek() == "(" else self.take().text)
        return " ".join(out)


def read_table(words: Words) -> TableText:
    """Return the definitions in the brackets that are next."""
    table = TableText()
    words.expect("(")
    while True:
        if words.tokens[words.at].kind == "word" and words.peek() in _TABLE_PARTS:
            read_part(words, table)
        else:
            table.columns.append(read_column(words))
        if not words.accept(","):
            break
    words.expect(")")
    return table


def read_part(words: Words, table: TableText) -> None:
    """Read a constraint of the table, or its supplemental log group."""
    if words.accept("SUPPLEMENTAL", "LOG", "DATA"):
        table.supplemental = read_supplemental(words)
    else:
        table.constraints.append(read_constraint(words))


def read_supplemental(words: Words) -> str:
    """Return the kind of a supplemental log group: its text after DATA."""
    kind = words.brackets().upper()
    words.expect("COLUMNS")
    if kind not in ("ALL", "PRIMARY KEY"):
        raise OraError(900, text=f"the simulator does not know the log group {kind}")
    return kind


def read_constraint(words: Words) -> ConstraintText:
    """Return a constraint of a table."""
    name = words.name() if words.accept("CONSTRAINT") else None
    if words.accept("PRIMARY", "KEY"):
        out = ConstraintText("P", name, words.names())
    elif words.accept("UNIQUE"):
        out = ConstraintText("U", name, words.names())
    elif words.accept("FOREIGN", "KEY"):
        out = ConstraintText("R", name, words.names())
        words.expect("REFERENCES")
        _read_reference(words, out)
    else:
        words.expect("CHECK")
        out = ConstraintText("C", name, condition=words.brackets())
    _read_state(words, out)
    return out


def _read_reference(words: Words, out: ConstraintText) -> None:
    out.parent = words.full_name()
    if words.peek() == "(":
        out.parent_columns = words.names()
    if words.accept("ON", "DELETE"):
        out.on_delete = "CASCADE" if words.accept("CASCADE") else "SET NULL"
        if out.on_delete == "SET NULL":
            words.expect("SET", "NULL")


def _read_state(words: Words, out: ConstraintText) -> None:  # noqa: C901 - one case per word
    while True:
        if words.accept("NOT", "DEFERRABLE"):
            out.is_deferrable = False
        elif words.accept("DEFERRABLE"):
            out.is_deferrable = True
        elif words.accept("INITIALLY", "DEFERRED"):
            out.is_deferred = out.is_deferrable = True
        elif words.accept("INITIALLY", "IMMEDIATE"):
            out.is_deferred = False
        elif words.accept("ENABLE"):
            out.is_enabled = True
        elif words.accept("DISABLE"):
            out.is_enabled = out.is_validated = False
        elif words.accept("NOVALIDATE"):
            out.is_validated = False
        elif words.accept("VALIDATE"):
            out.is_validated = True
        elif words.accept("USING", "INDEX"):
            if words.peek() not in (",", ")", "ENABLE", "DISABLE", ""):
                words.brackets() if words.peek() == "(" else words.take()
        elif not words.accept("RELY") and not words.accept("NORELY"):
            return


def read_column(words: Words) -> ColumnText:
    """Return a column with its constraints."""
    name = words.name()
    parts: list[str] = []
    while words and words.peek() not in _ENDS and words.peek() not in (",", ")"):
        if words.peek() == "(":
            parts.append("(" + words.brackets() + ")")
        else:
            parts.append(words.take().text)
    column = ColumnText(name, " ".join(parts).replace(" (", "("))
    while words and words.peek() not in (",", ")"):
        _read_option(words, column)
    return column


def _read_option(words: Words, column: ColumnText) -> None:
    name = words.name() if words.accept("CONSTRAINT") else None
    if words.accept("NOT", "NULL"):
        column.is_nullable = False
        _read_state(words, ConstraintText("C"))
    elif words.accept("NULL"):
        column.is_nullable = True
    elif words.accept("DEFAULT"):
        is_on_null = words.accept("ON", "NULL")
        column.default = "NULL" if words.accept("NULL") else words.expression(_ENDS)
        column.is_nullable = False if is_on_null else column.is_nullable
    elif words.accept("GENERATED") or words.peek() == "AS":
        _read_generated(words, column)
    elif words.accept("PRIMARY", "KEY"):
        column.constraints.append(ConstraintText("P", name, [column.name]))
        _read_state(words, column.constraints[-1])
    elif words.accept("UNIQUE"):
        column.constraints.append(ConstraintText("U", name, [column.name]))
        _read_state(words, column.constraints[-1])
    elif words.accept("CHECK"):
        column.constraints.append(ConstraintText("C", name, condition=words.brackets()))
        _read_state(words, column.constraints[-1])
    elif words.accept("REFERENCES"):
        column.constraints.append(ConstraintText("R", name, [column.name]))
        _read_reference(words, column.constraints[-1])
        _read_state(words, column.constraints[-1])
    elif words.accept("COLLATE"):
        words.name()
    elif words.accept("INVISIBLE"):
        column.is_invisible = True
    elif not words.accept("VISIBLE"):
        raise OraError(907, text=f"missing right parenthesis near {words.peek()!r}")


def _read_generated(words: Words, column: ColumnText) -> None:
    kind = "ALWAYS"
    if words.accept("BY", "DEFAULT"):
        kind = "BY DEFAULT ON NULL" if words.accept("ON", "NULL") else "BY DEFAULT"
    else:
        words.accept("ALWAYS")
    words.expect("AS")
    if words.accept("IDENTITY"):
        column.identity, column.is_nullable = kind, False
        if words.peek() == "(":
            words.brackets()
        return
    column.default, column.is_virtual = words.brackets(), True
    words.accept("VIRTUAL")
