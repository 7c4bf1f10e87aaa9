"""The base of every error a user can meet.

One class per condition, defined near the code that raises it; this module holds only the base.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Retry = Literal["backoff", "operator", "never"]

# What hints say where changes are lost for good. The command line replaces FILE by the pipeline's
# file.
LOAD_AGAIN = "load everything again: penstock reset FILE --target, then penstock run FILE"
LOAD_AFRESH = f"{LOAD_AGAIN[0].upper()}{LOAD_AGAIN[1:]}"
"""What to do when a target cannot be brought on from where it is."""


class PenstockError(Exception):
    """One condition, one class: where it happened, what was expected, and what to do next.

    Messages are lowercase without a final stop and never hold secrets or row values. `code` is
    stable and documented in `docs/errors.md`; `hint` is a whole sentence that names the next
    command or SQL statement; `retry` says whether trying again by itself can help.
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
        """The error as the `--json` form of every command prints it."""
        return {"code": self.code, "error": self.message, "hint": self.hint, **self.fields}


def _rebuild(
    cls: type[PenstockError], message: str, hint: str, fields: dict[str, Any]
) -> PenstockError:
    error = cls.__new__(cls)
    PenstockError.__init__(error, message, hint=hint, **fields)
    return error
