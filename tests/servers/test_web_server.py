"""The web interface as a process: its address, its end, the tasks of its buttons."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.pipelines.pipeline import penstock, write_pipeline
from harness.servers.web import WebProcess, until
from penstock.control.pipeline.extras import FEATURES, WEB
from penstock.host.process import process_alive
from penstock.web.tasks import Stage, TaskKind, TaskRuns, Tasks

TOKEN = "a token that is hard to guess"


@pytest.fixture
def silent() -> socket.socket:
    """A server that accepts connections and never answers: clients wait."""
    made = socket.create_server(("127.0.0.1", 0))
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A pipeline whose servers do not exist."""
    url = "postgresql://u:secret-of-the-url@127.0.0.1:1/d"
    return write_pipeline(tmp_path, url, url)


def ask(
    url: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[HTTPConnection, HTTPResponse]:
    """Send a request; return connection and the begun answer."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=30)
    connection.request(method, parts.path or "/", headers=headers or {})
    return connection, connection.getresponse()


def fetch(url: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Send a request; return status and text of the answer."""
    connection, answer = ask(url, method, headers)
    with connection.sock, answer:
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_order_while_a_browser_listens(path: Path, number: signal.Signals) -> None:
    """Exit code 0 comes within seconds despite an open event stream; the port is free again."""
    with WebProcess(path, "--port", 0) as web:
        connection, answer = ask(f"{web.url}/pipelines/shop/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.readline() == b"retry: 2000\n"
        began = time.monotonic()
        assert web.stop(number) == 0, web.err
        assert time.monotonic() - began < 8
        assert web.err == []
        answer.close()
        connection.close()
        port = urlsplit(web.url).port
        socket.create_server(("127.0.0.1", port or 0)).close()


def test_events_bring_the_regions_of_the_page_and_then_only_what_changed(path: Path) -> None:
    """A page event is JSON: title, regions as HTML, announcements."""
    with WebProcess(path, "--port", 0) as web:
        connection, answer = ask(f"{web.url}/pipelines/shop/events")
        lines = (line.decode().rstrip("\n") for line in answer)
        pages = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
        first, second = next(pages), next(pages)
        assert "HS22" in first["regions"]["troubles"] + second["regions"].get("troubles", "")
        assert "secret-of-the-url" not in json.dumps([first, second])
        assert "verify" in first["regions"]
        assert "verify" not in second["regions"]
        answer.close()
        connection.close()


def test_a_port_that_is_taken_is_an_error_that_names_another(path: Path) -> None:
    """The error for a taken port has its code, exit code 1 and the next command."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = penstock("web", path, "--port", port, "--json")
        assert (done.code, done.error["code"]) == (1, "HS71")
        assert f"--port {port + 1}" in done.error["hint"]
        run = penstock("run", path, "--web", "--web-port", port, "--json")
        assert (run.code, run.error["code"]) == (1, "HS71")


def test_an_address_that_is_not_ours_is_an_error(path: Path) -> None:
    """An unknown name and an address of another machine are refused."""
    for host in ("192.0.2.1", "no such host"):
        done = penstock("web", path, "--host", host, "--port", 0, "--json")
        assert (done.code, done.error["code"]) == (1, "HS70"), host


def test_two_files_with_one_name_are_refused(tmp_path: Path, path: Path) -> None:
    """The page of one would be indistinguishable from that of the other."""
    url = "postgresql://u@127.0.0.1:1/d"
    other = write_pipeline(tmp_path, url, url, file="other.toml", directory="other")
    done = penstock("web", path, other, "--port", 0, "--json")
    assert (done.code, done.error["code"]) == (1, "WB01")


def test_beyond_loopback_a_token_is_made_and_asked_for(path: Path) -> None:
    """A created token is printed once, at the start; one of the environment never is."""
    with WebProcess(path, "--host", "0.0.0.0", "--port", 0) as web:
        token = str(web.told["token"])
        assert len(token) > 40
        assert fetch(f"{web.url}/metrics")[0] == 401
        assert fetch(f"{web.url}/metrics", headers={"Authorization": f"Bearer {token}"})[0] == 200
    given = {"PENSTOCK_WEB_TOKEN": TOKEN}
    with WebProcess(path, "--host", "0.0.0.0", "--port", 0, environment=given) as web:
        assert "token" not in web.told
        assert TOKEN not in "".join(web.out + web.err)
        assert fetch(f"{web.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200
    with WebProcess(path, "--port", 0, environment=given) as web:
        assert fetch(f"{web.url}/metrics")[0] == 401


def test_a_token_that_is_too_short_is_refused(path: Path) -> None:
    """A short token is refused before a port is opened."""
    done = penstock("web", path, "--port", 0, "--json", environment={"PENSTOCK_WEB_TOKEN": "short"})
    assert (done.code, done.error["code"]) == (1, "WB02")
    assert "short" not in done.error["error"].replace("too short", "")


def test_doctor_runs_by_a_button_and_tells_what_it_finds(path: Path) -> None:
    """The page shows findings of unavailable servers without JavaScript."""
    with WebProcess(path, "--port", 0) as web:
        page = f"{web.url}/pipelines/shop"
        secret = re.search(r'name="secret" value="(\w+)"', fetch(page)[1])
        assert secret
        code, _ = fetch(f"{page}/tasks/doctor", "POST", {"X-Penstock-Form": secret[1]})
        assert code == 303
        until(lambda: "checks done" in fetch(page)[1], "doctor's report")
        shown = fetch(page)[1]
        assert '<span class="code">HS22</span>' in shown
        assert "keep this pipeline from starting" in shown


@pytest.mark.parametrize("kind", list(TaskKind))
def test_a_task_ends_with_the_interface(
    silent: socket.socket, tmp_path: Path, kind: TaskKind
) -> None:
    """No task continues, neither after an orderly stop nor after a kill."""
    url = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d?connect_timeout=60"
    waits = write_pipeline(tmp_path, url, url, mode="change")
    for number in (signal.SIGTERM, signal.SIGKILL):
        with WebProcess(waits, "--port", 0) as web:
            page = f"{web.url}/pipelines/shop"
            secret = re.search(r'name="secret" value="(\w+)"', fetch(page)[1])
            assert secret
            fetch(f"{page}/tasks/{kind}", "POST", {"X-Penstock-Form": secret[1]})
            children = until(lambda: children_of(web.pid), "the task runs")
            assert (web.stop(number) == 0) is (number is signal.SIGTERM)
            until(lambda of=children: are_gone(of), "the task has ended")
    silent.close()


def are_gone(pids: list[int]) -> bool:
    """Return whether none of them runs."""
    return not any(map(process_alive, pids))


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def test_one_task_of_a_kind_at_a_time(silent: socket.socket, tmp_path: Path) -> None:
    """A second one is refused while the first runs, and a stopped one may be started again."""
    url = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d?connect_timeout=60"
    waits = write_pipeline(tmp_path, url, url)
    tasks = Tasks()
    try:
        tasks.begin("shop", TaskKind.DOCTOR, waits)
        with pytest.raises(TaskRuns):
            tasks.begin("shop", TaskKind.DOCTOR, waits)
        tasks.stop("shop", TaskKind.DOCTOR)
        until(lambda: tasks.view("shop", TaskKind.DOCTOR).stage is Stage.STOPPED, "it has stopped")
        tasks.begin("shop", TaskKind.DOCTOR, waits)
    finally:
        tasks.close()
    assert tasks.view("shop", TaskKind.DOCTOR).stage is Stage.STOPPED
    silent.close()


def test_a_task_that_fails_tells_its_error(tmp_path: Path) -> None:
    """A file that is not a pipeline ends with its code."""
    broken = tmp_path / "broken.toml"
    broken.write_text("[pipeline]\nname = 3\n")
    tasks = Tasks()
    tasks.begin("broken", TaskKind.VERIFY, broken)
    until(lambda: tasks.view("broken", TaskKind.VERIFY).stage is not Stage.RUNNING, "its end", 30)
    view = tasks.view("broken", TaskKind.VERIFY)
    assert view.stage is Stage.FAILED
    assert view.error is not None
    assert view.error["code"].startswith("CF")


def test_without_its_libraries_the_command_says_what_to_install(path: Path, tmp_path: Path) -> None:
    """The command of an installation without the extra web says what to install."""
    program = (
        "import sys, importlib.util as u; found = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name in {FEATURES[WEB]!r} else found(name, *a)\n"
        "from penstock.cli import run_guarded; run_guarded(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "web", str(path), "--json"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert json.loads(done.stderr)["code"] == "WB06"
    assert "penstock[web]" in json.loads(done.stderr)["hint"]
