"""The queries of Wirekite's guide, letter by letter.

The lag query is in MySQL's dialect; PostgreSQL has no TIMESTAMPDIFF, `docs/commands.md` has its
form.
"""

CE_QUERY = """\
SELECT source, mark, start_time, finish_time
FROM wirekite.wirekite_progress
WHERE operation = 'CE'
ORDER BY start_time DESC
LIMIT 5;
"""
CL_QUERY = """\
SELECT source, mark, start_time, finish_time
FROM wirekite.wirekite_progress
WHERE operation = 'CL'
ORDER BY start_time DESC
LIMIT 5;
"""
LAG_QUERY = """\
SELECT TIMESTAMPDIFF(SECOND, MAX(finish_time), NOW()) AS lag_seconds
FROM wirekite.wirekite_progress
WHERE operation = 'CL' AND finish_time IS NOT NULL;
"""
SLOT_QUERY = """\
SELECT slot_name,
       pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) AS lag_bytes
FROM pg_replication_slots
WHERE slot_name = 'wirekite_replication_slot';
"""
# The columns of wirekite_progress in order: name, and the rows that must have it.
PROGRESS_COLUMNS = (
    ("source", "NO"),
    ("target", "NO"),
    ("operation", "NO"),
    ("transmission", "NO"),
    ("mark", "YES"),
    ("table_name", "YES"),
    ("start_time", "NO"),
    ("finish_time", "YES"),
    ("restarts", "NO"),
)
