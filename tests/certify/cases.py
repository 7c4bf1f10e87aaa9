"""Scripted cases: each names the assumptions that it examines, and fails if it leaves one out."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from certify.assumptions import Assumption
from certify.records import Row, tag
from penstock.host.errors import PrivilegeMissing
from penstock.model import PenstockError


class State(StrEnum):
    """State of a case at its end. SKIPPED: the server lacks a right or a feature."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CaseSkipped(Exception):
    """The server lacks what a case needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case. assumes: names of the assumptions. run: carries it out on a bench."""

    name: str
    about: str
    assumes: tuple[str, ...]
    run: Callable[[Any], None]


class Cases(dict[str, Case]):
    """Cases by name, in the order of their registration."""

    def __init__(self, assumptions: Mapping[str, Assumption]) -> None:
        super().__init__()
        self._assumptions = assumptions

    def case(self, *assumes: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        """Register a function as a case with its name; its docstring says what it is about."""

        def register(function: Callable[[Any], None]) -> Callable[[Any], None]:
            name = function.__name__
            unknown = set(assumes) - set(self._assumptions)
            assert not unknown, unknown
            assert name not in self, name
            about = " ".join((function.__doc__ or "").split())
            self[name] = Case(name=name, about=about, assumes=assumes, run=function)
            return function

        return register

    def choose(self, names: Sequence[str], left_out: Mapping[str, str]) -> Iterator[Case]:
        """Yield the cases in their order. names: all if empty."""
        for name, one in self.items():
            if (not names or name in names) and name not in left_out:
                yield one


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """An assumption that a case examined. seen: what the server showed, if it does not hold."""

    assumption: Assumption
    holds: bool
    seen: str = ""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Outcome of a case. reason: why it failed or was skipped."""

    case: Case
    state: State
    reason: str = ""
    checked: list[Checked] = field(default_factory=list)
    records: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def broken(self) -> list[Checked]:
        """Assumptions that do not hold."""
        return [one for one in self.checked if not one.holds]

    def holds(self, assumption: Assumption, is_true: object, seen: object = "") -> None:
        """Note whether an assumption holds. seen: what the server showed."""
        assert assumption.name in self.case.assumes, assumption.name
        shown = "" if is_true else _shorten(seen)
        self.checked.append(Checked(assumption=assumption, holds=bool(is_true), seen=shown))


def _shorten(seen: object, most: int = 400) -> str:
    text = repr(tag(seen)) if isinstance(seen, bytes) else str(seen)
    return text if len(text) <= most else f"{text[:most]}..."


def carry_out(
    one: Case, run: Callable[[Outcome], None], *, lacks: str, feature_errors: Collection[int]
) -> Outcome:
    """Carry out a case; return its outcome.

    Args:
        one: The case.
        run: Carries it out and notes assumptions in the outcome.
        lacks: Why no case can be carried out, or empty.
        feature_errors: Numbers of the errors of a server that lacks a feature.
    """
    outcome = Outcome(case=one, state=State.PASSED)
    outcome.records.append({"record": "case", "case": one.name, "about": one.about})
    began = time.monotonic()
    try:
        if lacks:
            raise CaseSkipped(lacks)
        run(outcome)
    except CaseSkipped as skipped:
        outcome.state, outcome.reason = State.SKIPPED, str(skipped)
    except PrivilegeMissing as error:
        outcome.state, outcome.reason = State.SKIPPED, f"a right is missing: {error.message}"
    except PenstockError as error:
        is_feature = error.fields.get("errno") in feature_errors
        outcome.state = State.SKIPPED if is_feature else State.FAILED
        outcome.reason = f"{error.code}: {error.message}"
    except (LookupError, TypeError, ValueError) as error:
        outcome.state = State.FAILED
        outcome.reason = f"the server's answer has another shape: {error!r}"
    unseen = set(one.assumes) - {checked.assumption.name for checked in outcome.checked}
    if outcome.broken:
        outcome.state = State.FAILED
    elif outcome.state is State.PASSED and unseen:
        outcome.state = State.FAILED
        outcome.reason = f"the case did not come to {', '.join(sorted(unseen))}"
    outcome.seconds = time.monotonic() - began
    return outcome
