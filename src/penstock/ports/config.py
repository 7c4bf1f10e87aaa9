"""A pipeline's configuration: the sections of its file, as every package reads them.

Names and defaults are those of Wirekite's guide where it has them. Not here: the sections that only
some pipelines have (`penstock.model.sections`), reading and checking the file
(`penstock.control.pipeline.config`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from penstock.host.errors import mask
from penstock.host.listen import ANYWHERE, LOOPBACK, SnapshotAddress, own_address, split_address
from penstock.model import TableName
from penstock.model.keeping import KEEP_NONE, Keeping
from penstock.model.layout import PipelineLayout
from penstock.model.policies import ChangeKind, Policies, Policy
from penstock.model.sections import (
    MERGE,
    SERVE,
    STAGE,
    STAGING,
    ConsumerSection,
    FlexCdcSettings,
    MergeSection,
    ServeSection,
    StageSection,
    StagingSection,
)
from penstock.ports.registry import Descriptor, PartName, engine_at, engines


class Mode(StrEnum):
    """Work of a pipeline: the bulk load, the changes, or both with the handover in between."""

    DATA = "data"
    CHANGE = "change"
    DATA_CHANGE = "data+change"

    @property
    def has_data(self) -> bool:
        """Return whether tables are loaded in bulk."""
        return self is not Mode.CHANGE

    @property
    def has_change(self) -> bool:
        """Return whether changes are extracted and loaded."""
        return self is not Mode.DATA


class HandoverMode(StrEnum):
    """Method that finds the position between bulk load and changes."""

    SNAPSHOT = "snapshot"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSection:
    """[pipeline]. directory: relative to the file; it holds log, ledger and state."""

    name: str
    mode: Mode
    directory: str
    handover: HandoverMode = HandoverMode.SNAPSHOT


class NewTables(StrEnum):
    """Action for a new source table that matches a pattern."""

    ADD = "add"
    LEAVE = "leave"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSection:
    """[source].

    Attributes:
        tables: Patterns `schema.table` with `*` and `?`; a leading `!` excludes.
        include_backups: If several nodes have a row, also the changes of their copies.
        time_zone: The zone of the source's servers, if dates and times of day depend on it.
    """

    url: str = field(repr=False)
    tables: tuple[str, ...]
    new_tables: NewTables = NewTables.ADD
    include_backups: bool = False
    time_zone: str = "UTC"

    @property
    def engine(self) -> Descriptor:
        """Engine that the URL names."""
        return engine_at(self.url)


class Apply(StrEnum):
    """Method that applies batches to a lake.

    Attributes:
        POSITION: By the positions of rows in files: new rows are appended, old ones marked.
        MERGE: By Spark's MERGE, for tables with features that penstock does not write.
    """

    POSITION = "position"
    MERGE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSection:
    """[target]. All from batch_seconds on are for lakes.

    Attributes:
        map: Source namespace to target namespace; others keep their name.
        types: The choices for values that the target cannot hold, see
            `codec.types.parse_choices`.
        direct_path: The bulk load sends rows by the direct path, at an engine that has one.
        batch_seconds: The shortest time between two batches; None: as soon as one is due.
        apply: How batches are applied.
        format_version: Iceberg's format of new tables.
        file_megabytes: Greatest size of files that the bulk load writes.
        version_hours: Time for which earlier versions of tables can be read.
        tag_minutes: Shortest time between two tags of all Iceberg tables; None: there are none.
        vacuum_hours: Delta Lake's age at which removed files are deleted.
        history: Beside each table another one has all of its changes.
        partition: By the source's name of a table one or more terms by which it is partitioned.
    """

    url: str = field(repr=False)
    map: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    direct_path: bool = False
    batch_seconds: float | None = None
    apply: Apply = Apply.POSITION
    format_version: int | None = None
    file_megabytes: int | None = None
    version_hours: float | None = None
    tag_minutes: float | None = None
    vacuum_hours: float | None = None
    history: bool = False
    partition: dict[str, str | list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeExtractorSection:
    """[changeExtractor], as Wirekite's guide names its parameters; five are our own.

    Attributes:
        publication: Created with the slot.
        keep_messages: Logical messages become markers in the log.
        full_before_images: Updates and deletes have the whole old row, not only its identity.
        binlog_file: With binlog_position, the begin of a new log (MySQL, mode change); the present
            position by default.
        server_id: Our id as a replica; 0: made from the pipeline's name and directory.
        start_lsn: The begin of a new log (mode change), in any spelling of an LSN; the
            present position by default.
        start_scn: The begin of a new log as an SCN (mode change); the present position by default.
        transaction_rows_max: Rows of a transaction at which the extractor stops; 0: no limit.
        transaction_hours_max: Age of an open transaction at which the extractor stops; 0: no limit.
    """

    exit_when_idle: bool = False
    idle_wait_seconds: float = 3
    flush_interval_seconds: float = 5
    events_per_flush: int = 5000
    process_commits: bool = False
    replication_slot: str = "wirekite_replication_slot"
    publication: str = "wirekite_publication"
    keep_messages: bool = False
    full_before_images: bool = False
    binlog_file: str | None = None
    binlog_position: int | None = None
    server_id: int = 0
    start_lsn: str | None = None
    start_scn: str | None = None
    transaction_rows_max: int = 0
    transaction_hours_max: float = 0
    heartbeat_seconds: float = 0


class OnTableError(StrEnum):
    """Effect of a table that cannot be applied on the others."""

    STOP = "stop"
    ISOLATE = "isolate"


APPLY_SESSIONS_AUTO = 4
APPLY_SESSIONS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLoaderSection:
    """[changeLoader], as Wirekite's guide names its parameters; the last seven are our own.

    Attributes:
        keep_applied_hours: Limit for segments that are not removed at once.
        keep_applied_megabytes: Limit for segments that are not removed at once.
        read_open_segment: Changes are applied as soon as they are durable in the log; otherwise
            when their segment is closed.
        apply_interval_seconds: The shortest time between two flushes for that, while more changes
            arrive.
        apply_sessions: Greatest number of sessions that apply a batch in parts.
    """

    max_files_per_batch: int = 30
    max_threads: int = 5
    remove_files: bool = False
    keep_applied_hours: float = 24
    keep_applied_megabytes: int = 10_240
    change_file_extension: str = "ckt"
    work_directory: str | None = None
    done_directory: str | None = None
    on_table_error: OnTableError = OnTableError.STOP
    read_open_segment: bool = True
    apply_interval_seconds: float = 0.1
    apply_sessions: int | Literal["auto"] = 1

    @property
    def session_count(self) -> int:
        """Greatest number of sessions that apply a batch."""
        return APPLY_SESSIONS_AUTO if self.apply_sessions == "auto" else self.apply_sessions

    @property
    def flushed_for_loader_s(self) -> float | None:
        """Seconds between flushes of open segments for the loader; None if it skips them."""
        return self.apply_interval_seconds if self.read_open_segment else None

    @property
    def keeping(self) -> Keeping:
        """Limits for keeping segments that are applied, or linked by every consumer."""
        if self.remove_files:
            return KEEP_NONE
        return Keeping(
            age_s=self.keep_applied_hours * 3600, size_bytes=self.keep_applied_megabytes * 2**20
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoaderSection:
    """[dataLoader]: the bulk load. chunk_megabytes: table bytes per chunk at most, with TOAST."""

    max_threads: int = 5
    chunk_megabytes: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChangesSection:
    """[schemaChanges]: how to apply a change of shape. default: for kinds without a policy.

    Names are those of `model.policies.ChangeKind`.
    """

    default: Policy = Policy.EVOLVE
    add_column: Policy | None = None
    drop_column: Policy | None = None
    rename_column: Policy | None = None
    widen_type: Policy | None = None
    narrow_type: Policy | None = None
    change_type: Policy | None = None
    nullability: Policy | None = None
    change_key: Policy | None = None
    truncate: Policy | None = None

    @property
    def policies(self) -> Policies:
        """Policies in the loader's form."""
        given = {kind: getattr(self, snake(kind)) for kind in ChangeKind}
        return Policies(
            default=self.default,
            kinds={kind: policy for kind, policy in given.items() if policy is not None},
        )


def is_local_master(master: str) -> bool:
    """Return whether a Spark master runs its tasks below the driver."""
    return master == "local" or master.startswith("local[")


class LogPath(StrEnum):
    """Path of a batch's changes to Spark's workers."""

    SHARED = "shared"
    SHIP = "ship"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSection:
    """[spark].

    Attributes:
        python: The interpreter on a cluster's machines; empty for the one that runs penstock.
        snapshot_address: HOST or HOST:PORT where executors reach the sessions of a snapshot that
            cannot be exported; empty for Spark's driver host.
        log: shared: workers read it in the pipeline's directory; ship: Spark carries what they
            need.
        ui: Spark's own web pages.
        conf: Any Spark property, given to the session unchanged.
    """

    master: str = "local[*]"
    python: str = ""
    snapshot_address: str = ""
    log: LogPath = LogPath.SHARED
    ui: bool = False
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Return whether Spark's driver starts the workers as processes of this machine."""
        return is_local_master(self.master)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Configuration of one pipeline, as in its file.

    Attributes:
        path: The file, absolute.
        consumers: By name.
        file_tables: [source] tables as written there; those of `source` include the requests since.
        has_target: Whether there is a [target]; if not, the URL of `target` is that of the file in
            the pipeline's directory that keeps progress and action.
        flexcdc: [flexcdc], if there is one; then before images are whole.
        staging: The database that keeps changes that are not applied yet.
        stage: [stage], if there is one: then changefeeds are posted, and the URL of `source` is
            empty.
        merge: [merge], if there is one: then `source` names a merge.
        inputs: The pipelines of a merge's logs.
        serve: [serve], if the log is served.
    """

    path: Path
    pipeline: PipelineSection
    source: SourceSection
    target: TargetSection
    change_extractor: ChangeExtractorSection
    change_loader: ChangeLoaderSection
    data_loader: DataLoaderSection
    spark: SparkSection
    schema_changes: SchemaChangesSection = field(default_factory=SchemaChangesSection)
    consumers: dict[str, ConsumerSection] = field(default_factory=dict)
    file_tables: tuple[str, ...] = ()
    has_target: bool = True
    has_base: bool = False
    flexcdc: FlexCdcSettings | None = None
    staging: StagingSection | None = None
    stage: StageSection | None = None
    merge: MergeSection | None = None
    inputs: tuple[Config, ...] = ()
    serve: ServeSection | None = None

    @property
    def directory(self) -> Path:
        """Directory of the pipeline, absolute."""
        return (self.path.parent / self.pipeline.directory).resolve()

    @property
    def layout(self) -> PipelineLayout:
        """Layout of the pipeline's directories."""
        return PipelineLayout(root=self.directory)

    @property
    def creates_tables(self) -> bool:
        """Return whether missing target tables are created: by the bulk load, or for a merge."""
        return self.has_target and (
            self.pipeline.mode.has_data or (self.merge is not None and self.has_base)
        )

    def as_shown(self) -> dict[str, Any]:
        """Return the configuration for printing: secrets masked, keys spelled as in the file."""
        shown: dict[str, Any] = {}
        for section in SECTIONS:
            if section == "target" and not self.has_target:
                continue
            if section == "source" and (self.stage or self.merge) is not None:
                continue
            shown[section] = _shown_section(getattr(self, snake(section)))
            if section == "target":
                shown[section] = _without_others(shown[section], engine_at(self.target.url))
        for section in STAGING_SECTIONS:
            if (part := getattr(self, section)) is not None:
                shown[section] = _shown_section(part)
        if self.serve is not None:
            shown[SERVE] = {
                item.name: _shown_serve(item.name, getattr(self.serve, item.name))
                for item in fields(self.serve)
            }
        if self.consumers:
            shown[CONSUMERS] = {
                name: {camel(item.name): _hide(getattr(one, item.name)) for item in fields(one)}
                for name, one in self.consumers.items()
            }
        if self.flexcdc is not None:
            shown[FLEXCDC] = {
                item.name: _hide(getattr(self.flexcdc, item.name))
                for item in fields(self.flexcdc)
                if item.name != "sections"  # of plugins: any value may be a secret
            }
        return shown


FLEXCDC = "flexcdc"  # its keys are FlexCDC's, with the same spelling

CONSUMERS = "consumers"  # [consumers.NAME], any number of them

SECTIONS: dict[str, type[Any]] = {
    "pipeline": PipelineSection,
    "source": SourceSection,
    "target": TargetSection,
    "changeExtractor": ChangeExtractorSection,
    "changeLoader": ChangeLoaderSection,
    "dataLoader": DataLoaderSection,
    "spark": SparkSection,
    "schemaChanges": SchemaChangesSection,
}

# Sections of a file for changefeeds, or for a merge: the last two replace [source].
STAGING_SECTIONS: dict[str, type[Any]] = {
    STAGING: StagingSection,
    STAGE: StageSection,
    MERGE: MergeSection,
}


def camel(name: str) -> str:
    """Return `exit_when_idle` as the file spells it: `exitWhenIdle`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def snake(name: str) -> str:
    """Return `exitWhenIdle` as Python spells it: `exit_when_idle`."""
    return re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), name)


def _hide(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        return mask(value)
    if isinstance(value, dict):
        return {key: _shown_property(key, item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _shown_serve(name: str, value: Any) -> Any:
    """Return a value of [serve] for printing; of users only the names."""
    if name == "users":
        return dict.fromkeys(value, "***")
    if name == "publications":
        return {key: {"tables": list(one.tables)} for key, one in value.items()}
    return _hide(value)


def _shown_section(section: Any) -> dict[str, Any]:
    """Return a section for printing; fields outside of the repr are secret unless they are URLs."""
    shown = {}
    for item in fields(section):
        value = getattr(section, item.name)
        is_url = item.name.endswith("url")
        shown[camel(item.name)] = "***" if value and not item.repr and not is_url else _hide(value)
    return shown


def _without_others(shown: dict[str, Any], engine: Descriptor) -> dict[str, Any]:
    """Return a section without the keys that only other engines have."""
    others = {key for one in engines() for key in one.options.get("target", ())}
    others -= engine.options.get("target", frozenset())
    return {key: value for key, value in shown.items() if key not in others}


def _shown_property(key: str, value: str) -> str:
    secret = re.search(r"password|secret|token|credential|access\.?key", key, re.IGNORECASE)
    return "***" if secret else str(_hide(value))


class EngineOptions(Protocol):
    """Part `options` of an engine: its rules for the pipeline file."""

    def check_url(self, url: str, /) -> None:
        """Refuse a URL that cannot be of this engine. Raises UrlInvalid, without the password."""
        ...

    def problems(self, section: ChangeExtractorSection, /) -> Iterator[tuple[str, str]]:
        """Yield wrong values of this engine's keys in [changeExtractor]: key and requirement."""
        ...


class TargetOptions(Protocol):
    """Part `target_options` of an engine that has keys of its own in [target].

    Attributes:
        BATCH_SECONDS: Default of batchSeconds; None for a target without waits.
    """

    BATCH_SECONDS: float | None

    def complete_url(self, target: TargetSection, conf: Mapping[str, str], /) -> str:
        """Return the target's URL with everything that the file says about it elsewhere.

        conf: the properties of [spark.conf]. Raises UrlInvalid.
        """
        ...

    def target_problems(self, target: TargetSection, /) -> Iterator[tuple[str, str]]:
        """Yield wrong values of this engine's keys in [target]: key and requirement."""
        ...


OPTIONS_PART: PartName[EngineOptions] = PartName("options")
TARGET_OPTIONS_PART: PartName[TargetOptions] = PartName("target_options")
FREE_NAMES_PART: PartName[Callable[[Config], Mapping[str, str]]] = PartName("free_names")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkState:
    """Progress of the bulk load.

    Attributes:
        copied: All rows are loaded.
        finished: Keys and indexes are created as well.
        planned: Tables whose copy has been planned, by their names at the source.
    """

    copied: bool = False
    finished: bool = False
    planned: frozenset[TableName] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Configured pipeline.

    Attributes:
        log_position: Returns the position of the newest flush point in the log's own state; 0 if
            there is no log yet, or nothing in it.
        bulk: Returns the state of the bulk load; read again at each call, because another process
            writes it.
    """

    config: Config
    log_position: Callable[[], int]
    bulk: Callable[[], BulkState]


def snapshot_address(spark: SparkSection) -> SnapshotAddress:
    """Return where this pipeline's workers reach this process; loopback on the same machine.

    The value of [spark] snapshotAddress; else Spark's own driver host, or this machine's address as
    the cluster's master sees it.
    """
    if spark.is_local:
        return SnapshotAddress()
    host, port = "", 0
    if spark.snapshot_address:
        host, port = split_address(spark.snapshot_address)
    host = host or spark.conf.get("spark.driver.host", "") or _host_of_spark(spark.master)
    return SnapshotAddress(
        host=host, bind=spark.conf.get("spark.driver.bindAddress", "") or host, port=port
    )


def _host_of_spark(master: str) -> str:
    """Return the host that Spark uses without spark.driver.host, as far as it can be known."""
    for name in ("SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP"):
        if given := os.environ.get(name):
            return given
    if master.startswith("local"):  # separate executors, on this machine
        return LOOPBACK
    first = master.rpartition("//")[2].partition(",")[0]
    return own_address(first.rpartition(":")[0] or ANYWHERE)
