"""Doctor's checks of a server's limits: number of sessions, tables without a primary key."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.mysql.checks.probe import SOURCE_CHECKS, TARGET_CHECKS, MySQLProbe, names
from penstock.engines.mysql.checks.target_checks import present_tables
from penstock.ports.checks import Finding, Severity

SESSIONS_BESIDE = 3  # sessions of the threads

OURS = "select count(*) as count from information_schema.processlist where user = %s"


@TARGET_CHECKS.check("MY044", "tables without a primary key", needs_source=True)
def keys_required(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that no table without a primary key has to be created at a target that refuses such
    tables.
    """
    for name in ("sql_require_primary_key", "innodb_force_primary_key"):
        if not probe.wanted.has_data or not probe.is_on(name):
            continue
        present = present_tables(probe)
        without = [
            table.name
            for table in probe.tables
            if not table.primary_key and table.name not in present
        ]
        if without:
            yield probe.make_finding(
                "MY044",
                Severity.ERROR,
                f"{name} of the target is on, and these tables have no primary key: "
                f"{names(without)}",
                "the target refuses to create them",
                f"{probe.setting(name, '0')}  -- or give them a primary key at the source, or "
                "leave them out of [source] tables",
            )


@SOURCE_CHECKS.check("MY045", "sessions at the source")
def sessions_at_source(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that the account may open a session for each thread of the bulk load."""
    if probe.wanted.has_data:
        yield from _sessions(probe)


@TARGET_CHECKS.check("MY045", "sessions at the target")
def sessions_at_target(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that the account may open a session for each thread."""
    yield from _sessions(probe)


def _sessions(probe: MySQLProbe) -> Iterator[Finding]:
    """Compare the sessions that a run needs with those that account and server have left."""
    beside = SESSIONS_BESIDE + probe.wanted.more_sessions
    needed = probe.wanted.threads + beside
    row = probe.rows("select current_user() as account, @@max_user_connections as most")[0]
    most = int(row["most"])
    user = str(row["account"]).rpartition("@")[0]
    used = int(probe.rows(OURS, (user,))[0]["count"]) - 1  # without this session
    why = (
        f"a run opens maxThreads + {beside} = {needed} sessions at once; one session more "
        "ends it with HS26"
    )
    fewer = f"set maxThreads = {max(most - beside, 1)} in [dataLoader] and [changeLoader]"
    if most and most < needed:
        yield probe.make_finding(
            "MY045",
            Severity.ERROR,
            f"{probe.account} may have {most} sessions at once (max_user_connections), and a run "
            f"needs {needed}",
            why,
            f"alter user {probe.account} with max_user_connections {needed + SESSIONS_BESIDE};  "
            f"-- or {fewer}",
        )
    elif most and most - used < needed:
        yield probe.make_finding(
            "MY045",
            Severity.WARNING,
            f"{probe.account} may have {most} sessions at once (max_user_connections) and has "
            f"{used} already; a run needs {needed}",
            why,
            f"alter user {probe.account} with max_user_connections {used + needed + 1};",
        )
    room = (probe.number("max_connections") or 0) - _count_sessions(probe)
    if room < needed:
        yield probe.make_finding(
            "MY045",
            Severity.WARNING,
            f"max_connections leaves {max(room, 0)} sessions, and a run needs {needed}",
            why,
            probe.setting("max_connections", str((probe.number("max_connections") or 0) + needed)),
        )


def _count_sessions(probe: MySQLProbe) -> int:
    rows = probe.rows("show global status like 'Threads_connected'")
    return int(rows[0]["value"]) - 1 if rows else 0
