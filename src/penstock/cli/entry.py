"""The group of all commands, and the exit code with which each ends."""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import NoReturn

import click

from penstock import __version__
from penstock.cli.arguments import CONTEXT
from penstock.cli.begin import cluster_archive, copy, init
from penstock.cli.consumers import consumers, delete_lost_segment_links
from penstock.cli.engine_commands import WithEngines
from penstock.cli.flexcdc import flexcdc
from penstock.cli.lake import lake
from penstock.cli.log import log
from penstock.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, show_error
from penstock.cli.reports import doctor, lag, plan, status, verify
from penstock.cli.reset import reset
from penstock.cli.run import consume, demo, extract, load, merge, run, serve, stage, web
from penstock.cli.table import resend, table
from penstock.model import PenstockError


class Unexpected(PenstockError):
    """A defect in penstock: an exception that penstock does not expect. The message names it."""

    code = "PS99"
    retry = "never"


@click.group(cls=WithEngines, context_settings=CONTEXT)
@click.version_option(message=f"penstock {__version__}, Python {platform.python_version()}")
def cli() -> None:
    """Copy a database into another one and keep it in step: PostgreSQL, MySQL, MariaDB.

    \b
    A pipeline is one TOML file. In the order you would use them:
      penstock init URL URL        write that file, from the two databases' URLs
      penstock doctor shop.toml    what would go wrong, and the SQL that fixes it
      penstock plan shop.toml      how each column is written to the target
      penstock run shop.toml       load in bulk, then follow every change
      penstock status shop.toml    what it is doing now
      penstock verify shop.toml    compare source and target at one position
      penstock web shop.toml       all of this in a browser

    \b
    `penstock demo` shows it all on two throw-away servers; nothing to set up.
    Every command has --help and --json.
    Exit code 0 means done, 1 failed, 2 wrong usage.
    """  # noqa: D301 - click wants the character


for command in (
    *(
        init,
        run,
        extract,
        load,
        merge,
        consume,
        serve,
        stage,
        status,
        lag,
        verify,
        doctor,
        plan,
        table,
        consumers,
        delete_lost_segment_links,
        resend,
        reset,
        copy,
        web,
        demo,
        lake,
        log,
        flexcdc,
        cluster_archive,
    ),
):
    cli.add_command(command)


def _for_file(error: PenstockError, arguments: list[str]) -> PenstockError:
    """Put this command line's pipeline file into the error's hint, and return the error."""
    files = [argument for argument in arguments if argument.endswith((".toml", ".ini"))]
    if files:
        error.hint = re.sub(r"\bFILE\b", lambda _: files[0], error.hint)
    return error


def _fail(error: BaseException, arguments: list[str], as_json: bool, verbose: bool) -> NoReturn:
    """End the process with the exception's exit code."""
    if isinstance(error, click.exceptions.Exit):
        sys.exit(error.exit_code)
    if isinstance(error, click.UsageError) and not as_json:
        error.show()
        sys.exit(EXIT_USAGE)
    if isinstance(error, click.ClickException):
        show_error({"code": "usage", "error": error.format_message(), "hint": ""}, as_json)
        sys.exit(EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        sys.exit(EXIT_INTERRUPTED)
    if isinstance(error, PenstockError):
        show_error(_for_file(error, arguments).as_dict(), as_json)
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
    show_error(unexpected.as_dict(), as_json)
    sys.exit(EXIT_FAILED)


def run_guarded(arguments: list[str]) -> None:
    """Run the command line; each way to leave it is an exit code."""
    from penstock.host.supervised import raise_failure

    as_json, verbose = "--json" in arguments, bool({"-v", "--verbose"} & set(arguments))
    try:
        # `run` of several pipelines runs command lines in other processes.
        cli.main(args=arguments, prog_name="penstock", standalone_mode=False, obj=run_guarded)
        raise_failure()
    except SystemExit:
        raise
    except BrokenPipeError:
        # The reader of our output has seen enough; Python must not try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except BaseException as error:
        _fail(error, arguments, as_json, verbose)


def main() -> None:
    """Run the entry point `penstock`."""
    from penstock.host.process import end_with_parent
    from penstock.host.supervised import own_process

    own_process()
    end_with_parent()
    run_guarded(sys.argv[1:])
