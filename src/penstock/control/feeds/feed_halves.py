"""The two processes of a group in consistent mode: staged mutations to its log, its log to Spark.

They are `penstock extract` and `penstock load` without the parts that a group lacks: a handover, a
bulk load, table syncs. Not here: starting them (`feed_group.py`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from penstock.control.doctor.past_errors import keep_error
from penstock.control.pipeline.actions import ActionWatch, StopRequest, stop_on_signals
from penstock.control.pipeline.consumers import register_configured
from penstock.control.pipeline.running import LOAD_LOCK, take_lock
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.run.extract_process import CeRecorder, extract_options
from penstock.extract.extractor import Extractor
from penstock.host.files import REAL_FILES
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.session import PendingSession, SessionKeeper, session_options
from penstock.model.policies import Policies, Policy
from penstock.ports.config import Config, TargetSection
from penstock.ports.source import extraction_of
from penstock.ports.staging import feed_config, group_at, group_config, log_id_of

LOAD, EXTRACT, FEED = "load", "extract", "feed"
HALVES = (LOAD, EXTRACT)  # Spark takes longest to start
# A target's tables are their owner's: a feed's value without a column stops before the log.
POLICIES = Policies(default=Policy.IGNORE)


def run_half(config: Config, half: str, group_url: str) -> None:
    """Work as one of HALVES, or as FEED, until a signal arrives. group_url: see `source_url`.

    Raises the errors that end an extraction or a load.
    """
    group = group_at(group_url)
    if half == FEED:
        feed_group(feed_config(config, group), config.target)
        return
    config, log_id = group_config(config, group), log_id_of(config, group)
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        REAL_FILES.make_directory(config.layout.run)
        work = extract_group if half == EXTRACT else load_group
        work(config, log_id, stop, stack)


def extract_group(config: Config, log_id: str, stop: StopRequest, stack: ExitStack) -> None:
    """Extract windows into the log."""
    options = extract_options(config)
    engine = stack.enter_context(
        extraction_of(config).open_engine(pipeline_of(config), options, tables=list, stop=stop)
    )
    recorder = CeRecorder(config)
    stack.callback(recorder.close)
    gate = ActionWatch(config.target.url, name="penstock stage action", interval_s=0.0)
    stack.callback(gate.close)
    Extractor(
        engine,
        config.directory,
        options=options,
        recorder=recorder,
        gate=gate,
        stop=stop,
        log_id=log_id,
    ).run()


def feed_group(config: Config, target: TargetSection) -> None:
    """Extract all staged rows into the log of consumers, whether applied or not."""
    stop = StopRequest()
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        REAL_FILES.make_directory(config.layout.run)
        register_configured(config)
        options = extract_options(config)
        pipeline = pipeline_of(replace(config, target=target))
        engine = stack.enter_context(
            extraction_of(config).open_engine(pipeline, options, tables=list, stop=stop)
        )
        recorder = CeRecorder(config)
        stack.callback(recorder.close)
        gate = ActionWatch(config.target.url, name="penstock stage action")
        stack.callback(gate.close)
        Extractor(
            engine,
            config.directory,
            options=options,
            recorder=recorder,
            gate=gate,
            stop=stop,
        ).run()


def load_group(config: Config, log_id: str, stop: StopRequest, stack: ExitStack) -> None:
    """Load the log into the target: batches end at the log's flush points."""
    del log_id  # the log has it
    stack.enter_context(take_lock(config, config.layout.state, LOAD_LOCK))
    options = session_options(config)
    sessions = SessionKeeper(options, PendingSession(options))
    stack.callback(sessions.close)
    actions = ActionWatch(config.target.url, name="penstock stage action")
    stack.callback(actions.close)
    section = config.change_loader
    Loader(
        LoaderOptions(
            url=config.target.url,
            log_directory=config.layout.log,
            state_directory=config.layout.state,
            run_directory=config.layout.run,
            max_files_per_batch=section.max_files_per_batch,
            read_open_segment=section.read_open_segment,
            max_threads=section.max_threads,
            remove_files=section.remove_files,
            keeping=section.keeping,
            change_file_extension=section.change_file_extension,
            exit_when_done=False,
            policies=POLICIES,
            on_note=lambda note: keep_error(config, "load", note),
        ),
        sessions,
        stop=stop,
        actions=actions,
    ).run()
