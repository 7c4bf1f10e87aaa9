"""Replace Ignite's dates in values by Python's, for consumers with keepBinary = false. Pure."""

from __future__ import annotations

from typing import Any

from penstock.codec.ignite.values import BinaryObject, Date, JavaList, JavaMap, Timestamp

NANOS_PER_MICROSECOND = 1000


def with_plain_dates(value: Any) -> Any:
    """Return a value with all its dates and timestamps, nested ones too, as datetime in UTC.

    A date outside the years 1 to 9999 and a timestamp with parts of a microsecond stay unchanged,
    because Python cannot hold them.
    """
    return _plain(value, {})


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """Return the plain value. known: results by id(value), because objects may contain
    themselves.
    """
    if isinstance(value, Date | Timestamp):
        return _moment(value)
    if not isinstance(value, BinaryObject | JavaMap | list):
        return value
    found = known.get(id(value))
    if found is not None:
        return found
    if isinstance(value, BinaryObject):
        fields: dict[str, Any] = {}
        known[id(value)] = found = value.with_fields(fields)
        fields.update({name: _plain(one, known) for name, one in value.fields.items()})
    elif isinstance(value, JavaMap):
        known[id(value)] = found = JavaMap(value.kind, [])
        found.pairs += [(_plain(key, known), _plain(one, known)) for key, one in value.pairs]
    else:
        known[id(value)] = found = _empty_like(value)
        found += [_plain(one, known) for one in value]
    return found


def _empty_like(value: list[Any]) -> list[Any]:
    if not isinstance(value, JavaList):
        return []
    found = JavaList()
    found.kind = value.kind
    return found


def _moment(value: Date | Timestamp) -> Any:
    if isinstance(value, Timestamp) and value.nanos % NANOS_PER_MICROSECOND:
        return value
    try:
        return value.datetime
    except OverflowError:
        return value
