"""Rules of [serve] in a pipeline file."""

from __future__ import annotations

import re
from typing import Any

from penstock.base.manifest import NAME as BASE
from penstock.control.pipeline.config_text import (
    ConfigPatternInvalid,
    ConfigText,
    ConfigValueInvalid,
    Substituted,
    invalid,
)
from penstock.host.listen import is_loopback
from penstock.model import PenstockError
from penstock.model.sections import SERVE, TLS_OFF, ServeSection, seconds
from penstock.ports.config import CONSUMERS, Config
from penstock.serve.entries import parse_entries

VERSIONS = range(14, 19)
_VERSION = re.compile(r"(\d+)(\.\d+)?")
_TLS_KEYS = {"certificate", "key"}
_NAME_MAX = 63


def check_passwords(text: ConfigText) -> None:
    """Refuse passwords that the file itself contains. Raises ConfigValueInvalid."""
    given = text.values.get(SERVE, {})
    users: Any = given.get("users") if isinstance(given, dict) else None
    for name, password in users.items() if isinstance(users, dict) else ():
        if not isinstance(password, Substituted):
            raise ConfigValueInvalid(
                f"{text.place(SERVE, 'users')}: the password of {name} stands in the file",
                hint=f'Take it from the environment: users = {{ {name} = "${{SERVE_PASSWORD}}" }}',
                key=f"{SERVE}.users",
            )


def check_serve(text: ConfigText, config: Config) -> None:
    """Refuse wrong values of [serve], if it exists. Raises CF errors."""
    section = config.serve
    if section is None:
        return
    for name in (SERVE, BASE):
        if name in config.consumers:
            raise ConfigValueInvalid(
                f"{text.place(CONSUMERS, name)}: what is served holds its segments under this name",
                hint="Give the consumer another name.",
            )
    if not config.pipeline.mode.has_change:
        raise ConfigValueInvalid(
            f"{text.place(SERVE)}: mode data has no changes to serve",
            hint='Take [serve] out, or set mode = "data+change".',
        )
    check_passwords(text)
    _check_address(text, section)
    _check_users(text, section)
    match = _VERSION.fullmatch(section.server_version)
    if match is None or int(match[1]) not in VERSIONS:
        reason = f"must be a version from {VERSIONS.start} to {VERSIONS.stop - 1}"
        raise invalid(text, SERVE, "server_version", reason)
    if section.max_slot_wal_keep_size != -1 and section.max_slot_wal_keep_size < 1:
        raise invalid(text, SERVE, "max_slot_wal_keep_size", "must be -1 (no limit) or more than 0")
    try:
        if not seconds(section.sync_slot_age):
            raise ValueError
    except ValueError:
        reason = 'must be a duration such as "24h"'
        raise invalid(text, SERVE, "sync_slot_age", reason) from None
    for name, publication in section.publications.items():
        place = text.place(f"{SERVE}.publications.{name}", "tables")
        if not 1 <= len(name.encode()) <= _NAME_MAX:
            raise invalid(text, SERVE, "publications", f"has a name that is too long: {name}")
        try:
            parse_entries(publication.tables)
        except PenstockError as error:
            raise ConfigPatternInvalid(f"{place}: {error.message}", hint=error.hint) from error


def _check_address(text: ConfigText, section: ServeSection) -> None:
    try:
        host, _ = section.address
    except ValueError:
        raise invalid(text, SERVE, "listen", "must be host:port") from None
    if section.tls is None and not is_loopback(host):
        raise ConfigValueInvalid(
            f"{text.place(SERVE, 'listen')}: {host} can be reached from other machines, and "
            "tls is missing",
            hint='Write tls = { certificate = "...", key = "..." }; or tls = "off" to let clients '
            "come without.",
            key=f"{SERVE}.listen",
        )
    if isinstance(section.tls, str) and section.tls != TLS_OFF:
        raise invalid(text, SERVE, "tls", 'must be "off", or have a certificate and a key')
    if isinstance(section.tls, dict) and section.tls.keys() != _TLS_KEYS:
        raise invalid(text, SERVE, "tls", "must have a certificate and a key, both files")


def _check_users(text: ConfigText, section: ServeSection) -> None:
    if not section.users:
        raise invalid(text, SERVE, "users", "must name a user at least")
    for name, password in section.users.items():
        if not 1 <= len(name.encode()) <= _NAME_MAX or "\0" in name:
            raise invalid(text, SERVE, "users", f"has a name that cannot be one: {name!r}")
        if not password:
            raise invalid(text, SERVE, "users", f"has an empty password for {name}")
