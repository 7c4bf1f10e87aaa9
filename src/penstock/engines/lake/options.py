"""Rules of a lake for the pipeline file: the parts `options` and `target_options`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.lake.partitions import parse_terms
from penstock.engines.lake.url import (
    DELTA,
    FORMAT_VERSIONS,
    HOURS_MAX,
    ICEBERG,
    TAG_MINUTES_MAX,
    VACUUM_HOURS_MIN,
    complete_url,
    parse_url,
    terms_in,
)
from penstock.host.errors import UrlInvalid
from penstock.ports.config import Apply, ChangeExtractorSection, TargetSection

__all__ = ["BATCH_SECONDS", "check_url", "complete_url", "problems", "target_problems"]

BATCH_SECONDS = 5.0
"""Each batch makes a commit in each table that changed: 17,280 a day."""

BATCH_SECONDS_MAX = 86_400


def check_url(url: str) -> None:
    """Refuse a URL that cannot be of a lake, or does not say where penstock keeps its state."""
    lake = parse_url(url)
    if lake.format != ICEBERG:
        return
    if not lake.properties:
        raise UrlInvalid(
            f"[spark.conf] has no properties of the catalogue {lake.catalog}",
            hint=f'Write "spark.sql.catalog.{lake.catalog}.type" = "hadoop" (or jdbc, rest) and '
            f'"spark.sql.catalog.{lake.catalog}.warehouse" = "file:///data/lake" below it.',
        )
    if not lake.state:
        raise UrlInvalid(
            f"the catalogue {lake.catalog} names no warehouse by a URI, so penstock has no folder "
            "for its state",
            hint="Add ?state= with a URI to the url: state=s3://bucket/penstock.",
        )


def problems(_section: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """Yield nothing: lakes have no keys in [changeExtractor]."""
    return iter(())


def target_problems(target: TargetSection) -> Iterator[tuple[str, str]]:
    """Yield wrong values of the keys in [target]: key and requirement."""
    if target.apply is Apply.MERGE and target.history:
        yield "history", 'must be false with apply = "merge": a history is written by position'
    seconds = target.batch_seconds
    if seconds is not None and not 0 < seconds <= BATCH_SECONDS_MAX:
        yield "batchSeconds", f"must be more than 0 and at most {BATCH_SECONDS_MAX}"
    if target.format_version not in (None, *FORMAT_VERSIONS):
        yield "formatVersion", "must be 2 or 3"
    if target.file_megabytes is not None and not 1 <= target.file_megabytes <= 99_999:
        yield "fileMegabytes", "must be from 1 to 99999"
    hours = target.version_hours
    if hours is not None and not 0 < hours <= HOURS_MAX:
        yield "versionHours", f"must be more than 0 and at most {HOURS_MAX}"
    minutes = target.tag_minutes
    if minutes is not None and not 0 <= minutes <= TAG_MINUTES_MAX:
        yield "tagMinutes", f"must be from 0 to {TAG_MINUTES_MAX}"
    hours = target.vacuum_hours
    if hours is not None and not VACUUM_HOURS_MIN <= hours <= HOURS_MAX:
        yield "vacuumHours", f"must be from {VACUUM_HOURS_MIN:g} to {HOURS_MAX}"
    is_delta = target.url.lower().startswith(DELTA)
    for table, value in target.partition.items():
        try:
            parse_terms(terms_in(value), has_transforms=not is_delta)
        except ValueError as error:
            yield "partition", f"of {table} {error}"
