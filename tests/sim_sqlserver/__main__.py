"""Program: serve TDS over a PostgreSQL server, until standard input ends.

Prints its port, and the file of its certificate if it has TLS, as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
from pathlib import Path

from sim_sqlserver.connection import Connection
from sim_sqlserver.state import ServerState
from sim_sqlserver.texts import KnownTexts

RECURSION_MAX = 50_000  # an expression of thousands of terms is a tree as deep
STACK_BYTES = 1 << 28


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(prog="sim_sqlserver", description=__doc__)
    parser.add_argument("--postgres", required=True, help="URL of the PostgreSQL server")
    parser.add_argument("--port", type=int, default=0, help="port; 0 for a free one")
    parser.add_argument("--password", default="Secret#1", help="password of sa")
    parser.add_argument("--database", action="append", default=[], help="database to create")
    parser.add_argument("--tls", type=Path, help="folder for a certificate: speak TLS")
    parser.add_argument(
        "--strict",
        type=Path,
        action="append",
        default=[],
        help="file of known texts; refuse others",
    )
    parser.add_argument("--refused", type=Path, help="file to add the refused texts to")
    parser.add_argument("--record", type=Path, help="file to add the texts of clients to")
    parser.add_argument("--stay", action="store_true", help="stay when standard input ends")
    arguments = parser.parse_args()
    sys.setrecursionlimit(RECURSION_MAX)
    threading.stack_size(STACK_BYTES)
    texts = KnownTexts(arguments.strict, arguments.record, arguments.refused)
    state = ServerState(arguments.postgres, arguments.password, texts)
    context, certificate = None, None
    if arguments.tls is not None:
        from sim_sqlserver.certificate import make_context

        context, certificate = make_context(arguments.tls)
    for name in arguments.database:
        state.create_database(name)
    listener = socket.create_server(("127.0.0.1", arguments.port), backlog=100)

    def serve() -> None:
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Connection(client, state, context).start()

    threading.Thread(target=serve, daemon=True).start()
    ready = {"port": listener.getsockname()[1], "certificate": certificate and str(certificate)}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    if arguments.stay:
        threading.Event().wait()
    sys.stdin.read()


if __name__ == "__main__":
    main()
