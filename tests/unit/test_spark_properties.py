"""Properties that Spark's messages refer to."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.load.spark_properties import SILENCE, find_refused, properties

GIVEN = {
    "spark.driver.memory": "700m",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "1g",
    "spark.network.timeout": "soon",
    "spark.archives": "/a/one.zip,/b/two.tar.gz#penstock",
    "spark.kryoserializer.buffer": "big",
}
MASTER = "spark://m:7077"
LOOK = "spark.network.timeoutInterval"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Executor memory must be a positive number", "spark.executor.memory"),
        ("bad spark.executor.memoryOverhead here", "spark.executor.memoryOverhead"),
        ("spark.driver.memory is not allowed; use spark.executor.memory", "spark.driver.memory"),
        ("NoSuchFileException: /b/two.tar.gz", "spark.archives"),
        ("Asked for 512 MiB/worker but requested 1024 MiB/executor", "spark.executor.memory"),
        ("All masters are unresponsive! Giving up.", "master"),
        ("When running with master 'yarn' either", "master"),
        ('java.io.IOException: Cannot run program "/no/python": error=2', "python"),
    ],
)
def test_the_property_is_found_by_what_spark_says(said: str, name: str) -> None:
    """The message has a name, words of Spark's checks, or a value."""
    error = find_refused(said, GIVEN, master=MASTER, python="/no/python")
    assert error is not None
    assert error.fields["property"] == name
    assert name in error.message
    assert said in error.message


def test_of_a_form_those_that_do_not_have_it_are_named() -> None:
    """Spark cannot read a duration or a size, and prints neither name nor value."""
    error = find_refused(
        "NumberFormatException: Size must be specified as bytes (b)", GIVEN, master=""
    )
    assert error is not None
    assert error.fields["property"] == ""
    assert "spark.kryoserializer.buffer" in error.message
    assert "spark.driver.memory" not in error.message


def test_words_about_no_property_are_no_error_of_one() -> None:
    """Such errors stay as they were."""
    assert find_refused("the Java process is gone", GIVEN, master=MASTER) is None
    assert find_refused("Driver memory must be positive", {}, master=MASTER) is None


def test_a_silent_executor_is_lost_before_a_minute_is_over(tmp_path: Path) -> None:
    """Spark takes two to three; the pipeline file's value has priority."""
    how = {"master": MASTER, "name": "x", "is_local": False, "directory": tmp_path, "ui": False}
    ours = properties(**how, given={})  # type: ignore[arg-type]
    silent, look = (int(ours[name].removesuffix("s")) for name in (SILENCE, LOOK))
    assert silent + look < 60
    assert properties(**how, given={SILENCE: "5min"})[SILENCE] == "5min"  # type: ignore[arg-type]


def test_spark_s_pages_are_off_unless_asked_for(tmp_path: Path) -> None:
    """No user can end a job there if they are on."""
    how = {"master": MASTER, "name": "x", "is_local": True, "directory": tmp_path, "given": {}}
    for ui in (False, True):
        ours = properties(**how, ui=ui)  # type: ignore[arg-type]
        assert ours["spark.ui.enabled"] == str(ui).lower()
        assert ours["spark.ui.killEnabled"] == "false"
