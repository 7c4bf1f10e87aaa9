"""`penstock stage` as a process: its socket, its certificate, its keys, its end."""

from __future__ import annotations

import os
import signal
import ssl
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from harness.feeds.staging import FakeCatalog, FakeStaging
from harness.feeds.tokens import GRANTED, pem, token
from penstock.cli.entry import run_guarded
from penstock.control.feeds import feed_process
from penstock.control.feeds.feed_process import StageNotInstalled, StageSectionMissing, stage
from penstock.control.pipeline import extras
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.extras import ExtraMissing
from penstock.feeds.receiver.app import CertificateUnusable, EncryptionMissing
from penstock.feeds.receiver.targets import TargetSchemas
from penstock.host.listen import is_loopback
from penstock.ports.config import Config
from penstock.ports.feeds import Keys, staging_at
from penstock.ports.registry import PartMissing

LINE = '{"after":{"id":1},"key":[1],"topic":"accounts","updated":"7.0000000009"}'
BODY = f'{{"payload":[{LINE}],"length":1}}'
FILE = """
[pipeline]
name = "shop"
directory = "shop"
[staging]
url = "postgresql://stage@localhost:5432/_replicator"
[stage]
listen = "127.0.0.1:0"
KEYS
[target]
url = "postgresql://loader@localhost:5432/shop"
"""


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> FakeStaging:
    """Staging database and target of the process."""
    made = FakeStaging()
    monkeypatch.setattr(feed_process, "staging_at", lambda _url: made)
    monkeypatch.setattr(feed_process, "TargetSchemas", lambda _config: FakeCatalog())
    return made


def config_of(tmp_path: Path, keys: str, text: str = FILE) -> Config:
    """Return a pipeline with these keys in [stage]."""
    path = tmp_path / "cockroach.toml"
    path.write_text(text.replace("KEYS", keys), encoding="utf-8")
    return load_config(path, {})


def while_served(config: Config, do: Callable[[str], None]) -> None:
    """Run the process, call a function with its address, then stop it by a signal."""
    failed: list[BaseException] = []

    def used(url: str) -> None:
        try:
            do(url)
        except BaseException as error:
            failed.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    threads: list[threading.Thread] = []

    def start_serving(url: str) -> None:
        threads.append(threading.Thread(target=used, args=(url,)))
        threads[0].start()

    stage(config, create=False, on_served=start_serving)
    threads[0].join()
    assert failed == []


def check(is_so: bool) -> None:
    """Assert as an expression."""
    assert is_so


def post(url: str, *, bearer: str = "", context: ssl.SSLContext | None = None) -> int:
    """Post a batch and return its status."""
    request = urllib.request.Request(f"{url}/shop/public", BODY.encode(), method="POST")
    if bearer:
        request.add_header("Authorization", f"Bearer {bearer}")
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_rows_are_received_until_it_is_stopped(tmp_path: Path, staging: FakeStaging) -> None:
    """The process serves HTTP on loopback, with a file that needs no token."""
    config = config_of(tmp_path, 'authentication = "off"')
    while_served(config, lambda url: check(post(url) == 200))
    assert sum(map(len, staging.tables.values())) == 1


def test_tables_are_created_by_every_start(tmp_path: Path, staging: FakeStaging) -> None:
    """The database is created with `--create`, or by an operator."""
    config = config_of(tmp_path, 'authentication = "off"')
    while_served(config, lambda _url: None)
    assert staging.created == [False]


def test_its_own_certificate_is_made_once(tmp_path: Path, staging: FakeStaging) -> None:
    """A feed can verify it; only its owner can read the private key."""
    config = config_of(tmp_path, 'authentication = "off"\ntlsSelfSigned = true')
    state = config.layout.state
    texts = []

    def used(url: str) -> None:
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(state / "stage-certificate.pem"))
        assert post(url, context=context) == 200
        texts.append((state / "stage-certificate.pem").read_text())

    while_served(config, used)
    while_served(config, used)
    assert texts[0] == texts[1]
    assert stat.S_IMODE((state / "stage-private-key.pem").stat().st_mode) == 0o600


def test_a_certificate_of_the_file_is_used(tmp_path: Path, staging: FakeStaging) -> None:
    """A bad certificate is refused by name: CertificateUnusable."""
    config = config_of(tmp_path, 'authentication = "off"\ntlsSelfSigned = true')
    while_served(config, lambda _url: None)
    for old, new in (("stage-certificate", "c"), ("stage-private-key", "k")):
        (config.layout.state / f"{old}.pem").rename(tmp_path / f"{new}.pem")
    keys = 'authentication = "off"\ntlsCertificate = "c.pem"\ntlsPrivateKey = "k.pem"'
    context = ssl.create_default_context(cafile=str(tmp_path / "c.pem"))
    while_served(config_of(tmp_path, keys), lambda url: check(post(url, context=context) == 200))
    (tmp_path / "k.pem").write_text("broken")
    with pytest.raises(CertificateUnusable, match=r"c\.pem"):
        while_served(config_of(tmp_path, keys), lambda _url: None)


def test_keys_of_tokens_are_read_again_on_sighup(tmp_path: Path, staging: FakeStaging) -> None:
    """A token is accepted with an added key, and refused once its id is revoked.

    A broken key changes nothing.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    good = token(key, "ES256", GRANTED)

    def becomes(url: str, status: int) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        deadline_s = time.monotonic() + 60
        while post(url, bearer=good) != status:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def used(url: str) -> None:
        assert post(url, bearer=good) == 401
        staging.keys = Keys(public=(pem(key),), revoked=frozenset())
        becomes(url, 200)
        staging.keys = Keys(public=("broken",), revoked=frozenset())
        os.kill(os.getpid(), signal.SIGHUP)
        staging.keys = Keys(public=(pem(key),), revoked=frozenset({"one"}))
        becomes(url, 401)

    while_served(config_of(tmp_path, ""), used)


def test_other_machines_need_encryption(tmp_path: Path, staging: FakeStaging) -> None:
    """EncryptionMissing is raised before the socket listens."""
    text = FILE.replace("127.0.0.1:0", "0.0.0.0:0")
    config = config_of(tmp_path, 'authentication = "off"', text)
    with pytest.raises(EncryptionMissing, match="without encryption"):
        stage(config, create=False, on_served=lambda _url: None)
    assert [is_loopback(one) for one in ("localhost", "::1", "127.9.9.9", "::", "db")] == [
        *(True, True, True, False, False)
    ]


def test_a_file_that_is_not_for_changefeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """StageSectionMissing is raised, also on the command line."""
    path = tmp_path / "shop.toml"
    path.write_text(
        '[pipeline]\nname = "shop"\nmode = "change"\ndirectory = "shop"\n[source]\n'
        'url = "postgresql://me@localhost/shop"\ntables = ["public.*"]\n'
    )
    with pytest.raises(StageSectionMissing, match=r"has no \[stage\]"):
        stage(load_config(path, {}), create=False, on_served=lambda _url: None)
    with pytest.raises(SystemExit):
        run_guarded(["stage", str(path)])
    assert "ST16" in capsys.readouterr().err


def test_libraries_that_are_missing(
    tmp_path: Path, staging: FakeStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """StageNotInstalled names them and the extra."""
    monkeypatch.setattr(extras, "_is_installed", lambda name: name != "uvicorn")
    with pytest.raises(StageNotInstalled, match="needs uvicorn,"):
        stage(
            config_of(tmp_path, ""), create=False, on_served=lambda _url: pytest.fail("it serves")
        )
    monkeypatch.setattr(extras, "_is_installed", lambda name: name != "pyspark")
    with pytest.raises(ExtraMissing, match="uses spark, and pyspark is not installed"):
        stage(
            config_of(tmp_path, ""), create=False, on_served=lambda _url: pytest.fail("it serves")
        )


def test_an_engine_that_cannot_stage() -> None:
    """PartMissing is raised."""
    with pytest.raises(PartMissing):
        staging_at("mysql://me@localhost/x")


def test_the_targets_database_is_that_of_its_url(tmp_path: Path) -> None:
    """Another database in a path has no tables."""
    schemas = TargetSchemas(config_of(tmp_path, ""))
    assert (schemas.group_parts, schemas.database) == (2, "shop")
    assert schemas.keys(("other", "public")) == {}
    text = FILE.replace("postgresql://loader", "mysql://loader")
    assert TargetSchemas(config_of(tmp_path, "", text)).group_parts == 1
