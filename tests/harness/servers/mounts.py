"""Executors' Python in separate mount namespaces, which have a part of the driver's files."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = "mount -t tmpfs none {hidden}"
# One directory below the hidden one is mounted again, at the same path.
HIDE_BUT = (
    "kept=$(mktemp -d); mount --bind {shared} $kept; "
    + HIDE
    + "; mkdir -p {shared}; mount --bind $kept {shared}"
)


def python_that_sees(folder: Path, *, hidden: Path, shared: Path | None = None) -> Path:
    """Write a Python for `[spark] python`, in a namespace where a folder is empty except for one in
    it.

    folder: where it is written, which must not be hidden. Skips if the machine does not allow it.
    """
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets us make no mount namespaces")
    hidden.mkdir(parents=True, exist_ok=True)
    text = HIDE if shared is None else HIDE_BUT
    inside = text.format(hidden=shlex.quote(str(hidden)), shared=shlex.quote(str(shared)))
    program = folder / "python-elsewhere"
    inner = f'set -e; {inside}; exec {shlex.quote(sys.executable)} "$@"'
    program.write_text(
        f'#!/bin/sh\nexec unshare -m --propagation private sh -c {shlex.quote(inner)} sh "$@"\n'
    )
    program.chmod(0o755)
    return program.resolve()
