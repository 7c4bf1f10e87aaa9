"""Settings of FlexCDC in consumer.ini and elsewhere: each mistake has an error with the fix."""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path

import pytest

from harness.pipelines.changes import relation
from penstock.codec.types import Engine, Server, map_column
from penstock.consume.flexcdc.captured import ChangelogNameTooLong, changelog_name
from penstock.consume.flexcdc.cleanup import IntervalInvalid, interval_before
from penstock.consume.flexcdc.ini import IniKeyUnknown, IniUnreadable, IniValueInvalid, read_ini
from penstock.control.consumers import flexcdc
from penstock.control.consumers.flexcdc import (
    FlexCdcFileUnusable,
    FlexCdcMissing,
    FlexCdcRunning,
    error_log,
    flexcdc_of,
    open_flexcdc,
    pid_file,
    run_safely,
    write_pipeline,
)
from penstock.model import TableName
from penstock.model.sections import ChangelogNames
from penstock.ports.changelog import ChangelogTypeRefused, type_refused

INI = "[flexcdc]\ndatabase = f\n[source]\nhost = h\nuser = u\n[dest]\nhost = h\nuser = u\n"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("[source]\nhost = h\n", IniUnreadable, r"Could not find \[flexcdc\] section"),
        (INI.replace("database", "databse"), IniKeyUnknown, "databse"),
        (INI.replace("[dest]", "[destination]"), IniKeyUnknown, "destination"),
        (INI.replace("database = f", "no pair"), IniKeyUnknown, "line 2"),
        (INI.replace("database = f", "mark_updates = perhaps"), IniValueInvalid, "true or false"),
        (INI.replace("database = f", "sleep_maximum = long"), IniValueInvalid, "sleep_maximum"),
    ],
)
def test_mistakes_in_the_ini(tmp_path: Path, text: str, kind: type[Exception], said: str) -> None:
    """The error has the file, the line or key, and the allowed values."""
    path = tmp_path / "consumer.ini"
    path.write_text(text)
    with pytest.raises(kind, match=said):
        read_ini(path)


def test_variables_are_expanded_and_stay_out_of_the_pipeline_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password comes from the environment, with any characters; no written file has it."""
    ini = tmp_path / "consumer.ini"
    ini.write_text(
        '[flexcdc]\ndatabase = "${CDC_DATABASE}"\n'
        '[source]\nhost = h\nuser = u\npassword = "a/${CDC_PASSWORD}"\n'
        "[dest]\nurl = mysql://u:${CDC_PASSWORD}@d/\n"
    )
    monkeypatch.setenv("CDC_DATABASE", "f")
    monkeypatch.setenv("CDC_PASSWORD", "s3cret@${/")
    opened = open_flexcdc(ini)
    assert opened.settings.database == "f"
    assert opened.source == "mysql://u:a%2Fs3cret%40%24%7B%2F@h/"
    assert opened.settings.dest == "mysql://u:s3cret%40%24%7B%2F@d/"
    opened.pipeline.parent.mkdir()
    write_pipeline(opened, "binlog.000001", 4, [TableName("shop", "item")])
    assert "s3cret" not in opened.pipeline.read_text()
    assert opened.config.source.url == opened.source
    ini.write_text(INI.replace("user = u\n[dest]", 'user = u\npassword = "$${x}"\n[dest]'))
    opened = open_flexcdc(ini)
    write_pipeline(opened, "binlog.000001", 4, [TableName("shop", "item")])
    assert opened.config.source.url == opened.source == "mysql://u:%24%7Bx%7D@h/"


def test_a_variable_that_is_not_set(tmp_path: Path) -> None:
    """The error names key, section and variable, and no value."""
    path = tmp_path / "consumer.ini"
    path.write_text(INI.replace("user = u\n[dest]", "password = hush${CDC_NOT_SET}\n[dest]"))
    with pytest.raises(IniValueInvalid, match=r"password in \[source\] needs .* CDC_NOT_SET") as e:
        read_ini(path)
    assert "hush" not in f"{e.value} {e.value.hint}"
    assert "export CDC_NOT_SET=" in e.value.hint


def test_the_ini_of_the_page_is_accepted(tmp_path: Path) -> None:
    """docs/flexcdc.md has a whole file; each of its keys has the default that the page names."""
    page = (Path(__file__).parents[2] / "docs" / "flexcdc.md").read_text(encoding="utf-8")
    path = tmp_path / "consumer.ini"
    path.write_text(page.partition("```ini\n")[2].partition("```")[0])
    variables = {"SOURCE_PASSWORD": "a@b", "DEST_PASSWORD": "c"}
    ini = read_ini(path, environment=variables)
    assert ini.source == "mysql://repl:a%40b@db1:3306/"
    assert ini.settings.dest == "mysql://loader:c@db2:3306/"
    rows = dict(re.findall(r"^\| (\w+) \| ([^|]*) \|", page, re.MULTILINE))
    for name in ("auto_changelog", "mark_updates", "bulk_insert", "log_retention_interval"):
        value = ini.sections["flexcdc"][name]
        assert value == rows[name], name


def test_an_ini_that_is_not_there(tmp_path: Path) -> None:
    """The error has the original's text."""
    with pytest.raises(IniUnreadable, match="Could not read ini file"):
        read_ini(tmp_path / "none.ini")


def test_the_ini_of_these_tests_is_right(tmp_path: Path) -> None:
    """A wrong ini could give the errors above another reason."""
    path = tmp_path / "consumer.ini"
    path.write_text(INI)
    assert read_ini(path).settings.database == "f"


def test_a_pipeline_without_flexcdc(tmp_path: Path) -> None:
    """The section is missing."""
    file = tmp_path / "shop.toml"
    file.write_text(
        '[pipeline]\nname = "shop"\ndirectory = "."\n'
        '[source]\nurl = "postgresql://u@localhost/d"\ntables = ["public.*"]\n'
    )
    with pytest.raises(FlexCdcMissing, match=r"no section \[flexcdc\]"):
        open_flexcdc(file)


def test_secrets_of_plugins_are_not_shown(tmp_path: Path) -> None:
    """No object with the settings shows them; nor does the message about a mistake next to them."""
    keys = 'plugin = "penstock.consume.plugins:Webhook"\n[{}webhook]\nsecret = "hush-1"\n'
    keys += '[{}redis_cache]\nurl = "redis://:hush-2@h/0"\n'
    ini, pipeline = tmp_path / "consumer.ini", tmp_path / "shop.toml"
    ini.write_text(INI.replace("[source]", keys.format("", "") + "[source]"))
    pipeline.write_text(
        '[pipeline]\nname = "shop"\ndirectory = "."\n'
        '[source]\nurl = "postgresql://u:hush-3@localhost/d"\ntables = ["public.*"]\n'
        '[flexcdc]\ndest = "mysql://u:hush-4@localhost/"\n' + keys.format("flexcdc.", "flexcdc.")
    )
    for file in (ini, pipeline):
        opened = open_flexcdc(file)
        assert opened.sections["webhook"]["secret"] == "hush-1"
        held = [opened, opened.settings, opened.ini, flexcdc_of(opened).pipeline]
        held += [opened.config] if opened.ini is None else []
        assert "hush" not in repr(held)
    ini.write_text(ini.read_text().replace('secret = "hush-1"', 'secret "hush-1"'))
    with pytest.raises(IniKeyUnknown) as caught:
        read_ini(ini)
    assert "hush" not in f"{caught.value} {caught.value.hint} {caught.value.fields}"


def test_losses_wait_for_a_choice() -> None:
    """The error has the column, its type, and the line that chooses."""
    shape = relation(("id", "integer", "int32"), ("f", "real", "float32"))
    source = Server(engine=Engine.POSTGRESQL, version=(18,))
    mapping = map_column(shape.columns[1], source, Server(engine=Engine.MYSQL, version=(8, 0, 35)))
    refused = type_refused(shape, "f", mapping)
    assert isinstance(refused, ChangelogTypeRefused)
    assert "column f of public.t is real" in refused.message
    assert "[flexcdc.types]" in refused.hint


def test_old_names_have_a_limit() -> None:
    """No server accepts a longer one, and PostgreSQL would cut it."""
    table = TableName("s" * 30, "t" * 33)
    assert changelog_name(TableName("s" * 30, "t" * 32), ChangelogNames.PLAIN)
    with pytest.raises(ChangelogNameTooLong, match="64 bytes"):
        changelog_name(table, ChangelogNames.PLAIN)
    assert len(changelog_name(table, ChangelogNames.MD5)) == 38


def test_intervals() -> None:
    """Intervals have MySQL's units; an invalid one is refused."""
    now = datetime.datetime(2026, 3, 31, 12)  # noqa: DTZ001
    assert interval_before(now, "10 DAY") == now - datetime.timedelta(days=10)
    assert interval_before(now, "1 month") == datetime.datetime(2026, 2, 28, 12)  # noqa: DTZ001
    for bad in ("10", "DAY", "10 FORTNIGHT", ""):
        with pytest.raises(IntervalInvalid, match="log_retention_interval"):
            interval_before(now, bad)
    too_long = ("99999999999 YEAR", "2027 YEAR", "99999999999 DAY", f"{'9' * 5000} SECOND")
    for bad in too_long:
        with pytest.raises(IntervalInvalid, match="no calendar goes back that far"):
            interval_before(now, bad)


def test_a_file_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """The error has the key, the path, and the command that creates the folder."""
    ini = tmp_path / "consumer.ini"
    ini.write_text(
        INI.replace("database = f", "error_log = no/such/file\nfailure_log_file = no/such/file")
    )
    with pytest.raises(FlexCdcFileUnusable, match=r"error_log: .*no/such/file cannot be") as caught:
        error_log(ini).__enter__()
    assert f"mkdir -p {tmp_path}/no/such" in caught.value.hint
    with pytest.raises(FlexCdcFileUnusable, match=r"failure_log_file: .*no/such/file cannot be"):
        run_safely(ini, ())
    with pytest.raises(FlexCdcFileUnusable, match=r"--pid: .*no/such/pid cannot be"):
        pid_file(tmp_path / "no" / "such" / "pid", print).__enter__()


def test_the_pipeline_file_is_never_readable_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file holds the source's password; the mode is checked at each write, and at the end."""
    (tmp_path / "consumer.ini").write_text(INI + "password = hush\n")
    opened = open_flexcdc(tmp_path / "consumer.ini")
    opened.pipeline.parent.mkdir()
    modes = []
    replace = Path.replace

    def look(path: Path, to: Path) -> Path:
        modes.append(path.stat().st_mode & 0o777)
        return replace(path, to)

    left = opened.pipeline.with_name(f"{opened.pipeline.name}.{os.getpid()}.tmp")
    left.touch(0o644)
    monkeypatch.setattr(Path, "replace", look)
    write_pipeline(opened, "", 0, ())
    assert modes == [0o600]
    assert opened.pipeline.stat().st_mode & 0o777 == 0o600


def test_a_pid_file_of_a_process_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process of ours holds it; a stale file is taken over, which is reported."""
    path, said = tmp_path / "flexcdc.pid", list[str]()
    with pid_file(path, said.append):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()
    path.write_text(f"{os.getppid()}\n")
    monkeypatch.setattr(flexcdc, "holder_of", lambda _: os.getppid())
    with (
        pytest.raises(FlexCdcRunning, match=f"Already running! process {os.getppid()}"),
        pid_file(path, said.append),
    ):
        pass
    monkeypatch.undo()
    path.write_text("999999999\n")
    with pid_file(path, said.append):
        assert said[-1] == "Stale lockfile detected."
