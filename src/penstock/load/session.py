"""Start the Spark session of a loader process, warm it up, run its jobs, and end it.

One session per process (a JVM holds one Spark context). The JVM runs in its own process session, so
that Ctrl-C reaches only penstock, which then ends at a batch boundary. The JVM ends automatically
when this process dies, because its standard input closes. Java compiles code that it has run often:
the first jobs take more CPU than those after some dozens, so empty jobs run before the first real
one. Not here: the contents of jobs (`job.py`, `bulk.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import structlog
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from penstock.host.task_fence import TaskPermit
from penstock.load.java import (
    Start,
    check_java,
    end,
    first_failure,
    last_error,
    last_line,
    last_warning,
    launch,
    quieten,
    root_cause,
    text_of,
)
from penstock.load.job_figures import Reporter, TaskFigures
from penstock.load.partitions import PartitionCall, Spread, collect, spread_whole
from penstock.load.shared_spark import (
    address_at,
    failure_at,
    join_context,
    leave,
    open_gateway,
    place_of,
)
from penstock.load.spark_properties import (
    SparkPropertyRefused,
    add_needed,
    find_refused,
    properties,
    with_jars,
)
from penstock.model import PenstockError, Retry
from penstock.ports.config import Config, is_local_master
from penstock.ports.registry import spark_needs

logger = structlog.get_logger(__name__)

WARM_UP_JOBS = 40


class WarmUp:
    """Empty jobs, one after the other, up to their number or until they are ended."""

    def __init__(self) -> None:
        """Keep the settings; nothing runs yet."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Begin, in a separate thread."""
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._work, args=(job,), name="spark-warm-up", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Begin no further job, and wait for the running one."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self, job: Callable[[], object]) -> None:
        began, count = time.monotonic(), 0
        while count < WARM_UP_JOBS and not self._ended.is_set():
            try:
                job()
            except Exception as error:
                # The first job that is needed meets it, too, and raises it.
                logger.info("spark is not warm", reason=str(error))
                return
            count += 1
        logger.info("spark is warm", jobs=count, seconds=round(time.monotonic() - began, 2))


Task = TypeVar("Task")
Result = TypeVar("Result")

MESSAGES_NAME = "spark.log"
CHANGES = "changes"  # name of the jobs of batches
POOLS_MAX = 100
STOP_WAIT_S = 10.0
STOP_CHECK_S = 0.1
ATTACH_CHECK_S = 0.1
JOIN_S = 20.0
START_ATTEMPTS_MAX = 3
EXECUTOR_WAIT_S = 120.0
DYING_TIMEOUT_S = 5.0
# Messages of the JVM about a lost Python worker, or the lost process that forks them.
_WORKER_GONE = (
    r"Python worker (exited unexpectedly|failed to connect)|crashed"
    r"|reading the port number from .* stdout"
)
# Messages about a lost executor. Source: org.apache.spark.TaskEndReason, TaskSetManager.
_EXECUTOR_GONE = r"ExecutorLostFailure|[Ee]xecutor \S+ (exited|lost|heartbeat)|executor is lost"
_NO_PENSTOCK = r"No module named '?(penstock|pyarrow|numpy)[\w.]*"


class SparkStartFailed(PenstockError):
    """The Spark session could not be started."""

    code = "LD03"


class SparkLost(PenstockError):
    """The Java process of the Spark session is gone or does not answer, or Spark stopped in it."""

    code = "LD04"
    retry: ClassVar[Retry] = "backoff"


class WorkerLost(PenstockError):
    """A Python worker process of Spark died during a task."""

    code = "LD05"
    retry: ClassVar[Retry] = "backoff"


class SparkJobFailed(PenstockError):
    """A Spark job failed for a reason without an error class of its own."""

    code = "LD06"


class ExecutorLost(PenstockError):
    """Executors of the cluster were lost during a job, as often as Spark tries a task."""

    code = "LD07"
    retry: ClassVar[Retry] = "backoff"


class ExecutorMissing(PenstockError):
    """No executor of the cluster could run a task."""

    code = "LD09"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedUse:
    """Use of a Spark that other processes use, too; `shared_spark.py` starts and finds it.

    Attributes:
        place: directory of the file that says where it listens.
        permit: held by our tasks, which go on if this process is killed.
    """

    place: Path
    permit: TaskPermit


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Options of Spark's start.

    Attributes:
        master: a Spark master URL.
        work_directory: directory of Spark's temporary files, warehouse and messages, which are
            never written to the current directory.
        conf: Spark properties that override ours.
        python: interpreter of executors on other machines; empty for that of this process.
        ui: whether Spark's web pages are enabled.
        reporter: receives the figures of tasks.
        shared: the running Spark to use, and by what name; None to start one.
    """

    work_directory: Path
    master: str = "local[*]"
    name: str = "penstock"
    python: str = ""
    ui: bool = False
    reporter: Reporter | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    shared: SharedUse | None = None

    @property
    def is_local(self) -> bool:
        """Return whether driver and workers share this machine."""
        return is_local_master(self.master)

    def find_refused(self, said: str) -> SparkPropertyRefused | None:
        """Return the error for a refused option; None if Spark's message is about none."""
        return find_refused(said, self.conf, master=self.master, python=self.python)


def session_options(config: Config) -> SessionOptions:
    """Return how Spark is started for this pipeline; its scratch files are below run/.

    Raises the errors of an engine that needs files for it.
    """
    work = config.change_loader.work_directory
    needed = spark_needs(config.target.url) if config.has_target else {}
    if not config.spark.is_local:
        needed = with_jars(needed)
    return SessionOptions(
        master=config.spark.master,
        name=f"penstock {config.pipeline.name}",
        work_directory=(config.path.parent / work) if work else config.layout.run / "spark",
        python=config.spark.python,
        ui=config.spark.ui,
        conf=add_needed(config.spark.conf, needed),
    )


def shared_place(config: Config, options: SessionOptions, root: str) -> Path | None:
    """Return where to look for a Spark with these settings that several pipelines share.

    Returns None without a root, and for a pipeline that always has a Spark of its own: one on a
    cluster, one with a working directory of its own, or one with a lake, which sets up the JVM.
    """
    is_own = not options.is_local or bool(config.change_loader.work_directory)
    if not root or is_own or (config.has_target and spark_needs(config.target.url)):
        return None
    return place_of(
        Path(root), master=options.master, python=options.python, ui=options.ui, conf=options.conf
    )


class Session:
    """A running Spark context. Use as a context manager, or call close()."""

    def __init__(
        self,
        context: SparkContext,
        gateway: Any,
        *,
        started_s: float,
        jobs: str = CHANGES,
        slots_are_fixed: bool = True,
        reporter: Reporter | None = None,
        warming: WarmUp | None = None,
        parallelism: int | None = None,
        user: str = "",
        shared: SharedUse | None = None,
    ) -> None:
        """Keep the context. jobs: name by which its jobs run and are cancelled.

        user, shared: name of the pipeline among those that share the Spark, and the use of it.

        slots_are_fixed: no executor joins or leaves. reporter: receives the figures of tasks.
        warming: ends with the first job. parallelism: as last seen; the context is asked if None.
        """
        self._warming = warming or WarmUp()
        self._reporter = reporter
        self._jobs = jobs
        self._user = user
        self._shared = shared
        self.slots_are_fixed = slots_are_fixed
        self._context = context
        self._spark: Any = None
        # As last seen.
        self._parallelism = parallelism or int(context.defaultParallelism)
        self._gateway = gateway
        self.started_s = started_s
        """Seconds that the start took."""

    @property
    def context(self) -> SparkContext:
        """Return Spark's own object, for uses that `run` does not cover."""
        return self._context

    @property
    def jvm(self) -> Any:
        """Return py4j's view of the JVM's packages."""
        return self._context._jvm

    @property
    def spark(self) -> Any:
        """Return the JVM's SparkSession, created the first time."""
        if self._spark is None:
            builder = self.jvm.org.apache.spark.sql.classic.SparkSession
            self._spark = builder.builder().sparkContext(self._context._jsc.sc()).getOrCreate()
        return self._spark

    @property
    def hadoop_conf(self) -> Any:
        """Return Hadoop's configuration in the JVM."""
        return self.spark.sparkContext().hadoopConfiguration()

    @property
    def parallelism(self) -> int:
        """Return how many tasks run at once, asked each time: executors join and leave."""
        try:
            self._parallelism = int(self._context.defaultParallelism)
        except (Py4JError, OSError, AttributeError) as error:
            logger.debug("slots not asked", reason=type(error).__name__)  # the job will report it
        return self._parallelism

    @property
    def ui_url(self) -> str:
        """Return the URL of Spark's web pages; empty unless the pipeline file enables them."""
        return self._context.uiWebUrl or ""

    def with_jobs(self, jobs: str) -> Session:
        """Return the same session for other work, whose jobs are cancelled separately."""
        return Session(
            self._context,
            self._gateway,
            started_s=self.started_s,
            jobs=jobs,
            slots_are_fixed=self.slots_are_fixed,
            reporter=self._reporter,
            warming=self._warming,
            parallelism=self._parallelism,
            user=self._user,
            shared=self._shared,
        )

    def warm_up(self) -> None:
        """Run empty jobs in a thread until the first real one."""
        own = self.with_jobs("warming up")
        self._warming.start(lambda: own._run([[0]], _nothing, "", spread_whole))

    def cancel(self) -> None:
        """Cancel the running job, if any; `run` then raises SparkJobFailed."""
        try:
            self._context.cancelJobGroup(self._group)
        except (Py4JError, OSError) as error:
            logger.warning("spark job not cancelled", reason=type(error).__name__)

    @property
    def _group(self) -> str:
        """Return the name of its jobs' group, which no other pipeline has."""
        return f"{self._user} {self._jobs}" if self._user else self._jobs

    def _choose_pool(self) -> str:
        """Return the name of the scheduler's pool for the next job.

        Of two jobs that wait for a slot, the one whose pool has fewer running tasks gets it, and of
        equals the first by name. So the batches of pipelines that share a Spark are in pools named
        after the time, and the one that waits longest comes first; pools are never removed, so
        their names return.
        """
        if not self._user or self._jobs != CHANGES:
            return self._group
        return f"{CHANGES} {int(time.monotonic()) % POOLS_MAX:03}"

    @property
    def gateway_parameters(self) -> tuple[int, str]:
        """Return the port and the secret by which other processes of this user reach the JVM."""
        found = self._gateway.gateway_parameters
        return int(found.port), str(found.auth_token)

    @property
    def java_pid(self) -> int:
        """Return the process id of the JVM."""
        return int(self._gateway.proc.pid)

    @property
    def alive(self) -> bool:
        """Return whether the JVM still runs."""
        return self._gateway.proc.poll() is None

    @property
    def is_lost(self) -> bool:
        """Return whether no job can run any more: the JVM has ended, or Spark has stopped in it.

        Spark stops after an error of its own that it cannot survive, and its JVM may run on.
        """
        try:
            is_stopped = bool(self._context._jsc.sc().isStopped())
        except (Py4JError, OSError, AttributeError):
            return True
        return is_stopped or not self.alive

    def run(
        self,
        partitions: Sequence[Sequence[Task]],
        work: Callable[[Iterator[Task]], Iterable[Result]],
        *,
        description: str = "",
        spread: Spread = spread_whole,
    ) -> list[Result]:
        """Run one Spark job and return all that its tasks yield, in order of the partitions.

        partitions: the tasks of each partition; one Python worker takes a partition at a time.
        work: a function importable in the workers; it gets the tasks of one partition.
        description: of the job, in Spark's web pages. spread: how partitions become an RDD.
        Raises SparkLost, WorkerLost, ExecutorLost, ExecutorMissing or SparkJobFailed; nothing of
        the job runs on afterwards that could write behind the caller's back once its process is
        gone.
        """
        if not partitions:
            return []
        self._warming.end()
        return self._run(partitions, work, description, spread)

    def _run(
        self,
        partitions: Sequence[Sequence[Task]],
        work: Callable[[Iterator[Task]], Iterable[Result]],
        description: str,
        spread: Spread,
    ) -> list[Result]:
        call = PartitionCall(work, self._shared.permit if self._shared is not None else None)
        try:
            self._context.setJobGroup(self._group, description or self._jobs)  # of this thread
            self._context.setLocalProperty("spark.scheduler.pool", self._choose_pool())
            with spread(self._context, partitions, call) as found:
                return collect(found)
        except (Py4JError, PySparkException, OSError, EOFError) as error:
            raise self._job_error(error) from error

    def tell(self, of: str, tasks: Sequence[TaskFigures]) -> None:
        """Report the figures of a job's tasks. of: description of the job."""
        if self._reporter is None or not tasks:
            return
        job = self._reporter.add(self._jobs, of, tasks)
        logger.info("spark job done", what=str(job))
        if not self.ui_url:
            return
        try:
            self._context.setJobGroup(self._group, str(job))
            self._context._jsc.emptyRDD().count()  # a job without tasks, in Spark's pages
        except (Py4JError, OSError, AttributeError) as error:
            # The next job will report it.
            logger.debug("job not described", reason=type(error).__name__)

    def _job_error(self, error: BaseException) -> PenstockError:
        if self.is_lost:
            return SparkLost(
                "the Java process of the Spark session is gone, or Spark has stopped in it",
                hint="penstock restarts the session; if it recurs, look at spark.log "
                "in the run directory and at the machine's memory.",
            )
        text = text_of(error)
        if found := re.search(_NO_PENSTOCK, text):
            return ExecutorMissing(
                f"the cluster's Python cannot run penstock: {found[0]}",
                hint="Install the same version of penstock on its machines, or have Spark carry "
                "it: docs/cluster.md.",
            )
        if re.search(_WORKER_GONE, text):
            return WorkerLost(
                "a Python worker of Spark died in the middle of a task",
                hint="penstock repeats the batch; if it recurs, look for the kernel's "
                "out-of-memory killer and lower maxThreads or maxFilesPerBatch.",
            )
        if re.search(_EXECUTOR_GONE, text):
            return ExecutorLost(
                "an executor of the cluster was lost in the middle of a job",
                hint="penstock retries automatically; if it recurs, look at the executors' logs "
                "and their memory (spark.executor.memory, spark.executor.memoryOverhead).",
            )
        return SparkJobFailed(
            f"the Spark job failed: {last_line(text)}",
            hint="Look at spark.log in the run directory for the whole message.",
        )

    def close(self) -> None:
        """End the JVM; harmless if it has already ended. A shared one is only left."""
        self._warming.end()
        if self._shared is not None:
            leave(self._context, self._gateway)
            _forget_context(self._gateway)
            return
        process = self._gateway.proc
        if self.alive:
            try:
                self._context.stop()
                self._gateway.shutdown()
            except (Py4JError, OSError, AttributeError) as error:
                logger.warning("spark did not stop cleanly", reason=type(error).__name__)
        if process.stdin is not None:
            process.stdin.close()  # the JVM ends when its standard input does
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _forget_context(self._gateway)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class PendingSession:
    """Session that starts in a thread during other preparations."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._session: Session | None = None
        self._error: BaseException | None = None
        self._begun = Start()
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            self._session = start_session(self._options, self._begun)
            if self._options.is_local and self._options.shared is None:
                self._session.warm_up()
        except BaseException as error:
            self._error = error

    @property
    def ready(self) -> bool:
        """Return whether the start has ended, successfully or not."""
        return not self._thread.is_alive()

    def wait(self, stop: Callable[[], bool]) -> bool:
        """Wait until the start has ended; return False once stop() is true."""
        while self._thread.is_alive():
            if stop():
                return False
            self._thread.join(STOP_CHECK_S)
        return True

    def result(self) -> Session:
        """Wait for the session. Raises the error of the start."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._session is not None
        return self._session

    @property
    def is_lost(self) -> bool:
        """Return whether the session has started and is lost."""
        return self.ready and self._session is not None and self._session.is_lost

    def close(self) -> None:
        """End the session; abort a start in progress."""
        if not self.ready:
            self._begun.give_up()
        self._thread.join()
        if self._session is not None:
            self._session.close()
            self._session = None


class SessionKeeper:
    """Keeper of the process's session, which it replaces after a loss."""

    def __init__(self, options: SessionOptions, first: PendingSession | None = None) -> None:
        self._options = options
        self._pending = first
        self._lock = threading.RLock()  # a copy that runs beside the stream uses it too
        self.restart_count = 0

    @property
    def is_local(self) -> bool:
        """Return whether this process and the workers share this machine."""
        return self._options.is_local

    @property
    def is_ready(self) -> bool:
        """Return whether `get` would neither wait nor start a session."""
        with self._lock:
            return self._pending is not None and self._pending.ready

    @property
    def is_lost(self) -> bool:
        """Return whether the session that `get` returns is lost, so that `renew` helps."""
        with self._lock:
            return self._pending is not None and self._pending.is_lost

    def get(self) -> Session:
        """Return the session, started now if necessary. Raises the error of the start."""
        return self._starting().result()

    def wait(self, stop: Callable[[], bool]) -> bool:
        """Wait until `get` would not wait; return False once stop() is true."""
        return self._starting().wait(stop)

    def _starting(self) -> PendingSession:
        with self._lock:
            if self._pending is None:
                self._pending = PendingSession(self._options)
            return self._pending

    def renew(self) -> None:
        """End the session; the next get() starts another."""
        with self._lock:
            if self._pending is not None:
                self._pending.close()
                self._pending = None
                self.restart_count += 1

    def close(self) -> None:
        """End the session."""
        if self._pending is not None:
            self._pending.close()
            self._pending = None


def start_session(options: SessionOptions, start: Start | None = None) -> Session:
    """Start the JVM, the Spark context and one Python worker.

    start: lets another thread abort it. Raises JavaMissing, JavaUnsuitable, SparkPropertyRefused,
    ExecutorMissing or SparkStartFailed.
    """
    start = start or Start()
    began = time.monotonic()
    if options.shared is not None:
        return _attach(options, options.shared, start, began)
    check_java()
    directory = options.work_directory
    directory.mkdir(parents=True, exist_ok=True)
    if options.is_local or options.python or "PYSPARK_PYTHON" not in os.environ:
        theirs = "" if options.is_local else options.python
        os.environ["PYSPARK_PYTHON"] = theirs or sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if options.is_local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    _forget_context()
    conf = SparkConf(loadDefaults=False)
    conf.setAll(
        sorted(
            properties(
                master=options.master,
                name=options.name,
                is_local=options.is_local,
                ui=options.ui,
                directory=directory.absolute(),
                given=options.conf,
            ).items()
        )
    )
    session = _start_context(conf, options, start, began)
    start.took(None)
    if options.reporter is not None:
        options.reporter.begin(session.ui_url)
    session.started_s = time.monotonic() - began
    logger.info("spark session started", master=options.master, seconds=round(session.started_s, 2))
    return session


def _start_context(conf: SparkConf, options: SessionOptions, start: Start, began: float) -> Session:
    """Launch and run a first job; repeat it once if a JVM or a worker dies."""
    for attempt in range(1, START_ATTEMPTS_MAX + 1):
        session: Session | None = None
        try:
            session = _launch(conf, options, start, began)
            _first_job(session, options)
            return session
        except ExecutorMissing:
            assert session is not None, "it ran the job"
            session.close()
            raise
        except (SparkLost, WorkerLost, ExecutorLost, SparkJobFailed) as error:
            if session is not None:
                session.close()
            said = _said_of(error, options)
            if found := options.find_refused(said):
                raise found from error
            last = attempt == START_ATTEMPTS_MAX or start.given_up
            if last or isinstance(error, SparkJobFailed):
                raise SparkStartFailed(_not_started(session, said), hint=error.hint) from error
            logger.warning("spark is started again", reason=error.message)
    raise AssertionError("not reached")


def _first_job(session: Session, options: SessionOptions) -> None:
    """Start a worker with a job, with a limit: without executors a cluster's job waits forever."""
    if options.is_local:
        session.run([[0]], _nothing)
        return
    given_up = threading.Timer(EXECUTOR_WAIT_S, session.cancel)
    given_up.start()
    try:
        session.run([[0]], _nothing)
    except SparkJobFailed as error:
        if given_up.is_alive():
            raise
        said = last_warning(options.work_directory / MESSAGES_NAME)
        raise ExecutorMissing(
            f"no executor took a task within {EXECUTOR_WAIT_S:.0f} s: {said}",
            hint="Look at the cluster's web page: there must be workers with a free core and "
            "spark.executor.memory, and they must reach spark.driver.host.",
        ) from error
    finally:
        given_up.cancel()


def _said_of(error: PenstockError, options: SessionOptions) -> str:
    """Return Spark's message about a failed start, or why it ended the context."""
    if "SparkContext has been shutdown" in error.message or "was shut down" in error.message:
        return last_error(options.work_directory / MESSAGES_NAME, 0) or error.message
    return error.message


def _not_started(session: Session | None, said: str) -> str:
    if session is None:
        return said
    return f"the Spark session started, but its first job failed: {said}"


def _launch(conf: SparkConf, options: SessionOptions, start: Start, began: float) -> Session:
    messages = options.work_directory / MESSAGES_NAME
    before = messages.stat().st_size if messages.exists() else 0
    gateway: Any = None
    try:
        gateway = launch(conf, options.work_directory, messages, start)
        context = SparkContext(conf=conf, gateway=gateway)
        quieten(context)
        return Session(
            context,
            gateway,
            started_s=time.monotonic() - began,
            slots_are_fixed=options.is_local,
            reporter=options.reporter,
        )
    except (Py4JError, PySparkException, OSError, ValueError) as error:
        gone = gateway is None or _is_ending(gateway.proc, error)
        said = last_line(text_of(error))  # asks the JVM, so before it is ended
        if (cause := root_cause(error)) and cause not in said:
            said = f"{said} ({cause})"
        if gone:
            said = first_failure(messages, before) or last_error(messages, before) or said
        if gateway is not None:
            end(gateway.proc)
        _forget_context()
        if found := options.find_refused(said):
            raise found from error
        kind = SparkLost if gone else SparkStartFailed
        raise kind(
            f"the Spark session could not be started: {said}",
            hint=f"Look at {messages} for Spark's own messages; check [spark] in the pipeline "
            "file.",
        ) from error


def _attach(options: SessionOptions, shared: SharedUse, start: Start, began: float) -> Session:
    """Return a session of a Spark that another process started, as soon as it runs.

    Raises SparkStartFailed as soon as that cannot start it, or if the start is given up.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    address, since_s = None, began
    while True:
        if (failure := failure_at(shared.place)) is not None:
            raise SparkStartFailed(failure.error, hint=failure.hint)
        if start.given_up:
            raise SparkStartFailed("the start was given up")
        gateway: Any = None
        try:
            before, address = address, address_at(shared.place)
            since_s = time.monotonic() if address != before else since_s
            if address is not None:
                _forget_context()
                gateway = open_gateway(address)
                context = join_context(gateway)
                break
        except (Py4JError, PySparkException, OSError, ValueError) as error:
            said = last_line(text_of(error))
            logger.info("shared spark is not ready", reason=said)
            if gateway is not None:
                gateway.close()
            _forget_context()
            if time.monotonic() - since_s > JOIN_S:  # a Spark that ends has no address by then
                raise SparkStartFailed(f"the shared Spark cannot be used: {said}") from error
        time.sleep(ATTACH_CHECK_S)
    quieten(context)
    session = Session(
        context,
        gateway,
        started_s=time.monotonic() - began,
        reporter=options.reporter,
        user=str(shared.permit.directory),
        shared=shared,
    )
    if options.reporter is not None:
        options.reporter.begin(session.ui_url)
    logger.info("shared spark session", pid=session.java_pid, seconds=round(session.started_s, 2))
    return session


def _is_ending(process: subprocess.Popen[bytes], error: Exception) -> bool:
    """Return whether the JVM has died or is dying: its sockets close before its process ends."""
    if isinstance(error, (Py4JNetworkError, OSError)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DYING_TIMEOUT_S)
    return process.poll() is not None


def _nothing(tasks: Iterator[int]) -> Iterable[int]:
    return list(tasks)


def _forget_context(gateway: Any = None) -> None:
    """Let pyspark start a new JVM. Its class attributes would keep the last one, dead or alive.

    gateway: forget only this one.
    """
    with SparkContext._lock:
        if gateway is not None and SparkContext._gateway is not gateway:
            return
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
