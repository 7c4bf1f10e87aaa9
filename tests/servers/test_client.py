"""Login, commands and TLS of the replication client, on real servers."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.login import parameters_of, targets
from penstock.host.errors import (
    ConnectionLost,
    DatabaseUnknown,
    LoginRefused,
    PrivilegeMissing,
    ServerUnreachable,
    StatementFailed,
    StatementInterrupted,
    TlsFailed,
    UrlInvalid,
)
from plugins.postgres import Server

pytestmark = pytest.mark.each_server

PASSWORD = "pass wörd'\\%:@"


@pytest.fixture
def role(postgres: Server) -> str:
    """A replication role with an awkward password, authenticated by SCRAM."""
    postgres.execute("drop role if exists awkward")
    literal = PASSWORD.replace("'", "''")
    postgres.execute(f"create role awkward login replication password '{literal}'")
    return "awkward"


def _identify(url: str) -> dict[str, str | None]:
    with open_replication(url, application_name="test client") as connection:
        return connection.query("IDENTIFY_SYSTEM", doing="identifying")[0]


def test_scram_with_an_awkward_password(postgres: Server, role: str) -> None:
    """A URL preserves blanks, quotes, umlauts and percent signs."""
    url = postgres.url("postgres", role, PASSWORD)
    assert _identify(url)["dbname"] == "postgres"


def test_wrong_password_is_reported_without_the_password(postgres: Server, role: str) -> None:
    """The error names the user, never the secret."""
    with pytest.raises(LoginRefused) as caught:
        _identify(postgres.url("postgres", role, "hush-hush"))
    assert "hush" not in str(caught.value)
    assert caught.value.retry == "operator"


def test_missing_password_says_where_to_put_it(
    postgres: Server, role: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server is not even asked without a password in URL, environment or file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LoginRefused, match="none is given"):
        _identify(f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres")


def test_password_file_and_environment(
    postgres: Server, role: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The order is that of psql: PGPASSWORD, then the first matching line of the password file."""
    url = f"postgresql://{role}@127.0.0.1:{postgres.port}/postgres"
    escaped = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
    path = tmp_path / "pgpass"
    path.write_text(f"# comment\nother:*:*:*:no\n127.0.0.1:{postgres.port}:*:{role}:{escaped}\n")
    path.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(path))
    _identify(url)
    path.chmod(0o644)
    with pytest.raises(LoginRefused):
        _identify(url)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    _identify(url)


def test_md5_password_works_unless_refused(postgres: Server) -> None:
    """An old role logs in, unless require_auth forbids it."""
    postgres.execute("drop role if exists old_md5")
    postgres.execute(
        "set password_encryption = 'md5'; create role old_md5 login replication password 'x'"
    )
    hba = postgres.directory / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text(f"host all old_md5 127.0.0.1/32 md5\n{before}")
    postgres.reload()
    try:
        url = postgres.url("postgres", "old_md5", "x")
        _identify(url)
        with pytest.raises(LoginRefused, match="require_auth"):
            _identify(f"{url}?require_auth=scram-sha-256")
        with pytest.raises(LoginRefused, match="channel_binding"):
            _identify(f"{url}?channel_binding=require")
    finally:
        hba.write_text(before)
        postgres.reload()


def test_unix_socket(own_postgres: Server) -> None:
    """A host that is a directory means its socket file; TLS is not requested there."""
    directory = own_postgres.directory
    own_postgres.restart_with(unix_socket_directories=str(directory))
    place, port = quote(str(directory), safe=""), own_postgres.port
    url = f"postgresql://postgres@/postgres?host={place}&port={port}&sslmode=verify-full"
    assert _identify(url)["dbname"] == "postgres"


def test_unknown_database_and_closed_port(postgres: Server) -> None:
    """Each of them has its own error."""
    with pytest.raises(DatabaseUnknown):
        _identify(postgres.url("no_such_database"))
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with pytest.raises(ServerUnreachable):
            _identify(f"postgresql://u:p@127.0.0.1:{port}/d")


@pytest.mark.timeout(60)  # without a bound it would wait forever
def test_a_peer_that_says_nothing_is_given_up() -> None:
    """The whole login is bounded by connect_timeout, not only the TCP handshake."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"postgresql://u:p@127.0.0.1:{mute.getsockname()[1]}/d?connect_timeout=1"
        for mode in ("disable", "require"):
            with pytest.raises(ServerUnreachable):
                _identify(f"{url}&sslmode={mode}")


def test_several_hosts_are_tried_in_order(postgres: Server) -> None:
    """The first host that answers is used."""
    password = postgres.url().split("://")[1].split("@")[0]
    url = f"postgresql://{password}@127.0.0.1:1,127.0.0.1:{postgres.port}/postgres"
    assert _identify(url)["dbname"] == "postgres"
    found = targets(parameters_of("postgresql://a:1,b:2/d"))
    assert [(target.host, target.port) for target in found] == [("a", 1), ("b", 2)]


def test_broken_urls_do_not_show_the_password() -> None:
    """The message of libpq's parser is not passed on."""
    with pytest.raises(UrlInvalid) as caught:
        parameters_of("postgresql://u:secret@h:5432/d?no_such=1")
    assert "secret" not in str(caught.value)


def test_statement_errors_leave_the_connection_usable(postgres: Server) -> None:
    """Errors are typed by SQLSTATE, which is in their fields."""
    with open_replication(postgres.url(), application_name="test client") as connection:
        with pytest.raises(StatementFailed) as caught:
            connection.query("selec 1", doing="trying")
        assert caught.value.fields["sqlstate"] == "42601"
        assert connection.query("select 1 as one, null as nothing", doing="trying") == [
            {"one": "1", "nothing": None}
        ]


def test_missing_privilege(postgres: Server) -> None:
    """The error for a role without REPLICATION says what it lacks."""
    postgres.execute("drop role if exists weak; create role weak login password 'w'")
    with pytest.raises(PrivilegeMissing) as caught:
        _identify(postgres.url("postgres", "weak", "w"))
    assert "alter role" in caught.value.hint


def test_waiting_command_is_cancelled_at_the_server(postgres: Server) -> None:
    """An error of on_wait cancels the command there too: a lock wait sees no closed socket."""

    class Enough(Exception):
        pass

    def on_wait(seconds: float) -> None:
        raise Enough

    with open_replication(postgres.url(), application_name="test sleeper") as connection:
        with pytest.raises(Enough):
            connection.query("select pg_sleep(60)", doing="sleeping", on_wait=on_wait)
        deadline = time.monotonic() + 30
        while _sleepers(postgres):
            assert time.monotonic() < deadline, "still sleeping at the server"
            time.sleep(0.05)


def _sleepers(postgres: Server) -> int:
    return int(
        postgres.execute(
            "select count(*) from pg_stat_activity where application_name = 'test sleeper'"
            " and state = 'active'"
        )[0][0]
    )


def test_terminated_session_is_a_lost_connection(postgres: Server) -> None:
    """A terminated session raises an error that allows penstock to retry automatically."""
    with open_replication(postgres.url(), application_name="test client") as connection:
        postgres.execute(f"select pg_terminate_backend({connection.process_id})")
        with pytest.raises(ConnectionLost) as caught:
            connection.query("select pg_sleep(5)", doing="sleeping")
    assert caught.value.retry == "backoff"


def test_cancelled_statement_may_be_repeated(postgres: Server) -> None:
    """57014 is an interruption, not a permanent failure."""
    with open_replication(postgres.url(), application_name="test client") as connection:
        timer = threading.Timer(
            0.3, lambda: postgres.execute(f"select pg_cancel_backend({connection.process_id})")
        )
        timer.start()
        with pytest.raises(StatementInterrupted):
            connection.query("select pg_sleep(30)", doing="sleeping")
        timer.join()


# -- TLS ---------------------------------------------------------------------------------------


def test_verify_full_with_the_right_authority(tls_postgres: Server) -> None:
    """The chain and the host name are checked, and SCRAM is bound to the certificate."""
    url = _tls_url(tls_postgres, "localhost")
    with open_replication(
        f"{url}&channel_binding=require", application_name="test client"
    ) as connection:
        assert connection.wire.is_tls
        rows = connection.query(
            "select ssl, version from pg_stat_ssl where pid = pg_backend_pid()", doing="looking"
        )
    assert rows[0]["ssl"] == "t"


def _tls_url(server: Server, host: str, mode: str = "verify-full") -> str:
    base = server.url("postgres").replace("127.0.0.1", host).split("?")[0]
    return f"{base}?sslmode={mode}&sslrootcert={server.ca_certificate}"


def test_verify_full_refuses_another_name(
    tls_postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate for another name is refused whatever its authority; verify-ca accepts it."""
    url = _tls_url(tls_postgres, "elsewhere.example") + "&hostaddr=127.0.0.1"
    with pytest.raises(TlsFailed) as caught:
        _identify(url)
    assert "elsewhere.example" in str(caught.value)
    _identify(url.replace("verify-full", "verify-ca"))


def test_verify_refuses_another_authority(tls_postgres: Server, tmp_path: Path) -> None:
    """A certificate of another authority is not trusted."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    url = _tls_url(tls_postgres, "localhost").split("&sslrootcert")[0]
    with pytest.raises(TlsFailed):
        _identify(f"{url}&sslrootcert={other}")
    with pytest.raises(TlsFailed):
        _identify(f"{url}&sslrootcert={tmp_path / 'missing.pem'}")


def test_verify_without_a_root_certificate_is_refused(
    tls_postgres: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without anything to verify against, nothing would be verified."""
    monkeypatch.setenv("HOME", str(tmp_path))
    url = _tls_url(tls_postgres, "localhost").split("&sslrootcert")[0]
    with pytest.raises(TlsFailed, match="needs a root certificate"):
        _identify(url)


@pytest.mark.parametrize(
    ("mode", "encrypted"),
    [("disable", False), ("allow", False), ("prefer", True), ("require", True)],
)
def test_modes_without_verification(tls_postgres: Server, mode: str, encrypted: bool) -> None:
    """The modes are libpq's: allow stays plain if the server accepts that, prefer uses TLS."""
    url = tls_postgres.url("postgres").split("?")[0]
    with open_replication(f"{url}?sslmode={mode}", application_name="t") as connection:
        assert connection.wire.is_tls is encrypted


def test_prefer_and_allow_fall_back(tls_postgres: Server) -> None:
    """The other kind of connection is tried if pg_hba accepts only that."""
    tls_postgres.execute(
        "drop role if exists picky; create role picky login replication password 'p'"
    )
    hba = tls_postgres.directory / "pg_hba.conf"
    before = hba.read_text()
    url = tls_postgres.url("postgres", "picky", "p").split("?")[0]
    try:
        for kind, mode, encrypted in (("hostssl", "allow", True), ("hostnossl", "prefer", False)):
            other = "hostnossl" if kind == "hostssl" else "hostssl"
            hba.write_text(
                f"{kind} all picky 127.0.0.1/32 scram-sha-256\n"
                f"{other} all picky 127.0.0.1/32 reject\n{before}"
            )
            tls_postgres.reload()
            with open_replication(f"{url}?sslmode={mode}", application_name="t") as connection:
                assert connection.wire.is_tls is encrypted
    finally:
        hba.write_text(before)
        tls_postgres.reload()


def test_server_without_tls_is_refused_when_tls_is_required(postgres: Server) -> None:
    """There is no silent fallback to plain text."""
    assert postgres.execute("show ssl")[0][0] == "off"
    url = postgres.url().split("?")[0]
    with pytest.raises(TlsFailed, match="does not offer TLS"):
        _identify(f"{url}?sslmode=require")


def test_data_before_the_tls_handshake_is_an_attack() -> None:
    """Plain bytes after the answer `S` were inserted by an attacker."""
    with socket.socket() as attacker:
        attacker.bind(("127.0.0.1", 0))
        attacker.listen()

        def answer() -> None:
            peer, _ = attacker.accept()
            with peer:
                peer.recv(8)
                peer.sendall(b"SE\0\0\0\4")
                with suppress(ConnectionResetError):
                    peer.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"postgresql://u:p@127.0.0.1:{attacker.getsockname()[1]}/d?sslmode=require"
        with pytest.raises(TlsFailed, match="unencrypted data"):
            _identify(url)
        thread.join()


def test_large_results_come_through_tls(tls_postgres: Server) -> None:
    """A row is larger than a TLS record and than the receive buffer."""
    with open_replication(_tls_url(tls_postgres, "localhost"), application_name="t") as connection:
        rows = connection.query("select repeat('x', 3000000) as x", doing="reading")
    assert rows[0]["x"] == "x" * 3_000_000
