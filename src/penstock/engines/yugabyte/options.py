"""Options in a YugabyteDB source's URL; see `penstock.ports.config.EngineOptions`.

`retention_hours`: how long the server keeps unconfirmed changes (its flag
`cdc_intent_retention_ms`, which SQL does not show). `lsn_type`: of a slot that penstock creates.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from penstock.engines.postgres import options as postgres
from penstock.host.errors import UrlInvalid
from penstock.ports.config import ChangeExtractorSection

EXAMPLE = "yugabytedb://user:${PASSWORD}@host:5433/database"
PORT_DEFAULT = 5433
RETENTION_HOURS_DEFAULT = 8.0
LSN_TYPES = ("SEQUENCE", "HYBRID_TIME")
_OURS = frozenset({"retention_hours", "lsn_type"})


def wire_url(url: str) -> str:
    """Return the URL for libpq: with PostgreSQL's scheme, the default port and without penstock's
    keys.
    """
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")
    host = place[2] if ":" in place[2].rpartition("]")[2] else f"{place[2]}:{PORT_DEFAULT}"
    query = [(key, value) for key, value in _query(url).items() if key not in _OURS]
    return urlunsplit(
        ("postgresql", "".join((*place[:2], host)), parts.path, urlencode(query), parts.fragment)
    )


def retention_s(url: str) -> float:
    """Return for how long the server keeps unconfirmed changes, in seconds. Raises UrlInvalid."""
    text = _query(url).get("retention_hours", str(RETENTION_HOURS_DEFAULT))
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= 24:
        raise UrlInvalid(
            f"retention_hours is {text}", hint="Write hours, more than 0 and at most 24."
        )
    return hours * 3600


def lsn_type(url: str) -> str:
    """Return SEQUENCE or HYBRID_TIME. Raises UrlInvalid."""
    found = _query(url).get("lsn_type", LSN_TYPES[0])
    if found not in LSN_TYPES:
        raise UrlInvalid(f"lsn_type is {found}", hint=f"Write one of {', '.join(LSN_TYPES)}.")
    return found


def check_url(url: str) -> None:
    """See EngineOptions."""
    try:
        converted = wire_url(url)
    except ValueError as error:
        raise UrlInvalid(
            f"url cannot be read: {error}", hint=f"Write it like {EXAMPLE}."
        ) from error
    postgres.check_url(converted)
    retention_s(url)
    lsn_type(url)


def problems(section: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """See EngineOptions."""
    return postgres.problems(section)


def _query(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))
