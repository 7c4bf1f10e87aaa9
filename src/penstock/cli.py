"""The command line: arguments in, exit codes out. The one module that prints.

What the commands do is in `penstock.control`, imported when a command needs it, so that `--help`
answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec

from penstock import __version__
from penstock.model import PenstockError, TableName

if TYPE_CHECKING:
    from penstock.control.config import Config

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
PIPELINE_FILE = click.Path(path_type=Path)
PORT = click.IntRange(min=0, max=65535)
F = TypeVar("F", bound=Callable[..., Any])


class Unexpected(PenstockError):
    """A defect in penstock: an exception that nobody foresaw. The message names it."""

    code = "PS99"
    retry = "never"


def pipeline_file(function: F) -> F:
    """The argument FILE that most commands take."""
    return click.argument("file", metavar="FILE", type=PIPELINE_FILE)(function)


def common(function: F) -> F:
    """The options that every command has."""
    decorated = click.option(
        "--json", "as_json", is_flag=True, help="Print JSON, one object per line, errors too."
    )(function)
    return click.option(
        "-v", "--verbose", is_flag=True, help="Print diagnostics to standard error as well."
    )(decorated)


# Set by `penstock run`, which has done the checks and gathers the diagnostics itself.
checked_option = click.option("--checked", is_flag=True, hidden=True)


class InOrder(click.Group):
    """A group that lists its commands in the order of use."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The commands as they were defined."""
        return list(self.commands)


@click.group(cls=InOrder, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="penstock")
def cli() -> None:
    """Copy a PostgreSQL database into another one and keep it in step.

    \b
    A pipeline is one TOML file. In the order you would use them:
      penstock doctor shop.toml    what would go wrong, and the SQL that mends it
      penstock plan shop.toml      what becomes of each column in the target
      penstock run shop.toml       load in bulk, then follow every change until stopped
      penstock status shop.toml    what it is doing now
      penstock verify shop.toml    compare source and target at one position
      penstock web shop.toml       all of this in a browser

    \b
    `penstock demo` shows it all on two throw-away servers; nothing to set up.
    Every command has --help and --json. Exit code 0 means done, 1 failed, 2 wrong usage.
    """  # noqa: D301 - click wants the character


@cli.command()
@pipeline_file
@click.option("--web", "with_web", is_flag=True, help="Serve the web interface meanwhile.")
@click.option("--web-host", default="127.0.0.1", show_default=True, help="With --web: address.")
@click.option(
    "--web-port", type=PORT, default=8765, show_default=True, help="With --web: port; 0: any."
)
@common
def run(
    file: Path, with_web: bool, web_host: str, web_port: int, as_json: bool, verbose: bool
) -> None:
    """Run a pipeline: bulk load, handover, then every change, until stopped.

    Starts the two halves, `penstock extract` and `penstock load`, watches them, and shows the
    handover steps, progress, rates and lag. Before anything is changed, everything that doctor
    would call an error is checked. Run again on the same directory, it goes on where it stopped,
    however it was stopped.

    \b
    What it changes:
      source   a publication and a replication slot, in the modes change and data+change
      target   the tables (made when missing), and schema wirekite for its own progress
      disk     the pipeline's directory: change log, state, diagnostics in run/*.log
    Ctrl-C ends it in order; a second Ctrl-C at once. Nothing is lost either way.

    \b
    Example:     penstock run shop.toml
    Exit codes:  0 stopped as asked, or done (mode data; exitWhenIdle)
                 1 an error, printed with its code and what to do
                 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.live import make_view
    from penstock.control.past_errors import errors_kept
    from penstock.control.supervisor import run_pipeline

    config = _config(file)
    _diagnostics(verbose)
    beside: AbstractContextManager[None] = nullcontext()
    if with_web:
        from penstock.web.command import beside as web_beside

        beside = web_beside([config], web_host, web_port, say=_say_web(as_json))
    with beside, errors_kept(config, "run"):
        run_pipeline(config, make_view(_json if as_json else None), verbose=verbose)


@cli.command()
@pipeline_file
@common
@checked_option
def extract(file: Path, as_json: bool, verbose: bool, checked: bool) -> None:
    """Run only the extracting half: the source's changes into the change log.

    Makes the publication and the slot when they are missing, and writes segments into log/ of
    the pipeline's directory until stopped; with exitWhenIdle = true until the source is idle.
    One extractor per directory: a second one is refused.

    \b
    What it changes:  source: publication, slot and the slot's position; disk: log/ and state/
                      target: its own rows of wirekite.wirekite_progress
    Example:          penstock extract shop.toml
    Exit codes:       0 stopped as asked or idle, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.extract_process import extract_changes
    from penstock.control.past_errors import errors_kept

    config = _config(file)
    _diagnostics(verbose)
    with errors_kept(config, "extract"):
        extract_changes(config, verbose=verbose, checked=checked)
    _say(as_json, "stopped: everything extracted so far is in the change log", stopped=True)


@cli.command()
@pipeline_file
@common
@checked_option
def load(file: Path, as_json: bool, verbose: bool, checked: bool) -> None:
    """Run only the loading half: bulk load, then segments of the change log into the target.

    Uses Spark. Each batch of up to maxFilesPerBatch segments is one transaction on the target.
    In mode data+change it waits for `penstock extract`, which captures the position.

    \b
    What it changes:  target: the tables, and schema wirekite for its own progress
                      disk: state/; loaded segments, with removeFiles or doneDirectory
    Example:          penstock load shop.toml
    Exit codes:       0 stopped as asked or done, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.load_process import load_changes
    from penstock.control.past_errors import errors_kept

    config = _config(file)
    _diagnostics(verbose)
    with errors_kept(config, "load"):
        load_changes(config, verbose=verbose, checked=checked)
    _say(as_json, "stopped: the target holds whole transactions only", stopped=True)


@cli.command()
@pipeline_file
@common
def status(file: Path, as_json: bool, verbose: bool) -> None:
    """Show what a pipeline is doing: steps, tables, positions, segments, processes, lag.

    Read from the change log, the target and the state files only, never from what a process
    believes; so it tells the truth whether or not the pipeline runs. Changes nothing.

    \b
    Example:     penstock status shop.toml --json
    Exit codes:  0 shown, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.show import show_status
    from penstock.control.status import read_status

    config = _config(file)
    _diagnostics(verbose)
    found = read_status(config)
    if as_json:
        _json(found.as_dict())
    else:
        show_status(found)


@cli.command()
@pipeline_file
@common
def lag(file: Path, as_json: bool, verbose: bool) -> None:
    """Tell how far the target is behind the source, in seconds and in bytes.

    Seconds: the age of the newest transaction that is applied; 0 when nothing is outstanding.
    Bytes: what the source has written behind the slot's position, and behind what is applied.
    Changes nothing.

    \b
    Example:     penstock lag shop.toml
    Exit codes:  0 told, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.lag import read_lag
    from penstock.control.show import show_lag

    config = _config(file)
    _diagnostics(verbose)
    found = read_lag(config)
    if as_json:
        _json(found.as_dict())
    else:
        show_lag(found)


@cli.command()
@pipeline_file
@common
def verify(file: Path, as_json: bool, verbose: bool) -> None:
    """Compare source and target, row by row, at one position, while both are in use.

    Asks the loader to stand still at the position at which the source is read, for as long as it
    takes to open a snapshot of the target; then reads both by range checksums, narrowing down to
    the rows that differ. Without a running pipeline everything captured must be applied.

    \b
    What it changes:  nothing, but for a temporary slot on the source for a moment
    Example:          penstock verify shop.toml
    Exit codes:       0 equal, 1 not equal (the differing keys are named) or an error,
                      2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.show import VerifyBar, show_verify
    from penstock.control.stopping import StopRequest, stop_on_signals
    from penstock.control.verify import verify as compare

    config = _config(file)
    _diagnostics(verbose)
    stop = StopRequest()
    with stop_on_signals(stop), VerifyBar(shown=not as_json) as bar:
        result = compare(config, on_progress=bar.progress, on_waiting=bar.waiting, stop=stop)
    if as_json:
        _json(result.as_dict())
    else:
        show_verify(result)
    if not result.equal:
        sys.exit(EXIT_FAILED)


@cli.command()
@pipeline_file
@common
def doctor(file: Path, as_json: bool, verbose: bool) -> None:
    """Check everything that can go wrong, before the first byte moves.

    Looks at this machine, the source and the target, by using each right it needs, and prints
    for each finding what it is, why it matters and the exact SQL that mends it. E stops a run,
    W is a risk, I is good to know. Changes nothing: what has to be tried is rolled back.

    \b
    Example:     penstock doctor shop.toml
    Exit codes:  0 no error found, 1 at least one, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.doctor import examine
    from penstock.control.show import show_report

    config = _config(file)
    _diagnostics(verbose)
    report = examine(config)
    if as_json:
        _json(report.as_dict())
    else:
        show_report(report)
    if report.errors:
        sys.exit(EXIT_FAILED)


@cli.command()
@pipeline_file
@common
def plan(file: Path, as_json: bool, verbose: bool) -> None:
    """Say what becomes of each column in the target, before anything runs.

    What may get lost is named, with what can be done about it; a pipeline does not start before
    that is chosen in [target.types]. Changes nothing.

    \b
    Example:     penstock plan shop.toml
    Exit codes:  0 it may run, 1 something is refused or not chosen, or an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.plan import make_plan
    from penstock.control.plan_text import plan_lines

    config = _config(file)
    _diagnostics(verbose)
    found = make_plan(config)
    if as_json:
        _json(found.as_dict())
    else:
        print("\n".join(plan_lines(found)), flush=True)
    if not found.may_run:
        sys.exit(EXIT_FAILED)


@cli.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PIPELINE_FILE)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=PORT, default=8765, show_default=True, help="Port; 0: any free one.")
@click.option(
    "--allow-host", "allowed", multiple=True, metavar="NAME", help="A name it is called by, too."
)
@common
def web(
    files: tuple[Path, ...],
    host: str,
    port: int,
    allowed: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> None:
    """Show pipelines in a browser, with metrics for Prometheus, until stopped.

    A page for each: bulk load, replication with the lag as a moving plot, tables, errors, doctor
    and verify with a button, and a pause. It is read from the change log, the state files and the
    two databases, whether or not the pipeline runs. /metrics and /api/pipelines are for programs.

    \b
    Who may come in:  on 127.0.0.1, the default, everybody on this machine; with any other --host
                      who has the token that is printed, or that PENSTOCK_WEB_TOKEN gives
    What it changes:  nothing by itself; its button Pause what wirekite.wirekite_action holds
    Example:          penstock web shop.toml bank.toml
    Exit codes:       0 stopped by Ctrl-C or SIGTERM, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.web.command import serve

    configs = [_config(file) for file in files]
    _diagnostics(verbose)
    serve(configs, host, port, allowed, say=_say_web(as_json))


@cli.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=1, max=3600),
    default=60.0,
    show_default=True,
    help="How long the customers keep the shop busy.",
)
@common
def demo(seconds: float, as_json: bool, verbose: bool) -> None:
    """Copy a busy shop between two throw-away servers, keep it in step, compare.

    Starts two PostgreSQL servers of its own, fills a shop of twelve tables on one of them, and
    runs a pipeline to the other while customers buy, pay, cancel and browse: the bulk load, the
    four handover steps, then their changes, with rates and lag. When the customers have gone
    home, both sides are compared row by row.

    \b
    What it changes:  nothing that stays: servers and files are temporary and removed
    Needs:            Java 17; the extras postgres, spark and demo
    Example:          penstock demo --seconds 30
    Ctrl-C ends it in order at any moment.
    Exit codes:       0 source and target are equal, 1 they differ or an error, 2 wrong usage,
                      130 ended by Ctrl-C
    """  # noqa: D301 - click wants the character
    from penstock.control.demo import closing_lines, run_demo
    from penstock.control.demo_workload import WorkloadOptions
    from penstock.control.live import make_view

    _diagnostics(verbose)
    outcome = run_demo(
        lambda: make_view(_json if as_json else None),
        lambda text: _say(as_json, text, event=text),
        options=WorkloadOptions(duration_s=seconds),
        verbose=verbose,
    )
    if as_json:
        _json(outcome.as_dict())
    else:
        print("\n".join(closing_lines(outcome)), flush=True)
    if not outcome.compared.equal:
        sys.exit(EXIT_FAILED)


@cli.group()
def log() -> None:
    """Look into a change log: list segments, print changes, check every byte.

    These read the files alone: no server is asked, and the pipeline may run meanwhile.
    """


LOG_PATH = click.Path(path_type=Path)


@log.command("ls")
@click.argument("path", metavar="FILE|DIRECTORY", type=LOG_PATH)
@common
def log_ls(path: Path, as_json: bool, verbose: bool) -> None:
    """List the segments of a change log: rows, numbers, position, time, size, tables.

    \b
    FILE is a pipeline file, DIRECTORY one that holds segments. The open segment ends in _ .
    Example:     penstock log ls shop.toml
    Exit codes:  0 listed, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.log_view import describe, find_log
    from penstock.control.show import show_segments

    _diagnostics(verbose)
    segments = describe(find_log(path))
    if as_json:
        for segment in segments:
            _json(segment)
    else:
        show_segments(segments)


@log.command("cat")
@click.argument("path", metavar="FILE|DIRECTORY", type=LOG_PATH)
@click.argument("numbers", metavar="[NUMBER]...", nargs=-1, type=click.IntRange(min=0))
@click.option("--table", help="Only this table, as schema.table.")
@common
def log_cat(
    path: Path, numbers: tuple[int, ...], table: str | None, as_json: bool, verbose: bool
) -> None:
    """Print changes as tab-delimited lines: sequence, letter, schema, table, columns.

    \b
    Letters: I insert, U update, D delete, T truncate, B begin and C commit (with
    processCommits), R a table's shape, M another marker. Values are as COPY writes them:
    \\N is NULL, backslash escapes, bytes as hex; \\A is a column that was not sent.
    NUMBER picks segments; without one all are printed.
    Example:     penstock log cat shop.toml 3 --table public.orders
    Exit codes:  0 printed, 1 an error (a damaged segment is one), 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.log_view import as_object, find_log, printed

    _diagnostics(verbose)
    wanted = None if table is None else _table_name(table)
    for line in printed(find_log(path), numbers, table=wanted):
        if as_json:
            _json(as_object(line))
        else:
            print(line)


@log.command("check")
@click.argument("path", metavar="FILE|DIRECTORY", type=LOG_PATH)
@common
def log_check(path: Path, as_json: bool, verbose: bool) -> None:
    """Check every byte of a change log: checksums, numbers, chain, left-overs.

    Changes nothing; what to do about a finding is said with it. The pipeline may run meanwhile.

    \b
    Example:     penstock log check shop.toml
    Exit codes:  0 whole, 1 damaged or an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.log_view import examine_log, find_log
    from penstock.control.show import show_log_findings

    _diagnostics(verbose)
    findings = examine_log(find_log(path))
    damaged = any(finding.severity == "error" for finding in findings)
    if as_json:
        _json({"ok": not damaged, "findings": findings})
    else:
        show_log_findings(findings)
    if damaged:
        sys.exit(EXIT_FAILED)


def _table_name(text: str) -> TableName:
    schema, dot, name = text.partition(".")
    if not dot or not schema or not name:
        raise click.BadParameter(f"{text!r} is not schema.table", param_hint="--table")
    return TableName(schema, name)


def _config(file: Path) -> Config:
    from penstock.control.config import load_config

    return load_config(file)


def _diagnostics(verbose: bool) -> None:
    from penstock.control.diagnostics import configure_diagnostics
    from penstock.host.process import under_parent

    # A child of `penstock run` writes to its standard error: the parent gathers it in a file.
    child = under_parent()
    configure_diagnostics(verbose=verbose and not child, file=sys.stderr if child else None)


def _json(value: Any) -> None:
    print(msgspec.json.encode(value, enc_hook=str).decode(), flush=True)


def _say(as_json: bool, text: str, **fields: Any) -> None:
    if as_json:
        _json(fields)
    else:
        print(text, flush=True)


def _say_web(as_json: bool) -> Callable[[str, dict[str, str]], None]:
    return lambda text, fields: _say(as_json, text, event="web interface", **fields)


def _show_error(error: dict[str, Any], as_json: bool) -> None:
    """Print one error as one block to standard error, or as one JSON object."""
    if as_json:
        print(msgspec.json.encode(error, enc_hook=str).decode(), file=sys.stderr, flush=True)
        return
    colour = sys.stderr.isatty()
    head = (
        click.style(f"error {error['code']}", fg="red", bold=True)
        if colour
        else (f"error {error['code']}")
    )
    print(f"{head}: {error['error']}", file=sys.stderr)
    if error.get("hint"):
        print(f"  next: {error['hint']}", file=sys.stderr)
    sys.stderr.flush()


def _fail(error: BaseException, as_json: bool, verbose: bool) -> NoReturn:
    """End the process with the exit code an exception stands for."""
    if isinstance(error, click.exceptions.Exit):
        sys.exit(error.exit_code)
    if isinstance(error, click.UsageError) and not as_json:
        error.show()
        sys.exit(EXIT_USAGE)
    if isinstance(error, click.ClickException):
        _show_error({"code": "usage", "error": error.format_message(), "hint": ""}, as_json)
        sys.exit(EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        sys.exit(EXIT_INTERRUPTED)
    if isinstance(error, PenstockError):
        _show_error(error.as_dict(), as_json)
        sys.exit(EXIT_FAILED)
    from penstock.host.process import under_parent

    if verbose or under_parent():  # a child's standard error is kept in run/*.log
        import traceback

        traceback.print_exception(error)
    unexpected = Unexpected(
        f"unexpected {type(error).__name__}: {error}",
        hint="This is a bug in penstock: run the command again with --verbose and report what it "
        "prints.",
    )
    _show_error(unexpected.as_dict(), as_json)
    sys.exit(EXIT_FAILED)


def guarded(arguments: list[str]) -> None:
    """Run the command line; every way out is an exit code."""
    as_json, verbose = "--json" in arguments, bool({"-v", "--verbose"} & set(arguments))
    try:
        cli.main(args=arguments, prog_name="penstock", standalone_mode=False)
    except SystemExit:
        raise
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except BaseException as error:
        _fail(error, as_json, verbose)


def main() -> None:
    """The entry point `penstock`."""
    from penstock.host.process import end_with_parent

    end_with_parent()
    guarded(sys.argv[1:])
