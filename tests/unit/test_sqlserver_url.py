"""URLs of SQL Server, and the connection strings that they become."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigStartRefused, ConfigValueInvalid
from penstock.engines.sqlserver.url import SQLServerUrl, check_url, reach, with_database
from penstock.host.errors import UrlInvalid
from penstock.ports.config import Config


def read_strings(text: str) -> dict[str, str]:
    """Read a connection string as ODBC does: values in braces, a brace in them doubled."""
    pairs = {}
    while text:
        key, _, text = text.partition("={")
        value = ""
        while True:
            piece, _, text = text.partition("}")
            value += piece
            if not text.startswith("}"):
                break
            value, text = f"{value}}}", text[1:]
        assert text.startswith(";")
        pairs[key], text = value, text[1:]
    return pairs


def test_parts_are_decoded() -> None:
    """User, password and database may have any character, percent-encoded."""
    url = SQLServerUrl.parse("sqlserver://a%40b:p%2Fw%3A%C3%A9@db.example:1444/sh%20op")
    assert (url.host, url.port, url.user, url.password) == ("db.example", 1444, "a@b", "p/w:é")
    assert (url.database, url.place) == ("sh op", "db.example:1444")
    assert "p/w" not in repr(url)


def test_defaults() -> None:
    """The port is 1433; encryption is left to the driver, which encrypts and verifies."""
    url = SQLServerUrl.parse("sqlserver://u:p@h/d")
    assert (url.port, dict(url.options), url.connect_timeout_s) == (1433, {}, 15)
    assert read_strings(url.connection_string()) == {
        "Server": "h,1433",
        "Database": "d",
        "UID": "u",
        "PWD": "p",
    }
    assert not url.is_read_only


def test_options_are_spelled_as_the_driver_does() -> None:
    """Names are read in any case, values become the driver's words."""
    url = SQLServerUrl.parse(
        "sqlserver://u:p@h/d?ENCRYPT=Mandatory&trustservercertificate=TRUE&packetSize=32767"
        "&applicationIntent=readonly&multiSubnetFailover=1&connectTimeout=4"
        "&hostNameInCertificate=sql.example&authentication=SqlPassword"
    )
    assert url.is_read_only
    assert url.connect_timeout_s == 4
    strings = read_strings(url.connection_string())
    assert strings["Encrypt"] == "yes"
    assert strings["TrustServerCertificate"] == "yes"
    assert strings["MultiSubnetFailover"] == "yes"
    assert strings["PacketSize"] == "32767"
    assert strings["ApplicationIntent"] == "ReadOnly"
    assert strings["HostnameInCertificate"] == "sql.example"
    assert "Authentication" not in strings


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_no_password_ends_its_value(password: str) -> None:
    """Braces, semicolons and blanks in a password neither end it nor begin another keyword."""
    url = SQLServerUrl.parse(f"sqlserver://u:{quote(password, safe='')}@h/d")
    assert read_strings(url.connection_string())["PWD"] == password


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mysql://u:topsecret@h/d", "does not begin"),
        ("sqlserver:u:topsecret@h", "does not begin"),
        ("sqlserver://u:topsecret@h:port/d", "cannot be read"),
        ("sqlserver://u:topsecret@h/d/e", "more than a database"),
        ("sqlserver://u:topsecret@h/d#x", "more than a database"),
        ("sqlserver://u:topsecret@/d", "no host"),
        ("sqlserver://u:topsecret@h", "no database"),
        ("sqlserver://u:topsecret@h/d?sslmode=require", "unknown option sslmode"),
        ("sqlserver://u:topsecret@h/d?encrypt=maybe", "encrypt is not"),
        ("sqlserver://u:topsecret@h/d?encrypt=no&Encrypt=yes", "twice"),
        ("sqlserver://u:topsecret@h/d?encrypt=strict&trustServerCertificate=true", "never trusts"),
        ("sqlserver://u:topsecret@h/d?trustServerCertificate=", "trustServerCertificate is not"),
        ("sqlserver://u:topsecret@h/d?applicationIntent=Write", "applicationIntent is not"),
        ("sqlserver://u:topsecret@h/d?packetSize=40000", "packetSize is not"),
        ("sqlserver://u:topsecret@h/d?packetSize=511", "packetSize is not"),
        ("sqlserver://u:topsecret@h/d?connectTimeout=0", "connectTimeout is not"),
        ("sqlserver://u:topsecret@h/d?serverCertificate=", "serverCertificate is empty"),
        ("sqlserver://u:topsecret@h/d?authentication=Kerberos", "authentication is not"),
        ("sqlserver://u%00:topsecret@h/d", "zero byte"),
    ],
)
def test_wrong_urls_are_refused_without_the_password(text: str, said: str) -> None:
    """The message names what is wrong, and never shows the secret."""
    with pytest.raises(UrlInvalid, match=said) as raised:
        SQLServerUrl.parse(text)
    assert "topsecret" not in raised.value.message


def test_a_user_is_needed_unless_the_machine_logs_in() -> None:
    """A managed identity has no name in the URL."""
    with pytest.raises(UrlInvalid, match="no user"):
        check_url("sqlserver://h/d")
    check_url("sqlserver://u@h/d")
    check_url("sqlserver://h/d?authentication=ActiveDirectoryMSI")


def test_needs_of_a_connection() -> None:
    """A process needs the port and the file of the certificate."""
    needs = reach("sqlserver://u:p@h/d?encrypt=strict&serverCertificate=/etc/sql.pem")
    assert (needs.addresses, needs.files) == ((("h", 1433),), ("/etc/sql.pem",))
    assert reach("sqlserver://u:p@h:9/d").files == ()


def test_another_database_of_the_server() -> None:
    """The rest of the URL stays."""
    assert (
        with_database("sqlserver://u:p@h/d?encrypt=no", "a/b")
        == "sqlserver://u:p@h/a%2Fb?encrypt=no"
    )


FILE = """
[pipeline]
name = "shop"
mode = "{mode}"
directory = "shop"
[source]
url = "sqlserver://u:p@h/shop"
tables = ["dbo.*"]
[changeExtractor]
startLsn = {lsn}
[target]
url = "postgresql://u:p@h/t"
"""


def config_of(folder: Path, lsn: str, mode: str = "change") -> Config:
    """Read a pipeline file whose log begins at an LSN."""
    path = folder / "shop.toml"
    path.write_text(FILE.format(mode=mode, lsn=lsn), encoding="utf-8")
    return load_config(path, {})


def test_start_lsn_in_mode_change(tmp_path: Path) -> None:
    """Any spelling of an LSN is taken."""
    config = config_of(tmp_path, '"0x00000027000007580005"')
    assert config.change_extractor.start_lsn == "0x00000027000007580005"
    with pytest.raises(ConfigValueInvalid, match=r"startLsn.*not a SQL Server LSN"):
        config_of(tmp_path, '"0/16B3740"')
    with pytest.raises(ConfigValueInvalid, match="startLsn"):
        config_of(tmp_path, "39000000188000005")


def test_start_lsn_is_refused_in_data_and_change(tmp_path: Path) -> None:
    """The handover captures the position itself."""
    with pytest.raises(ConfigStartRefused, match="startLsn"):
        config_of(tmp_path, '"00000027:00000758:0005"', mode="data+change")
