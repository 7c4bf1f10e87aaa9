"""Choose the strategies for a consistent snapshot that an account may use, best first. Pure.

These servers cannot hand one snapshot to several connections, as PostgreSQL does; so changes have
to be blocked, for milliseconds, while each connection takes its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.engines.mysql.connect import ServerVersion
from penstock.engines.mysql.source.rights import Rights
from penstock.model import PenstockError, TableDefinition, TableName

# Engines with consistent reads; in all others a read sees the present rows.
WITH_SNAPSHOTS = frozenset({"INNODB", "ROCKSDB", "TOKUDB", "XPAND"})
NAMES_SHOWN_MAX = 5


class NoConsistentPoint(PenstockError):
    """The account lacks the privileges for every strategy to read the tables at one point."""

    code = "MY70"
    retry = "operator"


class Strategy(StrEnum):
    """A way to take several snapshots. The value is its name in messages."""

    OWN_POSITIONS = "each snapshot's own position"
    BACKUP_LOCK = "backup lock"
    BACKUP_STAGE = "backup stage"
    GLOBAL_LOCK = "global read lock"
    TABLE_LOCKS = "table locks"
    LOCK_FREE = "without a lock"


_HOW = {
    Strategy.OWN_POSITIONS: "snapshots are taken until all are at the same position, which the "
    "server reports for each; nothing waits",
    Strategy.BACKUP_LOCK: "schema changes wait while snapshots are taken until no transaction "
    "ended in between; nothing else waits",
    Strategy.BACKUP_STAGE: "commits wait for some milliseconds while the snapshots are taken",
    Strategy.GLOBAL_LOCK: "all writes wait for some milliseconds while the snapshots are taken, "
    "longer if a long statement is running",
    Strategy.TABLE_LOCKS: "writes to the captured tables wait for some milliseconds while the "
    "snapshots are taken",
    Strategy.LOCK_FREE: "snapshots are taken one after the other, and changes from before the "
    "first one on are applied again: the tables are equal when the last one's position is reached, "
    "and not before",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that the choice depends on.

    Attributes:
        has_gtids: transactions have ids (MySQL with gtid_mode ON).
        has_log: the server writes a binlog.
        follows: changes are applied after the rows, so the place in the binlog has to be known.
    """

    server: ServerVersion
    rights: Rights
    has_gtids: bool
    tables: Sequence[TableDefinition]
    has_log: bool = True
    follows: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A strategy that can be tried.

    Attributes:
        unprotected: tables whose engine has no snapshots.
        lacking: reasons why better strategies are impossible, as sentences; empty for the best.
        sees_prepared: whether prepared XA transactions, whose rows lie in the log before the point,
            are visible.
    """

    strategy: Strategy
    unprotected: tuple[TableName, ...] = ()
    lacking: tuple[str, ...] = ()
    sees_prepared: bool = True

    def __str__(self) -> str:
        """Return for people what penstock is about to do."""
        text = f"{self.strategy}: {_HOW[self.strategy]}"
        if self.lacking:
            text += f" (not better: {'; '.join(self.lacking)})"
        if self.unprotected:
            text += (
                f"; {_names(self.unprotected)} cannot be read at one point: their storage engine "
                f"has no snapshots"
            )
        if not self.sees_prepared:
            text += (
                "; XA transactions that are prepared meanwhile would be missing and cannot be "
                "seen: the privilege XA_RECOVER_ADMIN is missing"
            )
        return text


def _names(names: Sequence[TableName]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(map(str, names[:NAMES_SHOWN_MAX])) + more


def choices(facts: Facts) -> list[Choice]:
    """Return the strategies that can be tried, best first.

    Raises NoConsistentPoint, with the grants that would help, if there is none.
    """
    unprotected = tuple(
        table.name for table in facts.tables if table.engine.upper() not in WITH_SNAPSHOTS
    )
    sees_prepared = (
        not facts.follows or not facts.server.mysql(8) or facts.rights.has("xa_recover_admin")
    )
    found: list[Choice] = []
    lacking: list[str] = []
    for strategy in _candidates(facts.server):
        obstacle = _obstacle(strategy, facts)
        if obstacle:
            lacking.append(obstacle)
        else:
            found.append(
                Choice(
                    strategy=strategy,
                    unprotected=unprotected,
                    lacking=tuple(lacking),
                    sees_prepared=sees_prepared,
                )
            )
    if not found:
        raise NoConsistentPoint(
            f"the tables cannot be read at one point: {'; '.join(lacking)}",
            hint=f"Run at the server: grant {_right_to_lock(facts.server)} on *.* to "
            "'USER'@'HOST';",
        )
    return found


def _candidates(server: ServerVersion) -> tuple[Strategy, ...]:
    if server.is_mariadb:
        return (
            Strategy.OWN_POSITIONS,
            Strategy.BACKUP_STAGE,
            Strategy.GLOBAL_LOCK,
            Strategy.TABLE_LOCKS,
            Strategy.LOCK_FREE,
        )
    return (Strategy.BACKUP_LOCK, Strategy.GLOBAL_LOCK, Strategy.TABLE_LOCKS, Strategy.LOCK_FREE)


def _right_to_lock(server: ServerVersion) -> str:
    return "flush_tables" if server.mysql(8, 0, 23) else "reload"


def _obstacle(strategy: Strategy, facts: Facts) -> str:
    """Return why a strategy cannot be tried, as a part of a sentence; empty if it can."""
    server, rights = facts.server, facts.rights
    status = (
        ""
        if not facts.follows or server.is_mariadb or rights.has("replication client", "super")
        else ("the privilege REPLICATION CLIENT is missing")
    )
    if strategy in (Strategy.OWN_POSITIONS, Strategy.BACKUP_STAGE) and not facts.has_log:
        return "the server writes no binlog"
    if strategy is Strategy.OWN_POSITIONS:
        return ""
    if strategy is Strategy.BACKUP_STAGE:
        if not server.mariadb(10, 4, 1):
            return "backup stages are in MariaDB 10.4 and later"
        return "" if rights.has("reload") else "the privilege RELOAD is missing"
    if strategy is Strategy.BACKUP_LOCK:
        if not server.mysql(8):
            return "backup locks are in MySQL 8 and later"
        if not facts.has_gtids:
            return "a backup lock is of use with gtid_mode = ON only"
        if status or rights.has("backup_admin"):
            return status
        return "the privilege BACKUP_ADMIN is missing"
    if strategy is Strategy.GLOBAL_LOCK:
        locking = "" if rights.has("reload", "flush_tables") else "the privilege RELOAD is missing"
        return locking or status
    if strategy is Strategy.TABLE_LOCKS:
        if not facts.tables:
            return "there is no table to lock"
        unlocked = rights.lacking_on([table.name for table in facts.tables], "lock tables")
        missing = f"the privilege LOCK TABLES is missing on {_names(unlocked)}" if unlocked else ""
        return missing or status
    return _lock_free_obstacle(facts) or status


def _lock_free_obstacle(facts: Facts) -> str:
    if not facts.follows:
        return "without a lock only changes that follow make the tables equal"
    if not facts.server.is_mariadb and not facts.has_gtids:
        # A position is after a transaction's commit record before others can see its rows.
        return "without a lock gtid_mode = ON is needed, which shows which transactions are visible"
    keyless = [table.name for table in facts.tables if table.identity == "f"]
    if keyless:
        return f"without a lock every table needs a key: {_names(keyless)} has none"
    return ""
