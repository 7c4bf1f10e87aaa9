"""The pipeline file: defaults, variables, masked secrets, and one typed error per mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import (
    ConfigKeyMissing,
    ConfigKeyUnknown,
    ConfigOtherEngine,
    ConfigPatternInvalid,
    ConfigStartRefused,
    ConfigSyntax,
    ConfigUnreadable,
    ConfigUrlInvalid,
    ConfigValueInvalid,
    ConfigVariableMissing,
)
from penstock.ports.config import HandoverMode, Mode

WHOLE = """
[pipeline]
name = "shop"
mode = "data+change"            # data | change | data+change
directory = "shop"              # change log, ledger, state; relative to this file
[source]
url = "postgresql://repl:${SOURCE_PASSWORD}@localhost:5432/shop"
tables = ["public.*", "!public.audit"]
[target]
url = "postgresql://loader:${TARGET_PASSWORD}@localhost:5433/shop"
[target.map]                    # optional: source namespace = target namespace
public = "shop"
[changeExtractor]
exitWhenIdle = false
[changeLoader]
maxFilesPerBatch = 30
[spark]
master = "local[*]"
"""
ENVIRONMENT = {"SOURCE_PASSWORD": "geheim1", "TARGET_PASSWORD": "p@ss/wört:%"}


def config_of(tmp_path: Path, text: str, environment: dict[str, str] = ENVIRONMENT):
    """Load `text` as a pipeline file."""
    path = tmp_path / "shop.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environment)


def with_line(after: str, line: str) -> str:
    """Return the whole file with one more line after the line that begins with `after`."""
    head, found, rest = WHOLE.partition(after)
    assert found
    first, _, others = rest.partition("\n")
    return f"{head}{after}{first}\n{line}\n{others}"


def test_the_published_file_loads_with_the_guides_defaults(tmp_path: Path) -> None:
    """The design's file is accepted unchanged; Wirekite's guide gives the values that it omits."""
    config = config_of(tmp_path, WHOLE)
    assert config.pipeline.mode is Mode.DATA_CHANGE
    assert config.pipeline.handover is HandoverMode.SNAPSHOT
    assert config.directory == tmp_path / "shop"
    assert config.source.tables == ("public.*", "!public.audit")
    assert config.target.map == {"public": "shop"}
    extractor = config.change_extractor
    assert (extractor.exit_when_idle, extractor.idle_wait_seconds) == (False, 3)
    assert (extractor.flush_interval_seconds, extractor.events_per_flush) == (5, 5000)
    assert extractor.process_commits is False
    assert extractor.replication_slot == "wirekite_replication_slot"
    loader = config.change_loader
    assert (loader.max_files_per_batch, loader.max_threads) == (30, 5)
    assert (loader.remove_files, loader.change_file_extension) == (False, "ckt")
    assert loader.work_directory is None
    assert loader.done_directory is None


def test_variables_are_replaced_and_encoded_only_inside_user_and_password(tmp_path: Path) -> None:
    """A password with @ and / in it works unchanged; other places use the text as it is."""
    config = config_of(
        tmp_path, WHOLE.replace("localhost:5433", "${HOST}"), {**ENVIRONMENT, "HOST": "db:5433"}
    )
    assert config.source.url == "postgresql://repl:geheim1@localhost:5432/shop"
    assert config.target.url == ("postgresql://loader:p%40ss%2Fw%C3%B6rt%3A%25@db:5433/shop")


def test_a_whole_url_from_a_variable_is_taken_as_it_is(tmp_path: Path) -> None:
    """A variable that is the whole value is not percent-encoded."""
    text = WHOLE.replace("postgresql://repl:${SOURCE_PASSWORD}@localhost:5432/shop", "${URL}")
    config = config_of(tmp_path, text, {**ENVIRONMENT, "URL": "postgresql://a:b%40c@h/d"})
    assert config.source.url == "postgresql://a:b%40c@h/d"


def test_numbers_and_booleans_may_come_from_variables(tmp_path: Path) -> None:
    """`"${N}"` stands where a number or a boolean is wanted."""
    text = WHOLE.replace("maxFilesPerBatch = 30", 'maxFilesPerBatch = "${N}"').replace(
        "exitWhenIdle = false", 'exitWhenIdle = "${IDLE}"'
    )
    config = config_of(tmp_path, text, {**ENVIRONMENT, "N": "7", "IDLE": "true"})
    assert config.change_loader.max_files_per_batch == 7
    assert config.change_extractor.exit_when_idle is True


def test_seconds_may_be_fractions(tmp_path: Path) -> None:
    """Intervals are seconds and may be less than one."""
    config = config_of(tmp_path, with_line("exitWhenIdle", "flushIntervalSeconds = 0.2"))
    assert config.change_extractor.flush_interval_seconds == 0.2


def test_no_secret_is_shown(tmp_path: Path) -> None:
    """Neither the printable form nor the repr holds a password."""
    text = WHOLE + '\n[spark.conf]\n"spark.ssl.keyPassword" = "hidden9"\n"spark.x" = "y"\n'
    config = config_of(tmp_path, text)
    shown = str(config.as_shown()) + repr(config)
    assert "geheim1" not in shown
    assert "p@ss" not in shown
    assert "p%40ss" not in shown
    assert "hidden9" not in str(config.as_shown())
    assert "repl:***@localhost:5432" in shown


def test_a_missing_variable_is_named_with_its_place(tmp_path: Path) -> None:
    """The error says which variable, which key and which line."""
    with pytest.raises(ConfigVariableMissing) as caught:
        config_of(tmp_path, WHOLE, {"SOURCE_PASSWORD": "x"})
    assert "TARGET_PASSWORD" in caught.value.message
    assert "target.url" in caught.value.message
    assert "line 10" in caught.value.message


@pytest.mark.parametrize(
    ("after", "line", "nearest"),
    [
        ("[changeExtractor]", "exitWhenIdel = true", "exitWhenIdle"),
        ("[changeExtractor]", "exit_when_idle = true", "exitWhenIdle"),
        ("[changeLoader]", "maxFilePerBatch = 1", "maxFilesPerBatch"),
        ("[source]", 'table = "a.b"', "tables"),
        ("[changeLoader]", "processCommits = true", "[changeExtractor]"),
        ("[pipeline]", 'naem = "x"', "name"),
        ('master = "local[*]"', "[changeloder]", "changeLoader"),
    ],
)
def test_an_unknown_key_names_its_line_and_the_nearest_known_one(
    tmp_path: Path, after: str, line: str, nearest: str
) -> None:
    """A typing error in a key is refused, never ignored."""
    text = with_line(after, line)
    number = text.splitlines().index(line) + 1
    with pytest.raises(ConfigKeyUnknown) as caught:
        config_of(tmp_path, text)
    assert f"line {number}" in caught.value.message
    assert nearest in caught.value.hint


@pytest.mark.parametrize(
    ("value", "count"), [("1", 1), ("3", 3), ('"auto"', 4), ('"${N}"', 7), ("64", 64)]
)
def test_the_number_of_sessions_that_apply(tmp_path: Path, value: str, count: int) -> None:
    """The value is a number, or `auto`; without the key there is one."""
    assert config_of(tmp_path, WHOLE).change_loader.session_count == 1
    text = WHOLE.replace("maxFilesPerBatch = 30", f"applySessions = {value}")
    config = config_of(tmp_path, text, {**ENVIRONMENT, "N": "7"})
    assert config.change_loader.session_count == count


@pytest.mark.parametrize("target", ["sqlserver://u@h/d", "delta+file:///lake"])
def test_one_session_applies_to_other_targets(tmp_path: Path, target: str) -> None:
    """Their sessions cannot divide a batch: the key is refused by name."""
    url = "postgresql://loader:${TARGET_PASSWORD}@localhost:5433/shop"
    text = WHOLE.replace(url, target).replace("maxFilesPerBatch = 30", "applySessions = 2")
    with pytest.raises(ConfigOtherEngine, match="applySessions is a key of PostgreSQL and MySQL"):
        config_of(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("maxFilesPerBatch = 30", "applySessions = 0", ConfigValueInvalid, "from 1 to 64"),
        ("maxFilesPerBatch = 30", "applySessions = 65", ConfigValueInvalid, "from 1 to 64"),
        ("maxFilesPerBatch = 30", 'applySessions = "many"', ConfigValueInvalid, "applySessions"),
        ("exitWhenIdle = false", 'exitWhenIdle = "no"', ConfigValueInvalid, "exitWhenIdle"),
        ("exitWhenIdle = false", "exitWhenIdle = 1", ConfigValueInvalid, "exitWhenIdle"),
        ("maxFilesPerBatch = 30", "maxFilesPerBatch = 0", ConfigValueInvalid, "more than 0"),
        ("maxFilesPerBatch = 30", "maxFilesPerBatch = 2.5", ConfigValueInvalid, "maxFiles"),
        ('["public.*", "!public.audit"]', '"public.*"', ConfigValueInvalid, "tables"),
        ('mode = "data+change"', 'mode = "both"', ConfigValueInvalid, "data, change"),
        ('name = "shop"', 'name = "a/b"', ConfigValueInvalid, "name"),
        ('name = "shop"', "", ConfigKeyMissing, "name"),
        ("[source]", "[sparc]", ConfigKeyUnknown, "sparc"),
        ('"public.*", ', "", ConfigPatternInvalid, "no table in"),
        ('"public.*"', '"orders"', ConfigPatternInvalid, "orders"),
        ("postgresql://repl", "informix://repl", ConfigUrlInvalid, "informix://"),
        ("localhost:5432/shop", "localhost:5432", ConfigUrlInvalid, "database"),
        ("localhost:5432", "localhost:port", ConfigUrlInvalid, "url"),
        ("repl:${SOURCE_PASSWORD}@", "", ConfigUrlInvalid, "user"),
        ("[target.map]", "[target.map", ConfigSyntax, "TOML"),
        ('public = "shop"', "public = 3", ConfigValueInvalid, "map"),
        ('master = "local[*]"', 'master = "local*"', ConfigValueInvalid, "a Spark master"),
        (
            'master = "local[*]"',
            'conf = { "spark.speculation" = "TRUE" }',
            ConfigValueInvalid,
            "speculation must be false",
        ),
        (
            'master = "local[*]"',
            'conf = { "executor.memory" = "2g" }',
            ConfigValueInvalid,
            "ignores",
        ),
        ('master = "local[*]"', 'log = "shipped"', ConfigValueInvalid, "ship"),
        (
            'master = "local[*]"',
            'snapshotAddress = "10.0.0.5:77777"',
            ConfigValueInvalid,
            "HOST or HOST:PORT",
        ),
    ],
)
def test_each_mistake_is_one_typed_error(
    tmp_path: Path, old: str, new: str, error: type[Exception], said: str
) -> None:
    """Wrong types, URLs, modes and patterns are refused with what was expected."""
    assert old in WHOLE
    with pytest.raises(error, match=said):
        config_of(tmp_path, WHOLE.replace(old, new, 1))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("replicationSlot = 'Bad-Name'", "replicationSlot"),
        ("idleWaitSeconds = -1", "idleWaitSeconds"),
        ("heartbeatSeconds = -0.1", "heartbeatSeconds"),
        ("publication = ''", "publication"),
    ],
)
def test_extractor_values_are_checked(tmp_path: Path, line: str, said: str) -> None:
    """Values that the server would refuse later are refused here."""
    with pytest.raises(ConfigValueInvalid, match=said):
        config_of(tmp_path, with_line("exitWhenIdle", line))


def test_remove_files_and_done_directory_exclude_each_other(tmp_path: Path) -> None:
    """Wirekite's guide calls one the alternative to the other."""
    with pytest.raises(ConfigValueInvalid, match="alternative"):
        config_of(tmp_path, with_line("maxFilesPerBatch", "removeFiles=true\ndoneDirectory='d'"))


@pytest.mark.parametrize("key", ["binlogFile", "binlogPosition", "startScn", "startLsn"])
def test_a_starting_position_is_refused_in_data_and_change(tmp_path: Path, key: str) -> None:
    """The handover of data+change captures the position; setting one is an error."""
    with pytest.raises(ConfigStartRefused, match=key):
        config_of(tmp_path, with_line("exitWhenIdle", f"{key} = 4"))


@pytest.mark.parametrize("key", ["binlogFile", "binlogPosition", "startScn", "startLsn"])
def test_other_engines_parameters_are_refused_by_name(tmp_path: Path, key: str) -> None:
    """Parameters of another engine are recognised in mode change, and refused for PostgreSQL."""
    text = with_line("exitWhenIdle", f"{key} = 4").replace("data+change", "change", 1)
    with pytest.raises(ConfigOtherEngine, match="PostgreSQL"):
        config_of(tmp_path, text)


def test_a_file_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    """The error shows the path and no traceback."""
    with pytest.raises(ConfigUnreadable, match=r"nowhere\.toml"):
        load_config(tmp_path / "nowhere.toml", {})
