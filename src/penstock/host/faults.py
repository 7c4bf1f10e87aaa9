"""Named fault points: places in the code where a test may kill, fail or stop the process.

A module declares its points once, `declare("log.rename.before")`, and marks the place with
`point("log.rename.before")`. Nothing happens unless the environment says so:

    PENSTOCK_FAULT="name:nth:action[,name:nth:action]..."

nth counts from 1, per process, and fires once. Actions: `kill` (SIGKILL to ourselves: no handler,
no flush, as a power cut for the process), `error` (raises FaultInjected), `error=ENOSPC` (raises
that OSError), `sleep` or `sleep=2.5` (seconds, 3600 when not said: for a test that looks or kills
from outside). Unset, a point costs one comparison.

PENSTOCK_FAULT_ONCE names a folder in which a fault that happens leaves a file `name:nth` before
it does. A fault whose file is there does not happen: so it happens once, however many processes
inherit the plan (a worker that dies is followed by another one), and a test sees that it came.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.model import PenstockError

VARIABLE = "PENSTOCK_FAULT"
ONCE_VARIABLE = "PENSTOCK_FAULT_ONCE"
SLEEP_DEFAULT_S = 3600.0


class FaultInjected(PenstockError):
    """A failure that a test requested."""

    code = "HS01"
    retry = "backoff"


class FaultPlanInvalid(PenstockError):
    """PENSTOCK_FAULT cannot be read, or names a point that is not declared."""

    code = "HS02"
    retry = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planned fault: an action with its argument, at the nth time that the point is reached."""

    name: str
    nth: int
    action: str
    argument: str = ""


_declared: set[str] = set()
_plan: dict[str, list[Fault]] | None = None
_reached: Counter[str] = Counter()


def declare(*names: str) -> None:
    """Register fault points; once per module, at its import."""
    _declared.update(names)


def names() -> tuple[str, ...]:
    """Return all names declared by the modules imported so far, sorted."""
    return tuple(sorted(_declared))


def point(name: str) -> None:
    """Mark a place where a test may let the process fail; does nothing otherwise."""
    if _plan is not None:
        _reach(name)


def parse(spec: str) -> list[Fault]:
    """Parse the value of PENSTOCK_FAULT. Raises FaultPlanInvalid."""
    faults = []
    for part in filter(None, (text.strip() for text in spec.split(","))):
        name, _, rest = part.partition(":")
        nth, _, action_text = rest.partition(":")
        action, _, argument = action_text.partition("=")
        if not name or not nth.isdecimal() or int(nth) < 1 or not _action_valid(action, argument):
            raise FaultPlanInvalid(
                f"cannot read {part!r} in {VARIABLE}",
                hint="Write it as name:nth:kill, name:nth:error=ENOSPC or name:nth:sleep=2.5.",
            )
        faults.append(Fault(name=name, nth=int(nth), action=action, argument=argument))
    return faults


def arm(spec: str) -> None:
    """Replace the plan and reset the counts; an empty spec disarms."""
    global _plan
    plan: dict[str, list[Fault]] = {}
    for fault in parse(spec):
        plan.setdefault(fault.name, []).append(fault)
    _reached.clear()
    _plan = plan or None


@contextmanager
def arming(spec: str) -> Iterator[None]:
    """Arm for the duration of a with block (tests inside one process)."""
    arm(spec)
    try:
        yield
    finally:
        arm("")


def _action_valid(action: str, argument: str) -> bool:
    if action == "error":
        return not argument or hasattr(errno, argument)
    if action == "sleep":
        return not argument or argument.replace(".", "", 1).isdecimal()
    return action == "kill" and not argument


def _reach(name: str) -> None:
    if name not in _declared:
        raise FaultPlanInvalid(
            f"fault point {name!r} is not declared",
            hint="Call penstock.host.faults.declare() with this name in the module that has it.",
        )
    _reached[name] += 1
    for fault in (_plan or {}).get(name, ()):
        if fault.nth == _reached[name] and _is_first(fault):
            _act(fault)


def _is_first(fault: Fault) -> bool:
    """Return whether no process has done this before; always True without PENSTOCK_FAULT_ONCE."""
    folder = os.environ.get(ONCE_VARIABLE)
    if not folder:
        return True
    try:
        (Path(folder) / f"{fault.name}:{fault.nth}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _act(fault: Fault) -> None:
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "sleep":
        time.sleep(float(fault.argument or SLEEP_DEFAULT_S))
    elif fault.argument:
        number = getattr(errno, fault.argument)
        raise OSError(number, os.strerror(number), str(Path(fault.name)))
    else:
        raise FaultInjected(f"fault point {fault.name} reached {fault.nth} times")


arm(os.environ.get(VARIABLE, ""))
