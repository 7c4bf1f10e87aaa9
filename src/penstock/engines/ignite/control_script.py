"""Calls of Ignite's own `control.sh`, for tasks that only the cluster can do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.model import PenstockError
from penstock.ports.commands import Done, UsageWrong

INVALID_ARGUMENTS = 1
_CAUSES = {
    INVALID_ARGUMENTS: "it does not take these arguments",
    2: "it cannot connect to the cluster",
    3: "the cluster does not accept the user and password",
}
_ADDRESS = "Add the connection after --, as for control.sh: -- --host HOST --port PORT (that of "
_ADDRESS += "thin clients) --user NAME --password PASSWORD."


class ControlMissing(PenstockError):
    """Ignite's control.sh was not found or cannot be run. fields: path."""

    code = "IG62"
    retry = "operator"


class ControlFailed(PenstockError):
    """Ignite's control.sh has failed. fields: status, its exit status."""

    code = "IG63"
    retry = "operator"


def resend(
    addresses: Sequence[tuple[str, int]], caches: str, control: str | None, more: Sequence[str]
) -> Iterator[Done]:
    """Write all rows of caches, separated by commas, into the log; yield each line of its
    output.

    addresses: host and port of thin client connectors; the first one is used. more: options of
    the script itself, which may set the address instead.

    Raises ControlMissing, ControlFailed, UsageWrong.
    """
    names = [name.strip() for name in caches.split(",") if name.strip()]
    if not names:
        raise UsageWrong("Caches are not specified.", hint="Name them: --caches a,b.")
    command = ("--cdc", "resend", "--caches", ",".join(names), "--enable-experimental", "--yes")
    return _run_script(_script(control), (*_place(addresses, more), *more, *command))


def _place(addresses: Sequence[tuple[str, int]], more: Sequence[str]) -> tuple[str, ...]:
    if not addresses or {"--host", "--port"} & set(more):
        return ()
    host, port = addresses[0]
    return "--host", host, "--port", str(port)


def _script(given: str | None) -> Path:
    home = os.environ.get("IGNITE_HOME")
    path = Path(given) if given else Path(home or "") / "bin" / "control.sh"
    if not given and not home:
        raise ControlMissing(
            "control.sh of Ignite was not found",
            hint="Name it: --control PATH, or set IGNITE_HOME to the directory of Ignite.",
            path="",
        )
    return path


def _run_script(script: Path, arguments: Sequence[str]) -> Iterator[Done]:
    try:
        child = subprocess.Popen(
            [str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ControlMissing(
            f"{script} cannot be run: {error.strerror}",
            hint="Name Ignite's own script: --control PATH, or set IGNITE_HOME.",
            path=str(script),
        ) from error
    with child:
        lines = []
        for line in child.stdout or ():
            lines.append(line.rstrip("\n"))
            yield Done(message=lines[-1], fields={"line": lines[-1]})
    if child.returncode:
        raise _failure(child.returncode, lines)


def _failure(status: int, lines: Sequence[str]) -> PenstockError:
    told = [line.strip() for line in lines if line.strip().strip("-")]
    cause = _CAUSES.get(status, next((line for line in told if "cancel" in line), "see its output"))
    text = f"control.sh ended with {status}: {cause}"
    if status == INVALID_ARGUMENTS:
        return UsageWrong(text, hint="See its output.")
    return ControlFailed(
        text,
        hint=_ADDRESS if status in _CAUSES else "Fix the cause that it names, then try again.",
        status=status,
    )
