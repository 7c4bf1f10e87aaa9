"""Exceptions of the fake driver, as python-oracledb has them in thin mode."""

from __future__ import annotations

from typing import Any, NoReturn

from sim_oracle.errors import OraError


class Warning(Exception):
    """Important warnings."""


class Error(Exception):
    """Base class of all other exceptions."""


class DatabaseError(Error):
    """Errors of the database, and DPY-4000 to DPY-4999."""


class DataError(DatabaseError):
    """Problems with the data."""


class IntegrityError(DatabaseError):
    """Violated constraints."""


class InterfaceError(Error):
    """Errors of the interface, DPY-1000 to DPY-1999."""


class InternalError(DatabaseError):
    """Internal errors, DPY-5000 to DPY-5999."""


class NotSupportedError(DatabaseError):
    """Features that thin mode lacks, DPY-3000 to DPY-3999."""


class OperationalError(DatabaseError):
    """Errors of operation, DPY-6000 to DPY-6999."""


class ProgrammingError(DatabaseError):
    """Errors of the program, DPY-2000 to DPY-2999."""


# Codes after which the driver says DPY-4011 and the session is dead.
CLOSING = frozenset(
    (
        *(22, 28, 31, 45, 378, 600, 602, 603, 609, 1012, 1041, 1043, 1089, 1092, 2396, 3113),
        *(3114, 3122, 3135, 12153, 12537, 12547, 12570, 12583, 27146, 28511, 56600),
    )
)
RECOVERABLE = frozenset([376, 1033, 1034, 1090, 1115, 12514, 12571, 12757, 16456])
INTEGRITY = frozenset([1, 1400, 1438, 2290, 2291, 2292, 21525, 40479])
OPERATIONAL = frozenset(
    (
        *(22, 378, 600, 602, 603, 604, 609, 1012, 1013, 1033, 1034, 1041, 1043, 1089, 1090),
        *(1092, 3111, 3113, 3114, 3122, 3135, 12153, 12203, 12500, 12571, 27146, 28511),
    )
)
TEXTS = {
    1001: "not connected to database",
    1003: "the executed statement does not return rows",
    1006: "cursor is not open",
    2001: "no statement specified and no prior statement prepared",
    2003: "expecting a dictionary, list or tuple, or keyword args",
    2004: '"parameters" argument should be a list of sequences or dictionaries, or an integer '
    "specifying the number of times to execute the statement, or an object implementing the "
    "Apache Arrow PyCapsule interface",
    2006: "positional and named binds cannot be intermixed",
    1004: "no statement executed",
    2067: "expecting a list or an object implementing the Apache Arrow PyCapsule interface "
    "__arrow_c_stream__()",
    3002: 'Python value of type "{}" is not supported',
    3013: "unsupported Python type {} for database type {}",
    3032: 'conversion from Apache Arrow format "{}" to Oracle Database is not supported',
    3042: "conversion from Arrow interval containing months to Oracle Database interval days to "
    "seconds data type is not supported",
    3030: "conversion from Oracle Database type {} to Apache Arrow format is not supported",
    4000: "{}",
    4004: "invalid number",
    4008: 'no bind placeholder named ":{}" was found in the SQL text',
    4009: "{} positional bind values are required but {} were provided",
    4010: 'a bind variable replacement value for placeholder ":{}" was not provided',
    4011: "the database or network closed the connection",
    4024: "call timeout of {} ms exceeded",
    6001: 'Service "{}" is not registered with the listener',
    6005: "cannot connect to database (CONNECTION_ID={})",
    8001: 'value for column "{}" may not be null on row {}',
}
_CLASSES: dict[int, type[Exception]] = {
    1: InterfaceError,
    2: ProgrammingError,
    3: NotSupportedError,
    4: DatabaseError,
    5: InternalError,
    6: OperationalError,
    8: DataError,
}


class ErrorDetails:
    """Details of an error: the only argument of an exception.

    Attributes:
        code: Number of an ORA error; 0 of the driver's own errors.
        full_code: ORA-01234 or DPY-1234.
        offset: Place in the statement, or row of an array.
        isrecoverable: Whether the same work can succeed on a new connection.
        is_session_dead: Whether the connection can no longer be used.
    """

    def __init__(self, message: str, code: int = 0, offset: int = 0) -> None:
        self.message = message
        self.code = code
        self.offset = offset
        self.context: str | None = None
        self.iswarning = False
        self.full_code = message.partition(":")[0]
        self.isrecoverable = code in RECOVERABLE
        self.is_session_dead = False
        self.exc_type: type[Exception] = DatabaseError
        if code in CLOSING:
            self.message = f"DPY-4011: {TEXTS[4011]}\n{message}"
            self.full_code = "DPY-4011"
            self.isrecoverable = self.is_session_dead = True
        elif code in INTEGRITY:
            self.exc_type = IntegrityError
        elif code in OPERATIONAL:
            self.exc_type = OperationalError
        elif self.full_code.startswith("DPY-"):
            self.exc_type = _CLASSES[int(self.full_code[4:]) // 1000]

    def __str__(self) -> str:
        return self.message


def raise_driver(number: int, *values: Any) -> NoReturn:
    """Raise an error of the driver itself."""
    details = ErrorDetails(f"DPY-{number:04}: {TEXTS[number].format(*values)}")
    raise details.exc_type(details)


def details_of(error: OraError, offset: int = 0) -> ErrorDetails:
    """Return the details of a database error."""
    message = str(error)
    if error.code not in CLOSING:
        message += f"\nHelp: https://docs.oracle.com/error-help/db/ora-{error.code:05}/"
    return ErrorDetails(message, error.code, offset)


def raise_database(error: OraError) -> NoReturn:
    """Raise an error of the database as the driver's exception."""
    details = details_of(error)
    raise details.exc_type(details) from error
