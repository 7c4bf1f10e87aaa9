"""Warm-up jobs, which do nothing: their number is limited, and none runs beside a real job."""

from __future__ import annotations

import threading

from penstock.load.session import WARM_UP_JOBS, WarmUp
from penstock.model import PenstockError

LONG_S = 60.0


def test_there_are_only_so_many_jobs() -> None:
    """No other event ends them."""
    jobs: list[int] = []
    enough = threading.Event()

    def job() -> None:
        jobs.append(len(jobs))
        if len(jobs) == WARM_UP_JOBS:
            enough.set()

    warm_up = WarmUp()
    warm_up.start(job)
    assert enough.wait(LONG_S)
    warm_up.end()
    assert len(jobs) == WARM_UP_JOBS


def test_whoever_ends_it_has_no_job_beside_them() -> None:
    """The end waits for the running job, and no other begins."""
    begun, free = threading.Event(), threading.Event()
    done: list[int] = []

    def job() -> None:
        begun.set()
        assert free.wait(LONG_S)
        done.append(1)

    warm_up = WarmUp()
    warm_up.start(job)
    assert begun.wait(LONG_S)
    threading.Timer(0.05, free.set).start()
    warm_up.end()
    assert done == [1]
    warm_up.end()  # again, and before any start, it does nothing
    WarmUp().end()


def test_a_job_that_fails_is_the_last() -> None:
    """The first real job reports the error."""
    jobs: list[int] = []

    def job() -> None:
        jobs.append(1)
        raise PenstockError("the JVM is gone", hint="")

    WarmUp().start(job)
    for thread in threading.enumerate():
        if thread.name == "spark-warm-up":
            thread.join(LONG_S)
    assert jobs == [1]
