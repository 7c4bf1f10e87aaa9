"""The workbench of a case: a session in the tool's schema, and the mined rows of what it does.

A case names the assumptions that it examines; one that it does not come to is a failure of the
case. Rows that a case mines are recorded in the format of the recorded facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from certify.cases import Case, Cases, CaseSkipped, Outcome, carry_out
from certify.records import tag
from certify_oracle.assumptions import ASSUMPTIONS
from certify_oracle.mining import Row, mine, read_scn
from certify_oracle.server import SCHEMA, Facts, Server
from penstock.codec.oracle.mined_rows import Operation
from penstock.codec.oracle.statements import Statement, scan_statement
from penstock.engines.oracle.connect import Connection, quote
from penstock.host.errors import PrivilegeMissing
from penstock.model import PenstockError

# Errors of a release or edition that lacks a feature: unknown type, option not enabled.
FEATURE_ERRORS = frozenset({902, 439, 907, 922, 3001})
CASES = Cases(ASSUMPTIONS)
case = CASES.case
CHANGES = (Operation.INSERT, Operation.DELETE, Operation.UPDATE)


class Bench:
    """Workbench of a case: sessions of the container with the tables, and mined rows."""

    def __init__(self, server: Server, facts: Facts, outcome: Outcome, stack: ExitStack) -> None:
        self.server, self.facts, self.outcome = server, facts, outcome
        self._stack = stack
        self._sequence = 0
        self.session = self.open()
        with server.open_root() as root:
            self.low = read_scn(root)

    # -- statements

    def open(self) -> Connection:
        """Open one more session; it is closed at the end of the case."""
        session = self._stack.enter_context(self.server.open())
        session.run(f"ALTER SESSION SET CURRENT_SCHEMA = {SCHEMA}")
        return session

    def run(self, *texts: str) -> None:
        """Run statements of one transaction, and commit."""
        for text in texts:
            self.session.run(text)
        self.session.commit()

    def value(self, text: str, *values: Any) -> Any:
        """Run a query; return its only value."""
        ((found,),) = self.session.execute(text, *values)
        return found

    def error_number(self, text: str, *values: Any, session: Connection | None = None) -> int:
        """Run a statement that should fail; return the error's number, 0 if it did not fail."""
        try:
            (session or self.session).run(text, *values)
        except PrivilegeMissing:
            raise
        except PenstockError as error:
            return int(error.fields.get("errno", 0)) or -1
        return 0

    def skip(self, reason: str) -> None:
        """End the case: the database lacks something."""
        raise CaseSkipped(reason)

    def table(self, name: str, columns: str, *, logs: str = "ALL", options: str = "") -> None:
        """Create a table in the tool's schema. logs: supplemental log group; empty for none."""
        self.session.run(f"CREATE TABLE {quote(SCHEMA, name)} ({columns}) {options}".rstrip())
        if logs:
            text = f"ALTER TABLE {quote(SCHEMA, name)} ADD SUPPLEMENTAL LOG DATA ({logs}) COLUMNS"
            self.session.run(text)
        with self.server.open_root() as root:
            self.low = read_scn(root)

    # -- mined rows

    def mine(self) -> list[Row]:
        """Mine and record the rows since the last table was created; return them."""
        rows = mine(self.server, self.low, SCHEMA)
        for row in rows:
            self._sequence += 1
            shown = {name: tag(value) for name, value in row.items()}
            shown["XID"] = row["XID"].hex().upper()
            shown["PXID"] = row["PXID"].hex().upper() if row["PXID"] else None
            shown["TIMESTAMP"] = row["TIMESTAMP"].isoformat()
            head = {"record": "row", "case": self.outcome.case.name, "seq": self._sequence}
            self.outcome.records.append({**head, **shown})
        return rows

    def record(self, **values: Any) -> None:
        """Add a record of something else that the server showed."""
        head = {"record": "seen", "case": self.outcome.case.name}
        self.outcome.records.append({**head, **{name: tag(one) for name, one in values.items()}})

    # -- assumptions

    def holds(self, name: str, is_true: object, seen: object = "") -> None:
        """Note whether an assumption holds. seen: what the server showed."""
        self.outcome.holds(ASSUMPTIONS[name], is_true, seen)


def codes(rows: Sequence[Row]) -> list[int]:
    """Return the operation codes of rows."""
    return [int(row["OPERATION_CODE"]) for row in rows]


def changes(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that insert, update or delete, without what undoes them."""
    return [row for row in rows if row["OPERATION_CODE"] in CHANGES and not row["ROLLBACK"]]


def join_pieces(rows: Sequence[Row]) -> list[str]:
    """Return the statements of rows, each joined from its pieces."""
    out: list[str] = []
    continues = False
    for row in rows:
        text = row["SQL_REDO"] or ""
        if continues:
            out[-1] += text
        else:
            out.append(text)
        continues = bool(row["CSF"])
    return out


def scan(text: str) -> Statement:
    """Return a statement of SQL_REDO as penstock scans it."""
    return scan_statement(text.encode())


def texts_of(statement: Statement, text: str, *, is_new: bool) -> dict[str, str]:
    """Return the texts of a statement's new or old values by column."""
    data = text.encode()
    cells = statement.new if is_new else statement.old
    return {one.name.decode(): data[one.value.start : one.value.end].decode() for one in cells}


def run_case(one: Case, server: Server, facts: Facts, *, lacks: str) -> Outcome:
    """Carry out a case. lacks: why nothing can be mined, or empty."""

    def run(outcome: Outcome) -> None:
        with ExitStack() as stack:
            one.run(Bench(server, facts, outcome, stack))

    return carry_out(one, run, lacks=lacks, feature_errors=FEATURE_ERRORS)
