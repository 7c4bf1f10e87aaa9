"""URLs of Oracle, what the driver gets of them, and the keys of the pipeline file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigStartRefused, ConfigValueInvalid
from penstock.engines.oracle.url import OracleUrl, check_url, reach
from penstock.host.errors import UrlInvalid
from penstock.ports.config import Config


def test_parts_are_decoded() -> None:
    """User, password and service may have any character, percent-encoded."""
    url = OracleUrl.parse("oracle://c%23%23a%40b:p%2Fw%3A%C3%A9@db.example:1522/sh%20op?PDB=shop")
    assert (url.host, url.port, url.user, url.password) == ("db.example", 1522, "c##a@b", "p/w:é")
    assert (url.service, url.pdb, url.place) == ("sh op", "SHOP", "db.example:1522/sh op")
    assert "p/w" not in repr(url)


def test_defaults() -> None:
    """The port is 1521, a silent connection is probed, and TLS is not used."""
    assert OracleUrl.parse("oracle://u:p@h/s").parameters() == {
        "host": "h",
        "port": 1521,
        "service_name": "s",
        "user": "u",
        "password": "p",
        "tcp_connect_timeout": 20.0,
        "expire_time": 2,
        "program": "penstock",
    }


def test_options_are_the_drivers_parameters() -> None:
    """Names are read in any case, values become what python-oracledb takes."""
    url = OracleUrl.parse(
        "oracle://u:p@h/s?PROTOCOL=TCPS&walletlocation=/w&walletPassword=x%26y&sslServerDnMatch=No"
        "&sslServerCertDn=CN%3Ddb&serverType=Dedicated&connectTimeout=4&keepaliveMinutes=0&sdu=8192"
    )
    given = url.parameters()
    assert (given["protocol"], given["wallet_location"], given["wallet_password"]) == (
        "tcps",
        "/w",
        "x&y",
    )
    assert given["ssl_server_dn_match"] is False
    assert (given["ssl_server_cert_dn"], given["server_type"]) == ("CN=db", "dedicated")
    assert (given["tcp_connect_timeout"], given["expire_time"], given["sdu"]) == (4.0, 0, 8192)
    assert url.secrets == ("p", "x&y")
    assert reach("oracle://u:p@h/s?protocol=tcps&walletLocation=/w").files == ("/w",)
    assert reach("oracle://u:p@h:99/s").addresses == (("h", 99),)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("oracle:/h/s", "does not begin"),
        ("mysql://u:p@h/s", "does not begin"),
        ("oracle://u:p@/s", "no host"),
        ("oracle://u:p@h", "no service"),
        ("oracle://u:p@h/a/b", "more than a service"),
        ("oracle://u:p@h:x/s", "cannot be read"),
        ("oracle://u:p@h/s?colour=red", "unknown option colour"),
        ("oracle://u:p@h/s?pdb=a&PDB=b", "twice"),
        ("oracle://u:p@h/s?pdb=", "empty"),
        ("oracle://u:p@h/s?pdb=a%22b", "character"),
        ("oracle://u:p@h/s?protocol=udp", "tcp or tcps"),
        ("oracle://u:p@h/s?connectTimeout=0", "from 1"),
        ("oracle://u:p@h/s?keepaliveMinutes=-1", "from 0"),
        ("oracle://u:p@h/s?sdu=2", "from 512"),
        ("oracle://u:p@h/s?walletLocation=/w", "needs protocol=tcps"),
        ("oracle://u%00:p@h/s", "zero byte"),
    ],
)
def test_what_is_no_url_is_refused(url: str, why: str) -> None:
    """The message says why, and the hint has an example."""
    with pytest.raises(UrlInvalid, match=why) as error:
        OracleUrl.parse(url)
    assert "oracle://" in error.value.hint


def test_a_user_is_needed() -> None:
    """There is no log-in without one."""
    check_url("oracle://u@h/s")
    with pytest.raises(UrlInvalid, match="no user"):
        check_url("oracle://h/s")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=6))
def test_no_message_has_the_password(password: str) -> None:
    """Whatever its characters are, and those of the wallet's password."""
    coded = quote(password, safe="")
    url = f"oracle://u:{coded}@h/s?protocol=tcps&walletPassword={coded}&colour=red"
    with pytest.raises(UrlInvalid) as error:
        OracleUrl.parse(url)
    assert f":{coded}@" not in str(error.value)
    assert f"walletPassword={coded}" not in str(error.value)


FILE = """
[pipeline]
name = "p"
mode = "{mode}"
directory = "d"
[source]
url = "oracle://u:p@h/s?pdb=shop"
tables = ["SHOP.*"]
[target]
url = "postgresql://u:p@h/d"
[changeExtractor]
{keys}
"""


def load(path: Path, mode: str, keys: str) -> Config:
    """Return the configuration of a file."""
    file = path / "p.toml"
    file.write_text(FILE.format(mode=mode, keys=keys), encoding="utf-8")
    return load_config(file)


def test_a_starting_position_in_mode_change(tmp_path: Path) -> None:
    """Wirekite's guide has startScn as a string, for the mode `change` only."""
    config = load(tmp_path, "change", 'startScn = "8800153"\ntransactionRowsMax = 1000')
    assert config.change_extractor.start_scn == "8800153"
    assert config.change_extractor.transaction_rows_max == 1000
    with pytest.raises(ConfigStartRefused):
        load(tmp_path, "data+change", 'startScn = "8800153"')


def test_the_direct_path_is_in_the_url(tmp_path: Path) -> None:
    """Workers have the URL alone; the driver does not get the key, and batches do not wait."""
    text = FILE.format(mode="change", keys="")
    for plain, has_query in (("oracle://u:p@h/s?sdu=8192", True), ("oracle://u:p@h/s", False)):
        file = tmp_path / "p.toml"
        target = f'url = "{plain}"\ndirectPath = true'
        file.write_text(text.replace('url = "postgresql://u:p@h/d"', target), encoding="utf-8")
        config = load_config(file)
        url = OracleUrl.parse(config.target.url)
        assert url.is_direct
        assert not OracleUrl.parse(plain).is_direct
        assert ("sdu" in url.options) is has_query
        assert url.parameters() == OracleUrl.parse(plain).parameters()
        assert config.target.batch_seconds is None


@pytest.mark.parametrize(
    "keys",
    ['startScn = "0"', 'startScn = "x"', 'startScn = "-1"', 'startScn = "9223372036854775808"',
     "transactionRowsMax = -1", "transactionHoursMax = -0.5"],
)  # fmt: skip
def test_wrong_values_are_refused(tmp_path: Path, keys: str) -> None:
    """Refuse them in the file, before any server is asked."""
    with pytest.raises(ConfigValueInvalid):
        load(tmp_path, "change", keys)
