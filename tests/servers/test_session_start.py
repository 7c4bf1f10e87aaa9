"""The start of Spark with a user's properties: one session at a time, none of them shared."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.load import session as sessions
from penstock.load.job_figures import Reporter, TaskFigures, read_spark_report
from penstock.load.session import PendingSession, SessionOptions, SparkStartFailed, start_session
from penstock.load.spark_properties import SparkPropertyRefused

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_spark")]


def test_properties_are_no_arguments_of_any_process(tmp_path: Path) -> None:
    """Properties may have secrets, and every user of the machine can read arguments."""
    secret = "top=secret # \\ é🙂 \n"
    options = SessionOptions(
        work_directory=tmp_path, conf={"spark.hadoop.a.key": secret, "spark.driver.memory": "700m"}
    )
    seen: set[str] = set()
    begun = PendingSession(options)
    while not begun.ready:
        seen |= arguments()
        time.sleep(0.02)
    with begun.result() as session:
        seen |= arguments()
        assert session.context._jsc.hadoopConfiguration().get("a.key") == secret
        assert "-Xmx700m" in " ".join(seen)
        # Other users may run their own Spark meanwhile.
        [program] = [one for one in seen if "deploy.SparkSubmit" in one and "-Xmx700m" in one]
        file = Path(program.split("--properties-file ")[1].split()[0])
        assert not file.exists(), "the file is gone once it was read"
    assert not [one for one in seen if "secret" in one or "a.key" in one]


def arguments() -> set[str]:
    """Return the arguments of every process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.add(path.read_text(errors="replace").replace("\0", " "))
    return found


@pytest.mark.parametrize(
    ("conf", "name", "said"),
    [
        ({"spark.task.cpus": "x"}, "spark.task.cpus", "'int' value"),  # refused by the context
        ({"spark.driver.memory": "much"}, "spark.driver.memory", "heap size: -Xmxmuch"),  # by Java
        ({"spark.executor.memory": "lots"}, "spark.executor.memory", "positive"),  # by spark-submit
        ({"spark.cores.max": "-1"}, "spark.cores.max", "positive"),
        (
            {"spark.rpc.askTimeout": "x", "spark.driver.memory": "700m"},
            "spark.rpc.askTimeout",
            "50s",
        ),
        ({"spark.archives": "/no/a.tar.gz#a"}, "spark.archives", "NoSuchFile"),
        ({"spark.io.compression.codec": "nope"}, "spark.io.compression.codec", "not available"),
        ({"spark.local.dir": "/proc/no"}, "spark.local.dir", "Failed to create any local dir"),
        ({"spark.serializer": "no.Such"}, "spark.serializer", "ClassNotFound"),
        ({"spark.scheduler.mode": "QUICK"}, "spark.scheduler.mode", "FAIR, FIFO"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("spark") else "",
)
def test_a_wrong_property_is_a_typed_error_that_tells_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], name: str, said: str
) -> None:
    """Java's message is collected before the process ends; penstock does not retry."""
    tries = []
    launch = sessions._launch
    monkeypatch.setattr(sessions, "_launch", lambda *told: tries.append(1) or launch(*told))
    with pytest.raises(SparkPropertyRefused, match=said) as caught:
        start_session(SessionOptions(work_directory=tmp_path, conf=conf))
    assert caught.value.fields["property"] == name
    assert name in caught.value.message
    assert "[spark]" in caught.value.hint
    assert tries == [1]


@pytest.mark.parametrize(
    ("enabled", "name", "said"),
    [
        ({"spark.ui.enabled": "true"}, "spark.ui.port", "SparkUI|already in use|bind"),
        ({}, "spark.driver.port", "sparkDriver"),
    ],
)
def test_a_port_that_is_in_use(
    tmp_path: Path, enabled: dict[str, str], name: str, said: str
) -> None:
    """Spark is not allowed to try another port."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        conf = {**enabled, name: port, "spark.port.maxRetries": "0"}
        with pytest.raises(SparkPropertyRefused, match=said) as caught:
            start_session(SessionOptions(work_directory=tmp_path, conf=conf))
    assert name in caught.value.message


def test_spark_s_pages_tell_what_jobs_did(tmp_path: Path) -> None:
    """Spark's pages are on if asked for: descriptions in groups, a job without tasks for the
    figures.
    """
    options = SessionOptions(work_directory=tmp_path, ui=True, reporter=Reporter(tmp_path / "run"))
    with start_session(options) as session:
        bulk = session.with_jobs("bulk load")
        assert bulk.run([[1], [2]], twice(), description="loading t") == [2, 4]
        tasks = [TaskFigures(of="t chunk 0", rows=7, size_bytes=2048, seconds=0.5)]
        bulk.tell("loading t", tasks)
        assert session.run([[3]], twice(), description="changes 1 to 9") == [6]
        report = read_spark_report(tmp_path / "run")
        assert report is not None
        assert report.ui == session.ui_url != ""
        base = f"{report.ui}/api/v1/applications"
        [application] = read_json(base)
        jobs = {
            one["description"]: one for one in read_json(f"{base}/{application['id']}/jobs")[:3]
        }
        done = "done: loading t: 7 rows, 2,048 bytes, 0.50 s of 1 tasks (t chunk 0: 7 rows, "
        [told] = [text for text in jobs if text.startswith(done)]
        groups = {text: (one["jobGroup"], one["numTasks"]) for text, one in jobs.items()}
        assert groups == {
            "loading t": ("bulk load", 2),
            told: ("bulk load", 0),
            "changes 1 to 9": ("changes", 1),
        }
        with urllib.request.urlopen(f"{report.ui}/jobs/", timeout=60) as page:
            assert b"/jobs/job/kill" not in page.read()


def twice() -> Callable[[Iterator[int]], Iterable[int]]:
    """Return work that doubles each task, sent by value."""
    return lambda tasks: [2 * task for task in tasks]


def read_json(url: str) -> Any:
    """Return the JSON of Spark's interface."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def test_a_start_that_fails_for_no_property(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's own options are in the environment: no key of the file is blamed."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xnosuch")
    monkeypatch.setattr(sessions, "START_ATTEMPTS_MAX", 1)
    conf = {"spark.driver.memory": "700m"}
    with pytest.raises(SparkStartFailed, match="Unrecognized option: -Xnosuch") as caught:
        start_session(SessionOptions(work_directory=tmp_path, conf=conf))
    assert "[spark]" in caught.value.hint


@pytest.mark.parametrize(
    "master", ["local[x]", "local[0]", "local-cluster[x]", "spark://", "yarn", "k8s://127.0.0.1:1"]
)
def test_a_master_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """The error has Spark's words and the name of the key."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(SparkPropertyRefused, match="master = ") as caught:
        start_session(SessionOptions(work_directory=tmp_path, master=master))
    assert caught.value.fields["property"] == "master"
