"""Options of the pipeline file for MySQL and MariaDB; see `ports.config.EngineOptions`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.codec.mysql.binlog_position import BINLOG_HEAD_BYTES, BinlogPosition
from penstock.engines.mysql.url import EXAMPLE, MySQLUrl
from penstock.host.errors import UrlInvalid
from penstock.model.position import PositionInvalid
from penstock.ports.config import ChangeExtractorSection

SERVER_ID_MAX = 2**32 - 1


def check_url(url: str) -> None:
    """Refuse a URL that cannot be of this engine."""
    if not MySQLUrl.parse(url).user:
        raise UrlInvalid("url names no user", hint=f"Write it like {EXAMPLE}.")


def problems(section: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """Yield wrong values of this engine's keys in [changeExtractor]: key and requirement."""
    file, position = section.binlog_file, section.binlog_position
    if not 0 <= section.server_id <= SERVER_ID_MAX:
        yield "serverId", f"must be from 1 to {SERVER_ID_MAX}"
    if file is None and position is not None:
        yield "binlogPosition", "needs binlogFile beside it"
    if file is not None:
        try:
            BinlogPosition.at(file, BINLOG_HEAD_BYTES if position is None else position)
        except PositionInvalid as error:
            yield "binlogFile", f"cannot be used: {error.message}"
    if position is not None and position < BINLOG_HEAD_BYTES:
        yield "binlogPosition", f"must be at least {BINLOG_HEAD_BYTES}"
