"""After a standstill the server is asked once, and a connection without an answer is given up."""

from __future__ import annotations

import pytest

from harness.faults.turned_clock import Hands
from penstock.engines.postgres.source.standstill import (
    ANSWER_S,
    LATE_S,
    TICK_S,
    ServerSilent,
    StandstillWatch,
)

PAUSE_S = TICK_S + LATE_S


class Stream:
    """A stream that is looked at each second."""

    def __init__(self) -> None:
        self.clock = Hands()
        self.watch = StandstillWatch(self.clock)
        self.heard_s = self.clock.now_s

    def look(self, after_s: float = TICK_S, *, hears: bool = False, reads: bool = True) -> bool:
        """Let time pass; return whether the server is asked."""
        self.clock.sleep(after_s)
        if hears:
            self.heard_s = self.clock.now_s
        return self.watch.look(self.heard_s, is_reading=reads)


def test_a_server_that_rests_is_not_asked_without_a_standstill() -> None:
    """Looks that come late by less than LATE_S are those of a busy machine."""
    stream = Stream()
    assert not any(stream.look(PAUSE_S - 0.1) for _ in range(100))


def test_a_server_that_answers_is_asked_once() -> None:
    """The answer to the only question ends the matter: the server may rest again."""
    stream = Stream()
    asked = [stream.look(PAUSE_S), stream.look(), stream.look(hears=True)]
    asked += [stream.look() for _ in range(100)]
    assert asked.count(True) == 1


def test_a_server_that_does_not_answer_is_given_up() -> None:
    """Bytes that had arrived before are no answer: the question follows once they are read."""
    stream = Stream()
    assert not stream.look(PAUSE_S, hears=True)
    assert not stream.look(hears=True)
    assert stream.look()
    assert not stream.look(ANSWER_S - TICK_S)
    with pytest.raises(ServerSilent, match="stood still"):
        stream.look()


def test_a_reader_that_waits_for_room_does_not_blame_the_server() -> None:
    """The answer lies in the buffer until the reader continues."""
    stream = Stream()
    assert not stream.look(PAUSE_S)
    assert stream.look()
    assert not any(stream.look(reads=False) for _ in range(100))
    assert stream.look()
    assert not stream.look(hears=True)
    assert not any(stream.look() for _ in range(100))


def test_a_second_standstill_puts_the_question_again() -> None:
    """The answer to the first one may have been lost with all that was on its way."""
    stream = Stream()
    for pause_s in (PAUSE_S, PAUSE_S + ANSWER_S):
        assert not stream.look(pause_s)
        assert stream.look()
    assert not stream.look(hears=True)


@pytest.mark.parametrize("stopped", ["monotonic", "wall"])
def test_one_clock_is_enough(stopped: str) -> None:
    """A sleeping laptop stops the monotonic clock, a moved machine perhaps the other."""

    class OneHand(Hands):
        slept_s = 0.0

        def monotonic_s(self) -> float:
            return self.now_s + (self.slept_s if stopped != "monotonic" else 0)

        def now_us(self) -> int:
            return int((self.now_s + (self.slept_s if stopped != "wall" else 0)) * 1e6)

    stream = Stream()
    stream.clock = clock = OneHand()
    stream.watch = StandstillWatch(clock)
    clock.slept_s = PAUSE_S
    assert not stream.look()
    assert stream.look()
