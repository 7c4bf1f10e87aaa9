"""Doctor's checks for refusals of the load process, at a target of any engine (PK15...).

They check what the load itself checks before its first row: the same ledger, progress and plan. The
executors of a Spark cluster look around, as at the start of a load (PK24). Only `penstock doctor`
does it here: a starting load lets its executors look around in its own session. Not here: checks of
one engine alone (its `checks`), the points that executors check (`cluster.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.control.doctor.plan import is_planned, make_plan
from penstock.control.pipeline.running import processes
from penstock.control.pipeline.servers import server_pair
from penstock.control.pipeline.table_requests import read_requests
from penstock.load.ledger import Step, next_step, read_ledger, target_not_empty
from penstock.log.layout import load_state
from penstock.model import PenstockError, TableDefinition
from penstock.ports.bulk import NamesCollide, check_names, open_bulk_target
from penstock.ports.checks import Checks, Finding, Severity, Side, checks_of, fix_of
from penstock.ports.config import Config
from penstock.ports.progress import open_target_reader
from penstock.ports.target import target_name

APPLICATION_NAME = "penstock doctor"
LOAD_CHECKS = Checks(Side.TARGET)


@dataclass(frozen=True, slots=True)
class LoadSubject:
    """Subject of the checks of the load. tables: the captured tables, as the source has them."""

    config: Config
    tables: tuple[TableDefinition, ...]


def _report(code: str, what: str, why: str, command: str = "") -> Finding:
    return Finding(
        code=code, severity=Severity.ERROR, side=Side.TARGET, what=what, why=why, command=command
    )


@LOAD_CHECKS.check("PK15", "rows already in the target")
def rows_there(loading: LoadSubject) -> Iterator[Finding]:
    """Report target tables that have rows, unless an unfinished bulk load of this pipeline filled
    them.
    """
    config = loading.config
    if not config.pipeline.mode.has_data:
        return
    try:
        check_names(loading.tables, config.target.map)
    except NamesCollide as error:
        yield _report("PK15", error.message, "rows of both would be mixed", fix_of(error))
        return
    copied = read_requests(config).list_copied()
    targets = {
        table.name: target_name(table.name, config.target.map)
        for table in loading.tables
        if table.name not in copied
    }
    opened = open_bulk_target(
        config.target.url,
        config.target.map,
        application_name=APPLICATION_NAME,
        servers=server_pair(config),
    )
    with closing(opened) as target:
        found = target.look(targets.values())
    ledger = read_ledger(config.layout.state)
    for name, there in targets.items():
        if there not in found.empty:
            continue
        step = next_step(ledger.plan_of(name), found.marks.get(name), empty=found.empty[there])
        why: PenstockError | None = target_not_empty(there, found.truncates[there])
        if step is not Step.REFUSE:
            why = found.refusals.get(there) if step is not Step.DONE else None
        if why is not None:
            yield _report("PK15", why.message, "the bulk load refuses to begin", fix_of(why))


@LOAD_CHECKS.check("PK16", "change log that the target follows", change_only=True)
def bound_log(loading: LoadSubject) -> Iterator[Finding]:
    """Check that the target follows this log and no other, because positions of two logs cannot be
    compared.
    """
    config = loading.config
    with closing(
        open_target_reader(config.target.url, application_name=APPLICATION_NAME)
    ) as target:
        if not target.present()[0]:
            return
        theirs = target.log_id()
    state = load_state(config.layout.log)
    ours = state.log_id if state is not None else None
    if theirs in ("", ours):
        return
    drop = checks_of(config.target.url).DROP_PROGRESS
    yield _report(
        "PK16",
        f"the target follows the change log {theirs} of another pipeline or directory"
        + (f", not {ours}" if ours else "; this pipeline has none yet"),
        "changes of two logs cannot be distinguished there: the loader refuses them",
        f"{drop}  -- if nothing else loads this target; or name another one in target.url",
    )


@LOAD_CHECKS.check("PK27", "batches applied in part", change_only=True)
def unfinished_batch(loading: LoadSubject) -> Iterator[Finding]:
    """Report tables and prepared transactions of a batch that no loader is finishing."""
    config = loading.config
    with closing(
        open_target_reader(config.target.url, application_name=APPLICATION_NAME)
    ) as target:
        if not target.present()[0] or _is_loading(config):
            return
        found = target.read_unfinished()
    if found:
        yield Finding(
            code="PK27",
            severity=Severity.WARNING,
            side=Side.TARGET,
            what=found.text,
            why="the tables of the target are at different commits",
            command=f"penstock load {config.path.name}",
        )


def _is_loading(config: Config) -> bool:
    return any(one.pid for one in processes(config) if one.name == "load")


@LOAD_CHECKS.check("PK17", "columns that the target can hold")
def plan_choices(loading: LoadSubject) -> Iterator[Finding]:
    """Check, between different engines, that each loss is allowed by a choice and each column has a
    type in the target.
    """
    config = loading.config
    if not is_planned(config):
        return
    plan = make_plan(config)
    why = "`penstock run` refuses to begin"
    for reason in (*plan.problems, *plan.refusals):
        yield _report("PK17", reason, why, "penstock plan FILE  # shows every column")
    for name, loss in plan.missing.items():
        places = [
            f"{table.source}.{column.name}"
            for table, column in plan.each()
            if any(one.name == name for one in column.mapping.missing)
        ]
        more = f" and {len(places) - 1} more columns" if places[1:] else ""
        choices = " or ".join(f'"{name}" = "{choice}"' for choice in loss.choices)
        yield _report(
            "PK17",
            f"no choice is made about {name} in {places[0]}{more}",
            why,
            f"below [target.types]: {choices}",
        )


CODE = "PK24"
CLUSTER_CHECKS = Checks(Side.HOST)
WHY = "bulk load and change loader run on these executors"


@CLUSTER_CHECKS.check(CODE, "executors of the cluster", load_only=True)
def executors(config: Config) -> Iterator[Finding]:
    """Check that executors start, have equal versions, and reach the directory and both servers."""
    from penstock.control.doctor.cluster import Lack, lacks_of, lacks_of_urls, look_around
    from penstock.load.session import session_options, start_session

    if session_options(config).is_local:
        return

    def of(lack: Lack) -> Finding:
        return _report_cluster(Severity.ERROR, lack.what, WHY, lack.hint)

    yield from map(of, lacks_of_urls(config))
    if _is_loading(config):
        yield _report_cluster(
            Severity.INFO,
            "the executors are not looked at: the load runs, and has them",
            "they were looked at when it began",
        )
        return
    with tempfile.TemporaryDirectory(prefix="penstock-doctor-") as folder:
        options = replace(session_options(config), work_directory=Path(folder))
        try:
            with start_session(options) as session:
                found = look_around(config, session)
        except PenstockError as error:
            yield _report_cluster(
                Severity.ERROR, f"{error.code}: {error.message}", WHY, fix_of(error)
            )
            return
    yield from map(of, lacks_of(found))
    for one in found:
        versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        state = "lacks something" if one.lacks else "has all that it needs"
        yield _report_cluster(
            Severity.INFO, f"an executor on {one.host} {state}", f"it has {versions}"
        )


def _report_cluster(severity: Severity, what: str, why: str, command: str = "") -> Finding:
    return Finding(
        code=CODE, severity=severity, side=Side.HOST, what=what, why=why, command=command
    )
