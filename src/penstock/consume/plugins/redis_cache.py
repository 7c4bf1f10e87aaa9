"""Cache in Redis that follows tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from penstock.consume.plugins.base import Instance, Row, RowValues
from penstock.consume.plugins.collecting import (
    Action,
    Change,
    CollectingPlugin,
    PluginSection,
    json_row,
    json_text,
    json_value,
)
from penstock.model import PenstockError

_NEW = (Action.INSERT, Action.UPDATE_AFTER)
_SCAN_COUNT = 1000


class CacheFailed(PenstockError):
    """Redis does not answer, or refuses a command."""

    code = "FX18"


class CacheKeyMissing(PenstockError):
    """A table has no key under which its rows could be kept."""

    code = "FX19"


class RedisCache(CollectingPlugin):
    """Cache of each row as JSON below `PREFIXschema.table:key`; a transaction is one MULTI.

    `plugin = "penstock.consume.plugins:RedisCache"`.
    """

    row_values = RowValues.PYTHON
    section: ClassVar[str] = "redis_cache"
    keys: ClassVar[dict[str, str | None]] = {"url": None, "prefix": "", "timeout": "10"}

    def __init__(self) -> None:
        super().__init__()
        self._client: Any = None
        self._errors: tuple[type[Exception], ...] = ()
        self._prefix = ""
        self._shown = ""

    def configure(self, settings: PluginSection, instance: Instance, /) -> None:
        """Read the settings and connect. Raises CacheFailed if Redis does not answer."""
        try:
            import redis
        except ModuleNotFoundError as error:
            raise CacheFailed(
                "the cache needs the Python package redis, which is not installed",
                hint="Run: pip install 'penstock[redis]'",
            ) from error
        if str(instance.settings.get("flexcdc", {}).get("skip_before_update", "")).lower() in (
            "true", "on", "yes", "1",
        ):  # fmt: skip
            raise settings.invalid(
                "url",
                "cannot be kept in step: skip_before_update hides the old keys of updates",
                "Write skip_before_update = false in [flexcdc].",
            )
        self._errors = (redis.RedisError, OSError)
        self._prefix = settings.text("prefix")
        timeout_s = settings.number("timeout", least=0.001)
        try:
            self._client = redis.Redis.from_url(
                settings.text("url"), socket_timeout=timeout_s, socket_connect_timeout=timeout_s
            )
        except ValueError as error:
            raise settings.invalid(
                "url", "is not an address of a Redis server", "Write url = redis://HOST:PORT/0."
            ) from error
        at = self._client.connection_pool.connection_kwargs
        self._shown = str(at.get("path") or f"{at.get('host')}:{at.get('port', 6379)}")
        self._ask(self._client.ping)

    def deliver(self, changes: Sequence[Change], _uow_id: int, _gsn: int, _: Instance, /) -> None:
        """Write the rows to the cache. Raises CacheFailed, CacheKeyMissing."""
        self._ask(lambda: self._keep_step(changes))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _keep_step(self, changes: Sequence[Change]) -> None:
        emptied, last = self._net(changes)
        with self._client.pipeline(transaction=True) as pipeline:
            for found in self._find(emptied):
                pipeline.delete(found)
            for key, row in last.items():
                if row is None:
                    pipeline.delete(key)
                else:
                    pipeline.set(key, json_text(json_row(row)))
            pipeline.execute()

    def _net(self, changes: Iterable[Change]) -> tuple[set[str], dict[str, Row | None]]:
        """Return the result of a transaction: the emptied tables, and for each changed key its row,
        or None if deleted.
        """
        emptied: set[str] = set()
        last: dict[str, Row | None] = {}
        for change in changes:
            if change.action is Action.TRUNCATE:
                start = self._start(change)
                emptied.add(start)
                last = {key: row for key, row in last.items() if not key.startswith(start)}
            else:
                last[self._key(change)] = change.row if change.action in _NEW else None
        return emptied, last

    def _find(self, starts: Iterable[str]) -> Iterator[bytes]:
        for start in starts:
            pattern = "".join(f"\\{one}" if one in "*?[]^-\\" else one for one in start)
            yield from self._client.scan_iter(match=f"{pattern}*", count=_SCAN_COUNT)

    def _start(self, change: Change) -> str:
        return f"{self._prefix}{quote(change.db)}.{quote(change.table)}:"

    def _key(self, change: Change) -> str:
        if not change.key:
            raise CacheKeyMissing(
                f"{change.name} has no key to keep its rows by",
                hint=f"Give the table a primary key, or skip it: filter = {change.name} below "
                f"[{self.section}].",
                table=change.name,
            )
        values = (json_value(change.row[name]) for name in change.key)
        return self._start(change) + ":".join(
            quote(value if isinstance(value, str) else json_text(value), safe="")
            for value in values
        )

    def _ask(self, what: Any) -> Any:
        try:
            return what()
        except self._errors as error:
            raise CacheFailed(
                f"Redis at {self._shown}: {type(error).__name__}: {error}",
                hint=f"Start Redis, or correct url below [{self.section}], and start again: the "
                "transaction is sent again.",
            ) from error
