"""URLs of nodes: `ignite:///WORK-DIRECTORY?consistentId=ID`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.host.errors import UrlInvalid

EXAMPLE = "ignite:///var/lib/ignite/work?consistentId=node-1"
CDC_PATH_DEFAULT = "db/wal/cdc"
_KEYS = ("consistentId", "cdcWalPath")


@dataclass(frozen=True, slots=True, kw_only=True)
class IgniteUrl:
    """A node's work directory. consistent_id: empty where the directory has but one node.

    cdc_path: the node's cdcWalPath, absolute or below the work directory.
    """

    work: Path
    consistent_id: str
    cdc_path: str = CDC_PATH_DEFAULT

    @classmethod
    def parse(cls, url: str) -> IgniteUrl:
        """Read a URL. Raises UrlInvalid."""
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.netloc or not parts.path.strip("/"):
            raise UrlInvalid(
                "url names no work directory of a node",
                hint=f"Write it like {EXAMPLE}, with three slashes.",
            )
        for key, value in given.items():
            if key not in _KEYS or not value:
                raise UrlInvalid(
                    f"url has {key}={value}, and knows {' and '.join(_KEYS)}, each with a value",
                    hint=f"Write it like {EXAMPLE}.",
                )
        return cls(
            work=Path(unquote(parts.path)),
            consistent_id=given.get("consistentId", ""),
            cdc_path=given.get("cdcWalPath", CDC_PATH_DEFAULT),
        )

    @property
    def folder(self) -> str:
        """The name of the node's folders; empty without a consistent id."""
        return folder_of(self.consistent_id)


def folder_of(consistent_id: str) -> str:
    """The name of a node's folders: its consistent id, with what is no letter or digit as _."""
    return "".join(one if one.isalnum() else "_" for one in consistent_id)
