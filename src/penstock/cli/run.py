"""Commands that run until they are stopped: run and its processes, consume, serve, stage, web."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import click

from penstock.cli.arguments import (
    PIPELINE_FILE,
    PORT,
    any_config,
    checked_option,
    common,
    consumed_config,
    diagnostics,
    group_option,
    pipeline_config,
    pipeline_file,
)
from penstock.cli.output import EXIT_FAILED, say, say_json, say_prose, say_text, say_web

NAME = click.argument("name", metavar="NAME")


@click.command()
@pipeline_file
@NAME
@click.option(
    "--standby", is_flag=True, help="Wait while another process runs it; take over when it ends."
)
@group_option
@common
@checked_option
def consume(
    file: Path,
    name: str,
    standby: bool,
    group: str,
    as_json: bool,
    verbose: bool,
    checked: bool,
) -> None:
    """Run one consumer: pass every change of the log to the class of [consumers.NAME].

    It continues after its saved state, at its own pace, independently of the load and of other
    consumers. One process at a time runs a consumer: a second one gives up after lockTimeout. Its
    messages go to standard error and to run/consume-NAME.log in the pipeline's directory.

    \b
    What it changes:  disk: cdc/NAME/: its state; links of segments that it has
                      read are removed
    Example:          penstock consume shop.toml search
    Exit codes:       0 stopped as asked, 1 an error (the saved state is
                      unchanged), 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.consumers import consumer_process
    from penstock.control.doctor.past_errors import errors_kept

    config = consumed_config(file, group)
    diagnostics(verbose)
    with errors_kept(config, f"consume {name}"):
        consumer_process.consume(config, name, standby=standby, checked=checked)
    say(as_json, f"stopped: {name} continues after its saved state", stopped=True)


@click.command()
@pipeline_file
@common
@checked_option
def serve(file: Path, as_json: bool, verbose: bool, checked: bool) -> None:
    """Serve the change log over PostgreSQL's protocol, until stopped: see docs/serve.md.

    Subscribers, pg_recvlogical and drivers follow it like a PostgreSQL server, whatever the source
    is. It runs beside the extractor, or without it. Its messages go to run/serve.log in the
    pipeline's directory.

    \b
    What it changes:  disk: cdc/serve/: links of segments that its slots need;
                      state/: slots, publications, shapes of tables
    Example:          penstock serve shop.toml
    Exit codes:       0 stopped by Ctrl-C or SIGTERM, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from contextlib import ExitStack

    from penstock.control.doctor.past_errors import errors_kept
    from penstock.control.pipeline.diagnostics import diagnostics_to
    from penstock.control.run.serve_process import serve as serve_log

    config = pipeline_config(file, takes_merge=True)
    diagnostics(verbose)
    with errors_kept(config, "serve"), ExitStack() as stack:
        if not checked:
            stack.enter_context(diagnostics_to(config.layout.run / "serve.log", verbose=verbose))
        name = config.pipeline.name

        def report_address(address: str) -> None:
            say(as_json, f"serving {name} at {address}", database=name, address=address)

        serve_log(config, on_served=report_address)
    say(as_json, "stopped", stopped=True)


@click.command()
@pipeline_file
@click.option(
    "--create", is_flag=True, help="Create the staging database first; its tables always are."
)
@click.option(
    "--rewind",
    default="",
    metavar="TIME",
    help="Have everything after this time applied again, and end: as feeds write times, or 0.",
)
@click.option("--half", type=click.Choice(["load", "extract", "feed"]), hidden=True)
@click.option(
    "--group",
    default="",
    metavar="SCHEMA",
    help="With --rewind: the target schema, if there are several.",
)
@common
def stage(
    file: Path,
    create: bool,
    rewind: str,
    half: str | None,
    group: str,
    as_json: bool,
    verbose: bool,
) -> None:
    """Receive changefeeds over HTTP, stage them in a database and apply them, until stopped.

    Its messages go to run/stage.log in the pipeline's directory. While a target schema is far
    behind, a bar shows rows, rate and time to go; an error that holds a schema is printed.

    \b
    What it changes:  staging database: mutation tables, checkpoints
                      target: the rows
    Example:          penstock stage cockroach.toml
                      penstock stage cockroach.toml \\
                        --rewind 1700000000000000000.0000000000
    Exit codes:       0 stopped by Ctrl-C or SIGTERM, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.doctor.past_errors import errors_kept
    from penstock.control.feeds.feed_process import stage as receive
    from penstock.control.feeds.feed_show import BackfillView, backfills_shown
    from penstock.control.pipeline.config import load_config
    from penstock.control.pipeline.diagnostics import diagnostics_to

    config = load_config(file)
    if half is not None:
        # This is one of the processes that this command starts for a target schema.
        diagnostics(verbose)
        from penstock.control.feeds.feed_groups import run_half

        run_half(config, half, group)
        return
    if rewind:
        diagnostics(verbose)
        from penstock.control.feeds.feed_rewind import rewind as rewind_schema
        from penstock.model.hlc import ZERO, Hlc

        time = ZERO if rewind == "0" else Hlc.parse(rewind)
        schema = rewind_schema(config, group, time)
        say(
            as_json,
            f"{schema} is back at {time}; what is staged after it is applied again, and the feed "
            "may send the rest",
            schema=schema,
            time=str(time),
        )
        return
    log = config.layout.run / "stage.log"
    with (
        errors_kept(config, "stage"),
        diagnostics_to(log, verbose=verbose),
        ExitStack() as stack,
    ):

        def report_address(url: str) -> None:
            say(as_json, f"receiving changefeeds at {url}", url=url)
            view = BackfillView(say_json if as_json else None)
            stack.enter_context(backfills_shown(config, view))

        receive(config, create=create, on_served=report_address)
    say(as_json, "stopped", stopped=True)


@click.command()
@click.argument("files", metavar="[FILE]...", nargs=-1, type=PIPELINE_FILE)
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

    Each has a page: bulk load, replication with the lag as a moving plot, tables, errors, doctor
    and verify with a button, a pause, and buttons for single tables. It is read from the change
    log, the state files and the two databases, whether or not the pipeline runs.
    For a file with [stage]: staged and applied changes, how far those are behind, bars for
    backfills. /metrics and /api/pipelines are for programs. Without FILE it shows how to begin.

    \b
    Who has access:   on 127.0.0.1, the default, every user of this machine; with
                      any other --host only those with the token that is
                      printed, or PENSTOCK_WEB_TOKEN
    What it changes:  nothing, unless a button is pressed: the buttons pause and
                      resume the pipeline, and do what `penstock table` does
    Example:          penstock web shop.toml bank.toml
    Exit codes:       0 stopped by Ctrl-C or SIGTERM, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.web.command import serve

    configs = [any_config(file) for file in files]
    diagnostics(verbose)
    serve(configs, host, port, allowed, say=say_web(as_json))


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PIPELINE_FILE)
@click.option("--web", "with_web", is_flag=True, help="Serve the web interface meanwhile.")
@click.option("--web-host", default="127.0.0.1", show_default=True, help="With --web: address.")
@click.option(
    "--web-port", type=PORT, default=8765, show_default=True, help="With --web: port; 0: any."
)
@common
def run(
    files: tuple[Path, ...],
    with_web: bool,
    web_host: str,
    web_port: int,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run a pipeline: bulk load, handover, then every change, until stopped.

    Starts the two processes, `penstock extract` and `penstock load`, watches them, and shows
    handover, progress, rates, lag, and servers that are away; with --json as events. Before
    anything is changed, everything that doctor would call an error is checked. When run again on
    the same directory, it continues where it stopped, however it was stopped.

    Several files, or a directory of them, are run side by side with one Spark. One that fails is
    started again while others run; SIGHUP starts what does not run: see docs/several.md.

    \b
    What it changes:
      source   in the modes change and data+change: a publication and a
               replication slot
      target   the tables (created if missing), and schema wirekite for its own
               progress
      disk     the pipeline's directory: change log, state, diagnostics in
               run/*.log
    Ctrl-C ends it in order; a second Ctrl-C at once. Nothing is lost either way.

    \b
    Example:     penstock run shop.toml
                 penstock run shop.toml bank.toml --web
    Exit codes:  0 stopped as asked, or done (mode data; exitWhenIdle)
                 1 an error, printed with its code and what to do
                 2 wrong usage
    """  # noqa: D301 - click wants the character
    if len(files) > 1 or files[0].is_dir():
        web_options = ["--host", web_host, "--port", str(web_port)] if with_web else None
        _run_group(files, web_options, as_json, verbose)
        return
    file = files[0]
    from penstock.control.run.pipeline import Pipeline
    from penstock.control.status.live import make_view

    diagnostics(verbose)
    pipeline = Pipeline(file)
    beside: AbstractContextManager[None] = nullcontext()
    if with_web:
        from penstock.web.command import beside as web_beside

        config = pipeline_config(file, takes_merge=True)
        beside = web_beside([config], web_host, web_port, say=say_web(as_json))
    with beside:
        pipeline.run(view=make_view(say_json if as_json else None), verbose=verbose)


def _run_group(
    files: tuple[Path, ...], web_options: list[str] | None, as_json: bool, verbose: bool
) -> None:
    """Run several pipelines, each in processes of its own."""
    from penstock.cli.group_view import GroupJson, GroupLines
    from penstock.control.run.group import GroupOptions, run_group

    diagnostics(verbose)
    command = click.get_current_context().obj  # see `run_guarded`
    options = GroupOptions(given=files, command=command, web=web_options, verbose=verbose)
    run_group(options, GroupJson() if as_json else GroupLines())


@click.command()
@pipeline_file
@common
@checked_option
def extract(file: Path, as_json: bool, verbose: bool, checked: bool) -> None:
    """Run only the extracting half: the source's changes into the change log.

    Creates the publication and the slot if they are missing, and writes segments into log/ of
    the pipeline's directory until stopped; with exitWhenIdle = true until the source is idle.
    One extractor per directory: a second one is refused.

    \b
    What it changes:  source: publication, slot and the slot's position
                      disk: log/ and state/
                      target: its own rows of wirekite.wirekite_progress;
                      without a target they are in state/wirekite.db
    Example:          penstock extract shop.toml
    Exit codes:       0 stopped as asked or idle, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.doctor.past_errors import errors_kept
    from penstock.control.run.extract_process import extract_changes

    config = pipeline_config(file, takes_merge=True)
    diagnostics(verbose)
    with errors_kept(config, "extract"):
        extract_changes(config, verbose=verbose, checked=checked)
    say(as_json, "stopped: everything extracted so far is in the change log", stopped=True)


@click.command()
@pipeline_file
@common
@checked_option
def merge(file: Path, as_json: bool, verbose: bool, checked: bool) -> None:
    """Run only the merging half of a pipeline with [merge]: several change logs into one.

    Merges whole transactions, each once, in the order of commit times. Waits for the log that is
    furthest behind; `penstock status` names it.

    \b
    What it changes:  disk: log/ and state/; links to the logs' segments in their
                      cdc/merge-NAME
                      target, if there is one: its own rows of
                      wirekite.wirekite_progress
    Example:          penstock merge merged.toml
    Exit codes:       0 stopped as asked or idle, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.doctor.past_errors import errors_kept
    from penstock.control.pipeline.config import need_merge
    from penstock.control.run.extract_process import extract_changes

    config = pipeline_config(file, takes_merge=True)
    need_merge(config)
    diagnostics(verbose)
    with errors_kept(config, "extract"):
        extract_changes(config, verbose=verbose, checked=checked)
    say(as_json, "stopped: everything merged so far is in the merged log", stopped=True)


@click.command()
@pipeline_file
@common
@checked_option
def load(file: Path, as_json: bool, verbose: bool, checked: bool) -> None:
    """Run only the loading half: bulk load, then segments of the change log into the target.

    Uses Spark. Each batch of up to maxFilesPerBatch segments is one transaction on the target.
    In mode data+change it waits for `penstock extract`, which captures the position.

    \b
    What it changes:  target: the tables, and schema wirekite for its own progress
                      disk: state/; loaded segments, with removeFiles or
                      doneDirectory
    Example:          penstock load shop.toml
    Exit codes:       0 stopped as asked or done, 1 an error, 2 wrong usage
    """  # noqa: D301 - click wants the character
    from penstock.control.doctor.past_errors import errors_kept
    from penstock.control.pipeline.config import need_target

    config = pipeline_config(file, takes_merge=True)
    if not config.has_base:
        need_target(
            config,
            "there is nowhere to load",
            instead="Extract changes with `penstock extract FILE`",
        )
    from penstock.control.run.load_process import load_changes  # which needs Spark to be installed

    diagnostics(verbose)
    with errors_kept(config, "load"):
        load_changes(config, verbose=verbose, checked=checked)
    say(as_json, "stopped: the target holds whole transactions only", stopped=True)


def _check_lake(_context: click.Context, _option: click.Parameter, name: str) -> str:
    """Return the name of a lake that a demo can have; empty for none."""
    if name:
        from penstock.ports.demo import demo_lakes

        if name not in (known := demo_lakes()):
            raise click.BadParameter(f"{name!r} is not one of {', '.join(sorted(known))}.")
    return name


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=1, max=3600),
    default=60.0,
    show_default=True,
    help="How long the customers keep the shop busy.",
)
@click.option(
    "--target",
    "lake",
    metavar="LAKE",
    default="",
    callback=_check_lake,
    help="A lake in place of the second server: delta or iceberg.",
)
@common
def demo(seconds: float, lake: str, as_json: bool, verbose: bool) -> None:
    """Copy a busy shop between two throw-away servers, keep it in step, compare.

    Starts two PostgreSQL servers of its own, fills a shop of twelve tables on one of them, and
    runs a pipeline to the other while customers buy, pay, cancel and browse: the bulk load, the
    position of the handover, then their changes, with rates and lag. When the customers have gone
    home, both sides are compared row by row.

    With --target the shop goes into a lake in the working directory, which stays. A library that
    is not Spark reads it for the comparison, and three lines show how to read it yourself.

    \b
    What it changes:  nothing permanent: servers and files are temporary and
                      removed, but for penstock-demo-delta/ or
                      penstock-demo-iceberg/ with --target
    Needs:            Java 17; the extras postgres, spark and demo, with --target
                      also lake
    Example:          penstock demo --seconds 30
                      penstock demo --target delta
    Ctrl-C ends it in order at any moment.
    Exit codes:       0 source and target are equal, 1 they differ or an error,
                      2 wrong usage, 130 ended by Ctrl-C
    """  # noqa: D301 - click wants the character
    from penstock.control.run.demo import closing_lines, run_demo
    from penstock.control.status.live import event, make_view
    from penstock.host.clock import REAL_CLOCK
    from penstock.ports.demo import WorkloadOptions

    def tell(text: str) -> None:
        if as_json:
            say_json(event(REAL_CLOCK, "demo", text=text))
        else:
            say_prose(text)

    diagnostics(verbose)
    outcome = run_demo(
        lambda: make_view(say_json if as_json else None),
        tell,
        options=WorkloadOptions(duration_s=seconds),
        verbose=verbose,
        lake=lake,
    )
    if as_json:
        say_json(outcome.as_dict())
    else:
        lines = closing_lines(outcome)
        code_count = len(outcome.lake.lines) if outcome.lake is not None else 0
        for number, line in enumerate(lines):
            (say_prose if number < len(lines) - code_count else say_text)(line)
    if not outcome.compared.equal:
        sys.exit(EXIT_FAILED)
