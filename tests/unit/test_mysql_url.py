"""URLs of MySQL and MariaDB, and version texts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from penstock.engines.mysql.connect import Flavour, ServerVersion
from penstock.engines.mysql.url import MySQLUrl, with_database
from penstock.host.errors import TlsFailed, UrlInvalid


def test_parts_are_decoded() -> None:
    """User, password and database may have any character, percent-encoded."""
    url = MySQLUrl.parse("mysql://a%40b:p%2Fw%3A%C3%A9@db.example:3307/sh%20op?sslmode=require")
    assert (url.host, url.port, url.user, url.password) == ("db.example", 3307, "a@b", "p/w:é")
    assert url.database == "sh op"
    assert url.sslmode == "require"
    assert url.place == "db.example:3307"
    assert "p/w" not in repr(url)


def test_defaults() -> None:
    """Defaults are port 3306, no database, and TLS if the server has it."""
    url = MySQLUrl.parse("mariadb://u@h")
    assert (url.port, url.database, url.password, url.sslmode) == (3306, "", "", "prefer")
    assert not url.may_ask_for_key
    context = url.tls_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("ssl-mode=VERIFY_IDENTITY", "verify-full"),
        ("ssl-mode=VERIFY_CA", "verify-ca"),
        ("ssl-mode=REQUIRED", "require"),
        ("ssl-mode=preferred", "prefer"),
        ("sslmode=disable", "disable"),
    ],
)
def test_the_names_of_mysqls_clients_are_understood(given: str, mode: str) -> None:
    """A URL written for these clients means the same here."""
    assert MySQLUrl.parse(f"mysql://u:p@h/d?{given}").sslmode == mode


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:topsecret@h/d",
        "mysql:u:topsecret@h",
        "mysql://u:topsecret@h:port/d",
        "mysql://u:topsecret@h/d/e",
        "mysql://u:topsecret@h/d#x",
        "mysql://u:topsecret@/d",
        "mysql://u:topsecret@h/d?sslmode=allow",
        "mysql://u:topsecret@h/d?ssl_mode=x",
        "mysql://u:topsecret@h/d?connect_timeout=0",
        "mysql://u:topsecret@h/d?get_server_public_key=perhaps",
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    """No part is guessed, and the password is not repeated."""
    with pytest.raises(UrlInvalid) as caught:
        MySQLUrl.parse(text)
    assert "topsecret" not in str(caught.value)
    assert caught.value.hint


def test_verification_needs_an_authority(tmp_path: Path) -> None:
    """Mode verify-ca checks the chain, verify-full the name too; both need a root certificate."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    root = f"sslrootcert={tmp_path / 'ca.pem'}"
    full = MySQLUrl.parse(f"mysql://u@h/?sslmode=verify-full&{root}").tls_context()
    chain = MySQLUrl.parse(f"mysql://u@h/?sslmode=verify-ca&{root}").tls_context()
    assert full is not None
    assert chain is not None
    assert (full.verify_mode, full.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (chain.verify_mode, chain.check_hostname) == (ssl.CERT_REQUIRED, False)
    world = MySQLUrl.parse("mysql://u@h/?sslmode=verify-ca&sslrootcert=system").tls_context()
    assert world is not None
    assert world.check_hostname, "the world's authorities prove nothing without the name"
    with pytest.raises(TlsFailed, match="needs a root certificate"):
        MySQLUrl.parse("mysql://u@h/?sslmode=verify-full").tls_context()
    with pytest.raises(TlsFailed, match="cannot be used"):
        MySQLUrl.parse("mysql://u@h/?sslmode=verify-ca&sslrootcert=/no/such").tls_context()
    with pytest.raises(TlsFailed, match="cannot be read"):
        MySQLUrl.parse("mysql://u@h/?server_public_key=/no/such").public_key()


def test_a_socket_file_needs_no_tls() -> None:
    """The connection stays on the machine."""
    url = MySQLUrl.parse("mysql://u:p@/d?socket=/run/mysqld.sock&sslmode=require")
    assert url.tls_context() is None
    assert url.place == "/run/mysqld.sock"


def test_another_database_of_the_same_server() -> None:
    """Only the path changes."""
    assert (
        with_database("mysql://u:p%40@h:1/a?sslmode=require", "b/c")
        == "mysql://u:p%40@h:1/b%2Fc?sslmode=require"
    )
    assert with_database("mysql://u@h", "b") == "mysql://u@h/b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("8.0.15", "MySQL 8.0.15"),
        ("8.4.3-1.el9", "MySQL 8.4.3"),
        ("9.7.4", "MySQL 9.7.4"),
        ("5.7.44-48-log", "MySQL 5.7.44"),
        ("5.5.5-10.11.19-MariaDB-0+deb12u1-log", "MariaDB 10.11.19"),
        ("11.4.5-MariaDB-log", "MariaDB 11.4.5"),
        ("10.6.12-MariaDB", "MariaDB 10.6.12"),
    ],
)
def test_versions_are_read(text: str, shown: str) -> None:
    """MariaDB 10 announces itself as 5.5.5; Percona and Aurora count as MySQL."""
    assert str(ServerVersion.parse(text)) == shown


def test_versions_compare_within_a_flavour() -> None:
    """MariaDB 10.11 is not MySQL 8 or newer."""
    mariadb, mysql = ServerVersion.parse("10.11.1-MariaDB"), ServerVersion.parse("8.0.26")
    assert mariadb.mariadb(10, 5)
    assert not mariadb.mariadb(10, 11, 2)
    assert not mariadb.mysql(8)
    assert mysql.mysql(8, 0, 26)
    assert not mysql.mysql(8, 0, 27)
    assert not mysql.mariadb(5)
    assert mysql.flavour is Flavour.MYSQL
    with pytest.raises(ValueError, match="no version"):
        ServerVersion.parse("soon")
