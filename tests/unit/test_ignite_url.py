"""URLs of nodes, with all that the bulk load needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.engines.ignite.url import IgniteUrl
from penstock.host.errors import UrlInvalid, mask


def test_addresses_user_and_password() -> None:
    """A URL may name several nodes of a cluster; a port may be omitted."""
    url = IgniteUrl.parse(
        "ignite:///work?consistentId=node-1&address=one:10801,two&user=ignite&password=a%26b"
    )
    assert url.addresses == (("one", 10801), ("two", 10800))
    assert (url.user, url.password, url.ssl["sslmode"]) == ("ignite", "a&b", "disable")
    assert url.place == "one:10801, two:10800"
    assert "a&b" not in repr(url)
    assert IgniteUrl.parse("ignite:///work").addresses == ()


def test_password_is_masked() -> None:
    """The password is masked wherever a URL is shown."""
    shown = mask("ignite:///work?address=one&user=ignite&password=secret%20word&sslmode=require")
    assert "secret" not in shown
    assert "sslmode=require" in shown


def test_authorities_mean_that_the_server_is_verified(tmp_path: Path) -> None:
    """A user who names them wants the server's certificate checked."""
    (tmp_path / "ca.pem").touch()
    url = IgniteUrl.parse(f"ignite:///work?address=one&sslrootcert={tmp_path}/ca.pem")
    assert url.ssl["sslmode"] == "verify-ca"


@pytest.mark.parametrize(
    ("query", "cause"),
    [
        ("adress=one", "adress"),
        ("address=", "without a value"),
        ("address=one:port", "not HOST:PORT"),
        ("address=:10800", "not HOST:PORT"),
        ("user=ignite", "both or none"),
        ("user=ignite&password=f%C3%BCnf", "not ASCII"),
        ("sslmode=verify-full", "sslmode is verify-full"),
        ("sslmode=verify-ca", "needs sslrootcert"),
        ("sslrootcert=/no/such/file", "there is no file"),
        ("sslmode=require&sslkey=/dev/null", "needs sslcert"),
    ],
)
def test_refused(query: str, cause: str) -> None:
    """The message says what is wrong, and never contains the password."""
    with pytest.raises(UrlInvalid, match=cause) as caught:
        IgniteUrl.parse(f"ignite:///work?{query}")
    assert "nf" not in str(caught.value.fields)
    assert caught.value.hint
