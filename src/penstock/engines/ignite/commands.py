"""The commands `penstock ignite ...`; see `ports.commands.EngineCommands`.

Tasks that only the cluster can do are left to Ignite's own `control.sh`. Segments before a hole are
deleted here, as `control.sh --cdc delete_lost_segment_links` does.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import structlog

from penstock.engines.ignite.directory import segment_path, segments_in
from penstock.engines.ignite.lock import CdcLock, holder, not_acquired
from penstock.engines.ignite.state import CdcState
from penstock.engines.ignite.url import IgniteUrl, folder_of
from penstock.host.files import REAL_FILES, Files
from penstock.model import PenstockError
from penstock.model.segment_order import QUESTION, lost_count
from penstock.ports.commands import Command, Done, Option, UsageWrong
from penstock.ports.config import Config
from penstock.ports.registry import split_urls

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


# As published.
FOUND = "Lost segment CDC links successfully removed."
NOT_FOUND = "Lost segment CDC links were not found."
NOT_CONFIGURED = "CDC is not configured."

logger = structlog.get_logger(__name__)


class CdcNotConfigured(PenstockError):
    """The node has no directory for consumers. fields: path."""

    code = "IG60"
    retry = "operator"


class LostLinksTaken(PenstockError):
    """Another process reads the directory whose lost segments should be deleted. fields: path,
    holder.
    """

    code = "IG61"
    retry = "operator"


def delete_lost(url: str, node_id: str | None) -> Iterator[Done]:
    """Delete the lost segments of one node, or of all nodes. Raises CdcNotConfigured,
    LostLinksTaken.
    """
    nodes = [IgniteUrl.parse(one) for one in split_urls(url)]
    wanted = [one for one in nodes if not node_id or one.folder == folder_of(node_id)]
    for node in wanted or nodes[:1]:
        for directory in _directories(node, node_id):
            lost = delete_below_hole(directory)
            message = FOUND if lost else NOT_FOUND
            fields = {"node": directory.name, "segments": lost, "message": message}
            yield Done(message=f"{directory.name}: {message}", fields=fields)


def _directories(url: IgniteUrl, node_id: str | None) -> list[Path]:
    root = url.work / url.cdc_path
    folder = folder_of(node_id) if node_id else url.folder
    there = sorted(one for one in root.iterdir() if one.is_dir()) if root.is_dir() else []
    found = [one for one in there if not folder or one.name == folder]
    if not found:
        raise CdcNotConfigured(
            NOT_CONFIGURED,
            hint=f"There is no {root / (folder or '<node>')}. It has "
            f"{', '.join(one.name for one in there) or 'no node'}: name the node with --node-id, "
            "and its work directory in url; set cdcEnabled in its data region.",
            path=str(root / folder),
        )
    return found


def delete_below_hole(directory: Path, files: Files = REAL_FILES) -> list[int]:
    """Delete the segments below the last hole, and the saved place if any; return their numbers.

    The place is deleted first: after a crash in between, the remaining segments are found again.
    If it raises LostLinksTaken, nothing was changed.
    """
    try:
        lock = CdcLock(directory)
    except BlockingIOError as error:
        held_by = holder(directory)
        raise LostLinksTaken(
            "Failed to delete lost segment CDC links. Unable to acquire lock to lock CDC folder. "
            "Make sure a CDC app is shut down "
            f"[dir={directory}, reason={not_acquired(directory, held_by)}]",
            hint=f"{held_by} reads it: end that process, then run the same command again.",
            path=str(directory),
            holder=held_by,
        ) from error
    try:
        found = segments_in(directory, files)
        lost = found[: lost_count(found)]
        if lost:
            CdcState(directory, files).drop_place()
        for segment in lost:
            path = segment_path(directory, segment)
            files.unlink(path)
            deleted = f"Segment CDC link deleted [file={path}]"
            logger.info(deleted)
        return lost
    finally:
        lock.release()


Values = Mapping[str, str | None]


def _delete_lost(config: Config, values: Values, _: Sequence[str]) -> Iterator[Done]:

    return delete_lost(config.source.url, values["node_id"])


def _resend(config: Config, values: Values, more: Sequence[str]) -> Iterator[Done]:
    from penstock.engines.ignite.url import IgniteUrl

    nodes = [IgniteUrl.parse(one) for one in split_urls(config.source.url)]
    addresses = [address for node in nodes for address in node.addresses]
    return resend(addresses, values["caches"] or "", values["control"], more)


COMMANDS = (
    Command(
        name="delete-lost-segment-links",
        help="Let the consumers of a node continue after the last hole in its CDC directory.\n\n"
        "Of segments 2, 3, 8, 10 and 11 it deletes 2, 3 and 8, and with them the saved state: "
        "their unread changes are lost to consumers. The same as control.sh --cdc "
        "delete_lost_segment_links, for only the node's directory; no node has to run.",
        example="node.toml --yes",
        exit_codes="0 done, or there was no hole; 1 an error, or the answer was no;\n"
        "             2 wrong usage",
        question=QUESTION,
        options=(
            Option(
                name="--node-id",
                metavar="ID",
                help="The consistent id of one node, if the work directory has several.",
            ),
        ),
        run=_delete_lost,
    ),
    Command(
        name="resend",
        help="Make the cluster write all rows of caches into its log once more.\n\n"
        "Runs control.sh --cdc resend, at address= of url if it has one, and prints "
        "its output. Consumers get every row as a put with its version: of two changes of a key, "
        "the one with the greater version is the later one.",
        example="node.toml --caches person,SQL_PUBLIC_CITY",
        exit_codes="0 done, 1 control.sh failed, 2 wrong usage",
        options=(
            Option(name="--caches", metavar="A,B", help="The caches.", is_required=True),
            Option(
                name="--control",
                metavar="PATH",
                help="Path of control.sh. Default: $IGNITE_HOME/bin/control.sh.",
            ),
        ),
        more="of control.sh itself, such as --host, --port, --user and --password",
        run=_resend,
    ),
)
