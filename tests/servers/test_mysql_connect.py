"""SQL connections to real servers: login methods, TLS, session settings, typed errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from penstock.engines.mysql.connect import connect, literal, rows, run, server_errors, value
from penstock.engines.mysql.target.progress import transaction
from penstock.host.errors import (
    ConnectionLost,
    DatabaseUnknown,
    LoginRefused,
    PrivilegeMissing,
    StatementFailed,
    StatementInterrupted,
    TlsFailed,
)
from plugins.mysql import PASSWORD, MySQLServer, database_of


def test_the_session_is_the_same_whatever_the_server_is_set_to(mysql: MySQLServer) -> None:
    """Time zone, sql_mode and timeouts do not depend on the server's defaults."""
    strange = {
        "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
        "time_zone": "'+05:00'",
        "net_write_timeout": "7",
        "wait_timeout": "9",
        "sql_select_limit": "1",
    }
    with mysql.globals(**strange), connect(mysql.url(), application_name="test") as connection:
        row = rows(
            connection,
            "select @@time_zone, @@sql_mode as m, @@net_write_timeout as w, @@wait_timeout as i,"
            " @@autocommit as a, @@character_set_client as c, @@lc_messages as l union all"
            " select 'x', '', 1, 1, 1, '', ''",
            doing="looking",
        )
    assert len(row) == 2
    row[0]["m"] = set(row[0]["m"].split(","))
    assert row[0] == {
        "@@time_zone": "+00:00",
        "m": {"STRICT_ALL_TABLES", "ALLOW_INVALID_DATES", "NO_AUTO_VALUE_ON_ZERO"},
        "w": 3600,
        "i": 7 * 86_400,
        "a": 1,
        "c": "utf8mb4",
        "l": "en_US",
    }


def test_options_win_over_the_settings(mysql: MySQLServer) -> None:
    """A caller's options override the settings, as SQL."""
    options = {"foreign_key_checks": "0", "time_zone": "'+02:00'"}
    with connect(mysql.url(), application_name="test", options=options) as connection:
        assert value(connection, "select @@foreign_key_checks", doing="x") == 0
        assert value(connection, "select @@time_zone", doing="x") == "+02:00"
        assert connection.server == mysql.version


@pytest.mark.parametrize("text", ["a'b\\c\"d`e", "\\", "'", "\0\n\r\x1a", "ünïcödé 😀"])
def test_literals_come_back_as_they_were(mysql: MySQLServer, text: str) -> None:
    """Quotes, backslashes, zero bytes and any letter survive."""
    with connect(mysql.url(), application_name="test") as connection:
        assert value(connection, f"select {literal(text)}", doing="x") == text
        assert value(connection, "select %s", (text,), doing="x") == text


@pytest.mark.parametrize("password", ["", "plain", "p@ss:w/ö rd%'\\", "x" * 200])
def test_passwords_of_any_letters_log_in(mysql: MySQLServer, password: str) -> None:
    """PyMySQL alone would send them as latin1."""
    mysql.execute("create user `u`@'127.0.0.1' identified by %s", parameters=(password,))
    try:
        with connect(mysql.url("", "u", password), application_name="test") as connection:
            assert value(connection, "select current_user()", doing="x") == "u@127.0.0.1"
        with pytest.raises(LoginRefused) as caught:
            connect(mysql.url("", "u", "wrong"), application_name="test")
        assert "wrong" not in str(caught.value)
    finally:
        mysql.execute("drop user `u`@'127.0.0.1'")


def test_native_passwords_log_in(mysql: MySQLServer) -> None:
    """MariaDB and old accounts have this method, the default before MySQL 8; it is removed in 9."""
    if mysql.version.mysql(9):
        plugins = "select plugin_name from information_schema.plugins"
        assert ("mysql_native_password",) not in mysql.execute(plugins)
        return
    how = "with mysql_native_password by" if not mysql.is_mariadb else "by"
    mysql.execute(f"create user `n`@'127.0.0.1' identified {how} '{PASSWORD}'")
    try:
        connect(mysql.url("", "n", PASSWORD), application_name="test").close()
    finally:
        mysql.execute("drop user `n`@'127.0.0.1'")


@pytest.mark.server("mysql")
@pytest.mark.parametrize("method", ["caching_sha2_password", "sha256_password"])
def test_without_tls_a_password_goes_only_under_a_key_that_we_know(
    mysql: MySQLServer, method: str
) -> None:
    """An attacker could offer another key; so the key is named, or trust is required explicitly."""
    mysql.execute(f"create user `s`@'127.0.0.1' identified with {method} by '{PASSWORD}'")
    plain = mysql.url("", "s", PASSWORD) + "?sslmode=disable"
    try:
        with pytest.raises(LoginRefused, match="under its RSA key only") as caught:
            connect(plain, application_name="test")
        assert "get_server_public_key" in caught.value.hint
        key = mysql.embedded.directory / "public_key.pem"
        connect(f"{plain}&server_public_key={quote(str(key))}", application_name="test").close()
        mysql.execute("flush privileges")  # forgets earlier logins
        connect(f"{plain}&get_server_public_key=true", application_name="test").close()
    finally:
        mysql.execute("drop user `s`@'127.0.0.1'")


def test_verified_tls(tls_mysql: MySQLServer, tmp_path: Path) -> None:
    """The right authority and the right name are required by verify-full."""
    trusted = f"?sslmode=verify-full&sslrootcert={tls_mysql.ca_certificate}"
    with connect(tls_mysql.url() + trusted, application_name="test") as connection:
        cipher = rows(connection, "show status like 'ssl_cipher'", doing="x")
        assert cipher[0]["value"]
    named = tls_mysql.url().replace("@127.0.0.1:", "@127.1:")  # the same server by another name
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    stranger = f"?sslmode=verify-ca&sslrootcert={other}"
    with pytest.raises(TlsFailed):
        connect(tls_mysql.url() + stranger, application_name="test")
    chain_alone = trusted.replace("verify-full", "verify-ca")
    connect(named + chain_alone, application_name="test").close()
    with pytest.raises(TlsFailed, match=r"127\.1"):
        connect(named + trusted, application_name="test")


def test_tls_is_never_left_out_when_it_is_asked_for(
    mysql: MySQLServer, own_mysql: Callable[..., MySQLServer]
) -> None:
    """A server without TLS, or an impostor, does not get the password."""
    new = mysql.version.mysql(8, 4)
    server = own_mysql(settings={"tls_version": ""} if new else {"ssl": "OFF"})
    connect(f"{server.url()}?get_server_public_key=true", application_name="test").close()
    with pytest.raises(TlsFailed, match="SSL is required"):
        connect(server.url() + "?sslmode=require", application_name="test")


def test_refusals_are_distinguished(mysql: MySQLServer, mysql_url: str) -> None:
    """Unknown database, missing table, missing right and lost connection have their own errors."""
    with pytest.raises(DatabaseUnknown):
        connect(mysql.url("no_such"), application_name="test")
    name = database_of(mysql_url)
    mysql.execute(f"create table `{name}`.t (n int primary key)")
    with mysql.role(f"insert on `{name}`.*") as url, connect(url, application_name="t") as poor:
        with pytest.raises(PrivilegeMissing) as caught:
            rows(poor, f"select * from `{name}`.t", doing="reading t")
        assert caught.value.message.startswith("reading t: SELECT command denied")
        assert run(poor, f"insert into `{name}`.t values (1), (2)", doing="x") == 2
        with pytest.raises(StatementFailed, match="Duplicate entry") as failed:
            run(poor, f"insert into `{name}`.t values (1)", doing="x")
        assert failed.value.fields["errno"] == 1062
        assert failed.value.fields["sqlstate"] == "23000"
        mysql.execute(f"kill {poor.thread_id()}")
        with pytest.raises(ConnectionLost):
            value(poor, "select 1", doing="x")
        poor.close()
        with pytest.raises(ConnectionLost), server_errors("x"):
            poor.cursor().execute("select 1")


def test_lock_waits_and_deadlocks_may_be_tried_again(mysql: MySQLServer, mysql_url: str) -> None:
    """Such errors are normal for a server and allow a retry."""
    mysql.execute(f"create table `{database_of(mysql_url)}`.t (n int primary key)")
    mysql.execute(f"insert into `{database_of(mysql_url)}`.t values (1)")
    quick = {"innodb_lock_wait_timeout": "1"}
    with (
        connect(mysql_url, application_name="a", autocommit=False) as holder,
        connect(mysql_url, application_name="b", options=quick) as waiter,
    ):
        run(holder, "update t set n = 2", doing="x")
        with pytest.raises(StatementInterrupted, match="Lock wait timeout"):
            run(waiter, "update t set n = 3", doing="x")


def test_a_silent_server_is_not_waited_for_for_ever(mysql: MySQLServer) -> None:
    """The silence of a statement is bounded by read_timeout_s."""
    with (
        connect(mysql.url(), application_name="t", read_timeout_s=0.5) as connection,
        pytest.raises(ConnectionLost),
    ):
        value(connection, "select sleep(20)", doing="x")


@pytest.mark.parametrize("when", ["begin", "commit"])
def test_a_transaction_whose_connection_is_gone_says_so(
    mysql: MySQLServer, mysql_url: str, when: str
) -> None:
    """A typed error that allows a retry comes at its first statement and at its last."""
    with connect(mysql_url, application_name="test") as connection:

        def die(at: str) -> None:
            if at == when:
                mysql.execute(f"kill {connection.thread_id()}")

        die("begin")
        with pytest.raises(ConnectionLost), transaction(connection):
            die("commit")
