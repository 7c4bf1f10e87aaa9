"""Errors of the simulated database, with Oracle's numbers and texts."""

from __future__ import annotations

TEXTS = {
    1: "unique constraint ({}) violated",
    54: "resource busy and acquire with NOWAIT specified or timeout expired",
    60: "deadlock detected while waiting for resource",
    310: "archived log contains sequence {}; sequence {} required\nORA-00334: archived log: '{}'",
    900: "invalid SQL statement",
    904: "{}: invalid identifier",
    942: "table or view does not exist",
    1008: "not all variables bound",
    1013: "user requested cancel of current operation",
    1017: "invalid username/password; logon denied",
    1031: "insufficient privileges",
    1086: "savepoint '{}' never established in this session or is invalid",
    1281: "SCN range specified is invalid",
    1284: "file {} cannot be opened",
    1289: "cannot add duplicate logfile {}",
    1291: "missing log file",
    1292: "no log file has been specified for the current LogMiner session",
    1306: "dbms_logmnr.start_logmnr() must be invoked before selecting from v$logmnr_contents",
    1307: "no LogMiner session is currently active",
    1347: "Supplemental log data no longer found",
    1368: "redo log {} was recycled after it was added",
    1371: "Complete LogMiner dictionary not found",
    1400: "cannot insert NULL into ({})",
    1438: "value larger than specified precision allowed for this column",
    1466: "unable to read data - table definition has changed",
    1555: "snapshot too old: rollback segment number {} too small",
    8181: "specified number is not a valid system change number",
    12514: "Cannot connect to database. Service {} is not registered with the listener",
    12541: "Cannot connect. No listener at {}.",
    12899: "value too large for column {} (actual: {}, maximum: {})",
    30926: "unable to get a stable set of rows in the source tables",
    38104: "Columns referenced in the ON Clause cannot be updated: {}",
    44609: "CONTINOUS_MINE is desupported for use with DBMS_LOGMNR.START_LOGMNR",
    65011: "Pluggable database {} does not exist.",
    65040: "operation not allowed from within a pluggable database",
}


class OraError(Exception):
    """An error of the database.

    Attributes:
        code: Number after ORA-.
        text: Message without the prefix.
    """

    def __init__(self, code: int, *values: object, text: str | None = None) -> None:
        self.code = code
        self.text = (text or TEXTS.get(code, "error of the simulator")).format(*values)
        super().__init__(f"ORA-{code:05}: {self.text}")


class UnknownText(Exception):
    """A statement that the table of known statements does not have: a defect of the client."""


class Blocked(Exception):
    """A change that would wait for another transaction of the model."""


class ModelMisuse(Exception):
    """A call that no database would have: a defect of the test."""
