"""Events of a node's log, as consumers get them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.codec.ignite.plain_dates import with_plain_dates
from penstock.codec.ignite.wal import Version, wal_kernel

if TYPE_CHECKING:
    from penstock.codec.ignite.wal import Entry
else:
    _, Entry, _ = wal_kernel()

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_OPS = {1: "I", 2: "U", 3: "D", 4: "U"}


class CdcEvent(Entry):
    """One change of one key. Key and value are decoded when they are accessed.

    Attributes:
        primary: False for a backup copy.
        partition, cache_id: as in Ignite.
        key_bytes, value_bytes: as the node marshalled them.
    """

    __slots__ = ()
    names: ClassVar[Mapping[int, str]] = {}

    @property
    def op(self) -> str:
        """I, U or D. An atomic cache logs U for the first value of a key, too."""
        return _OPS[self.operation]

    @property
    def table(self) -> str:
        """Name of the cache; its id if the cache is gone."""
        return self.names.get(self.cache_id) or str(self.cache_id)

    @property
    def version(self) -> Version | None:
        """Version that orders the changes of one key: a later change has the greater version."""
        return self.write_version

    @property
    def expire_time(self) -> int:
        """Time at which it expires, ms since 1970; 0: never."""
        return self.expire_time_ms

    @property
    def source_xid(self) -> Version | None:
        """Id of the transaction, shared by its changes; None outside a transaction."""
        return self.near_version

    @property
    def commit_time(self) -> datetime.datetime:
        """Time at which the node wrote it; UTC."""
        return _EPOCH + datetime.timedelta(milliseconds=self.time_ms)

    def __repr__(self) -> str:
        return f"CdcEvent({self.op} {self.table} {self.key!r})"


class PlainCdcEvent(CdcEvent):
    """A change for a consumer with keepBinary = false: dates are datetime objects."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        """Key as in CdcEvent, with plain dates."""
        return with_plain_dates(super().key)

    @property
    def value(self) -> Any:
        """Value as in CdcEvent, with plain dates."""
        return with_plain_dates(super().value)
