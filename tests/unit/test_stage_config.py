"""Pipeline file for changefeeds: [staging] and [stage], and one typed error per mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.control.pipeline.config import load_config, need_source
from penstock.control.pipeline.config_text import (
    ConfigKeyMissing,
    ConfigKeyUnknown,
    ConfigUrlInvalid,
    ConfigValueInvalid,
    SourceMissing,
)
from penstock.model.sections import (
    Authentication,
    PartitionFormat,
    StageMode,
    StageSection,
    seconds,
)
from penstock.ports.config import Config, Mode

FILE = """
[pipeline]
name = "shop"
directory = "shop"
[staging]
url = "postgresql://stage:${PW}@localhost:5432/_replicator"
[stage]
KEYS
[target]
url = "mysql://loader:${PW}@localhost:3306"
"""


def config_of(tmp_path: Path, keys: str = "", text: str = FILE) -> Config:
    """Load a file with these keys in [stage]."""
    path = tmp_path / "cockroach.toml"
    path.write_text(text.replace("KEYS", keys), encoding="utf-8")
    return load_config(path, {"PW": "geheim"})


def test_the_published_defaults(tmp_path: Path) -> None:
    """Defaults apply to what a file omits; secrets are not shown."""
    config = config_of(tmp_path, 'token = "${PW} and sixteen"\nauthentication = "token"')
    assert config.stage is not None
    assert config.pipeline.mode is Mode.CHANGE
    assert config.stage.address == ("127.0.0.1", 26258)
    default = StageSection()
    assert (default.mode, default.authentication) == (StageMode.AUTO, Authentication.JWT)
    assert (default.lease_seconds, default.ndjson_buffer_size) == (60, 65_536)
    assert seconds(default.best_effort_window) == 3600
    assert seconds(default.http_response_timeout) == 120
    assert default.partition_format is PartitionFormat.DAILY
    assert "geheim" not in str(config.as_shown())
    assert config.as_shown()["stage"]["token"] == "***"
    assert "source" not in config.as_shown()


def test_a_pipeline_with_a_source_may_have_a_staging_database(tmp_path: Path) -> None:
    """A pipeline with a source posts no request."""
    source = '[source]\nurl = "postgresql://me@localhost/shop"\ntables = ["public.*"]\n'
    text = FILE.replace("[stage]\nKEYS\n", source).replace(
        "[pipeline]", '[pipeline]\nmode="change"'
    )
    config = config_of(tmp_path, text=text)
    assert (config.stage, config.staging is None) == (None, False)
    need_source(config, "run FILE")


def test_other_commands_refuse_a_file_for_changefeeds(tmp_path: Path) -> None:
    """SourceMissing names the right command."""
    with pytest.raises(SourceMissing) as caught:
        need_source(config_of(tmp_path), "run FILE")
    assert "penstock stage" in caught.value.hint


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        (":26258", ("0.0.0.0", 26258)),
        ("[::1]:80", ("::1", 80)),
        ("stage.example:443", ("stage.example", 443)),
    ],
)
def test_where_to_listen(listen: str, address: tuple[str, int]) -> None:
    """The address is host and port, or all addresses if there is no host."""
    assert StageSection(listen=listen).address == address


@pytest.mark.parametrize(
    ("duration", "expected"),
    [("1h", 3600), ("1h30m", 5400), ("100ms", 0.1), ("1.5s", 1.5), ("0", 0), (0, 0),
     (7, 7), ("5us", 5e-6)],
)  # fmt: skip
def test_durations(duration: str | int, expected: float) -> None:
    """Durations are as in the original."""
    assert seconds(duration) == pytest.approx(expected)


@pytest.mark.parametrize("duration", ["", "1", "h", "1d", "-1s", "1h ", "1 h", "1h1", -1, 2**31])
def test_what_is_no_duration(duration: str | int) -> None:
    """A text that is not a duration is refused."""
    with pytest.raises(ValueError):
        seconds(duration)


@pytest.mark.parametrize(
    "keys",
    [
        *('listen = "26258"', 'listen = "a:b"', 'listen = "a:99999"', 'listen = "::1:80"'),
        *('mode = "fast"', 'bestEffortWindow = "1x"', "bestEffortWindow = true"),
        *('jwtRefresh = "x"', 'fetchDelay = "0"', "httpResponseTimeout = 0"),
        *("leaseSeconds = 0", "ndjsonBufferSize = 0", "requestBytesMax = -1"),
        *('authentication = "none"', 'authentication = "token"', 'token = "long enough to be one"'),
        *('authentication = "token"\ntoken = "short"', 'splitWindows = "yes"'),
        *('tlsCertificate = "a.pem"', 'tlsPrivateKey = "a.pem"'),
        *('storageUrl = "file:///feed"', 'targetSchema = "shop.public"', 'partitionFormat = "x"'),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, keys: str) -> None:
    """Each has one error, which names file, line and key."""
    with pytest.raises(ConfigValueInvalid, match=r"cockroach\.toml"):
        config_of(tmp_path, keys)


def test_keys_and_sections_that_are_missing_or_unknown(tmp_path: Path) -> None:
    """The error has the nearest name."""
    with pytest.raises(ConfigKeyUnknown) as caught:
        config_of(tmp_path, "leaseSecond = 7")
    assert "leaseSeconds" in caught.value.hint
    for section in ("[staging]", "[target]"):
        head, _, tail = FILE.partition(section)
        text = head + tail.partition("\n")[2].partition("\n")[2]
        with pytest.raises(ConfigKeyMissing):
            config_of(tmp_path, text=text)
    with pytest.raises(ConfigValueInvalid, match=r"has no \[source\]"):
        config_of(tmp_path, text=FILE + '[source]\nurl = "postgresql://x/y"\ntables = ["*.*"]\n')
    with pytest.raises(ConfigValueInvalid, match="loaded in bulk"):
        config_of(tmp_path, text=FILE.replace("[pipeline]", '[pipeline]\nmode = "data"'))
    with pytest.raises(ConfigUrlInvalid):
        config_of(tmp_path, text=FILE.replace("postgresql://stage", "nosuch://stage"))
