"""Forked processes: their streams, signals and ends, and those that they ask for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from penstock.host.process import this_program

PARENT = """
import os, select, signal, sys, json, time
from penstock.host import forking
from penstock.host.process import Child, end_with_parent, this_program, WITH_PARENT

ours, theirs = forking.channel_pair()
kept = open("/dev/null")

def as_child(work):
    os.environ[WITH_PARENT] = "1"
    end_with_parent()
    work()

def command(arguments):
    sys.stderr.write(f"began {' '.join(arguments)}\\n")
    sys.stderr.flush()
    if arguments[0] == "wait":
        time.sleep(60)
    raise SystemExit(int(arguments[1]))

def work():
    lines = []
WORK

stdin = os.pipe()
pid = forking.fork_process(
    lambda: as_child(work), (stdin[0], 1, 2), name="forked one", channel=theirs)
theirs.close()
os.close(stdin[0])
children, code = {}, None
while code is None:
    if select.select([ours], [], [], 0.02)[0]:
        request = forking.take_request(ours)
        if request is not None:
            arguments, child_in, child_err = request
            devnull = os.open("/dev/null", os.O_WRONLY)
            child = forking.fork_process(
                lambda: as_child(lambda: command(arguments)), (child_in, devnull, child_err),
                name=arguments[0])
            children[child] = None
            for one in (child_in, child_err, devnull):
                os.close(one)
            forking.tell(ours, pid=child)
        else:
            ours = forking.channel_pair()[0]
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not ended:
            break
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
        else:
            children[ended] = os.waitstatus_to_exitcode(status)
            forking.tell(ours, pid=ended, code=children[ended])
deadline = time.monotonic() + 5
while None in children.values() and time.monotonic() < deadline:
    ended, status = os.waitpid(-1, os.WNOHANG)
    if ended:
        children[ended] = os.waitstatus_to_exitcode(status)
    time.sleep(0.02)
print(json.dumps({"code": code, "children": list(children.values())}), flush=True)
"""
START = "child = Child([*this_program(), {words}], on_line=lines.append)\n"


def run_parent(work: str) -> list[Any]:
    """Run the parent with a forked process that does `work`; return the objects printed."""
    done = subprocess.run(
        [sys.executable, "-c", PARENT.replace("WORK", textwrap.indent(work, "    "))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_forked_process_has_nothing_of_its_parent() -> None:
    """A forked process has four descriptors, a session of its own, and its name."""
    work = (
        "fds = sorted(int(one) for one in os.listdir('/proc/self/fd'))\n"
        "name = open('/proc/self/comm').read().strip()\n"
        "print(json.dumps([fds[:4], len(fds), os.getsid(0) == os.getpid(), name]), flush=True)\n"
    )
    first, last = run_parent(work)
    assert first == [[0, 1, 2, 3], 5, True, "forked one"]  # 5: of the listing
    assert last == {"code": 0, "children": []}


def test_a_child_is_forked_and_its_exit_code_known() -> None:
    """Lines and code reach the process that asked; it waits as for a process that it started."""
    work = START.format(words="'exit', '7'") + (
        "while child.poll() is None: time.sleep(0.01)\n"
        "print(json.dumps([child.poll(), lines, child.wait(1)]), flush=True)\n"
        "raise SystemExit(3)\n"
    )
    first, last = run_parent(work)
    assert first == [7, ["began exit 7"], 7]
    assert last == {"code": 3, "children": [7]}


def test_a_child_can_be_signalled_and_killed() -> None:
    """SIGTERM ends the one, and a kill of its group the other."""
    work = (
        START.format(words="'wait'")
        + "while not lines: time.sleep(0.01)\n"
        + "timed_out = child.wait(0.05)\n"
        + "child.signal(signal.SIGTERM)\n"
        + "code = child.wait(10)\n"
        + START.format(words="'wait'")
        + "child.kill_group()\n"
        + "print(json.dumps([timed_out, code, child.poll()]), flush=True)\n"
    )
    first, last = run_parent(work)
    assert first == [None, -signal.SIGTERM, -signal.SIGKILL]
    assert last == {"code": 0, "children": [-signal.SIGTERM, -signal.SIGKILL]}


def test_children_end_with_the_process_that_asked() -> None:
    """Kill -9 of that process ends them too: their standard input ends."""
    work = START.format(words="'wait'") + (
        "while not lines: time.sleep(0.01)\n" + "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (last,) = run_parent(work)
    assert last == {"code": -signal.SIGKILL, "children": [-signal.SIGTERM]}


def test_an_error_is_exit_code_1() -> None:
    """An error that is not caught ends it like a Python program, with a traceback."""
    (last,) = run_parent("raise ValueError('wrong')\n")
    assert last == {"code": 1, "children": []}


def test_without_a_parent_processes_are_started() -> None:
    """A process that was not forked starts its children as before."""
    from penstock.host.forking import forker
    from penstock.host.process import Child

    lines: list[str] = []
    assert forker() is None
    child = Child([*this_program(), "--version"], on_line=lines.append)
    assert child.wait(60) == 0
    child.close()
    assert os.getpid() != child.pid
    assert Path("/proc").exists()
