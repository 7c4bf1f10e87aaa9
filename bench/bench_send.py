"""Bytes into a client's socket: sent from memory, and by `sendfile` from a file in memory.

Twenty clients of `penstock serve` get the same blocks. What a further client costs is the sending
of these bytes, so the question is whether the kernel does it with less work if the block is a file
whose pages it can take. Both ways send 270 MB over loopback in blocks of a megabyte to a thread
that discards them; printed is the sender's CPU, which has the receiving half of loopback in it.

Estimate: one copy of 270 MB takes 0.05 s. `sendfile` saves it, and pays for each page of 4 KB.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable

from bench.harness import arguments, describe_machine

BLOCK = 1 << 20
BLOCKS = 270


def discard(client: socket.socket) -> None:
    """Read until the end."""
    room = bytearray(BLOCK)
    while client.recv_into(room):
        pass


def measure(send: Callable[[socket.socket], None]) -> float:
    """Return the CPU seconds of sending all blocks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        sender, _ = listener.accept()
        reader = threading.Thread(target=discard, args=(client,))
        reader.start()
        with sender, client:
            began = time.thread_time()
            for _ in range(BLOCKS):
                send(sender)
            used = time.thread_time() - began
            sender.shutdown(socket.SHUT_RDWR)
            reader.join()
        return used


def main() -> None:
    """Measure both in turn."""
    flags = arguments(__doc__ or "")
    print(json.dumps(describe_machine()), flush=True)
    block = os.urandom(BLOCK)
    file = os.memfd_create("block")
    os.write(file, block)

    def send_file(sender: socket.socket) -> None:
        at = 0
        while at < BLOCK:
            at += os.sendfile(sender.fileno(), file, at, BLOCK - at)

    ways: dict[str, Callable[[socket.socket], None]] = {
        "from memory": lambda sender: sender.sendall(block),
        "sendfile": send_file,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(flags.rounds):
        for name, send in ways.items():
            found[name].append(measure(send))
    os.close(file)
    for name, seconds in found.items():
        print(f"{name:12} least {min(seconds):.3f} s, most {max(seconds):.3f} s of CPU")
        print(json.dumps({"bench": "send", "way": name, "cpu_s": seconds}))


if __name__ == "__main__":
    main()
