"""Settings of a server of the log: names, passwords as verifiers, limits. No I/O."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.codec.postgres.scram import Verifier
from penstock.codec.types.mapping import NO_CHOICES, Choices

POSTGRES, YUGABYTE = "postgres", "yugabyte"
CHANGE = "c"  # letter of the usual replica identity in the second dialect


def verifiers(passwords: Mapping[str, str]) -> dict[str, Verifier]:
    """Return verifiers of passwords by user: they can check a password, but not log in."""
    return {name: Verifier.of(password) for name, password in passwords.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one server.

    Attributes:
        pending: connections that have not sent a password yet; the oldest is closed for one more.
        connections: connections that have.
        senders: streams at once.
        slots: slots, used or not.
        login_s: from the first byte to the password.
        sender_s: see `sender.SENDER_TIMEOUT_S`.
    """

    pending: int = 300
    connections: int = 200
    senders: int = 64
    slots: int = 100
    login_s: float = 20.0
    sender_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Settings of one server.

    Attributes:
        database: the name that clients must request.
        users: name to verifier.
        tls: None for plain connections.
        binding: the hash of the certificate that passwords are bound to; None without one.
        keep_bytes: limit of what one slot may hold, None: no limit.
        sync_slot_s: a slot of a table's copy that no client has used this long is dropped.
    """

    database: str
    users: Mapping[str, Verifier]
    server_version: str = "15"
    dialect: str = POSTGRES
    tls: ssl.SSLContext | None = None
    binding: bytes | None = None
    keep_bytes: int | None = None
    sync_slot_s: float = 86_400.0
    choices: Choices = NO_CHOICES
    limits: Limits = field(default_factory=Limits)
