"""Rules of [staging] and [stage] in a pipeline file, and their effect on the other sections."""

from __future__ import annotations

from dataclasses import replace

from penstock.control.pipeline.config_text import (
    ConfigKeyMissing,
    ConfigText,
    ConfigUrlInvalid,
    ConfigValueInvalid,
    TargetMissing,
    check_url,
    invalid,
    plain,
)
from penstock.host.errors import UrlInvalid
from penstock.model.sections import (
    STAGE,
    STAGING,
    Authentication,
    ConsumerSection,
    Duration,
    StageSection,
    Start,
    seconds,
)
from penstock.ports.config import CONSUMERS, OPTIONS_PART, Config, Mode, snake
from penstock.ports.registry import engine_at
from penstock.ports.staging import STAGING_PART

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
    """Return the pipeline with the consumer that stages its changes, from the first one on."""
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
