"""Cases of positions and logs: SCNs, open transactions, log files, ranges of row ids."""

from __future__ import annotations

import itertools
import threading

from certify_oracle.case import Bench, case, codes
from certify_oracle.mining import begin_mining, find_commits, find_end, read_scn, switch_log
from certify_oracle.row_cases import ITEM
from certify_oracle.server import SCHEMA
from penstock.engines.oracle.connect import Connection
from penstock.engines.oracle.source import statements
from penstock.model import PenstockError

WRITERS = 4
WINDOWS = 8
WRITE_PAUSE_S, WINDOW_PAUSE_S = 0.002, 0.2
EXTENTS = (
    "SELECT E.RELATIVE_FNO, E.BLOCK_ID, E.BLOCKS, O.DATA_OBJECT_ID FROM DBA_EXTENTS E "
    "JOIN ALL_OBJECTS O ON O.OWNER = E.OWNER AND O.OBJECT_NAME = E.SEGMENT_NAME "
    "WHERE E.OWNER = :owner AND E.SEGMENT_NAME = :name ORDER BY E.EXTENT_ID"
)


@case("open-scn", "late-commit")
def open_at_a_switch(bench: Bench) -> None:
    """A transaction that is open while the logs are switched."""
    bench.table("C_OPEN", ITEM)
    bench.session.run("INSERT INTO c_open VALUES (1, 1, 'a')")
    with bench.server.open_root() as root:
        listed = root.execute(statements.OPEN_TRANSACTIONS)
        scn = read_scn(root)
        switch_log(root)
    started = [start for _, _, _, start in listed if start is not None]
    bench.holds("open-scn", any(bench.low <= one <= scn for one in started), listed)
    bench.session.run("INSERT INTO c_open VALUES (2, 2, 'b')")
    bench.session.commit()
    rows = bench.mine()
    commits = [row["SCN"] for row in rows if row["OPERATION_CODE"] == 7]
    is_whole = [code for code in codes(rows) if code == 1] == [1, 1]
    bench.holds("late-commit", is_whole and len(commits) == 1 and commits[0] > scn, codes(rows))


@case("window-whole")
def commits_at_the_end_of_a_window(bench: Bench) -> None:
    """Windows that are read at once while sessions commit, and again when all is archived."""
    bench.table("C_WINDOW", ITEM)
    stop = threading.Event()

    def write(session: Connection, first: int) -> None:
        for number in itertools.count(first):
            if stop.is_set():
                return
            session.run(f"INSERT INTO c_window VALUES ({number}, 1, 'a')")
            session.commit()
            stop.wait(WRITE_PAUSE_S)

    writers = [
        threading.Thread(target=write, args=(bench.open(), place * 10**6))
        for place in range(WRITERS)
    ]
    windows: list[tuple[int, set[bytes]]] = []
    with bench.server.open_root() as root:
        for one in writers:
            one.start()
        try:
            for _ in range(WINDOWS):
                stop.wait(WINDOW_PAUSE_S)
                end = find_end(root, bench.low)
                windows.append((end, find_commits(root, bench.low, end, SCHEMA)))
        finally:
            stop.set()
            for one in writers:
                one.join()
        switch_log(root)
        late = [
            (end, sorted(one.hex() for one in later - seen))
            for end, seen in windows
            if (later := find_commits(root, bench.low, end, SCHEMA)) != seen
        ]
    bench.record(windows=len(windows), commits=len(windows[-1][1]))
    bench.holds("window-whole", windows[-1][1] and not late, late[:3])


@case("as-of", "as-of-errors")
def as_of(bench: Bench) -> None:
    """A query as of an SCN between two changes, and of one that is not there yet."""
    bench.table("C_ASOF", ITEM)
    bench.run("INSERT INTO c_asof VALUES (1, 1, 'a')")
    with bench.server.open_root() as root:
        scn = read_scn(root)
    bench.run("UPDATE c_asof SET n = 2")
    found = bench.value(f"SELECT n FROM c_asof AS OF SCN {scn}")
    bench.holds("as-of", found == 1, found)
    number = bench.error_number(f"SELECT n FROM c_asof AS OF SCN {scn + 10**9}")
    bench.holds("as-of-errors", number == 8181, number)


@case("row-id-range")
def row_id_ranges(bench: Bench) -> None:
    """The rows of all extents of a table, each read once."""
    bench.table("C_RANGE", "id NUMBER(10), v VARCHAR2(400)")
    bench.session.run_many(
        "INSERT INTO c_range VALUES (:1, :2)", [(n, "x" * 400) for n in range(3000)]
    )
    bench.session.commit()
    count = 0
    extents = bench.session.execute(EXTENTS, owner=SCHEMA, name="C_RANGE")
    for file, block, blocks, number in extents:
        low = f"DBMS_ROWID.ROWID_CREATE(1, {number}, {file}, {block}, 0)"
        high = f"DBMS_ROWID.ROWID_CREATE(1, {number}, {file}, {block + blocks - 1}, 32767)"
        count += bench.value(f"SELECT COUNT(*) FROM c_range WHERE ROWID BETWEEN {low} AND {high}")
    bench.record(extents=len(extents), rows=count)
    bench.holds("row-id-range", count == 3000, count)


@case("sequences", "current-online", "duplicate-log", "bad-range", "no-session")
def log_files(bench: Bench) -> None:
    """Views of the logs, and errors of a mining session."""
    with bench.server.open_root() as root:
        switch_log(root)
        high = read_scn(root)
        logs = root.execute(statements.LOG)
        current = [row for row in logs if row[5] == "CURRENT"]
        bench.holds("current-online", all(row[7] > 2**40 for row in current), current)
        by_thread: dict[int, list[int]] = {}
        for _, thread, sequence, _, _, status, _, _ in logs:
            if status != "UNUSED":
                by_thread.setdefault(thread, []).append(sequence)
        is_dense = all(
            sorted(listed) == list(range(min(listed), max(listed) + 1))
            for listed in by_thread.values()
        )
        bench.holds("sequences", is_dense, by_thread)
        begin_mining(root, bench.low, high)
        root.run(statements.END)
        number = _number_of(root, statements.END)
        bench.holds("no-session", number == 1307, number)
        views = root.execute(statements.LOG_FILE)
        group = current[0][0]
        name = next(member for one, _, _, member in views if one == group)
        root.run(statements.ADD_FIRST, name=name)
        number = _number_of(root, statements.ADD_NEXT, name=name)
        bench.holds("duplicate-log", number == 1289, number)
        number = _number_of(root, statements.START, low=high, high=high - 1000)
        bench.holds("bad-range", number == 1281, number)


def _number_of(session: object, text: str, **binds: object) -> int:
    try:
        session.run(text, **binds)  # type: ignore[attr-defined]
    except PenstockError as error:
        return int(error.fields.get("errno", 0)) or -1
    return 0
