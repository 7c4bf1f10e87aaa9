"""LOBs and binds of the fake driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sim_oracle.cells import Lob
from sim_oracle.driver_binds import check_columns, rows_of_frame, to_bind
from sim_oracle.driver_errors import raise_driver
from sim_oracle.driver_types import LOB_TYPES, DbType
from sim_oracle.grammar import bind_names, tokenize
from sim_oracle.session import Server


class LOB:
    """A LOB, whose value is read in further round trips."""

    def __init__(self, connection: Any, value: Lob) -> None:
        self._connection = connection
        self._value = value
        self._is_open = False

    def __str__(self) -> str:
        data = self._value.data
        return data if isinstance(data, str) else data.decode()

    @property
    def type(self) -> DbType:
        """Return the LOB's type."""
        return LOB_TYPES[self._value.kind]

    def _data(self) -> str | bytes:
        self._connection._check()
        return self._value.data

    def read(self, offset: int = 1, amount: int | None = None) -> str | bytes:
        """Return a part of the value; offsets begin at 1."""
        data = self._data()
        end = None if amount is None else offset - 1 + amount
        return data[offset - 1 : end]

    def size(self) -> int:
        """Return the length in characters or bytes; characters beyond 16 bits count twice."""
        data = self._data()
        return len(data) if isinstance(data, bytes) else len(data.encode("utf-16-le")) // 2

    def getchunksize(self) -> int:
        """Return the size of a chunk."""
        return 8132

    def write(self, data: str | bytes, offset: int = 1) -> None:
        """Write a part of the value."""
        old = self._data()
        if isinstance(old, str) and isinstance(data, str):
            new: str | bytes = old[: offset - 1] + data + old[offset - 1 + len(data) :]
        else:
            assert isinstance(old, bytes)
            assert isinstance(data, bytes)
            new = old[: offset - 1] + data + old[offset - 1 + len(data) :]
        self._value = Lob(self._value.kind, new)

    def trim(
        self,
        new_size: int = 0,
        *,
        newSize: int | None = None,  # noqa: N803 - the driver's name
    ) -> None:
        """Cut the value."""
        size = new_size if newSize is None else newSize
        self._value = Lob(self._value.kind, self._data()[:size])

    def open(self) -> None:
        """Open the LOB."""
        self._is_open = True

    def isopen(self) -> bool:
        """Return whether the LOB is open."""
        return self._is_open

    def close(self) -> None:
        """Close the LOB."""
        self._is_open = False


def match_binds(text: str, parameters: Any, sizes: Any = None) -> dict[str, Any]:
    """Return values by name in upper case; raises the driver's errors.

    Args:
        text: Statement.
        parameters: Values by place or by name.
        sizes: Types of setinputsizes(), by place or by name.
    """
    names = bind_names(text)
    if parameters is None:
        parameters = {}
    if isinstance(parameters, dict):
        values = {str(name).lstrip(":").upper(): value for name, value in parameters.items()}
        for name in values:
            if name not in names:
                raise_driver(4008, name)
        for name in names:
            if name not in values:
                raise_driver(4010, name)
    elif isinstance(parameters, list | tuple):
        places = names
        if not text.lstrip()[:7].upper().startswith(("BEGIN", "DECLARE", "CALL")):
            # In SQL each placeholder needs its own value, in PL/SQL each name.
            places = [token.text[1:].upper() for token in tokenize(text) if token.kind == "bind"]
        if len(places) != len(parameters):
            if not parameters:
                raise_driver(4010, names[0])
            raise_driver(4009, len(places), len(parameters))
        values = dict(zip(places, parameters, strict=True))
    else:
        raise_driver(2003)
    kinds = _kinds_of(text, sizes)
    return {name: bind_of(value, kinds.get(name)) for name, value in values.items()}


def _kinds_of(text: str, sizes: Any) -> dict[str, Any]:
    if not sizes:
        return {}
    if isinstance(sizes, dict):
        return {str(name).upper(): kind for name, kind in sizes.items()}
    places = [token.text[1:].upper() for token in tokenize(text) if token.kind == "bind"]
    return dict(zip(places, sizes, strict=False))


def bind_frame_row(text: str, row: Sequence[Any]) -> dict[str, Any]:
    """Return values by name of a row whose values are bound by place."""
    places = [token.text[1:].upper() for token in tokenize(text) if token.kind == "bind"]
    if len(places) != len(row):
        raise_driver(4009, len(places), len(row))
    return dict(zip(places, row, strict=True))


def bind_of(value: Any, kind: Any = None) -> Any:
    """Return what the server gets for a value of a type that setinputsizes() chose."""
    if not isinstance(value, LOB):
        return to_bind(value, str(kind) if isinstance(kind, DbType) else "")
    value.size()  # the connection has to be open
    return value._value


def call_text(name: str, plain: Sequence[Any], named: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the block that calls a procedure, and its binds."""
    listed = [f":{number}" for number in range(1, len(plain) + 1)]
    listed += [f"{key} => :{key}" for key in named]
    binds = {str(number): value for number, value in enumerate(plain, 1)}
    binds |= {key.upper(): value for key, value in named.items()}
    return f"BEGIN {name}({', '.join(listed)}); END;", binds


def rows_to_run(parameters: Any, sizes: Any = None) -> Iterable[Any]:
    """Return the rows for which executemany() runs its statement."""
    if isinstance(parameters, int):
        return [()] * parameters
    if hasattr(parameters, "__arrow_c_stream__"):
        return rows_of_frame(parameters)
    if isinstance(parameters, list):
        for row in parameters:
            if not isinstance(row, list | tuple | dict):
                raise_driver(2004)
        if not sizes:
            check_columns(parameters)
        return parameters
    raise_driver(2004)


def delay_of(server: Server, text: str) -> int:
    """Return how many milliseconds a statement takes."""
    return sum(ms for like, ms in server.delays.items() if like.upper() in text.upper())
