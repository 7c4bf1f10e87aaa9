"""`penstock copy`: a pipeline of mode data without a file of the user's.

Its file and state are in a folder whose name depends on the copied tables, so that the same command
finds them again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.control.doctor.plan import check as check_plan
from penstock.control.pipeline.config import load_config
from penstock.control.run.new_pipeline import NewPipeline, draft, pipeline_name, write_file
from penstock.control.run.reset import at_rest, carry_out, look
from penstock.control.run.supervisor import run_pipeline
from penstock.control.status.live import View
from penstock.host.errors import mask
from penstock.model import PenstockError
from penstock.ports.reset import leftovers
from penstock.ports.target import TargetFollowsAnotherLog

PREFIX = "PENSTOCK_COPY_"
FILE = "copy.toml"
EVERYTHING_ELSE = {"*": "error"}
_OPTION_WORDS = (
    (
        r'"([^"]+)" = "([^"]+)"( (?:below|in) \[target\.types\](?: of the pipeline file)?)?',
        r'--type "\1=\2"',
    ),
    (r"; `penstock plan`? ?(FILE`)? ?shows [^.;]*", ""),
    (r"\[source\] tables", "--tables"),
    (r"\[target\.types\]", "--type"),
    (r"penstock run FILE|penstock run copy\.toml", "the same command"),
    (r"(?<!/)copy\.toml line \d+, \[\w+\]: ", ""),
    (r"(?<!/)copy\.toml\b|\bFILE\b", "{file}"),
)


def copy_once(
    source: str,
    target: str,
    *,
    tables: tuple[str, ...],
    choices: Mapping[str, str],
    folder: Path,
    view: View,
    verbose: bool,
) -> list[str]:
    """Copy, and return the names of the copied tables.

    If it fails, its state is kept, so that the same command continues; when it is done, only the
    rows remain. Errors name the command's options, because the user has no file. Raises the errors
    of a run, and TargetFollowsAnotherLog.
    """
    place = folder / _folder_name(source, target, tables)
    try:
        return _copy(source, target, tables, choices, place, view, verbose=verbose)
    except PenstockError as error:
        error.message = in_options(error.message, place / FILE)
        error.hint = in_options(error.hint, place / FILE)
        raise


def in_options(text: str, file: Path) -> str:
    """Return a message or hint about a pipeline file in the words of the command's options."""
    for pattern, replacement in _OPTION_WORDS:
        text = re.sub(pattern, replacement.replace("{file}", str(file)), text)
    examine = f"penstock doctor {file}"
    if not file.exists():  # nothing was copied yet
        examine = "penstock init SOURCE TARGET` and then `penstock doctor"
    return text.replace("`penstock doctor`", f"`{examine}`")


def _copy(
    source: str,
    target: str,
    tables: tuple[str, ...],
    choices: Mapping[str, str],
    place: Path,
    view: View,
    *,
    verbose: bool,
) -> list[str]:
    # Its state would be taken for that of the existing pipeline.
    followed = leftovers(target, tables=None).log_id
    if followed:
        raise TargetFollowsAnotherLog(
            f"the target follows change log {followed} of a pipeline",
            hint="Add the tables to that pipeline (penstock table add), or name another target "
            "database.",
        )
    found = draft(
        NewPipeline(
            source=source,
            target=target,
            tables=tables,
            mode="data",
            directory="state",
            prefix=PREFIX,
            choices={**EVERYTHING_ELSE, **choices},
            looks=False,
            file=FILE,
        )
    )
    check_plan(found.config)
    place.mkdir(exist_ok=True)
    path = place / FILE
    path.unlink(missing_ok=True)
    write_file(path, found.text)
    os.environ.update(found.variables)  # for the loading process
    config = load_config(path)
    run_pipeline(config, view, verbose=verbose)
    reset = look(config, with_tables=False)
    with at_rest(config):
        carry_out(config, reset, on_done=lambda _: None)
    path.unlink()
    place.rmdir()
    return [str(table) for table in found.tables]


def _folder_name(source: str, target: str, tables: tuple[str, ...]) -> str:
    text = "\0".join((mask(source), mask(target), *tables))
    return f"penstock-copy-{pipeline_name(source)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
