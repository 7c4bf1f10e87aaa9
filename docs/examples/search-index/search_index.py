"""Full-text index in SQLite that follows the table public.article."""

import sqlite3
from collections.abc import Iterator

from penstock.consume import CdcConsumer, CdcEvent

SCHEMA = """
create virtual table if not exists article using fts5(title, body);
create table if not exists place (gsn integer);
insert into place select -9223372036854775808 where not exists (select 1 from place);
"""


class SearchIndex(CdcConsumer):
    """Consumer that keeps its position in the log beside the index, in one transaction."""

    def __init__(self, file: str) -> None:
        """Open the index; a relative path starts at the folder in which penstock is started."""
        self.db = sqlite3.connect(file)
        self.db.executescript(SCHEMA)

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        """Put rows into the index and remove them."""
        (done,) = self.db.execute("select gsn from place").fetchone()
        gsn, moved = done, None
        with self.db:
            for event in events:
                if event.gsn <= done:
                    continue  # delivered again after a crash
                gsn = event.gsn
                (number,) = event.key
                now = self.db.execute(
                    "select title, body from article where rowid = ?", (number,)
                ).fetchone()
                if event.value is None:
                    moved = now
                    self.db.execute("delete from article where rowid = ?", (number,))
                    continue
                # PostgreSQL does not send long values that an update left unchanged. If the key
                # changed, use those of the removed row.
                title, body = now or moved or ("", "")
                row = (number, event.value.get("title", title), event.value.get("body", body))
                self.db.execute(
                    "insert or replace into article (rowid, title, body) values (?, ?, ?)", row
                )
            self.db.execute("update place set gsn = ?", (gsn,))
        return True

    def on_truncate(self, table: str, gsn: int) -> None:
        """Empty the index, unless it already has later rows: a call is repeated after a crash."""
        with self.db:
            self.db.execute("delete from article where (select gsn from place) <= ?", (gsn,))

    def on_reload(self, table: str, gsn: int) -> None:
        """Empty the index: all rows follow again."""
        self.on_truncate(table, gsn)

    def stop(self) -> None:
        """Close the file."""
        self.db.close()
