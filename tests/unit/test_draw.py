"""The draw of `make test`: no cheap test is left out, no expensive one is left out for ever."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from plugins import draw as draw_module
from plugins.draw import (
    PROMISE_PARTS,
    Case,
    Turn,
    check_budget,
    draw,
    find_part,
    split_case,
    turn_of,
)
from plugins.times import is_function, write_costs

CHEAP = {Case(f"{file}::test_cheap_{n}") for file in ("a.py", "z.py") for n in range(5)}
FILES = ("x.py", "y.py", "z.py")
EXPENSIVE = {
    Case(f"{file}::test_{n}[{case}]", cost_s=10.0)
    for file in FILES
    for n in range(4)
    for case in "abc"
}
PROMISES = [f"x.py::test_promised_{n}" for n in range(6)]
PROMISED = {
    Case(f"{function}[{case}]", cost_s=15.0, is_promise=True)
    for function in PROMISES
    for case in "abcd"
}
ALL = CHEAP | EXPENSIVE | PROMISED
SLOW, NEW = "test_costs_are_of_functions_that_exist", "test_the_landing_is_a_number"
COSTS = {case.name: case.cost_s for case in EXPENSIVE}


@pytest.fixture
def _no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all time to the draw by the seed."""
    monkeypatch.setattr(draw_module, "PART_SHARE", 0.0)


def names(cases: set[Case]) -> set[str]:
    """Return the names of cases."""
    return {case.name for case in cases}


def functions(drawn: set[str]) -> list[str]:
    """Return the functions of the drawn expensive cases, as often as they were drawn."""
    return [name.partition("[")[0] for name in drawn - names(CHEAP)]


@pytest.mark.parametrize("seed", ["", "0", "3b6209a", "c0de1e7"])
def test_without_time_a_third_of_the_promises_is_drawn(seed: str) -> None:
    """Three landings have all of them. Cheap cases run too: they run whatever the budget is."""
    drawn = [draw(ALL, seed, 0.0, landing) for landing in range(7, 7 + PROMISE_PARTS)]
    assert all(names(CHEAP) <= one for one in drawn)
    assert sorted(told for one in drawn for told in functions(one)) == PROMISES
    assert all(1 <= len(functions(one)) <= 3 for one in drawn)


@pytest.mark.usefixtures("_no_parts")
def test_each_file_comes_before_any_function() -> None:
    """A file whose tests are all expensive is not left out for other files' functions."""
    for seed in map(str, range(20)):
        promised = functions(draw(ALL, seed, 0.0))
        told = functions(draw(ALL, seed, 15.0 * len(promised) + 10.0))
        (other,) = set(told) - set(promised)
        assert len(told) == len(promised) + 1
        assert other.startswith("y.py")
        assert len(functions(draw(EXPENSIVE, seed, 30.0))) == 3
        files = {name.partition("::")[0] for name in functions(draw(EXPENSIVE, seed, 30.0))}
        assert files == set(FILES)


def test_with_time_for_all_all_runs() -> None:
    """All cases are drawn, in their order."""
    assert draw(ALL, "any", float("inf")) == names(ALL)


def test_the_budget_is_kept() -> None:
    """No case is begun that would not fit, and the rest is less than the next case needs."""
    for seed in map(str, range(20)):
        drawn = draw(EXPENSIVE, seed, 200.0)
        assert len(drawn) == 20


@pytest.mark.usefixtures("_no_parts")
def test_each_function_comes_before_any_comes_twice() -> None:
    """A matrix of many cases does not displace others."""
    for seed in map(str, range(20)):
        told = functions(draw(EXPENSIVE, seed, 120.0))
        assert len(told) == len(set(told)) == 12


def test_a_seed_repeats_its_draw_and_others_draw_otherwise() -> None:
    """Each case has its turn: no case is left out by every seed."""
    assert draw(ALL, "a", 100.0) == draw(sorted(ALL, key=lambda case: case.name), "a", 100.0)
    drawn = [frozenset(draw(ALL, str(seed), 100.0, seed)) for seed in range(100)]
    assert len(set(drawn)) > 50
    assert frozenset().union(*drawn) == names(ALL)


@pytest.mark.usefixtures("_no_parts")
def test_a_new_case_changes_little() -> None:
    """The order of the other cases does not depend on it."""
    new = Case("new.py::test_new", cost_s=10.0)
    for seed in map(str, range(20)):
        before, after = draw(ALL, seed, 100.0), draw(ALL | {new}, seed, 100.0)
        assert new.name in after
        assert len(before - after) <= 3


@pytest.mark.parametrize("budget_s", [60.0, 100.0, 200.0, 1000.0])
def test_every_case_has_run_after_as_many_landings_as_there_are_parts(budget_s: float) -> None:
    """Any commits may be tested: the parts do not depend on them."""
    turn = turn_of(ALL, 7, budget_s)
    assert turn.parts == max(1, -(-720 // (0.9 * (budget_s - 30.0))))
    drawn = [draw(ALL, f"{n}", budget_s, 7 + n) for n in range(turn.parts)]
    assert frozenset().union(*drawn) == names(ALL)
    costs = {case.name: case.cost_s for case in ALL}
    over_s = (
        3 * 7.5
    )  # half of a case at each border: of the part on both sides, and of the promises
    assert all(sum(costs[name] for name in one) <= budget_s + over_s for one in drawn)


def test_a_commit_draws_anew_for_the_rest() -> None:
    """Two commits of one landing have its part, and each has some other cases."""
    costs = {case.name: case.cost_s for case in ALL if case.cost_s}
    part = find_part(costs, turn_of(ALL, 1, 200.0))
    drawn = [draw(ALL, str(seed), 200.0, 1) for seed in range(20)]
    assert all(part <= one for one in drawn)
    assert len({frozenset(one) for one in drawn}) > 10


def test_a_new_case_moves_only_cases_at_the_borders_of_parts() -> None:
    """A case could otherwise miss its turn whenever tests are added."""
    new = Case("new.py::test_new", cost_s=10.0)
    turn = turn_of(EXPENSIVE, 1, 120.0)
    before, after = find_part(COSTS, turn), find_part(COSTS | {new.name: new.cost_s}, turn)
    assert len(before ^ (after - {new.name})) <= 3


def test_a_part_has_whole_files_but_at_its_borders() -> None:
    """The server or pipeline that the cases of a file share is started for few parts."""
    parts = 6
    found = [find_part(COSTS, Turn(number, parts)) for number in range(parts)]
    assert sorted(name for part in found for name in part) == sorted(COSTS)
    per_file = {file: sum(any(file in name for name in part) for part in found) for file in FILES}
    assert sum(per_file.values()) <= parts + len(FILES) - 1


@pytest.mark.parametrize(
    ("test", "case", "servers"),
    [
        (
            "tests/servers/a.py::test[mysql-pg18-wide]",
            "tests/servers/a.py::test[wide]",
            "mysql-pg18",
        ),
        ("tests/servers/a.py::test[oracle]", "tests/servers/a.py::test[]", "oracle"),
        ("tests/servers/a.py::test_cheap[oracle]", "tests/servers/a.py::test_cheap[oracle]", ""),
        ("tests/unit/a.py::test[oracle]", "tests/unit/a.py::test[oracle]", ""),
        ("tests/servers/a.py::test", "tests/servers/a.py::test", ""),
    ],
)
def test_an_expensive_case_runs_with_one_of_its_engines(test: str, case: str, servers: str) -> None:
    """A unit test that names an engine needs no server: each name is a case of its own."""
    item = SimpleNamespace(nodeid=test, get_closest_marker=lambda _: None)
    costs = {f"tests/{folder}/a.py::test": 9.0 for folder in ("servers", "unit")}
    assert split_case(item, costs) == (case, servers)


def test_costs_are_of_functions_that_exist() -> None:
    """A function that was renamed has no cost and would count as cheap: rename its line, too."""
    costs = json.loads(draw_module.COSTS.read_text(encoding="utf-8"))
    assert [test for test in costs if not is_function(test)] == []


def test_costs_are_the_least_that_was_measured(tmp_path: Path) -> None:
    """The cases of a function share what one of them waited for; cheap functions have no cost."""
    slow, new = (f"tests/unit/test_draw.py::{name}" for name in (SLOW, NEW))
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({slow: 3.0, f"{slow}_gone": 4.0}))
    for seconds in (6.0, 2.0, 9.0):
        cases = [{"test": f"{slow}[{n}]", "setup": seconds * n, "call": 0.5} for n in (0, 2)]
        cases.append({"test": new, "call": 0.1 * seconds})
        write_costs(cases, file)
    assert json.loads(file.read_text()) == {slow: 2.5, new: 0.2}
    write_costs([{"test": new, "call": 0.1}], file)
    assert json.loads(file.read_text()) == {slow: 2.5}


def test_the_landing_is_a_number() -> None:
    """The number is raised by `make next-draw`."""
    assert int(draw_module.LANDING.read_text(encoding="utf-8")) >= 0


def test_a_budget_without_time_for_parts_is_refused() -> None:
    """The promises of one landing take 30 seconds."""
    with pytest.raises(pytest.UsageError, match="--draw 30"):
        check_budget(30.0, turn_of(ALL, 1, 30.0))
    check_budget(31.0, turn_of(ALL, 1, 31.0))
    check_budget(0.0, turn_of(ALL, 1, 0.0))
