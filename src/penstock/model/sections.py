"""Sections of a pipeline file that only some pipelines have: consumers, FlexCDC, staging, serve,
merge.

Names and defaults are those of the published programs where they have them. Not here: the other
sections (`penstock.ports.config`), reading and checking (`penstock.control.pipeline.config`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.model.table import TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNames:
    """Names of FlexCDC's state tables.

    Attributes:
        namespace: The database, or schema, of the tables.
        place: A table of our own: the position of the state tables in the change log.
    """

    namespace: str
    mvlogs: str
    binlog_consumer_status: str
    mview_uow: str
    place: str = "penstock_place"

    def table(self, name: str) -> TableName:
        """Return a table beside them."""
        return TableName(self.namespace, name)


TARGET_NAME = "target"  # the load, where consumers are listed


class Start(StrEnum):
    """Position at which a new consumer begins."""

    NOW = "now"
    BEGINNING = "beginning"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSection:
    """[consumers.NAME]. Names, units and defaults are those of Ignite's CDC where it has them.

    Attributes:
        class_: `module:attribute`, or an entry point's name.
        options: Its keyword arguments.
        tables: Patterns as in [source]; all tables if there are none.
        lock_timeout: Milliseconds.
        check_frequency: Milliseconds.
        cdc_wal_directory_max_size: Bytes of its links, 0: no limit.
        wal_force_archive_timeout: Milliseconds from a change to the rotation of its segment, -1:
            never for that reason.
        direct: It reads the directory to which the source's node writes its log, and no change log;
            None: if that is possible, and there is no target.
    """

    class_: str
    options: dict[str, Any] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    start: Start = Start.NOW
    lock_timeout: int = 1000
    check_frequency: int = 1000
    keep_binary: bool = True
    cdc_wal_directory_max_size: int = 0
    wal_force_archive_timeout: int = -1
    direct: bool | None = None

    @property
    def size_bytes_max(self) -> int | None:
        """Limit of its links; None: no limit."""
        return self.cdc_wal_directory_max_size or None


# Keys whose values are lists.
FLEXCDC_LISTS = ("only_databases", "plugin", "plugin_order")


class ChangelogNames(StrEnum):
    """Names of changelogs: `mvlog_` and 32 hex digits, or `<schema>_<table>`."""

    MD5 = "md5"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexCdcSettings:
    """Keys of `[flexcdc]`; the last four are our own.

    Attributes:
        dest: The destination's URL.
        mysqlbinlog: FlexCDC reads the binlog by this program; accepted and not used.
        only_databases: A list, or one text with commas.
        plugin: A list, or one text with commas.
        plugin_order: A list, or one text with commas.
        types: As [target.types], for a destination of another engine; a loss without a choice is an
            error.
        sections: Sections of plugins, by name; in a pipeline file all tables below [flexcdc] except
            types.
    """

    dest: str = field(default="", repr=False)
    mysqlbinlog: str = ""
    database: str = "flexviews"
    error_log: str = "flexcdc.err"
    binlog_consumer_status: str = "binlog_consumer_status"
    mvlogs: str = "mvlogs"
    mview_uow: str = "mview_uow"
    log_retention_interval: str = "10 DAY"
    only_databases: tuple[str, ...] = ()
    skip_before_update: bool = False
    mark_updates: bool = False
    auto_changelog: bool = False
    raise_warnings: bool = False
    bulk_insert: bool = True
    sleep_increment: float = 0.25
    sleep_maximum: float = 5.0
    failure_sleep_time: float = 30.0
    failure_log_file: str = "flex_cdc_log.log"
    failure_email_address: str = "root@localhost"
    plugin: tuple[str, ...] = ()
    plugin_order: tuple[str, ...] = ()
    changelog_names: ChangelogNames = ChangelogNames.MD5
    row_values: str = "python"
    types: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> StateNames:
        """Names of the state tables."""
        return StateNames(
            namespace=self.database,
            mvlogs=self.mvlogs,
            binlog_consumer_status=self.binlog_consumer_status,
            mview_uow=self.mview_uow,
        )


MERGE = "merge"

MERGED = "merged"
"""Prefix of the schemes of URLs that name a merge as a source."""


class OfOneLog(StrEnum):
    """Action for a TRUNCATE, DROP or reload of a table that has rows of other logs too."""

    STOP = "stop"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSection:
    """[merge].

    Attributes:
        logs: The pipeline files of the logs, relative to this file.
        join_seconds: The longest time between the commits of a global transaction's parts.
        clock_skew_seconds: The longest step back of a server's clock, and the largest difference
            between servers' clocks without an alarm.
        split: Logs that end, each with the logs that continue in its place.
    """

    logs: tuple[str, ...]
    join_seconds: float = 10
    clock_skew_seconds: float = 5
    of_one_log: OfOneLog = OfOneLog.STOP
    split: dict[str, tuple[str, ...]] = field(default_factory=dict)


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
            (`feeds.script`).
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


SERVE = "serve"

TLS_OFF = "off"


class Dialect(StrEnum):
    """Server whose behaviour clients find, in details in which servers of the protocol differ."""

    POSTGRES = "postgres"
    YUGABYTE = "yugabyte"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationSection:
    """[serve.publications.NAME]. tables: entries, see docs/serve.md."""

    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSection:
    """[serve].

    Attributes:
        listen: host:port.
        users: Password by name, from the environment.
        tls: Certificate and key, files relative to the pipeline file; TLS_OFF: clients of any
            machine may connect without TLS; None: only clients of this machine may.
        server_version: The claimed version.
        max_slot_wal_keep_size: Bytes of the log that one slot may hold, -1: no limit.
        sync_slot_age: The age at which a slot of a table's copy is dropped if no client has asked
            for it.
    """

    listen: str = "127.0.0.1:5434"
    users: dict[str, str] = field(repr=False)
    tls: str | dict[str, str] | None = None
    server_version: str = "15"
    dialect: Dialect = Dialect.POSTGRES
    publications: dict[str, PublicationSection] = field(default_factory=dict)
    max_slot_wal_keep_size: int = -1
    sync_slot_age: Duration = "24h"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen at. Raises ValueError."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(self.listen)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(self.listen)
        return host, int(port)
