"""Choices of types in messages, with Debezium's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass

DECIMALS = ("precise", "double", "string")
TIMES = ("adaptive", "adaptive_time_microseconds", "connect")
BINARIES = ("bytes", "base64", "base64-url-safe", "hex")
UNSIGNED = ("long", "precise")
MYSQL = ("mysql", "mariadb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """Types of messages.

    Attributes:
        engine: of the source, as the log names it.
        times: empty: the default of Debezium's connector for this source.
    """

    decimals: str = "precise"
    times: str = ""
    binaries: str = "bytes"
    unsigned: str = "long"
    placeholder: str = "__debezium_unavailable_value"
    engine: str = ""

    @property
    def time_mode(self) -> str:
        """Time mode, with the default filled in."""
        if self.times:
            return self.times
        return "adaptive_time_microseconds" if self.engine in MYSQL else "adaptive"
