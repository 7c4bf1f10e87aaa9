"""A pipeline's configuration: every key, its type and its default.

Parameters that document 000 names are spelled and defaulted as there. Not here: reading TOML and
environment variables (`config_text.py`), and anything that asks a server (`doctor.py`).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints
from urllib.parse import urlsplit

import msgspec

from penstock.codec.types import Engine, TypeChoiceInvalid, TypeChoiceUnknown, parse_choices
from penstock.control.config_text import ConfigText, Substituted, read_config_text
from penstock.control.table_wishes import with_wishes
from penstock.engines.mysql.url import EXAMPLE, MySQLUrl
from penstock.engines.mysql.url import SCHEMES as MYSQL_SCHEMES
from penstock.host.errors import UrlInvalid, mask
from penstock.log.layout import PipelineLayout
from penstock.model import BinlogPosition, PenstockError
from penstock.model.patterns import PatternInvalid, Selection
from penstock.model.position import BINLOG_HEAD_BYTES, PositionInvalid
from penstock.ports.policies import Kind, Policies, Policy

URL_SCHEMES = ("postgresql", "postgres", "mysql", "mariadb")
SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}\Z")
# Keys of other engines that document 000 names, and whose they are.
START_KEYS = {
    "binlogFile": "MySQL",
    "binlogPosition": "MySQL",
    "serverId": "MySQL",
    "startScn": "Oracle",
    "startLsn": "SQL Server",
}
POSTGRES_KEYS = ("replicationSlot", "publication", "keepMessages")
MYSQL_KEYS = ("binlogFile", "binlogPosition", "serverId")
SERVER_ID_MAX = 2**32 - 1


class ConfigKeyUnknown(PenstockError):
    """A key or section that penstock does not know."""

    code = "CF04"


class ConfigValueInvalid(PenstockError):
    """A value of the wrong type, or outside what the key allows."""

    code = "CF05"


class ConfigKeyMissing(PenstockError):
    """A key without default is not there."""

    code = "CF06"


class ConfigUrlInvalid(PenstockError):
    """A database URL that cannot be read, or of an engine that penstock does not have."""

    code = "CF07"


class ConfigPatternInvalid(PenstockError):
    """An entry of tables that is not a table pattern."""

    code = "CF08"


class ConfigOtherEngine(PenstockError):
    """A parameter that belongs to another engine than the source's."""

    code = "CF09"


class ConfigStartRefused(PenstockError):
    """A starting position where the handover finds it by itself (mode data+change)."""

    code = "CF10"


class Mode(StrEnum):
    """What a pipeline does: the bulk load, the changes, or both with the handover between."""

    DATA = "data"
    CHANGE = "change"
    DATA_CHANGE = "data+change"

    @property
    def has_data(self) -> bool:
        """Whether tables are loaded in bulk."""
        return self is not Mode.CHANGE

    @property
    def has_change(self) -> bool:
        """Whether changes are extracted and loaded."""
        return self is not Mode.DATA


class HandoverMode(StrEnum):
    """How the position between bulk load and changes is found."""

    SNAPSHOT = "snapshot"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSection:
    """[pipeline]. directory: relative to the file; log, ledger and state live in it."""

    name: str
    mode: Mode
    directory: str
    handover: HandoverMode = HandoverMode.SNAPSHOT


class NewTables(StrEnum):
    """What becomes of a table that is made at the source later and that a pattern takes in."""

    ADD = "add"
    LEAVE = "leave"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSection:
    """[source]. tables: patterns `schema.table` with `*` and `?`; a leading `!` takes out."""

    url: str = field(repr=False)
    tables: tuple[str, ...]
    new_tables: NewTables = NewTables.ADD

    @property
    def is_mysql(self) -> bool:
        """Whether the source is MySQL or MariaDB."""
        return is_mysql_url(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSection:
    """[target]. map: source namespace to target namespace; others keep their name.

    types: what becomes of values that the target cannot hold, see `codec.types.parse_choices`.
    """

    url: str = field(repr=False)
    map: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeExtractorSection:
    """[changeExtractor], as document 000 names its parameters; three are our own.

    publication: made with the slot. keep_messages: logical messages become markers in the log.
    binlog_file, binlog_position: where a new log begins (MySQL, mode change); the present when not
    given. server_id: ours as a replica, made from the pipeline's name and directory when 0.
    """

    exit_when_idle: bool = False
    idle_wait_seconds: float = 3
    flush_interval_seconds: float = 5
    events_per_flush: int = 5000
    process_commits: bool = False
    replication_slot: str = "wirekite_replication_slot"
    publication: str = "wirekite_publication"
    keep_messages: bool = False
    binlog_file: str | None = None
    binlog_position: int | None = None
    server_id: int = 0


class OnTableError(StrEnum):
    """What a table that cannot be applied does to the others."""

    STOP = "stop"
    ISOLATE = "isolate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLoaderSection:
    """[changeLoader], as document 000 names its parameters; on_table_error is our own, and so are
    keep_applied_hours and keep_applied_megabytes, of applied segments not removed at once.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoaderSection:
    """[dataLoader]: the bulk load. chunk_megabytes: table bytes per chunk at most, with TOAST."""

    max_threads: int = 5
    chunk_megabytes: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChangesSection:
    """[schemaChanges]: what becomes of a change of shape. default: of kinds that are not given.

    Names as `ports.policies.Kind` has them.
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
        """As the loader takes them."""
        given = {kind: getattr(self, _snake(kind)) for kind in Kind}
        return Policies(
            default=self.default,
            kinds={kind: policy for kind, policy in given.items() if policy is not None},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSection:
    """[spark]. conf: any Spark property, given to the session as it is."""

    master: str = "local[*]"
    conf: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One pipeline, as its file says.

    path: the file, absolute. file_tables: [source] tables as written there; those of `source` have
    in them what was asked for since.
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
    file_tables: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """The pipeline's directory, absolute."""
        return (self.path.parent / self.pipeline.directory).resolve()

    @property
    def layout(self) -> PipelineLayout:
        """Where the pipeline keeps what, below its directory."""
        return PipelineLayout(root=self.directory)

    def shown(self) -> dict[str, Any]:
        """The configuration as it may be printed: secrets masked, keys spelled as in the file."""
        shown: dict[str, Any] = {}
        for section in SECTIONS:
            part = getattr(self, _snake(section))
            shown[section] = {
                camel(item.name): _shown(getattr(part, item.name)) for item in fields(part)
            }
        return shown


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
SECTIONS_NEEDED = ("pipeline", "source", "target")
POSITIVE = (
    ("changeExtractor", "idleWaitSeconds"),
    ("changeExtractor", "flushIntervalSeconds"),
    ("changeExtractor", "eventsPerFlush"),
    ("changeLoader", "maxFilesPerBatch"),
    ("changeLoader", "maxThreads"),
    ("changeLoader", "keepAppliedHours"),
    ("changeLoader", "keepAppliedMegabytes"),
    ("dataLoader", "maxThreads"),
    ("dataLoader", "chunkMegabytes"),
)


def is_mysql_url(url: str) -> bool:
    """Whether a URL is one of MySQL or MariaDB."""
    return url.partition("://")[0] in MYSQL_SCHEMES


def camel(name: str) -> str:
    """`exit_when_idle` as the file spells it: `exitWhenIdle`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), name)


def _shown(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        return mask(value)
    if isinstance(value, dict):
        return {key: _shown_property(key, item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _shown_property(key: str, value: str) -> str:
    secret = re.search(r"password|secret|token|credential|access\.?key", key, re.IGNORECASE)
    return "***" if secret else str(_shown(value))


def load_config(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read, check and complete a pipeline file; nothing is changed.

    The tables are those of the file, with what `penstock table` has added and removed since.
    environment: where `${NAME}` is looked up; the process's own when None.
    Raises one of the CF errors, each naming section, key and (where it has one) line.
    """
    text = read_config_text(path.absolute(), os.environ if environment is None else environment)
    for name in text.values:
        if name not in SECTIONS:
            raise _unknown(text, name, "", tuple(SECTIONS), what="section")
    _refuse_other_engines(text)
    parts = {_snake(name): _section(text, name) for name in SECTIONS}
    config = Config(path=text.path, **parts)
    _check_values(text, config)
    return with_wishes(replace(config, file_tables=config.source.tables))


def _section(text: ConfigText, name: str) -> Any:
    kind = SECTIONS[name]
    given = text.values.get(name, {})
    if not isinstance(given, dict):
        raise ConfigValueInvalid(
            f"{text.place(name)}: {name} must be a section",
            hint=f"Write it as a line [{name}] with its keys below.",
        )
    known = {camel(item.name): item for item in fields(kind)}
    for key in given:
        if key not in known:
            raise _unknown(text, key, name, tuple(known), what="key")
    for key, item in known.items():
        if key not in given and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigKeyMissing(
                f"{text.path.name}: [{name}] has no {key}, which every pipeline needs",
                hint=f"Add it below [{name}]; docs/configuration.md shows a whole file.",
                key=f"{name}.{key}",
            )
    hints = get_type_hints(kind)
    return kind(
        **{
            known[key].name: _converted(text, name, key, value, hints[known[key].name])
            for key, value in given.items()
        }
    )


def _converted(text: ConfigText, section: str, key: str, value: Any, kind: Any) -> Any:
    strict = not isinstance(value, Substituted)
    try:
        return msgspec.convert(_plain(value), type=kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigValueInvalid(
            f"{text.place(section, key)}: {key} has a wrong value: {_reason(error, kind)}",
            hint=_nearest(key, value, kind) or _type_hint(key, kind),
            key=f"{section}.{key}",
        ) from error


def _plain(value: Any) -> Any:
    """The value with every Substituted replaced by its text."""
    if isinstance(value, Substituted):
        return value.text
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _words(kind: Any) -> tuple[str, ...]:
    """The words that a value may be, where it is one of some words; else none."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, StrEnum):
            return tuple(one)
    return ()


def _nearest(key: str, value: Any, kind: Any) -> str:
    """Which of the words was meant; empty where that cannot be told."""
    given = str(_plain(value)).lower()
    close = difflib.get_close_matches(given, _words(kind), n=1, cutoff=0.5)
    return f'Did you mean {key} = "{close[0]}"?' if close else ""


def _reason(error: msgspec.ValidationError, kind: Any) -> str:
    if words := _words(kind):
        return f"expected one of {', '.join(words)}"
    reason = str(error).partition(" - at ")[0]
    return reason[:1].lower() + reason[1:].replace("`", "")


def _type_hint(key: str, kind: Any) -> str:
    examples = {bool: "true", int: "30", float: "2.5", str: '"text"'}
    if words := _words(kind):
        return f'Write for example {key} = "{words[0]}".'
    if kind in examples:
        return f"Write for example {key} = {examples[kind]}."
    return f"See {key} in docs/configuration.md."


def _unknown(
    text: ConfigText, name: str, section: str, known: tuple[str, ...], *, what: str
) -> ConfigKeyUnknown:
    place = text.place(section, name) if section else text.place(name)
    by_lower = {item.lower(): item for item in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    elsewhere = [
        other
        for other, kind in SECTIONS.items()
        if section and name in {camel(item.name) for item in fields(kind)}
    ]
    if elsewhere:
        hint = f"{name} belongs in the section [{elsewhere[0]}]."
    elif close:
        hint = f"Did you mean {by_lower[close[0]]}?"
    else:
        hint = f"Known here: {', '.join(known)}."
    return ConfigKeyUnknown(f"{place}: unknown {what} {name}", hint=hint, key=name)


def _refuse_other_engines(text: ConfigText) -> None:
    """Starting positions and other engines' parameters (document 000) are refused by name."""
    pipeline, source = text.values.get("pipeline"), text.values.get("source")
    mode = _plain(pipeline.get("mode")) if isinstance(pipeline, dict) else None
    url = _plain(source.get("url")) if isinstance(source, dict) else None
    is_mysql = isinstance(url, str) and is_mysql_url(url)
    for section, given in text.values.items():
        if section not in ("changeExtractor", "source") or not isinstance(given, dict):
            continue
        for key in given:
            if mode == Mode.DATA_CHANGE and key in START_KEYS and key != "serverId":
                raise ConfigStartRefused(
                    f"{text.place(section, key)}: {key} is a starting position, and mode "
                    "data+change captures the position itself during the handover",
                    hint=f'Take {key} out, or set mode = "change" to start from a position.',
                    key=key,
                )
            if is_mysql:
                _refuse_for_mysql(text, section, key)
            elif key in START_KEYS:
                raise ConfigOtherEngine(
                    f"{text.place(section, key)}: {key} is a parameter of {START_KEYS[key]}; this "
                    "source is PostgreSQL, which starts where its replication slot stands",
                    hint=f"Take {key} out, and name the slot with replicationSlot.",
                    key=key,
                )


def _refuse_for_mysql(text: ConfigText, section: str, key: str) -> None:
    if key in POSTGRES_KEYS or (key in START_KEYS and key not in MYSQL_KEYS):
        raise ConfigOtherEngine(
            f"{text.place(section, key)}: {key} is a parameter of "
            f"{START_KEYS.get(key, 'PostgreSQL')}; this source is MySQL or MariaDB, which starts "
            "at a place of its binlog",
            hint=f"Take {key} out; name the place with binlogFile and binlogPosition.",
            key=key,
        )


def _check_values(text: ConfigText, config: Config) -> None:
    _check_url(text, "source", config.source.url)
    _check_url(text, "target", config.target.url)
    _check_patterns(text, config.source.tables)
    _check_types(text, config)
    for section, key in POSITIVE:
        value = getattr(getattr(config, _snake(section)), _snake(key))
        if not 0 < value < 2**31:
            raise _invalid(text, section, key, f"must be more than 0, not {value}")
    if not re.match(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,62}\Z", config.pipeline.name):
        raise _invalid(text, "pipeline", "name", "must be 1 to 63 letters, digits, _, - or .")
    if not config.pipeline.directory.strip() or "\0" in config.pipeline.directory:
        raise _invalid(text, "pipeline", "directory", "must name a directory")
    _check_binlog_start(text, config.change_extractor)
    if not SLOT_NAME.match(config.change_extractor.replication_slot):
        reason = "must be 1 to 63 lower-case letters, digits and underscores"
        raise _invalid(text, "changeExtractor", "replicationSlot", reason)
    if not 1 <= len(config.change_extractor.publication.encode()) <= 63:
        raise _invalid(text, "changeExtractor", "publication", "must be 1 to 63 bytes")
    if not re.match(r"[A-Za-z0-9]{1,16}\Z", config.change_loader.change_file_extension):
        reason = "must be 1 to 16 letters and digits, without the dot"
        raise _invalid(text, "changeLoader", "changeFileExtension", reason)
    if config.change_loader.remove_files and config.change_loader.done_directory:
        reason = "is the alternative to removeFiles; both are set"
        raise _invalid(text, "changeLoader", "doneDirectory", reason)


def _check_binlog_start(text: ConfigText, section: ChangeExtractorSection) -> None:
    name, file, position = "changeExtractor", section.binlog_file, section.binlog_position
    if not 0 <= section.server_id <= SERVER_ID_MAX:
        raise _invalid(text, name, "serverId", f"must be from 1 to {SERVER_ID_MAX}")
    if file is None and position is not None:
        raise _invalid(text, name, "binlogPosition", "needs binlogFile beside it")
    if file is not None:
        try:
            BinlogPosition.at(file, 4 if position is None else position)
        except PositionInvalid as error:
            raise _invalid(text, name, "binlogFile", f"cannot be used: {error.message}") from error
    if position is not None and position < BINLOG_HEAD_BYTES:
        raise _invalid(text, name, "binlogPosition", f"must be at least {BINLOG_HEAD_BYTES}")


def _invalid(text: ConfigText, section: str, key: str, reason: str) -> ConfigValueInvalid:
    return ConfigValueInvalid(
        f"{text.place(section, key)}: {key} {reason}",
        hint=f"See {key} in docs/configuration.md.",
        key=f"{section}.{key}",
    )


def _check_url(text: ConfigText, section: str, url: str) -> None:
    place = text.place(section, "url")
    if is_mysql_url(url):
        try:
            parsed = MySQLUrl.parse(url)
        except UrlInvalid as error:
            raise ConfigUrlInvalid(f"{place}: {error.message}", hint=error.hint) from error
        if not parsed.user:
            raise ConfigUrlInvalid(f"{place}: url names no user", hint=f"Write it like {EXAMPLE}.")
        return
    example = "postgresql://user:${PASSWORD}@host:5432/database"
    try:
        parts = urlsplit(url)
        port_in_range = parts.port is None or parts.port > 0
    except ValueError as error:
        raise ConfigUrlInvalid(
            f"{place}: url cannot be read: {error}", hint=f"Write it like {example}."
        ) from error
    if parts.scheme not in URL_SCHEMES:
        shown = f"{parts.scheme}://" if "://" in url else "a text without ://"
        raise ConfigUrlInvalid(
            f"{place}: url must begin with postgresql://, mysql:// or mariadb://, "
            f"this {'begins with' if '://' in url else 'is'} {shown}",
            hint=f"Write it like {example}.",
        )
    if not port_in_range or not parts.path.strip("/") or not parts.username:
        lack = "user" if not parts.username else "database"
        raise ConfigUrlInvalid(
            f"{place}: url names no {lack if port_in_range else 'valid port'}",
            hint=f"Write it like {example}.",
        )


def _check_patterns(text: ConfigText, patterns: tuple[str, ...]) -> None:
    place = text.place("source", "tables")
    try:
        Selection.parse(patterns)
    except PatternInvalid as error:
        raise ConfigPatternInvalid(f"{place}: {error.message}", hint=error.hint) from error


def _check_types(text: ConfigText, config: Config) -> None:
    try:
        parse_choices(config.target.types, Engine.of_url(config.source.url))
    except (TypeChoiceUnknown, TypeChoiceInvalid) as error:
        place = text.place("target", "types")
        raise type(error)(f"{place}: {error.message}", hint=error.hint, **error.fields) from error
