"""Choice of the tests of `make test`: all cheap ones, and expensive ones as far as its time allows.

`--draw SECONDS` leaves out the rest. Every case runs with one of the servers that it could run with
(marked `each_server`, with all of them); an expensive one also with one of the engines, or pairs of
engines, that its parameters name. Cases of a test function that takes 0.2 seconds or more
are drawn: first one of each function marked `promise` whose turn it is, then the part whose turn it
is, then one of each file without cheap ones, one of each other function, and further ones, until
the seconds are used up, added over both cores. The cost of a case is in `data/costs.json`, which
`make test-times` writes; a function that is missing there counts as cheap, and so does one that is
marked `always`.

The parts ensure that each case has its turn. All expensive cases, in an order that never changes,
are divided into as few parts of equal time as fit; the number of the landing selects the part that
runs. The cases of a file follow each other in that order, so what they share is started for one
part only. The promises are divided into three parts of their own, so each promise is tested in one
of three landings. A clone cannot tell how many landings there were, so `data/landing` counts them,
and `make next-draw` raises it. Everything else depends on a hash of the case and of a seed: the
commit, or the value of PENSTOCK_TEST_SEED, in the form SEED or SEED/LANDING.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COSTS = Path(__file__).parents[1] / "data" / "costs.json"
LANDING = COSTS.with_name("landing")
SEED = "PENSTOCK_TEST_SEED"
PART_SHARE = 0.9  # of the time that promises leave; each commit draws again for the rest
PROMISE_PARTS = 3
FIRST_S = 10.0  # files with tests that take longer come first, so that none is left for the end
ENGINE = re.compile(r"pg\d+|postgres|mysql|mariadb|sqlserver|oracle")
WITHOUT_SERVERS = ("tests/unit/", "tests/property/")  # here an engine's name is another code path
TURN = pytest.StashKey[str]()


@dataclass(frozen=True, slots=True)
class Case:
    """A case of a test function, on whichever server.

    Attributes:
        cost_s: Seconds that it takes; 0.0 for a cheap one.
    """

    name: str
    cost_s: float = 0.0
    is_promise: bool = False

    @property
    def function(self) -> str:
        """Test function."""
        return self.name.partition("[")[0]

    @property
    def file(self) -> str:
        """Test module."""
        return self.name.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Turn:
    """Place of a landing among the parts.

    Attributes:
        number: Number of the landing, from 0.
        parts: Number of landings after which every case has run; 0 if there is no time for any.
    """

    number: int
    parts: int

    def __str__(self) -> str:
        return f"part {self.number % self.parts + 1} of {self.parts}" if self.parts else "no part"


def turn_of(cases: Iterable[Case], landing: int, budget_s: float) -> Turn:
    """Return whose turn it is: there are as few parts as possible, so that each fits into its
    share.
    """
    all_cases = list(cases)
    # fsum: the same in each process, whatever the order
    promised_s = math.fsum(promise_costs(all_cases).values()) / PROMISE_PARTS
    total_s = math.fsum(case.cost_s for case in all_cases)
    room_s = PART_SHARE * (budget_s - promised_s)
    if room_s <= 0:
        return Turn(landing, 0)
    return Turn(landing, max(math.ceil(total_s / room_s), 1))


def promise_costs(cases: Iterable[Case]) -> dict[str, float]:
    """Return the seconds of the most expensive case of each function marked `promise`."""
    costs: dict[str, float] = defaultdict(float)
    for case in cases:
        if case.is_promise and case.cost_s:
            costs[case.function] = max(costs[case.function], case.cost_s)
    return costs


def find_part(costs: Mapping[str, float], turn: Turn) -> set[str]:
    """Return the names whose turn it is. Added or removed names move only those at a border."""
    if not turn.parts:
        return set()
    part_s = math.fsum(costs.values()) / turn.parts
    found, begun_s = set(), 0.0
    for name in sorted(
        costs, key=lambda name: (place("", name.partition("::")[0]), place("", name))
    ):
        if int((begun_s + costs[name] / 2) / part_s) == turn.number % turn.parts:
            found.add(name)
        begun_s += costs[name]
    return found


def draw(cases: Iterable[Case], seed: str, budget_s: float, landing: int = 0) -> set[str]:
    """Return the names of the cases that run."""
    all_cases = sorted(cases, key=lambda case: place(seed, case.name))
    drawn = {case.name for case in all_cases if not case.cost_s}
    met = {case.file for case in all_cases if not case.cost_s}
    expensive = [case for case in all_cases if case.cost_s]
    taken: Counter[str] = Counter()
    left_s = budget_s

    def take(case: Case) -> None:
        nonlocal left_s
        left_s -= case.cost_s
        taken[case.function] += 1
        drawn.add(case.name)
        met.add(case.file)

    promised = find_part(promise_costs(expensive), Turn(landing, PROMISE_PARTS))
    for case in expensive:
        if case.function in promised and not taken[case.function]:
            take(case)
    costs = {case.name: case.cost_s for case in expensive}
    part = find_part(costs, turn_of(expensive, landing, budget_s))
    for case in expensive:
        if case.name in part and case.name not in drawn:
            take(case)
    rounds: list[tuple[int, Case]] = []
    for case in expensive:
        if case.name in drawn:
            continue
        rounds.append((taken[case.function] if case.file in met else -1, case))
        taken[case.function] += 1
        met.add(case.file)
    for _, case in sorted(rounds, key=lambda pair: pair[0]):
        left_s -= case.cost_s
        if left_s < 0:
            break
        drawn.add(case.name)
    return drawn


def check_budget(budget_s: float, turn: Turn) -> None:
    """Raise UsageError if the promises leave no time for the parts; 0 seconds draw promises alone.

    Without it no case would have its turn, and only a line at the end of a run would say so.
    """
    if budget_s and not turn.parts:
        raise pytest.UsageError(f"--draw {budget_s:g}: the promises of a landing take longer")


def place(seed: str, name: str) -> bytes:
    """Return a case's sort key for a seed; added or removed cases do not change it."""
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def commit() -> str:
    """Return the commit that is tested, abbreviated; empty outside a work tree."""
    try:
        said = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=COSTS.parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # git is missing
        return ""
    return said.stdout.strip()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --draw."""
    parser.addoption(
        "--draw",
        type=float,
        metavar="SECONDS",
        help="run cheap tests, and of the expensive ones a draw that takes so long on one core",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Settle seed and landing before other processes are started, which inherit them."""
    if config.getoption("--draw") is not None:
        seed, _, landing = os.environ.get(SEED, "").partition("/")
        landing = landing or LANDING.read_text(encoding="utf-8").strip()
        os.environ[SEED] = f"{seed or commit() or '0'}/{int(landing)}"


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return the seed, how to repeat it, and the part that has its turn, once that is known."""
    if config.getoption("--draw") is None:
        return None
    turn = config.stash.get(TURN, None)
    said = f"; {turn} of the expensive ones has its turn" if turn else ""
    return f"tests drawn with {SEED}={os.environ[SEED]}, which repeats the draw{said}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed again, where the failures are."""
    told = pytest_report_header(terminalreporter.config)
    if told is not None:
        terminalreporter.write_line(told)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the part from a worker of xdist; the process that prints does not choose tests."""
    if "turn" in getattr(node, "workeroutput", {}):
        node.config.stash[TURN] = node.workeroutput["turn"]


@pytest.hookimpl(trylast=True)  # after the choice of tests by their servers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw if asked; files that take long come first, otherwise the order stays."""
    costs: dict[str, float] = json.loads(COSTS.read_text())
    budget_s: float | None = config.getoption("--draw")
    if budget_s is not None:
        kept, turn = _select(items, costs, os.environ[SEED], budget_s)
        check_budget(budget_s, turn)
        config.stash[TURN] = str(turn)
        if hasattr(config, "workeroutput"):
            config.workeroutput["turn"] = str(turn)
        left_out = [item for item in items if item not in kept]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item in kept]
    slow = {test.partition("::")[0] for test, cost in costs.items() if cost >= FIRST_S}
    items.sort(key=lambda item: _file(item) not in slow)


def _select(
    items: Sequence[pytest.Item], costs: dict[str, float], settled: str, budget_s: float
) -> tuple[set[pytest.Item], Turn]:
    """Return the tests that run, of all that could, and whose turn it is."""
    seed, _, landing = settled.partition("/")
    by_case: dict[str, list[pytest.Item]] = defaultdict(list)
    own_servers: dict[pytest.Item, str] = {}
    for item in items:
        name, own_servers[item] = split_case(item, costs)
        by_case[name].append(item)
    cases = {
        Case(
            name=name,
            cost_s=0.0 if is_marked(same, "always") else costs.get(name.partition("[")[0], 0.0),
            is_promise=is_marked(same, "promise"),
        )
        for name, same in by_case.items()
    }
    # One order of servers for a whole file, because its tests may share what they run on.
    selected = {
        min(by_case[case], key=lambda item: place(seed, f"{_file(item)} {own_servers[item]}"))
        for case in draw(cases, seed, budget_s, int(landing))
    }
    return selected, turn_of(cases, int(landing), budget_s)


def is_marked(items: Iterable[pytest.Item], name: str) -> bool:
    """Return whether one of these tests has a mark."""
    return any(item.get_closest_marker(name) for item in items)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def split_case(item: pytest.Item, costs: Mapping[str, float]) -> tuple[str, str]:
    """Return the name of a test without the servers that it runs with, and these servers."""
    name = item.nodeid
    if item.get_closest_marker("each_server") is not None:
        return name, ""
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    test, bracket, case = name.partition("[")
    servers = {str(params.get("mysql_kind")), f"pg{params.get('postgres_version')}"}
    has_engines = test in costs and not test.startswith(WITHOUT_SERVERS)
    others, own = [], []
    for part in case.removesuffix("]").split("-"):
        is_server = part in servers or (has_engines and ENGINE.fullmatch(part))
        (own if is_server else others).append(part)
    return f"{test}[{'-'.join(others)}]" if bracket else test, "-".join(own)
