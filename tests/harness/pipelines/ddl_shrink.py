"""Shortening of scripts while their results stay the same; many at once, in arenas of
candidates.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.pipelines.ddl_arena import DIFFERENT, Outcome
from harness.pipelines.ddl_script import Script, Statement, Step

CANDIDATES_MAX = 30
ROUNDS_MAX = 8
Atom = tuple[int, int, int]
SETUP = -1
WHOLE = -1


def atoms_of(script: Script) -> Iterator[Atom]:
    """Yield removable parts: a statement or a pause (step, number, WHOLE), or an action of one."""
    for number, statement in enumerate(script.setup):
        yield from _atoms_of_statement(SETUP, number, statement)
    for place, step in enumerate(script.steps):
        if step.pause:
            yield place, 0, WHOLE
        for number, statement in enumerate(step.statements):
            yield from _atoms_of_statement(place, number, statement)


def _atoms_of_statement(place: int, number: int, statement: Statement) -> Iterator[Atom]:
    if len(statement.actions) > 1:
        for action in range(len(statement.actions)):
            yield place, number, action
    else:
        yield place, number, WHOLE


def without(script: Script, atoms: Collection[Atom]) -> Script:
    """Return the script without these parts."""
    left_out = set(atoms)

    def keep_statements(place: int, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        found = []
        for number, one in enumerate(statements):
            actions = tuple(
                text
                for action, text in enumerate(one.actions)
                if (place, number, action) not in left_out
            )
            if (place, number, WHOLE) in left_out or (one.actions and not actions):
                continue
            found.append(Statement(one.head, actions))
        return tuple(found)

    steps = []
    for place, step in enumerate(script.steps):
        if step.pause and (place, 0, WHOLE) not in left_out:
            steps.append(step)
        statements = keep_statements(place, step.statements)
        if statements:
            steps.append(Step(statements))
    return Script(script.source, keep_statements(SETUP, script.setup), tuple(steps))


def sign(outcome: Outcome) -> tuple[str, str]:
    """Return the part of the result that must stay: the end and error, or the first difference."""
    if outcome.end != DIFFERENT:
        return outcome.end, outcome.code
    found = re.match(
        r"((?:base|merge|flexcdc|consumer): )?.*?: (lacks|has|columns|key|NOT NULL|no such|error)",
        outcome.lines[0],
    )
    return outcome.end, " ".join(filter(None, found.groups())) if found else ""


@dataclass(slots=True)
class Case:
    """A script that is being shortened.

    Attributes:
        removable: sets of atoms; without any one of them the result was the same.
    """

    outcome: Outcome
    removable: list[list[Atom]] = field(default_factory=list)
    is_done: bool = False

    def propose(self, count: int, dice: random.Random) -> list[list[Atom]]:
        """Return that many proposals of removals: single atoms and runs of them, or many sets."""
        if self.removable:
            return self._combine(dice)
        atoms = list(atoms_of(self.outcome.script))
        tries: list[list[Atom]] = []
        size = len(atoms) // 2
        while size > 1 and len(tries) < count // 2:
            tries += [atoms[at : at + size] for at in range(0, len(atoms), size)]
            size //= 2
        singles = [[one] for one in atoms]
        dice.shuffle(singles)
        return [*tries, *singles][:count]

    def _combine(self, dice: random.Random) -> list[list[Atom]]:
        largest = max(self.removable, key=len)
        tries = [largest]
        for share in (1.0, 0.9, 0.8, 0.7, 0.5, 0.5, 0.3):
            count = max(1, int(len(self.removable) * share))
            chosen = dice.sample(self.removable, count)
            tries.append(sorted({atom for some in chosen for atom in some}))
        return tries

    def learn(self, tried: Iterable[tuple[list[Atom], Outcome]]) -> None:
        """Record the removable parts, or take over the shortest script with the same result."""
        same = [pair for pair in tried if sign(pair[1]) == sign(self.outcome)]
        if self.removable:
            self.removable = []
        elif len(same) > 1:
            self.removable = [atoms for atoms, _ in same]
            return
        else:
            self.is_done = not same
        if same:
            self.outcome = min((one for _, one in same), key=lambda one: one.script.size)


def shrink(
    outcomes: Sequence[Outcome],
    run: Callable[[Callable[[], list[Script]]], list[Outcome]],
    dice: random.Random,
) -> Iterator[list[Outcome]]:
    """Shorten scripts; yield the outcomes after each round. run: plays scripts in one arena.

    Errors of run are raised.
    """
    cases = [Case(outcome) for outcome in outcomes]
    for _ in range(ROUNDS_MAX):
        open_cases = [case for case in cases if not case.is_done]
        if not open_cases:
            break
        share = max(6, CANDIDATES_MAX // len(open_cases))
        plan = [(case, atoms) for case in open_cases for atoms in case.propose(share, dice)]
        scripts = [without(case.outcome.script, atoms) for case, atoms in plan]
        results: list[Outcome] = []
        for at in range(0, len(scripts), CANDIDATES_MAX):
            part = scripts[at : at + CANDIDATES_MAX]
            results += run(lambda part=part: part)  # type: ignore[misc]
        for case in open_cases:
            case.learn(
                (atoms, outcome)
                for (of, atoms), outcome in zip(plan, results, strict=True)
                if of is case
            )
        yield [case.outcome for case in cases]
