"""Keys of `[flexcdc]`, in consumer.ini and in a pipeline file: names and defaults are FlexCDC's.

Not here: reading consumer.ini (`penstock.consume.flexcdc.ini`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.ports.changelog import StateNames

# Keys whose values are lists.
LISTS = ("only_databases", "plugin", "plugin_order")


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
