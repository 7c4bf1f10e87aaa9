"""A scripted case: its set-up, its statements, and what the server then shows.

A case names the assumptions that it examines; one that it does not come to is a failure of the
case. Rows that a case reads are recorded in the format of the recorded facts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from certify.cases import Case, Cases, CaseSkipped, Outcome, carry_out
from certify.records import Row, tag_row
from certify_sqlserver.assumptions import ASSUMPTIONS
from certify_sqlserver.records import row_record
from certify_sqlserver.server import DATABASE, CaptureSilent, Facts, Server
from penstock.engines.sqlserver.connect import Connection, literal, quote
from penstock.engines.sqlserver.source.instances import enable_text
from penstock.host.errors import PrivilegeMissing
from penstock.model import PenstockError

CAPTURE_WAIT_S = 90.0
LOOK_S = 0.1
FENCE = "certify_fence"
# Without it the driver returns after the first statement of a batch, and may cancel the others.
NO_COUNT = "SET NOCOUNT ON"
ORDER = "[__$start_lsn], [__$command_id], [__$seqval], [__$operation]"
# Errors of a server that lacks a feature: edition, Azure's smaller tiers, no Agent.
FEATURE_ERRORS = frozenset({22988, 40510, 40508, 9100, 22043, 35309, 35311})


CASES = Cases(ASSUMPTIONS)
case = CASES.case


class Bench:
    """Workbench of a case: sessions of the database, and its change tables."""

    def __init__(self, server: Server, facts: Facts, outcome: Outcome, stack: ExitStack) -> None:
        self.server, self.facts = server, facts
        self.outcome = outcome
        self._stack = stack
        self._sequence = 0
        self._recorded: set[str] = set()
        self.session = self.open()

    # -- statements

    def open(self) -> Connection:
        """Open one more session of the database; it is closed at the end of the case."""
        session = self._stack.enter_context(self.server.open(DATABASE))
        session.run(NO_COUNT)
        return session

    def sql(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the first result."""
        return self.session.execute(text, *parameters)

    def value(self, text: str, *parameters: Any) -> Any:
        """Run a query; return its only value."""
        ((found,),) = self.sql(text, *parameters)
        return found

    def error_number(self, text: str, *parameters: Any, session: Connection | None = None) -> int:
        """Run a statement that should fail; return the error's number, 0 if it did not fail."""
        try:
            (session or self.session).execute(text, *parameters)
        except PrivilegeMissing:
            raise
        except PenstockError as error:
            return int(error.fields.get("errno", 0)) or -1
        return 0

    def skip(self, reason: str) -> None:
        """End the case: the server lacks something."""
        raise CaseSkipped(reason)

    # -- tables

    def table(self, name: str, columns: str, *, is_captured: bool = True) -> None:
        """Create a table in dbo, and capture it."""
        self.sql(f"CREATE TABLE dbo.{quote(name)} ({columns})")
        if is_captured:
            self.capture(name)

    def capture(self, table: str, instance: str = "", *, role: str = "") -> None:
        """Create a capture instance, as penstock's documentation says."""
        text = enable_text("dbo", table, instance=instance)
        self.sql(
            text.replace("@role_name = NULL", f"@role_name = {literal(role)}") if role else text
        )

    def columns(self, instance: str) -> list[str]:
        """Return the captured columns of an instance, by ordinal."""
        rows = self.sql(
            "SELECT cc.column_name FROM cdc.captured_columns AS cc JOIN cdc.change_tables AS ct "
            "ON ct.object_id = cc.object_id WHERE ct.capture_instance = ? "
            "ORDER BY cc.column_ordinal",
            instance,
        )
        return [str(name) for (name,) in rows]

    # -- changes

    def wait_captured(self) -> None:
        """Wait until everything that is committed is in the change tables."""
        self.sql(f"INSERT INTO dbo.{FENCE} DEFAULT VALUES")
        mark = self.value(f"SELECT MAX(id) FROM dbo.{FENCE}")
        until = time.monotonic() + CAPTURE_WAIT_S
        while not self.sql(f"SELECT id FROM cdc.dbo_{FENCE}_CT WHERE id = ?", mark):
            if time.monotonic() > until:
                raise CaptureSilent(
                    f"nothing was captured within {CAPTURE_WAIT_S:.0f} seconds",
                    hint="See that SQL Server Agent and the capture job run: "
                    "EXEC sys.sp_cdc_help_jobs;",
                )
            time.sleep(LOOK_S)

    def changes(self, table: str, *, instance: str = "") -> list[Row]:
        """Wait for capture; return and record the rows of a change table, in our order."""
        self.wait_captured()
        return self.read_changes(instance or f"dbo_{table}")

    def read_changes(self, instance: str) -> list[Row]:
        """Return and record the rows of a change table as they are now, in our order."""
        names, listed = self.session.columns(
            f"SELECT * FROM cdc.{quote(f'{instance}_CT')} ORDER BY {ORDER}"
        )
        rows = [dict(zip(names, one, strict=True)) for one in listed]
        columns = self.columns(instance)
        if instance not in self._recorded:
            self._recorded.add(instance)
            self._record_instance(instance, columns)
        for row in rows:
            self._sequence += 1
            name = self.outcome.case.name
            self.outcome.records.append(row_record(name, self._sequence, instance, row, columns))
        return rows

    def _record_instance(self, instance: str, columns: Sequence[str]) -> None:
        found = self.sql(
            "SELECT start_lsn, supports_net_changes FROM cdc.change_tables "
            "WHERE capture_instance = ?",
            instance,
        )
        self.record(
            "capture_instance",
            capture_instance=instance,
            start_lsn=found[0][0],
            supports_net_changes=bool(found[0][1]),
            captured_columns=list(columns),
        )

    def record_times(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Return and record the rows of cdc.lsn_time_mapping of changes."""
        found = []
        for lsn in sorted({row["__$start_lsn"] for row in rows}):
            for times in self.sql(
                "SELECT start_lsn, tran_begin_time, tran_end_time, tran_id "
                "FROM cdc.lsn_time_mapping WHERE start_lsn = CAST(? AS binary(10))",
                lsn,
            ):
                names = ("start_lsn", "tran_begin_time", "tran_end_time", "tran_id")
                self.record("lsn_time_mapping", **dict(zip(names, times, strict=True)))
                found.append(times)
        return found

    def record(self, kind: str, **values: Any) -> None:
        """Add a record of another kind."""
        head = {"record": kind, "case": self.outcome.case.name}
        self.outcome.records.append({**head, **tag_row(values)})

    # -- assumptions

    def holds(self, name: str, is_true: object, seen: object = "") -> None:
        """Note whether an assumption holds. seen: what the server showed."""
        self.outcome.holds(ASSUMPTIONS[name], is_true, seen)

    def holds_replay(self, rows: Sequence[Row], table: str, key: Sequence[str] = ("id",)) -> None:
        """Note whether rows applied in our order give the table's rows. Columns are not large."""
        names, listed = self.session.columns(f"SELECT * FROM dbo.{quote(table)}")
        wanted = {
            tuple(row[name] for name in key): row
            for row in (dict(zip(names, one, strict=True)) for one in listed)
        }
        made: dict[tuple[Any, ...], Row] = {}
        wrong = ""
        for row in rows:
            place = tuple(row[name] for name in key)
            if row["__$operation"] in (1, 3):
                if made.pop(place, None) is None:
                    wrong = f"operation {row['__$operation']} on a missing key {place}"
            elif place in made:
                wrong = f"operation {row['__$operation']} on an existing key {place}"
            else:
                made[place] = {name: row[name] for name in names}
        self.holds("replay", made == wanted and not wrong, wrong or f"{made} and not {wanted}")


def operations(rows: Sequence[Row]) -> list[int]:
    """Return the operations of change rows."""
    return [int(row["__$operation"]) for row in rows]


def run_case(one: Case, server: Server, facts: Facts, *, lacks: str) -> Outcome:
    """Carry out a case. lacks: why nothing can be captured, or empty."""

    def run(outcome: Outcome) -> None:
        with ExitStack() as stack:
            one.run(Bench(server, facts, outcome, stack))

    return carry_out(one, run, lacks=lacks, feature_errors=FEATURE_ERRORS)
