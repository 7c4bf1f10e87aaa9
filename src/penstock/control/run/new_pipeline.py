"""A pipeline file from URLs: `penstock init` writes it and `penstock copy` runs it.

The findings of `plan` and `doctor` are written as comments. Changes nothing at
either server. The file and state of `penstock copy` are in a folder whose name depends on the
copied tables, so that the same command finds them again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from penstock.control.doctor.doctor import Report, examine
from penstock.control.doctor.plan import Plan, make_plan
from penstock.control.doctor.plan import check as check_plan
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import source_tables
from penstock.control.run.reset import at_rest, carry_out, look
from penstock.control.run.supervisor import run_pipeline
from penstock.control.status.live import View
from penstock.host.errors import mask
from penstock.model import PenstockError, TableName
from penstock.model.patterns import as_pattern
from penstock.model.words import count_words
from penstock.ports.checks import Severity, Side
from penstock.ports.config import FREE_NAMES_PART, Config
from penstock.ports.registry import engine_at
from penstock.ports.reset import leftovers
from penstock.ports.tables import tables_at
from penstock.ports.target import TargetFollowsAnotherLog

_USER_INFO = re.compile(r"(\w+://[^:@/?#]*):([^/?#]*)@")
_DATABASE = re.compile(r"\w+://[^/?#]*/([^?#]*)")
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
TABLES_MAX = 60  # number that comments name
WIDTH = 98
CONSUMER_EXAMPLE = (
    "# Without [target] changes are for consumers: docs/consumers.md",
    "# [consumers.search]",
    '# class = "shop_app.search:SearchIndex"  # module:class, the module beside this file',
    '# start = "snapshot"                     # now | beginning | snapshot',
)


class NoTablesFound(PenstockError):
    """The source has no table for a new pipeline."""

    code = "CT82"


class FileThere(PenstockError):
    """The pipeline file to be written exists already."""

    code = "CT83"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """New pipeline.

    Attributes:
        text: Its file.
        variables: The passwords by the names of their variables.
        config: The file's configuration, with paths of a folder that no longer exists.
        tables: Its tables, by their names at the source.
        plan: None without a target.
    """

    text: str
    variables: Mapping[str, str]
    config: Config
    tables: tuple[TableName, ...]
    plan: Plan | None
    report: Report | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPipeline:
    """Wishes for a new pipeline.

    Attributes:
        target: Empty: there is none, changes are for consumers.
        tables: Patterns; empty: all of the source.
        file: Its name, for messages.
        prefix: Prefix of the variables for passwords.
        choices: For [target.types], in front of those that the plan needs.
        looks: Whether doctor is asked, too.
    """

    source: str
    target: str
    tables: tuple[str, ...] = ()
    mode: str = "data+change"
    directory: str = ""
    prefix: str = ""
    choices: Mapping[str, str] | None = None
    looks: bool = True
    file: str = "pipeline.toml"


def draft(wanted: NewPipeline) -> Draft:
    """Ask the servers, and write the pipeline's text.

    Raises NoTablesFound, and the errors of connecting, the catalogue and [target.types].
    """
    variables: dict[str, str] = {}
    source = _without_password(wanted.source, f"{wanted.prefix}SOURCE_PASSWORD", variables)
    target = _without_password(wanted.target, f"{wanted.prefix}TARGET_PASSWORD", variables)
    patterns = wanted.tables or _everything(wanted.source)
    choices = dict(wanted.choices or {})
    parts = _Parts(wanted=wanted, source=source, target=target, patterns=patterns)
    config = _read(parts.text(), variables, wanted.file)
    if config.pipeline.mode.has_change and FREE_NAMES_PART in config.source.engine.parts:
        parts.names = config.source.engine.part(FREE_NAMES_PART)(config)
    if not wanted.target:
        return _without_target(parts, config, variables)
    plan = make_plan(config)
    parts.tables = _some(tuple(table.source for table in plan.tables), patterns)
    parts.namespaces = _namespaces(plan, wanted)
    parts.choices = choices
    config = _read(parts.text(), variables, wanted.file)
    plan = make_plan(config)
    parts.plan = plan
    for loss in plan.missing.values():
        parts.choices.setdefault(loss.name, next(iter(loss.choices)))
    config = _read(
        parts.text(), variables, wanted.file
    )  # with the choices: doctor does not ask for them
    report = examine(config) if wanted.looks else None
    parts.report = report
    return Draft(
        text=parts.text(),
        variables=variables,
        config=config,
        tables=parts.tables,
        plan=make_plan(config),
        report=report,
    )


def _without_target(parts: _Parts, config: Config, variables: Mapping[str, str]) -> Draft:
    parts.tables = _some(tuple(table.name for table in source_tables(config)), parts.patterns)
    config = _read(parts.text(), variables, parts.wanted.file)
    parts.report = examine(config) if parts.wanted.looks else None
    return Draft(
        text=parts.text(),
        variables=variables,
        config=config,
        tables=parts.tables,
        plan=None,
        report=parts.report,
    )


def _some(tables: tuple[TableName, ...], patterns: Sequence[str]) -> tuple[TableName, ...]:
    """Return these tables. Raises NoTablesFound if there are none."""
    if not tables:
        raise NoTablesFound(
            f"the source has no table that matches {', '.join(patterns)}",
            hint='Name tables as the catalogue has them: --tables "public.*" (MySQL and MariaDB: '
            '--tables "DATABASE.*"), and let the account read them.',
        )
    return tables


def write_file(path: Path, text: str) -> None:
    """Write a pipeline file. Raises FileThere: an existing file is never replaced."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise FileThere(
            f"{path} is there already",
            hint=f"Run it (penstock doctor {path}), or name another: --file NAME.toml",
        ) from error


def pipeline_name(url: str) -> str:
    """Return the name of a pipeline from this database."""
    found = _DATABASE.match(url)
    name = _NAME.sub("-", unquote(found[1])) if found else ""
    return name.strip("-.")[:63] or "pipeline"


def _without_password(url: str, variable: str, variables: dict[str, str]) -> str:
    """Return the URL with a variable in place of its password, unless the password is a variable
    already.
    """
    found = _USER_INFO.match(url)
    if found is None or not found[2] or "${" in found[2]:
        return url
    variables[variable] = unquote(found[2])
    return f"{found[1]}:${{{variable}}}@{url[found.end() :]}"


def _everything(source: str) -> tuple[str, ...]:
    """Return patterns for all of the source."""
    pattern = tables_at(source).everything(source)
    if not pattern:
        raise NoTablesFound(
            "the source's URL names no database, and no tables are named",
            hint='Write the database into the URL, or name tables: --tables "shop.*"',
        )
    return (pattern,)


def _namespaces(plan: Plan, wanted: NewPipeline) -> dict[str, str]:
    """Map the source's one schema or database to the namespace in the target's URL."""
    schemas = {table.source.schema for table in plan.tables}
    if len(schemas) != 1:
        return {}
    (schema,) = schemas
    is_same = engine_at(wanted.source) is engine_at(wanted.target)
    namespace = tables_at(wanted.target).namespace(wanted.target, schema, is_same=is_same)
    return {schema: namespace} if namespace else {}


def _read(text: str, variables: Mapping[str, str], file: str) -> Config:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = Path(folder) / file
        path.write_text(text, encoding="utf-8")
        return load_config(path, {**os.environ, **variables})


class _Parts:
    """Parts of the text; each look at the servers adds to them."""

    def __init__(
        self, *, wanted: NewPipeline, source: str, target: str, patterns: Sequence[str]
    ) -> None:
        self.wanted, self.source, self.target = wanted, source, target
        self.patterns = patterns
        self.namespaces: dict[str, str] = {}
        self.choices: dict[str, str] = {}
        self.names: Mapping[str, str] = {}
        self.tables: tuple[TableName, ...] = ()
        self.plan: Plan | None = None
        self.report: Report | None = None

    def text(self) -> str:
        """Return the pipeline file."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        name = pipeline_name(self.wanted.source)
        yield "[pipeline]"
        yield f"name = {_quote(name)}"
        if self.target:
            yield f"mode = {_quote(self.wanted.mode)}            # data | change | data+change"
        yield (
            f"directory = {_quote(self.wanted.directory or name)}"
            "  # change log, ledger, state; relative to this file"
        )
        yield ""
        yield "[source]"
        yield f"url = {_quote(self.source)}"
        yield f"tables = [{', '.join(map(_quote, self._patterns()))}]"
        yield from self._table_comments()
        yield ""
        yield from self._target() if self.target else CONSUMER_EXAMPLE
        if self.names:
            yield ""
            yield "[changeExtractor]            # the default slot is there already, and not ours"
            yield from (f"{key} = {_quote(name)}" for key, name in self.names.items())
        if self.namespaces:
            yield ""
            yield "[target.map]                 # source schema or database = the target's"
            yield from (f"{_quote(a)} = {_quote(b)}" for a, b in self.namespaces.items())
        if self.choices:
            yield ""
            yield from self._types()
        yield from self._statements()

    def _target(self) -> Iterator[str]:
        yield "[target]"
        yield f"url = {_quote(self.target)}"

    def _patterns(self) -> list[str]:
        """Return a pattern for each schema of a whole source; later schemas are not included."""
        if not self.tables or tuple(self.patterns) != ("*.*",):
            return list(self.patterns)
        schemas = sorted({table.schema for table in self.tables})
        return [as_pattern(TableName(schema, "x")).removesuffix("x") + "*" for schema in schemas]

    def _table_comments(self) -> Iterator[str]:
        if not self.tables:
            return
        names = [str(table) for table in self.tables]
        more = f" and {len(names) - TABLES_MAX} more" if len(names) > TABLES_MAX else ""
        yield from _comment(
            f"{count_words(len(names), 'table')}: {', '.join(names[:TABLES_MAX])}{more}"
        )
        if self.plan is None:
            return
        for left_out in self.plan.left_out[:TABLES_MAX]:
            yield from _comment(f"left out: {left_out}")
        for reason in (*self.plan.problems, *self.plan.refusals):
            yield from _comment(f"cannot run: {reason}")

    def _types(self) -> Iterator[str]:
        yield "[target.types]               # values that the target cannot hold; penstock plan"
        losses = self.plan.missing if self.plan is not None else {}
        for name, choice in self.choices.items():
            if name in losses:
                yield from _comment(losses[name].what)
            yield f"{_quote(name)} = {_quote(choice)}"
            if name in losses:
                for other, meaning in losses[name].choices.items():
                    yield from _comment(f"  {other}: {meaning}")

    def _statements(self) -> Iterator[str]:
        """Yield doctor's findings at each server, with the SQL that fixes them."""
        if self.report is None:
            return
        for side in (Side.SOURCE, Side.TARGET) if self.target else (Side.SOURCE,):
            found = [
                one
                for one in self.report.findings
                if one.side is side and one.severity is not Severity.INFO
            ]
            yield ""
            if not found:
                yield f"# At the {side} nothing is to be done first."
                continue
            yield f"# At the {side}, before the first run (E: it will not start; W: a risk):"
            for one in found:
                yield from _comment(f"{one.severity} {one.code} {one.what}")
                yield from (f"#     {line}" for line in one.command.splitlines())


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, WIDTH, break_long_words=False))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


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
