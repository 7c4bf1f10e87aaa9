"""Starting Spark with a user's properties: one session at a time, none of them shared."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.load import session as sessions
from penstock.load.session import PendingSession, SessionOptions, SparkStartFailed, start_session

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_spark")]


def test_properties_are_no_arguments_of_any_process(tmp_path: Path) -> None:
    """They may hold secrets, and everybody on the machine can read arguments."""
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
        # Others may run a Spark of theirs meanwhile.
        [program] = [one for one in seen if "deploy.SparkSubmit" in one and "-Xmx700m" in one]
        file = Path(program.split("--properties-file ")[1].split()[0])
        assert not file.exists(), "the file is gone once it was read"
    assert not [one for one in seen if "secret" in one or "a.key" in one]


def arguments() -> set[str]:
    """The arguments of every process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.add(path.read_text(errors="replace").replace("\0", " "))
    return found


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("spark.task.cpus", "x", "spark.task.cpus"),  # refused by the context
        ("spark.driver.memory", "much", "Invalid maximum heap size: -Xmxmuch"),  # by Java
    ],
)
def test_a_wrong_property_is_a_typed_error_that_tells_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    """What Java says is asked for before it is ended."""
    monkeypatch.setattr(sessions, "START_ATTEMPTS_MAX", 1)
    options = SessionOptions(work_directory=tmp_path, conf={name: value})
    with pytest.raises(SparkStartFailed, match=said) as caught:
        start_session(options)
    assert "[spark]" in caught.value.hint
