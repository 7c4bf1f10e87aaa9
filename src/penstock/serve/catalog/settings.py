"""Settings: their names, present values, and the values that a client may set.

Settings of a client have their default and are remembered. Settings of a server are answered only
if this server has them; the rest is refused, because any answer would be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.whole_number import parse_whole
from penstock.serve.catalog.functions import Context
from penstock.serve.catalog.types import json_of
from penstock.serve.settings import YUGABYTE

REPORTED = (
    *("server_version", "server_encoding", "client_encoding", "application_name"),
    *("is_superuser", "session_authorization", "DateStyle", "IntervalStyle", "TimeZone"),
    *("integer_datetimes", "standard_conforming_strings", "default_transaction_read_only"),
    "in_hot_standby",
)
_HELD = {
    "wal_level": "logical",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "integer_datetimes": "on",
    "is_superuser": "off",
    "in_hot_standby": "off",
    "data_directory_mode": "0700",
    "max_identifier_length": "63",
    "block_size": "8192",
    "wal_block_size": "8192",
    "wal_segment_size": "16777216",
    "lc_collate": "C",
    "lc_ctype": "C",
    "lc_messages": "C",
    "ssl_library": "OpenSSL",
    "max_index_keys": "32",
    "max_function_args": "100",
    "default_transaction_read_only": "off",
    "transaction_deferrable": "off",
}
_FIXED_FORM = {
    "client_encoding": ("utf8", "utf-8", "unicode", "'utf8'"),
    "standard_conforming_strings": ("on", "true", "1", "yes"),
}
_OF_DIALECT = {YUGABYTE: {"yb_read_time": "0"}}
_TIME_UNITS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {"B": 1, "kB": 2**10, "8kB": 2**13, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_NUMBER = re.compile(r"(-?[0-9.]+)\s*([a-zA-Z]*)")


def _unknown(name: str) -> Refused:
    return Refused("42704", f'unrecognized configuration parameter "{name}"')


def current(context: Context, name: str, *, raw: bool = False) -> str:
    """Return a setting's value, as SHOW prints it. Raises Refused: 42704, 0A000.

    Args:
        context: the context.
        name: the setting.
        raw: return it as pg_settings has it, in the setting's unit.
    """
    key = name.lower()
    session = context.session
    fact = context.facts.settings.get(key)
    if key in session.settings:
        value = session.settings[key]
    elif (computed := _compute(context, key)) is not None:
        value = computed
    elif key in context.held:
        value = context.held[key]
    elif key in _HELD:
        value = _HELD[key]
    elif key in (of_dialect := _OF_DIALECT.get(context.dialect, {})):
        value = of_dialect[key]
    elif fact is None:
        raise _unknown(name)
    elif fact[6] in ("user", "superuser", "superuser-backend", "backend"):
        value = str(fact[1] or "")
    else:
        raise Refused("0A000", f'this server has no "{name}" of its own')
    return value if raw or fact is None else _show(fact, value)


def _compute(context: Context, key: str) -> str | None:
    session, facts = context.session, context.facts
    transaction = {"transaction_read_only": session.read_only}
    if key in transaction:
        return "on" if transaction[key] else "off"
    return {
        "server_version": facts.server_version,
        "server_version_num": str(facts.version_number),
        "session_authorization": session.user,
        "role": "none",
        "transaction_isolation": session.settings.get(
            "transaction_isolation", session.settings.get("default_transaction_isolation", "")
        )
        or "read committed",
    }.get(key)


def _show(fact: tuple[Any, ...], value: str) -> str:
    """Return a number of a setting with the largest unit that fits."""
    unit = fact[2]
    units = _TIME_UNITS if unit in _TIME_UNITS else _SIZE_UNITS
    if unit not in units or not re.fullmatch(r"\d+", value) or value == "0":
        return value
    number = parse_whole(value)
    if number is None:
        return value
    amount = number * units[unit]
    for name, size in reversed(units.items()):
        if name != "8kB" and amount % size == 0:
            return f"{amount // size}{name}"
    return f"{value}{unit}"


def set_value(context: Context, name: str, value: str | None, *, local: bool = False) -> str:
    """Set a setting for the session, None for its default; return its value then.

    Raises Refused: 42704, 22023, 42501, 55P02, 0A000.

    Args:
        context: the context.
        name: the setting.
        value: the value.
        local: until the transaction ends.
    """
    key, session = name.lower(), context.session
    fact = context.facts.settings.get(key)
    known = "." in key or key in _OF_DIALECT.get(context.dialect, {})
    if fact is None and not known and key != "session_authorization":
        raise _unknown(name)
    if fact is not None:
        _may_change(fact, key)
    if session.transaction != "I" and key not in session.local_before:
        session.local_before[key] = session.settings.get(key)
    if value is None:
        session.settings.pop(key, None)
    else:
        session.settings[key] = value if fact is None else _check(fact, key, value)
    if local:
        session.local_keys.add(key)
    else:
        session.local_keys.discard(key)
    now = current(context, key)
    report(context, key)
    return now


def report(context: Context, key: str) -> None:
    """Tell the client of a setting if it wants to know it."""
    for shown in REPORTED:
        if shown.lower() == key:
            context.reports[shown] = current(context, key)


def _may_change(fact: tuple[Any, ...], key: str) -> None:
    kind = fact[6]
    if kind == "user" or key in ("application_name",):
        return
    if kind in ("superuser", "superuser-backend"):
        raise Refused("42501", f'permission denied to set parameter "{fact[0]}"')
    if kind == "internal":
        raise Refused("55P02", f'parameter "{fact[0]}" cannot be changed')
    raise Refused("55P02", f'parameter "{fact[0]}" cannot be changed now')


def _check(fact: tuple[Any, ...], key: str, value: str) -> str:
    name, kind = fact[0], fact[7]
    invalid = Refused("22023", f'invalid value for parameter "{name}": "{value}"')
    if key in _FIXED_FORM:
        if value.lower() not in _FIXED_FORM[key]:
            raise Refused("0A000", f'"{name}" can only be {_FIXED_FORM[key][0]} on this server')
        return "UTF8" if key == "client_encoding" else "on"
    if key == "datestyle":
        return _date_style(value)
    if kind == "bool":
        word = value.lower()
        if word in ("on", "true", "yes", "1", "t", "y"):
            return "on"
        if word in ("off", "false", "no", "0", "f", "n"):
            return "off"
        raise invalid
    if kind == "enum":
        match = [word for word in fact[10] if word.lower() == value.lower()]
        if not match:
            raise invalid
        return str(match[0])
    if kind in ("integer", "real"):
        return _number(fact, value, invalid)
    return value


def _date_style(value: str) -> str:
    words = [word.strip().upper() for word in value.split(",")]
    orders = [word for word in words if word in ("MDY", "DMY", "YMD")]
    if set(words) - {"ISO", *orders}:
        raise Refused("0A000", 'dates are printed in the style "ISO" alone by this server')
    return f"ISO, {orders[0] if orders else 'MDY'}"


def _number(fact: tuple[Any, ...], value: str, invalid: Refused) -> str:
    match = _NUMBER.fullmatch(value.strip())
    if match is None:
        raise invalid
    units = _TIME_UNITS if fact[2] in _TIME_UNITS else _SIZE_UNITS
    try:
        number = float(match[1])
        if match[2]:
            number = number * units[match[2]] / units[fact[2]]
    except (ValueError, KeyError):
        raise invalid from None
    if not float(fact[8]) <= number <= float(fact[9]):
        raise Refused(
            "22023",
            f'{value} is outside the valid range for parameter "{fact[0]}" '
            f"({fact[8]} .. {fact[9]})",
        )
    return str(int(number)) if number == int(number) else str(number)


def end_transaction(context: Context, *, committed: bool) -> None:
    """Undo local settings, and all settings of a transaction that is rolled back."""
    session = context.session
    for key, before in session.local_before.items():
        if committed and key not in session.local_keys:
            continue
        if before is None:
            session.settings.pop(key, None)
        else:
            session.settings[key] = before
        report(context, key)
    session.local_before.clear()
    session.local_keys.clear()


def all_rows(context: Context) -> Iterator[dict[str, Any]]:
    """Yield the rows of pg_settings: the settings that have an answer."""
    for key, fact in context.facts.settings.items():
        try:
            value = current(context, key, raw=True)
        except Refused:
            continue
        yield {
            "name": fact[0],
            "setting": value,
            "unit": fact[2],
            "category": fact[3],
            "short_desc": fact[4],
            "extra_desc": fact[5],
            "context": fact[6],
            "vartype": fact[7],
            "source": "session" if key in context.session.settings else "default",
            "min_val": fact[8],
            "max_val": fact[9],
            "enumvals": None if fact[10] is None else json_of(fact[10]),
            "boot_val": fact[1],
            "reset_val": fact[1],
            "sourcefile": None,
            "sourceline": None,
            "pending_restart": 0,
        }
