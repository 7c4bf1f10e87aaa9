"""The simulated Oracle from another process: rows, errors, and what is left of a killed client."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim_oracle.database import Database
from sim_oracle.driver_servers import listen_for_others
from sim_oracle.session import Server
from sim_oracle.texts import KnownTexts

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join((str(TESTS / "sim_oracle" / "driver_path"), str(TESTS)))
HEAD = """
import sys
import oracledb
connection = oracledb.connect(sys.argv[1] + "/shoppdb", user="c##penstock", password="secret")
cursor = connection.cursor()
"""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server with a table of two rows, and its address as a service."""
    database = Database()
    table = database.add_table("SHOP", "T", {"ID": "NUMBER(10)", "C": "CLOB"}, key=["ID"])
    transaction = database.begin()
    for number in (1, 2):
        transaction.insert(table, {"ID": number, "C": f"text {number}"})
    transaction.commit()
    server = Server(database, texts=KnownTexts(None))
    listening = listen_for_others(server)
    server.services["address"] = listening.address
    yield server
    listening.close()


def start(server: Server, script: str) -> subprocess.Popen[str]:
    """Start a client in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + script, server.services["address"]],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
    )


def test_another_process_reads_and_writes(server: Server) -> None:
    """Values, LOBs, arrays, errors with their numbers; what is not committed is rolled back."""
    script = """
cursor.execute("SELECT id, c FROM shop.t ORDER BY id")
print([(number, lob.read()) for number, lob in cursor.fetchall()])
cursor.executemany("INSERT INTO shop.t VALUES (:1, :2)", [(3, "x"), (4, None)])
connection.commit()
try:
    cursor.executemany("INSERT INTO shop.t VALUES (:1, :2)", [(5, "y"), (1, "z")])
except oracledb.IntegrityError as error:
    print(error.args[0].code, error.args[0].offset, connection.transaction_in_progress)
"""
    out, _ = start(server, script).communicate(timeout=60)
    assert out.splitlines() == ["[(1, 'text 1'), (2, 'text 2')]", "1 1 True"]
    table = server.database.table("SHOP", "T")
    assert sorted(int(str(row["ID"])) for row in table.rows.values()) == [1, 2, 3, 4]
    assert not server.database.open


def test_a_killed_client_leaves_nothing(server: Server) -> None:
    """The session ends, and the redo undoes its changes as well."""
    script = """
cursor.execute("DELETE FROM shop.t")
print("deleted", flush=True)
sys.stdin.read()
"""
    process = start(server, script.replace("sys.stdin.read()", "import time; time.sleep(60)"))
    assert process.stdout is not None
    assert process.stdout.readline() == "deleted\n"
    assert len(server.sessions) == 1
    process.kill()
    process.communicate()
    until = time.monotonic() + 20
    while server.sessions:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert len(server.database.table("SHOP", "T").rows) == 2
    assert len(server.database.truth()) == 1
