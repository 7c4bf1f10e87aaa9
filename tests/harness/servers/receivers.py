"""Destinations of plugins in tests: a web server that may refuse, and Debian's Redis."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import redis

Answer = tuple[int, dict[str, str], str]
START_S = 30.0


class Receiver:
    """A web server on a free port that records requests, and answers as planned, then 204."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.times: list[float] = []
        self.answers: list[Answer | None] = []  # None: hang up
        self.connections: set[Any] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                """Record the request, and answer."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((dict(self.headers), body))
                receiver.times.append(time.monotonic())
                receiver.connections.add(self.client_address)
                answer = receiver.answers.pop(0) if receiver.answers else (204, {}, "")
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, text = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?a=1"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def close(self) -> None:
        """Stop it."""
        self.server.shutdown()
        self.server.server_close()

    def trx(self) -> list[int]:
        """Return the transactions of all requests."""
        return [json.loads(body)["trx"] for _, body in self.requests]


class RedisServer:
    """A server on a free port, without a configuration file."""

    def __init__(self, folder: Path, *, password: str = "") -> None:
        # One program: its name decides whether it serves or checks files. redis-tools has it, too.
        program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        assert program is not None, "install redis-tools, as .ci/system does"
        (folder / "redis-server").symlink_to(program)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        account = f":{password}@" if password else ""
        self.url = f"redis://{account}127.0.0.1:{self.port}/0"
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", "."]
        if password:
            options += ["--requirepass", password]
        self.process = subprocess.Popen(
            [folder / "redis-server", *options], cwd=folder, stdout=subprocess.DEVNULL
        )
        self.client = redis.Redis.from_url(self.url, decode_responses=True)
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < deadline
                assert self.process.poll() is None
                time.sleep(0.02)

    def rows(self) -> dict[str, Any]:
        """Return everything in it, without keys that are deleted meanwhile."""
        keys: Any = self.client.keys()
        texts: dict[str, Any] = {key: self.client.get(key) for key in keys}
        return {key: json.loads(text) for key, text in sorted(texts.items()) if text is not None}

    def stop(self) -> None:
        """Stop it."""
        self.client.close()
        self.process.kill()
        self.process.wait()
