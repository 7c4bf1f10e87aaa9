"""Errors of the simulated database, with Oracle's numbers and texts."""

from __future__ import annotations

TEXTS = {
    1: "unique constraint ({}) violated",
    51: "timeout occurred while waiting for a resource",
    54: "resource busy and acquire with NOWAIT specified or timeout expired",
    60: "deadlock detected while waiting for resource",
    310: "archived log contains sequence {}; sequence {} required\nORA-00334: archived log: '{}'",
    900: "invalid SQL statement",
    902: "invalid datatype",
    904: "{}: invalid identifier",
    910: "specified length too long for its datatype",
    911: "invalid character",
    913: "too many values",
    922: "missing or invalid option",
    932: "inconsistent datatypes: expected {} got {}",
    942: "table or view does not exist",
    947: "not enough values",
    955: "name is already used by an existing object",
    957: "duplicate column name",
    972: "identifier is too long",
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
    1407: "cannot update ({}) to NULL",
    1408: "such column list already indexed",
    1418: "specified index does not exist",
    1430: "column being added already exists in table",
    1438: "value larger than specified precision allowed for this column",
    1439: "column to be modified must be empty to change datatype",
    1440: "column to be modified must be empty to decrease precision or scale",
    1441: "cannot decrease column length because some value is too big",
    1442: "column to be modified to NOT NULL is already NOT NULL",
    1449: "column contains NULL values; cannot alter to NOT NULL",
    1450: "maximum key length ({}) exceeded",
    1451: "column to be modified to NULL cannot be modified to NULL",
    1452: "cannot CREATE UNIQUE INDEX; duplicate keys found",
    1456: "may not perform insert, delete, update operation inside a READ ONLY transaction",
    1466: "unable to read data - table definition has changed",
    1555: "snapshot too old: rollback segment number {} too small",
    1461: "can bind a LONG value only for insert into a LONG column",
    1722: "invalid number",
    1723: "zero-length columns are not allowed",
    1727: "numeric precision specifier is out of range (1 to 38)",
    1728: "numeric scale specifier is out of range (-84 to 127)",
    1754: "a table may contain only one column of type LONG",
    1758: "table must be empty to add mandatory (NOT NULL) column",
    1792: "maximum number of columns in a table or view is 1000",
    1861: "literal does not match format string",
    1918: "user '{}' does not exist",
    1920: "user name '{}' conflicts with another user or role name",
    1922: "CASCADE must be specified to drop '{}'",
    2091: "transaction rolled back",
    2256: "number of referencing columns must match referenced columns",
    2257: "maximum number of columns exceeded",
    2260: "table can have only one primary key",
    2261: "such unique or primary key already exists in the table",
    2264: "name already used by an existing constraint",
    2266: "unique/primary keys in table referenced by enabled foreign keys",
    2267: "column type incompatible with referenced column type",
    2268: "referenced table does not have a primary key",
    2270: "no matching unique or primary key for this column-list",
    2273: "this unique/primary key is referenced by some foreign keys",
    2290: "check constraint ({}) violated",
    2291: "integrity constraint ({}) violated - parent key not found",
    2292: "integrity constraint ({}) violated - child record found",
    2296: "cannot enable ({}.{}) - null values found",
    2298: "cannot validate ({}.{}) - parent keys not found",
    2299: "cannot validate ({}.{}) - duplicate keys found",
    2327: "cannot create index on expression with datatype {}",
    2329: "column of datatype {} cannot be unique or a primary key",
    2430: "cannot enable constraint ({}) - no such constraint",
    2431: "cannot disable constraint ({}) - no such constraint",
    2437: "cannot validate ({}.{}) - primary key violated",
    2441: "Cannot drop nonexistent primary key",
    2443: "Cannot drop constraint - nonexistent constraint",
    2449: "unique/primary keys in table referenced by foreign keys",
    4080: "trigger '{}' does not exist",
    8177: "can't serialize access for this transaction",
    8181: "specified number is not a valid system change number",
    12514: "Cannot connect to database. Service {} is not registered with the listener",
    12541: "Cannot connect. No listener at {}.",
    12899: "value too large for column {} (actual: {}, maximum: {})",
    12983: "cannot drop all columns in a table",
    12991: "column is referenced in a multi-column constraint",
    12992: "cannot drop parent key column",
    22858: "invalid alteration of datatype",
    22859: "invalid modification of columns",
    30006: "resource busy; acquire with WAIT timeout expired",
    30082: "datetime/interval column to be modified must be empty to decrease "
    "fractional second or leading field precision",
    30088: "datetime/interval precision is out of range",
    30926: "unable to get a stable set of rows in the source tables",
    32795: "cannot insert into a generated always identity column",
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
