"""A pipeline's configuration: every key, its type and its default.

Parameters that Wirekite's guide names have its spelling and defaults. Not here: reading TOML and
environment variables (`config_text.py`), and questions to a server (`doctor/doctor.py`).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from penstock.codec.types import Engine, TypeChoiceInvalid, TypeChoiceUnknown, parse_choices
from penstock.control.pipeline.config_sections import (
    check_merge_file,
    check_serve,
    check_stage,
    check_stage_file,
    check_staging,
    with_merge,
    with_staging,
)
from penstock.control.pipeline.config_text import (
    ConfigKeyMissing,
    ConfigKeyUnknown,
    ConfigOtherEngine,
    ConfigPatternInvalid,
    ConfigStartRefused,
    ConfigText,
    ConfigUrlInvalid,
    ConfigValueInvalid,
    SourceMissing,
    Substituted,
    TargetMissing,
    check_url,
    invalid,
    plain,
    read_config_text,
)
from penstock.control.pipeline.consumers import (
    engine_of,
    has_directory,
    is_direct,
    with_whole_patterns,
)
from penstock.control.pipeline.table_requests import with_requests
from penstock.host.errors import UrlInvalid
from penstock.host.listen import split_address
from penstock.model.patterns import PatternInvalid, Selection
from penstock.model.sections import (
    FLEXCDC_LISTS,
    MERGE,
    SERVE,
    STAGE,
    TARGET_NAME,
    ConsumerSection,
    FlexCdcSettings,
    PublicationSection,
    ServeSection,
    Start,
)
from penstock.ports.config import (
    APPLY_SESSIONS_MAX,
    CONSUMERS,
    FLEXCDC,
    OPTIONS_PART,
    SECTIONS,
    STAGING_SECTIONS,
    TARGET_OPTIONS_PART,
    Config,
    Mode,
    SourceSection,
    SparkSection,
    TargetSection,
    camel,
    snake,
)
from penstock.ports.progress import progress_beside
from penstock.ports.registry import engines, joined_urls, types_at

# Forbidden in a file without [target]: these sections, and these keys of [changeLoader].
MASTER = re.compile(r"local(-cluster)?\[.+\]\Z|(local|yarn)\Z|(spark|k8s)://.")
LOADING_SECTIONS = ("dataLoader", "schemaChanges", "spark")
KEYS_WITHOUT_LOADING = (
    "applyIntervalSeconds",
    "changeFileExtension",
    "keepAppliedHours",
    "keepAppliedMegabytes",
    "readOpenSegment",
    "removeFiles",
)
OF_TARGETS = ("target", "changeLoader")  # sections whose keys may belong to targets of an engine
POSITIVE = (
    ("changeExtractor", "idleWaitSeconds"),
    ("changeExtractor", "flushIntervalSeconds"),
    ("changeExtractor", "eventsPerFlush"),
    ("changeLoader", "maxFilesPerBatch"),
    ("changeLoader", "maxThreads"),
    ("changeLoader", "keepAppliedHours"),
    ("changeLoader", "keepAppliedMegabytes"),
    ("changeLoader", "applyIntervalSeconds"),
    ("dataLoader", "maxThreads"),
    ("dataLoader", "chunkMegabytes"),
)


def load_config(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read, check and complete a pipeline file; nothing is changed.

    The tables are those of the file, with those that `penstock table` has added and removed since.
    Raises one of the CF errors, each naming section, key and (if it has one) line.

    environment: the values for `${NAME}`; the process's own if None.
    """
    text = read_config_text(path.absolute(), os.environ if environment is None else environment)
    for name in text.values:
        known = (*SECTIONS, CONSUMERS, FLEXCDC, SERVE, *STAGING_SECTIONS)
        if name not in known:
            raise _unknown(text, name, "", known, what="section")
    _join_urls(text)
    _refuse_other_engines(text)
    has_target = "target" in text.values
    if MERGE in text.values:
        check_merge_file(text)
    if STAGE in text.values:
        check_stage_file(text)
    elif not has_target:
        _refuse_loading(text)
    left_out = {name for name in ("target", "source") if name not in text.values}
    if STAGE not in text.values and MERGE not in text.values:
        left_out -= {"source"}
    parts = {
        snake(name): _section(text, name, kind, text.values.get(name, {}))
        for name, kind in SECTIONS.items()
        if name not in left_out
    }
    config = Config(
        path=text.path,
        has_target=has_target,
        consumers=_consumers(text),
        **{
            "target": TargetSection(url=""),
            "source": SourceSection(url="", tables=()),
            **parts,
            **_staging_sections(text),
            **_serve_section(text),
        },
    )
    if config.merge is not None:
        config = with_merge(text, config, lambda file: load_config(file, environment))
    config = with_whole_patterns(config)
    config = _with_base(text, config)
    if has_target:
        config = _with_target_options(text, config)
    if not has_target:
        url = progress_beside(config.layout.state)
        config = replace(config, target=TargetSection(url=url))
    if FLEXCDC in text.values:
        config = _with_flexcdc(text, config)
    if config.staging is not None and config.stage is None:
        config = with_staging(text, config)
    _check_values(text, config)
    _check_consumers(text, config)
    check_serve(text, config)
    return with_requests(replace(config, file_tables=config.source.tables))


def _with_target_options(text: ConfigText, config: Config) -> Config:
    """Return the configuration with a target URL that has the settings of the rest of the file."""
    engine = engine_of(config.target.url)
    if engine is None or TARGET_OPTIONS_PART not in engine.parts:
        return config
    options = engine.part(TARGET_OPTIONS_PART)
    for key, reason in options.target_problems(config.target):
        raise invalid(text, "target", key, reason)
    try:
        url = options.complete_url(config.target, config.spark.conf)
    except UrlInvalid as error:
        place = text.place("target", "url")
        raise ConfigUrlInvalid(f"{place}: {error.message}", hint=error.hint) from error
    seconds = config.target.batch_seconds or options.BATCH_SECONDS
    return replace(config, target=replace(config.target, url=url, batch_seconds=seconds))


def _join_urls(text: ConfigText) -> None:
    """Make one text of a list of nodes' URLs, for an engine that accepts one."""
    source = text.values.get("source")
    urls = plain(source.get("url")) if isinstance(source, dict) else None
    if not isinstance(urls, list) or not isinstance(source, dict):
        return
    found = [engine_of(url) for url in urls]
    names = {engine.name if engine and engine.has_nodes else "" for engine in found}
    if len(names) != 1 or "" in names:
        reason = "must be one text: a list is for the nodes of one cluster, each with its own log"
        raise invalid(text, "source", "url", reason)
    source["url"] = joined_urls(urls)


def _consumers(text: ConfigText) -> dict[str, ConsumerSection]:
    """Return the sections [consumers.NAME], by name."""
    given = text.values.get(CONSUMERS, {})
    if not isinstance(given, dict) or not all(isinstance(one, dict) for one in given.values()):
        raise ConfigValueInvalid(
            f"{text.place(CONSUMERS)}: consumers must be sections, one for each consumer",
            hint="Write a line [consumers.NAME] with its keys below, class at least.",
        )
    for name in given:
        if not re.match(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,62}\Z", name) or name == TARGET_NAME:
            raise ConfigValueInvalid(
                f"{text.place(f'{CONSUMERS}.{name}')}: a consumer cannot be named {name!r}",
                hint="Use 1 to 63 letters, digits, _ and -; `target` is the load itself.",
            )
    return {
        name: _section(text, f"{CONSUMERS}.{name}", ConsumerSection, one)
        for name, one in given.items()
    }


def _with_flexcdc(text: ConfigText, config: Config) -> Config:
    given = text.values[FLEXCDC]
    plugins: dict[str, dict[str, str]] = {}
    if isinstance(given, dict) and "plugin" in given:
        plugins = {
            name: {key: _ini_text(plain(value)) for key, value in one.items()}
            for name, one in given.items()
            if isinstance(one, dict) and name != "types"
        }
        given = {key: value for key, value in given.items() if key not in plugins}
    if isinstance(given, dict):  # lists may be written as in FlexCDC
        given = {
            key: [part.strip() for part in value.split(",")]
            if isinstance(value, str) and key in FLEXCDC_LISTS
            else value
            for key, value in given.items()
        }
    settings: FlexCdcSettings = _section(text, FLEXCDC, FlexCdcSettings, given, spelled=str)
    settings = replace(settings, sections=plugins)
    if not settings.dest and not config.has_target:
        raise ConfigKeyMissing(
            f"{text.path.name}: [flexcdc] has no dest, and there is no [target]",
            hint='Write dest = "URL" of the database that gets changelogs and state.',
            key="flexcdc.dest",
        )
    if settings.dest:
        check_url(text, FLEXCDC, settings.dest, key="dest")
    section = replace(config.change_extractor, full_before_images=True)
    return replace(config, flexcdc=settings, change_extractor=section)


def _ini_text(value: Any) -> str:
    """Return a value as consumer.ini has it."""
    if isinstance(value, list):
        return ", ".join(map(_ini_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _section(
    text: ConfigText, name: str, kind: Any, given: Any, *, spelled: Callable[[str], str] = camel
) -> Any:
    if not isinstance(given, dict):
        raise ConfigValueInvalid(
            f"{text.place(name)}: {name} must be a section",
            hint=f"Write it as a line [{name}] with its keys below.",
        )
    if name == "pipeline" and ("target" not in text.values or {STAGE, MERGE} & text.values.keys()):
        given = {"mode": Mode.CHANGE.value, **given}
    known = {spelled(item.name): item for item in fields(kind)}
    for key in given:
        if key not in known:
            raise _unknown(text, key, name, tuple(known), what="key")
    for key, item in known.items():
        if key not in given and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigKeyMissing(
                f"{text.path.name}: [{name}] has no {key}, which every "
                f"{'consumer' if kind is ConsumerSection else 'pipeline'} needs",
                hint=f"Add it below [{name}]; docs/configuration.md shows a whole file.",
                key=f"{name}.{key}",
            )
    hints = get_type_hints(kind)
    return kind(
        **{
            known[key].name: _convert(text, name, key, value, hints[known[key].name])
            for key, value in given.items()
        }
    )


def _convert(text: ConfigText, section: str, key: str, value: Any, kind: Any) -> Any:
    strict = not isinstance(value, Substituted)
    try:
        return msgspec.convert(plain(value), type=kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigValueInvalid(
            f"{text.place(section, key)}: {key} has a wrong value: {_reason(error, kind)}",
            hint=_nearest(key, value, kind) or _type_hint(key, kind),
            key=f"{section}.{key}",
        ) from error


def _words(kind: Any) -> tuple[str, ...]:
    """Return the allowed words of a value that must be one of a set; else none."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, StrEnum):
            return tuple(one)
    return ()


def _nearest(key: str, value: Any, kind: Any) -> str:
    """Return the word that was probably meant; empty if that is not clear."""
    given = str(plain(value)).lower()
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
    """Refuse starting positions and other engines' parameters (Wirekite's guide) by name."""
    pipeline, source = text.values.get("pipeline"), text.values.get("source")
    mode = plain(pipeline.get("mode")) if isinstance(pipeline, dict) else None
    url = plain(source.get("url")) if isinstance(source, dict) else None
    source_engine = engine_of(url)
    _refuse_other_targets(text)
    for section, given in text.values.items():
        if section not in SECTIONS or section in OF_TARGETS or not isinstance(given, dict):
            continue
        for key in given:
            owners = [one for one in engines() if key in one.options.get(section, ())]
            if not owners:
                continue
            if mode == Mode.DATA_CHANGE and any(key in one.start_keys for one in owners):
                raise ConfigStartRefused(
                    f"{text.place(section, key)}: {key} is a starting position, and mode "
                    "data+change captures the position itself during the handover",
                    hint=f'Take {key} out, or set mode = "change" to start from a position.',
                    key=key,
                )
            if source_engine is not None and source_engine not in owners:
                begins, instead = source_engine.begins
                raise ConfigOtherEngine(
                    f"{text.place(section, key)}: {key} is a parameter of {owners[0].shown}; this "
                    f"source is {source_engine.shown}, which {begins}",
                    hint=f"Take {key} out; {instead}." if instead else f"Take {key} out.",
                    key=key,
                )


def _refuse_other_targets(text: ConfigText) -> None:
    """Refuse keys of [target] and [changeLoader] that belong to targets of another engine."""
    target = text.values.get("target")
    if not isinstance(target, dict) or (engine := engine_of(plain(target.get("url")))) is None:
        return
    for section in OF_TARGETS:
        given = text.values.get(section, {})
        for key in given if isinstance(given, dict) else ():
            owners = [one for one in engines() if key in one.options.get(section, ())]
            if owners and engine not in owners:
                shown = " and ".join(one.shown for one in owners)
                raise ConfigOtherEngine(
                    f"{text.place(section, key)}: {key} is a key of {shown}; this target is "
                    f"{engine.shown}",
                    hint=f"Take {key} out.",
                    key=key,
                )


def _check_values(text: ConfigText, config: Config) -> None:
    _check_ends(text, config)
    for section, key in POSITIVE:
        value = getattr(getattr(config, snake(section)), snake(key))
        if not 0 < value < 2**31:
            raise invalid(text, section, key, f"must be more than 0, not {value}")
    if not 0 <= config.change_extractor.heartbeat_seconds < 2**31:
        raise invalid(text, "changeExtractor", "heartbeatSeconds", "must be 0 (never) or more")
    if not re.match(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,62}\Z", config.pipeline.name):
        raise invalid(text, "pipeline", "name", "must be 1 to 63 letters, digits, _, - or .")
    if not config.pipeline.directory.strip() or "\0" in config.pipeline.directory:
        raise invalid(text, "pipeline", "directory", "must name a directory")
    for engine in engines():
        if OPTIONS_PART in engine.parts:
            options = engine.part(OPTIONS_PART)
            for key, reason in options.problems(config.change_extractor):
                raise invalid(text, "changeExtractor", key, reason)
    if not re.match(r"[A-Za-z0-9]{1,16}\Z", config.change_loader.change_file_extension):
        reason = "must be 1 to 16 letters and digits, without the dot"
        raise invalid(text, "changeLoader", "changeFileExtension", reason)
    if not 0 < config.change_loader.session_count <= APPLY_SESSIONS_MAX:
        reason = f'must be "auto", or a number from 1 to {APPLY_SESSIONS_MAX}'
        raise invalid(text, "changeLoader", "applySessions", reason)
    if config.change_loader.remove_files and config.change_loader.done_directory:
        reason = "is the alternative to removeFiles; both are set"
        raise invalid(text, "changeLoader", "doneDirectory", reason)
    _check_spark(text, config.spark)


def _check_ends(text: ConfigText, config: Config) -> None:
    """Check the URLs of source and target, or the sections that take their place."""
    if config.has_target:
        check_url(text, "target", config.target.url)
    if config.staging is not None:
        check_staging(text, config)
    if config.stage is not None:
        check_stage(text, config.stage)
    elif config.merge is None:
        check_url(text, "source", config.source.url)
        _check_patterns(text, config.source.tables)
        _check_types(text, config)


def _check_spark(text: ConfigText, spark: SparkSection) -> None:
    if not MASTER.match(spark.master):
        reason = "must be a Spark master: local[*], spark://HOST:7077, yarn or k8s://https://HOST"
        raise invalid(text, "spark", "master", reason)
    if spark.snapshot_address:
        try:
            split_address(spark.snapshot_address)
        except ValueError:
            reason = "must be HOST or HOST:PORT of this machine, as executors reach it"
            raise invalid(text, "spark", "snapshotAddress", reason) from None
    if others := [name for name in spark.conf if not name.startswith("spark.")]:
        reason = f"{others[0]}: Spark ignores what does not begin with `spark.`"
        raise invalid(text, "spark", "conf", reason)
    if spark.conf.get("spark.speculation", "false").strip().lower() != "false":
        reason = "spark.speculation must be false: it has two executors write the same rows"
        raise invalid(text, "spark", "conf", reason)


def _staging_sections(text: ConfigText) -> dict[str, Any]:
    """Return [staging] and [stage], if they exist."""
    return {
        name: _section(text, name, kind, text.values[name])
        for name, kind in STAGING_SECTIONS.items()
        if name in text.values
    }


def _serve_section(text: ConfigText) -> dict[str, Any]:
    """Return [serve], if it exists; its keys are spelled as in the database's configuration."""
    given = text.values.get(SERVE)
    if given is None:
        return {}
    publications = given.get("publications", {}) if isinstance(given, dict) else {}
    for name, one in publications.items() if isinstance(publications, dict) else ():
        _section(text, f"{SERVE}.publications.{name}", PublicationSection, one, spelled=str)
    return {SERVE: _section(text, SERVE, ServeSection, given, spelled=str)}


def _check_consumers(text: ConfigText, config: Config) -> None:
    for name, consumer in config.consumers.items():
        _check_consumer(text, f"{CONSUMERS}.{name}", consumer)
        if consumer.direct and not has_directory(config):
            reason = "needs a source whose log is read from a node's directory"
            raise invalid(text, f"{CONSUMERS}.{name}", "direct", reason)
        if config.stage is not None and consumer.start is Start.SNAPSHOT:
            reason = "cannot be snapshot with [stage]: the changefeed sends the rows there are"
            raise invalid(text, f"{CONSUMERS}.{name}", "start", reason)
        if is_direct(config, consumer):
            _check_direct(text, name)
    _check_one_reader(text, config)


# Keys of a change log and its links, which a consumer of a node's directory does not have.
_OF_LOG = ("start", "cdcWalDirectoryMaxSize", "walForceArchiveTimeout")


def _check_direct(text: ConfigText, name: str) -> None:
    given = text.values[CONSUMERS][name]
    for key in _OF_LOG:
        if key in given:
            reason = "has no effect on a consumer that reads a node's directory: take it out, or "
            reason += "set direct = false, so that the consumer reads a change log"
            raise invalid(text, f"{CONSUMERS}.{name}", key, reason)


def _check_one_reader(text: ConfigText, config: Config) -> None:
    """Refuse two readers of a node's directory, because each would remove what the other has not
    read.
    """
    direct = [name for name, one in config.consumers.items() if is_direct(config, one)]
    if not direct:
        return
    others = [name for name in config.consumers if name not in direct]
    has_log = others or config.has_target or config.stage is not None
    if len(direct) == 1 and not has_log:
        return
    other = f"consumer {direct[0]}" if len(direct) > 1 else "the extraction of the change log"
    reason = f"cannot be true: {other} reads the node's directory, too, and each of the two would "
    reason += "get a part of the changes. Set direct = false for every consumer: a change log has "
    reason += "any number of them"
    raise invalid(text, f"{CONSUMERS}.{direct[-1]}", "direct", reason)


def _check_consumer(text: ConfigText, section: str, consumer: ConsumerSection) -> None:
    if not consumer.class_.strip():
        raise invalid(text, section, "class", "must name a class: module:attribute")
    if consumer.tables:
        _check_patterns(text, consumer.tables, section)
    for key, value in (
        ("lockTimeout", consumer.lock_timeout),
        ("checkFrequency", consumer.check_frequency),
    ):
        if not 0 < value < 2**31:
            reason = f"must be more than 0 milliseconds, not {value}"
            raise invalid(text, section, key, reason)
    if not 0 <= consumer.cdc_wal_directory_max_size < 2**63:
        raise invalid(text, section, "cdcWalDirectoryMaxSize", "must be 0 (no limit) or more")
    if consumer.wal_force_archive_timeout != -1 and consumer.wal_force_archive_timeout < 1:
        raise invalid(text, section, "walForceArchiveTimeout", "must be -1 (off) or more than 0")


def need_merge(config: Config) -> None:
    """Refuse a command that merges logs if there are none. Raises SourceMissing."""
    if config.merge is None:
        raise SourceMissing(
            f"{config.path.name} has no [merge]: there are no logs to make one of",
            hint='Write [merge] with logs = ["s0.toml", "s1.toml"], as docs/merge.md shows.',
        )


def need_target(config: Config, what: str, *, instead: str) -> None:
    """Refuse a command that is about the target if there is none. Raises TargetMissing.

    what: the work of the command. instead: the command that may be meant, in a clause.
    """
    if not config.has_target:
        raise TargetMissing(
            f"{config.path.name} has no [target]: {what}",
            hint=f"{instead}; or add [target] with its url, as docs/configuration.md shows.",
        )


def _with_base(text: ConfigText, config: Config) -> Config:
    """Return the pipeline with the log's base that its mode requires, if no target is loaded.

    Raises ConfigValueInvalid if the source's rows cannot be read for a base.
    """
    only_base = not config.has_target or config.merge is not None
    if config.pipeline.mode is Mode.DATA_CHANGE and (only_base or config.serve is not None):
        engine = engine_of(config.source.url)
        if engine is not None and not engine.has_later_points:
            reason = (
                f"data+change would keep a base of the tables, and the rows of {engine.shown} can "
                "be read at the log's beginning alone; write change"
            )
            raise invalid(text, "pipeline", "mode", reason)
        config = replace(config, has_base=True)
    if only_base:
        # The base is loaded then, at a point of its own after the log's beginning; a merge has it
        # in its logs.
        config = replace(config, pipeline=replace(config.pipeline, mode=Mode.CHANGE))
    return config


def _refuse_loading(text: ConfigText) -> None:
    """Refuse, in a file without [target], keys that only a load obeys. Raises TargetMissing."""
    section = text.values.get("pipeline")
    mode = plain(section.get("mode")) if isinstance(section, dict) else None
    has_base = mode == Mode.DATA_CHANGE
    if mode == Mode.DATA:
        raise TargetMissing(
            f"{text.place('pipeline', 'mode')}: mode {mode} loads tables into a target, and there "
            "is no [target]",
            hint="Add [target] with its url; or leave mode out: changes alone are extracted then. "
            "In mode data+change the log keeps a base of the tables.",
            key="pipeline.mode",
        )
    loader = text.values.get("changeLoader")
    keys = tuple(loader) if isinstance(loader, dict) else ()
    refused = ("schemaChanges",) if has_base else LOADING_SECTIONS
    places = [(name, "") for name in refused if name in text.values]
    places += [("changeLoader", key) for key in keys if key not in KEYS_WITHOUT_LOADING]
    for name, key in places:
        if key and key not in {camel(item.name) for item in fields(SECTIONS[name])}:
            continue  # reported as unknown, with the nearest known name
        raise TargetMissing(
            f"{text.place(name, key)}: {key or 'this section'} is about loading, and there is no "
            "[target]",
            hint=f"Take {key or f'[{name}]'} out, or add [target] with its url.",
            key=f"{name}.{key}" if key else name,
        )


def _check_patterns(text: ConfigText, patterns: tuple[str, ...], section: str = "source") -> None:
    place = text.place(section, "tables")
    try:
        Selection.parse(patterns)
    except PatternInvalid as error:
        raise ConfigPatternInvalid(f"{place}: {error.message}", hint=error.hint) from error


def _check_types(text: ConfigText, config: Config) -> None:
    if not config.has_target:
        return
    try:
        parse_choices(config.target.types, Engine(types_at(config.source.url)))
    except (TypeChoiceUnknown, TypeChoiceInvalid) as error:
        place = text.place("target", "types")
        raise type(error)(f"{place}: {error.message}", hint=error.hint, **error.fields) from error


STARTING = ("run", "extract", "load", "merge")
"""Commands that `penstock stage` replaces for a file with [stage]."""


def need_source(config: Config, command: str, *, takes_merge: bool = False) -> None:
    """Refuse a command that is about the source if there is none. Raises SourceMissing.

    Args:
        config: The pipeline file.
        command: The typed command, after `penstock`: "table add FILE public.item".
        takes_merge: Whether a merge of logs is accepted.
    """
    if config.merge is not None and not takes_merge:
        files = ", ".join(one.path.name for one in config.inputs)
        raise SourceMissing(
            f"{config.path.name} has [merge] and no [source]: it reads the logs of {files}",
            hint="Run the command for one of these pipelines: penstock "
            f"{command.replace('FILE', str(config.inputs[0].path))}",
        )
    if config.stage is not None:
        words = command.partition(" FILE")[0]
        is_starting = words in STARTING
        raise SourceMissing(
            f"{config.path.name} has [stage] and no [source]: changefeeds are posted to it"
            + ("" if is_starting else f", and `penstock {words}` is about a source"),
            hint="Run: penstock stage FILE"
            if is_starting
            else "See what is staged and applied: penstock status FILE",
        )
