"""A session whose JVM ended, or whose Spark stopped in a JVM that runs on: it is noticed, and the
loader starts another whichever error told of it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from harness.pipelines.loader import LocalKeeper, Word
from penstock.engines.lake.format import LakeFailed
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.session import Session, SparkLost


class Context:
    """Fake of Spark's context in a JVM that answers, does not answer, or has Spark stopped."""

    defaultParallelism = 2  # noqa: N815 -- Spark's name

    def __init__(self) -> None:
        self.is_stopped = False
        self.error: Exception | None = None
        self._jsc: Any = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=self._answer))

    def _answer(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.is_stopped

    def setJobGroup(self, *_: object) -> None:  # noqa: N802 -- Spark's name
        """Fail, as each call does if Spark has stopped."""
        raise Py4JNetworkError("no answer")


def session_of(context: Context, *, exit_code: int | None = None) -> Session:
    """Return a session with a context. exit_code: of its JVM."""
    gateway: Any = SimpleNamespace(proc=SimpleNamespace(poll=lambda: exit_code))
    made: Any = context
    return Session(made, gateway, started_s=0.0)


def test_a_session_is_lost_with_its_jvm_or_with_spark_in_it() -> None:
    """A JVM that answers with a running Spark is not lost."""
    context = Context()
    assert not session_of(context).is_lost
    assert session_of(context, exit_code=1).is_lost
    context.is_stopped = True
    assert session_of(context).is_lost
    context.is_stopped, context.error = False, Py4JNetworkError("no answer")
    assert session_of(context).is_lost


def test_a_job_of_a_stopped_spark_tells_that_the_session_is_lost() -> None:
    """The error allows a retry; one of the job's own would end the pipeline."""
    context = Context()
    session = session_of(context)
    context.is_stopped = True
    with pytest.raises(SparkLost) as caught:
        session.run([[1]], list)
    assert caught.value.retry == "backoff"


def test_other_work_in_a_lost_session_asks_java_for_nothing() -> None:
    """A loader that connects takes the session for its jobs before it can know."""
    context: Any = Context()
    session = session_of(context)
    del context._jsc
    context.__class__ = type("Gone", (Context,), {"defaultParallelism": property(_fail)})
    assert session.with_jobs("apply").is_lost


def _fail(_: object) -> int:
    raise Py4JNetworkError("no answer")


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_loader_renews_a_session_that_is_lost(is_lost: bool, tmp_path: Path) -> None:
    """A lake's classes met the stopped Spark, and no job did."""
    keeper = LocalKeeper()
    keeper.is_lost = is_lost
    sessions: Any = keeper
    options = LoaderOptions(
        url=f"delta+file://{tmp_path}/lake",
        log_directory=tmp_path,
        state_directory=tmp_path,
        run_directory=tmp_path,
    )
    loader = Loader(options, sessions, stop=lambda: True, actions=Word())
    loader._retry(LakeFailed("cannot commit: no Spark session found"), 0.0)
    assert (keeper.renewed, keeper.is_lost) == (int(is_lost), False)
