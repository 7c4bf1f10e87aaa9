"""Sessions of a verify reader: a cancel reaches each of them, at any moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.ports import lent_sessions
from penstock.ports.lent_sessions import LentSessions
from penstock.ports.verify import ReadCancelled

WAIT_S = 30.0


def test_a_session_serves_one_query_at_a_time() -> None:
    """A thread waits until another one has returned the only session."""
    sessions = LentSessions(["a"])
    with ThreadPoolExecutor(1) as other:
        with sessions.lend() as first:
            waiting = other.submit(lambda: sessions.lend().__enter__())
            assert not waiting.done()
        assert waiting.result(WAIT_S) == first


def test_no_session_is_lent_after_a_cancel() -> None:
    """A query that waits for a session when the others are cancelled does not begin."""
    sessions = LentSessions(["a"])
    with ThreadPoolExecutor(1) as other:
        with sessions.lend() as lent:
            assert sessions.refuse() == (lent,)
            waiting = other.submit(lambda: sessions.lend().__enter__())
        with pytest.raises(ReadCancelled, match="cancelled"):
            waiting.result(WAIT_S)
    with pytest.raises(ReadCancelled), sessions.lend():
        pass
    assert sessions.refuse() == ()


def test_a_request_is_repeated_until_the_session_returns() -> None:
    """A server may forget a request, so one is not enough."""
    sessions = LentSessions(["a", "b"])
    lent, ends = threading.Event(), threading.Event()

    def run_query() -> None:
        with sessions.lend():
            lent.set()
            ends.wait(WAIT_S)

    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(run_query)
        assert lent.wait(WAIT_S)
        sessions.refuse()
        requests = []
        for session in sessions.iterate_lent():
            requests.append(session)
            if len(requests) == 3:
                ends.set()
                waiting.result(WAIT_S)
    assert requests == ["a"] * 3


def test_a_thread_does_not_wait_for_its_own_session() -> None:
    """The query is cancelled once, because the thread cannot return the session meanwhile."""
    sessions = LentSessions(["a"])
    with sessions.lend():
        sessions.refuse()
        assert list(sessions.iterate_lent()) == ["a"]


def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests end after some time, though the session is still lent."""
    monkeypatch.setattr(lent_sessions, "GIVE_UP_S", 0.2)
    sessions = LentSessions(["a"])
    ends = threading.Event()

    def run_query() -> None:
        with sessions.lend():
            ends.wait(WAIT_S)

    with ThreadPoolExecutor(1) as other:
        other.submit(run_query)
        while not sessions.refuse():
            pass
        assert len(list(sessions.iterate_lent())) >= 2
        ends.set()
