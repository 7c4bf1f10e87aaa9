"""Rules of single sections of a pipeline file: [staging], [stage], [merge] and [serve]."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.base.manifest import NAME as BASE
from penstock.codec.types import Engine
from penstock.control.pipeline.config_text import (
    ConfigKeyMissing,
    ConfigPatternInvalid,
    ConfigText,
    ConfigUrlInvalid,
    ConfigValueInvalid,
    Substituted,
    TargetMissing,
    check_url,
    invalid,
    plain,
)
from penstock.host.errors import UrlInvalid
from penstock.host.listen import is_loopback
from penstock.model import PenstockError
from penstock.model.sections import (
    MERGE,
    MERGED,
    SERVE,
    STAGE,
    STAGING,
    TLS_OFF,
    Authentication,
    ConsumerSection,
    Duration,
    ServeSection,
    StageSection,
    Start,
    seconds,
)
from penstock.ports.config import CONSUMERS, OPTIONS_PART, Config, Mode, SourceSection, snake
from penstock.ports.feeds import STAGING_PART
from penstock.ports.registry import engine_at, schemes, types_at
from penstock.serve.entries import parse_entries

STAGE_TOKEN_LENGTH_MIN = 16
CONSUMER = "penstock.control.feeds.staging_consumer"
"""Module of the consumer that [staging] has in a pipeline with a source."""


def check_stage_file(text: ConfigText) -> None:
    """Check which sections a file with [stage] needs, and which it cannot have."""
    if "source" in text.values:
        raise ConfigValueInvalid(
            f"{text.place('source')}: a file with [stage] has no [source]: changefeeds are posted",
            hint="Take [source] out; or take [stage] out to follow a source's log.",
        )
    for name, key in ((STAGING, "url"), ("target", "url")):
        if name not in text.values:
            raise ConfigKeyMissing(
                f"{text.path.name}: there is [stage], and no [{name}]",
                hint=f'Add a line [{name}] with {key} = "..." below it.',
                key=f"{name}.{key}",
            )
    pipeline = text.values.get("pipeline")
    mode = plain(pipeline.get("mode")) if isinstance(pipeline, dict) else None
    if mode in (Mode.DATA, Mode.DATA_CHANGE):
        raise ConfigValueInvalid(
            f"{text.place('pipeline', 'mode')}: with [stage] nothing is loaded in bulk",
            hint="Take mode out; the changefeed itself sends the rows that there are.",
            key="pipeline.mode",
        )


def with_staging(text: ConfigText, config: Config) -> Config:
    """Return the pipeline with a consumer that stages its changes, from the first one on."""
    if not config.has_target:
        raise TargetMissing(
            f"{text.place(STAGING)}: changes are staged until they are applied, and there is no "
            "[target]",
            hint="Add [target] with its url, or take [staging] out; consumers read the log itself.",
        )
    if not config.pipeline.mode.has_change:
        raise ConfigValueInvalid(
            f"{text.place('pipeline', 'mode')}: mode data has no changes to stage",
            hint='Take [staging] out, or set mode = "data+change".',
            key="pipeline.mode",
        )
    if STAGING in config.consumers:
        raise ConfigValueInvalid(
            f"{text.place(CONSUMERS, STAGING)}: the consumer of [staging] has this name",
            hint="Give the consumer another name.",
        )
    consumer = ConsumerSection(
        class_=f"{CONSUMER}:StagingConsumer",
        options={"file": str(text.path)},
        start=Start.BEGINNING,
    )
    return replace(config, consumers={**config.consumers, STAGING: consumer})


def check_staging(text: ConfigText, config: Config) -> None:
    """Refuse wrong values of [staging], which exists. Raises ConfigUrlInvalid and others."""
    assert config.staging is not None, "asked before"
    _check_staging_url(text, config.staging.url)
    if config.stage is not None and "retireOffset" in text.values.get(STAGING, {}):
        raise invalid(text, STAGING, "retireOffset", "stands in [stage] where there is one")
    _check_duration(text, STAGING, "retireOffset", config.staging.retire_offset)


def check_stage(text: ConfigText, stage: StageSection) -> None:
    """Refuse wrong values of [stage]. Raises ConfigValueInvalid."""
    try:
        _ = stage.address
    except ValueError:
        raise invalid(text, STAGE, "listen", "must be host:port") from None
    for key in (
        "bestEffortWindow",
        "retireOffset",
        "jwtRefresh",
        "httpResponseTimeout",
        "fetchDelay",
    ):
        _check_duration(text, STAGE, key, getattr(stage, snake(key)))
    for key in ("leaseSeconds", "requestBytesMax", "ndjsonBufferSize"):
        value = getattr(stage, snake(key))
        if not 0 < value < 2**31:
            raise invalid(text, STAGE, key, f"must be more than 0, not {value}")
    for key in ("httpResponseTimeout", "fetchDelay"):
        if not seconds(getattr(stage, snake(key))):
            raise invalid(text, STAGE, key, "must be more than 0")
    needs_token = stage.authentication is Authentication.TOKEN
    if needs_token and len(stage.token) < STAGE_TOKEN_LENGTH_MIN:
        reason = f"must have {STAGE_TOKEN_LENGTH_MIN} characters at least"
        raise invalid(text, STAGE, "token", reason)
    if stage.token and not needs_token:
        raise invalid(text, STAGE, "token", 'goes with authentication = "token"')
    if bool(stage.tls_certificate) != bool(stage.tls_private_key):
        raise invalid(text, STAGE, "tlsCertificate", "and tlsPrivateKey go together")
    if bool(stage.storage_url) != bool(stage.target_schema):
        raise invalid(text, STAGE, "storageUrl", "and targetSchema go together")


def _check_duration(text: ConfigText, section: str, key: str, value: Duration) -> None:
    try:
        seconds(value)
    except ValueError:
        reason = 'must be a duration such as "1h", "90s" or "100ms"'
        raise invalid(text, section, key, reason) from None


def _check_staging_url(text: ConfigText, url: str) -> None:
    """Check the URL of a staging database, whose engine may be neither source nor target."""
    try:
        engine = engine_at(url)
    except UrlInvalid as error:
        place = text.place(STAGING, "url")
        raise ConfigUrlInvalid(f"{place}: {error.message}", hint=error.hint) from error
    engine.part(STAGING_PART)
    if OPTIONS_PART in engine.parts:
        check_url(text, STAGING, url)


def check_merge_file(text: ConfigText) -> None:
    """Refuse sections that a file with [merge] cannot have. Raises ConfigValueInvalid."""
    for name in ("source", STAGE, STAGING):
        if name in text.values:
            raise ConfigValueInvalid(
                f"{text.place(name)}: a file with [merge] has no [{name}]: it reads change logs",
                hint=f"Take [{name}] out; or take [merge] out to follow a server's log.",
            )
    pipeline = text.values.get("pipeline")
    mode = plain(pipeline.get("mode")) if isinstance(pipeline, dict) else None
    if mode == Mode.DATA:
        raise ConfigValueInvalid(
            f"{text.place('pipeline', 'mode')}: with [merge] nothing is loaded in bulk",
            hint='Take mode out; or write mode = "data+change": the merged log begins with the '
            "rows of its logs' bases then.",
            key="pipeline.mode",
        )


def with_merge(text: ConfigText, config: Config, load: Callable[[Path], Config]) -> Config:
    """Return the pipeline with the pipelines of its logs, and with a source URL that names the
    merge.

    load: reads another pipeline file. Raises ConfigValueInvalid, and the errors of load.
    """
    section = config.merge
    assert section is not None, "a file with [merge]"
    if not section.logs or len(set(section.logs)) < len(section.logs):
        raise invalid(text, MERGE, "logs", "must name pipeline files, each once")
    for key, value in (
        ("joinSeconds", section.join_seconds),
        ("clockSkewSeconds", section.clock_skew_seconds),
    ):
        if not 0 <= value < 2**20:
            raise invalid(text, MERGE, key, f"must be 0 or more, not {value}")
    inputs = tuple(load(text.path.parent / name) for name in section.logs)
    by_file = {file: one.pipeline.name for file, one in zip(section.logs, inputs, strict=True)}
    names = list(by_file.values())
    if len(set(names)) < len(names):
        raise invalid(text, MERGE, "logs", f"must have different names, not {', '.join(names)}")
    _check_inputs(text, config, inputs)
    for file in (*section.split, *(child for of in section.split.values() for child in of)):
        if file not in by_file:
            raise invalid(text, MERGE, "split", f"names {file}, which is not in logs")
    types = {types_at(one.source.url) for one in inputs}
    if len(types) > 1 and config.has_target:
        raise invalid(
            text, MERGE, "logs", f"have types of {', '.join(sorted(types))}; a target takes one"
        )
    split = {
        by_file[parent]: tuple(by_file[child] for child in children)
        for parent, children in section.split.items()
    }
    patterns = dict.fromkeys(pattern for one in inputs for pattern in one.source.tables)
    url = inputs[0].source.url
    if f"{MERGED}-{types_at(url)}" not in schemes():
        raise invalid(text, MERGE, "logs", f"cannot be of a source with types of {types_at(url)}")
    return replace(
        config,
        merge=replace(section, split=split),
        inputs=inputs,
        source=SourceSection(url=_url_of(url), tables=tuple(patterns)),
    )


def _check_inputs(text: ConfigText, config: Config, inputs: Sequence[Config]) -> None:
    """Check that each has what this merge needs. Raises ConfigValueInvalid."""
    for one in inputs:
        if one.merge is not None or one.stage is not None or not one.pipeline.mode.has_change:
            reason = f"must have a log of a source's changes, and {one.path.name} has none"
            raise invalid(text, MERGE, "logs", reason)
        if one.directory == config.directory:
            raise invalid(text, MERGE, "logs", f"has {one.path.name}, of the same directory")
        if config.pipeline.mode is Mode.DATA_CHANGE and not one.has_base:
            reason = (
                f"must have bases, and {one.path.name} has none: it needs mode data+change, and "
                "[serve] or no [target]"
            )
            raise invalid(text, MERGE, "logs", reason)


def _url_of(url: str) -> str:
    """Return the URL of the first log's source, with a scheme that marks a merge."""
    return f"{MERGED}-{Engine(types_at(url)).value}://{url.partition('://')[2]}"


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
