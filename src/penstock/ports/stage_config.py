"""[staging] and [stage] of a pipeline file.

Not here: reading and checking (`control.pipeline.config`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

STAGING = "staging"
STAGE = "stage"
Duration = str | int | float
"""`1h`, `90s`, `1m30s`, `100ms`; a number is seconds."""

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|m|s)", re.ASCII)


def seconds(duration: Duration) -> float:
    """Return a duration of the file in seconds. Raises ValueError."""
    if isinstance(duration, int | float):
        if not 0 <= duration < 2**31:
            raise ValueError(duration)
        return float(duration)
    parts = _PART.findall(duration)
    if duration == "0":
        return 0.0
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise ValueError(duration)
    return seconds(sum(float(number) * _UNITS_S[unit] for number, unit in parts))


class StageMode(StrEnum):
    """Method by which staged mutations are applied."""

    AUTO = "auto"
    CONSISTENT = "consistent"
    BEST_EFFORT = "bestEffort"
    IMMEDIATE = "immediate"


class Authentication(StrEnum):
    """Check of senders."""

    JWT = "jwt"
    TOKEN = "token"  # noqa: S105 - a word of the file
    OFF = "off"


class PartitionFormat(StrEnum):
    """Layout of a changefeed's files: a folder a day or an hour, or none."""

    DAILY = "daily"
    FLAT = "flat"
    HOURLY = "hourly"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingSection:
    """[staging]. url: of the staging database. retire_offset: how long applied rows stay there.

    With [stage], the key retireOffset is in that section.
    """

    url: str = field(repr=False)
    retire_offset: Duration = "24h"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSection:
    """[stage]. Windows and delays: see `Duration`.

    Attributes:
        listen: host:port.
        best_effort_window: In mode auto, the lag from which on rows are not applied consistently;
            0: always consistent.
        split_windows: A target transaction may end between two source timestamps, not only at
            resolved marks.
        retire_offset: How long applied rows stay staged.
        token: For authentication = "token".
        http_response_timeout: The time after which a request is answered; its work continues.
        tls_certificate: A file (PEM), relative to the pipeline file.
        tls_private_key: A file (PEM), relative to the pipeline file.
        storage_url: A folder (`file:///path`) or bucket (`s3://bucket/path?AWS_ACCESS_KEY_ID=...`)
            of files to read besides.
        target_schema: The schema for the rows of these files, as `database.schema`.
        user_module: A Python module beside the pipeline file that says how tables are written
            (`stage.script`).
        dlq_table_name: The table of dead letters in a target schema.
    """

    listen: str = "127.0.0.1:26258"
    mode: StageMode = StageMode.AUTO
    best_effort_window: Duration = "1h"
    split_windows: bool = False
    retire_offset: Duration = "24h"
    lease_seconds: float = 60
    authentication: Authentication = Authentication.JWT
    token: str = field(default="", repr=False)
    jwt_refresh: Duration = "1m"
    http_response_timeout: Duration = "2m"
    request_bytes_max: int = 256 * 2**20
    ndjson_buffer_size: int = 65_536
    tls_certificate: str = ""
    tls_private_key: str = ""
    tls_self_signed: bool = False
    storage_url: str = field(default="", repr=False)
    target_schema: str = ""
    partition_format: PartitionFormat = PartitionFormat.DAILY
    fetch_delay: Duration = "100ms"
    user_module: str = ""
    dlq_table_name: str = "replicator_dlq"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen at; without a host every address. Raises ValueError."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(self.listen)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(self.listen)
        return host or "0.0.0.0", int(port)  # noqa: S104 - the meaning of `:26258`
