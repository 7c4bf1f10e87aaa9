"""Base class of every error that a user can meet.

Each condition has one class, defined near the code that raises it; this module holds only the
base.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Retry = Literal["backoff", "operator", "never"]

# Hints for changes that are lost for good. The command line replaces FILE by the pipeline's file.
LOAD_AGAIN = "load everything again: penstock reset FILE --target, then penstock run FILE"
LOAD_AFRESH = f"{LOAD_AGAIN[0].upper()}{LOAD_AGAIN[1:]}"
"""Hint for a target that cannot continue from its present state."""


class PenstockError(Exception):
    """Base of all errors: one class per condition, with place, expectation and next command.

    Messages are lower case without a final stop and never hold secrets or row values.

    Attributes:
        code: stable and documented in `docs/errors.md`.
        hint: a whole sentence that names the next command or SQL statement.
        retry: whether an automatic retry can help.
    """

    code: ClassVar[str] = "PS00"
    retry: ClassVar[Retry] = "operator"

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields: dict[str, Any] = fields

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by state: errors cross process borders (Spark workers to the driver)."""
        return (_rebuild, (type(self), self.message, self.hint, self.fields))

    def as_dict(self) -> dict[str, Any]:
        """Return the error as the `--json` form of every command prints it."""
        return {"code": self.code, "error": self.message, "hint": self.hint, **self.fields}


def _rebuild(
    cls: type[PenstockError], message: str, hint: str, fields: dict[str, Any]
) -> PenstockError:
    error = cls.__new__(cls)
    PenstockError.__init__(error, message, hint=hint, **fields)
    return error
