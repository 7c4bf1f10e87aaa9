"""Receiver over a staging database in memory: published samples, answers, limits, access."""

from __future__ import annotations

import asyncio
import json
import string
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt import PyJWS
from starlette.testclient import TestClient

from harness.feeds.staging import SHOP, FakeCatalog, FakeStaging
from harness.feeds.tokens import CURVES, GRANTED, RSA_KEY, pem, token
from penstock.feeds.metrics import Metrics
from penstock.feeds.receiver import app
from penstock.feeds.receiver.access import (
    CLAIMS,
    Access,
    Everybody,
    OneToken,
    PublicKeyBroken,
    SignedTokens,
)
from penstock.feeds.receiver.app import BODIES_MAX, THREADS, Receiver, ReceiverOptions
from penstock.feeds.receiver.targets import TargetTables
from penstock.feeds.sessions import Sessions
from penstock.host.clock import REAL_CLOCK
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.ports.feeds import Keys, StagedTable

SAMPLES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/changefeed/samples.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
SCENARIOS = list(dict.fromkeys(one["scenario"] for one in SAMPLES if one["kind"] == "request"))
# what they say about rows is tested with the application of rows
NOT_APPLIED_HERE = {"apply_error", "cas_merge"}
LINE = '{"after":{"id":1},"key":[1],"topic":"accounts","updated":"7.0000000009"}'
BODY = f'{{"payload":[{LINE}],"length":1}}'


class Site:
    """A receiver, and the requests that a feed posts to it."""

    def __init__(
        self, access: Access | None = None, options: ReceiverOptions | None = None
    ) -> None:
        self.staging, self.catalog, self.metrics = FakeStaging(), FakeCatalog(), Metrics()
        self.receiver = Receiver(
            sessions=Sessions(self.staging, 4),
            tables=TargetTables(self.catalog),
            access=access or Everybody(),
            metrics=self.metrics,
            options=options,
        )
        self.client = TestClient(self.receiver.app)

    def post(self, path: str, body: str | bytes, **more: Any) -> tuple[int, str]:
        """Return the answer's status and text."""
        found = self.client.post(path, content=body, **more)
        return found.status_code, found.text

    def count_staged(self) -> int:
        """Return how many rows are staged."""
        return sum(map(len, self.staging.tables.values()))


@pytest.fixture
def site() -> Iterator[Site]:
    """A site at which everyone may post."""
    made = Site()
    yield made
    made.receiver.close()


def duplicates(site: Site) -> float:
    """Return the counter's sum."""
    (metric,) = site.metrics.duplicates.collect()
    return sum(one.value for one in metric.samples if one.name.endswith("_total"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_sample_has_its_answer(scenario: str) -> None:
    """Status, text and the effect on the staging tables are checked."""
    site, guarded = Site(), Site(SignedTokens())
    for sample in (one for one in SAMPLES if one.get("scenario") == scenario):
        expect = sample["expect"]
        where = guarded if sample.get("auth") else site
        before = where.count_staged(), duplicates(where), where.staging.window(SHOP).proposed
        status, text = where.post(sample["path"], sample["body"], headers=sample.get("headers"))
        told = (sample["n"], sample["note"], text)
        assert status == expect["status"], told
        assert expect.get("error_contains", "") in text, told
        after = where.count_staged(), duplicates(where), where.staging.window(SHOP).proposed
        if status == 200:
            assert text == "OK", told
        if expect["action"] in ("stage", "none"):
            found = after[0] - before[0], after[1] - before[1]
            assert found == (expect.get("staged", 0), expect.get("duplicates", 0)), told
        elif expect["action"] == "reject":
            assert after == before, told
        elif scenario not in NOT_APPLIED_HERE:
            assert where.staging.applied_through(SHOP) == expect["applied"], told
            if expect.get("after_keys"):
                assert where.staging.present() == expect["after_keys"], told


def test_rows_are_staged_byte_for_byte(site: Site) -> None:
    """The body has the texts of key and images of every staged line of the samples."""
    for sample in SAMPLES[1:]:
        if sample["expect"]["action"] != "stage":
            continue
        fresh = Site()
        fresh.post(sample["path"], sample["body"])
        for rows in fresh.staging.tables.values():
            for row in (one.mutation for one in rows.values()):
                for text in (row.after, row.before):
                    assert text is None or text in sample["body"].encode()
                is_made = "/accounts" in sample["path"]
                assert is_made or row.key in sample["body"]


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "POST"])
def test_any_method_is_taken(site: Site, method: str) -> None:
    """Requests may have any method, as published."""
    found = site.client.request(method, "/shop/public", content=BODY)
    assert (found.status_code, found.text) == (200, "OK")
    assert site.count_staged() == 1


def test_a_request_is_one_transaction(site: Site) -> None:
    """The transaction covers all tables of the request."""
    lines = [LINE, LINE.replace("accounts", "orders")]
    assert site.post("/shop/public", f'{{"payload":[{",".join(lines)}]}}')[0] == 200
    assert (site.staging.calls, len(site.staging.tables)) == (1, 2)


def test_errors_of_the_staging_database_are_answered(site: Site) -> None:
    """Typed ones have their text and what to do; others do not end the receiver."""

    class Full(PenstockError):
        code = "ST98"
        retry = "backoff"

    site.staging.fail = Full("the disk is full", hint="Make room.")
    assert site.post("/shop/public", BODY) == (400, "the disk is full\nMake room.")
    site.staging.fail = ZeroDivisionError("oh")  # type: ignore[assignment]
    status, text = site.post("/shop/public", BODY)
    assert (status, text.splitlines()[0]) == (400, "unexpected ZeroDivisionError: oh")  # ST13
    assert site.post("/shop/public", BODY) == (200, "OK")
    assert (
        b'mutations_error_count{kind="webhook",schema="shop.public"} 2.0' in site.metrics.expose()
    )


def test_a_body_has_a_limit() -> None:
    """RequestTooLong is raised, and no part is kept."""
    site = Site(options=ReceiverOptions(request_bytes_max=len(BODY)))
    assert site.post("/shop/public", BODY)[0] == 200
    status, text = site.post("/shop/public", BODY + " ")
    assert status == 400
    assert "requestBytesMax" in text


def test_an_answer_does_not_wait_for_ever() -> None:
    """RequestTimedOut is raised; the work continues, and the feed's retry does no harm."""
    site = Site(options=ReceiverOptions(response_timeout_s=0.05))
    site.staging.hold = threading.Event()
    status, text = site.post("/shop/public", BODY)
    assert (status, "not staged within 0.05 s" in text) == (400, True)
    site.staging.hold.set()
    site.receiver.close()
    assert site.count_staged() == 1


@pytest.mark.parametrize("body", ['{"resolved":"7.0000000000"}', '{"resolved":"9.0000000000"}'])
@pytest.mark.parametrize("path", ["/shop/other", "/other/public"])
def test_a_resolved_mark_of_a_schema_that_is_not_there_is_refused(
    site: Site, path: str, body: str
) -> None:
    """A batch is refused too; otherwise a group would be worked on for ever."""
    status, text = site.post(path, body)
    assert (status, text.startswith("unknown schema")) == (400, True)
    marker = path + "/2020-04-04/202011221122335555555556666666666.RESOLVED"
    assert site.post(marker, "")[0] == 400
    assert site.staging.group_names() == ()
    assert site.post("/shop/public", body)[0] == 200


class Caller:
    """One request, passed to the application as by a server; it may leave."""

    def __init__(self, site: Site, body: bytes, *, announces: bool = True) -> None:
        self.status = 0
        self.has_read = False
        self._left = asyncio.Event()
        self._body = body
        length = [(b"content-length", str(len(body)).encode())] if announces else []
        self._scope = {
            "type": "http", "method": "POST", "path": "/shop/public", "headers": length,
            "raw_path": b"/shop/public", "query_string": b"", "root_path": "", "scheme": "http",
        }  # fmt: skip
        self.task = asyncio.create_task(site.receiver.app(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self.has_read:
            self.has_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)

    async def leave(self) -> None:
        """Close the connection, and wait until the application ends."""
        self._left.set()
        await asyncio.wait_for(self.task, 10)


def build_batch(number: int) -> bytes:
    """Return a batch of one row."""
    return BODY.replace("7.0", f"{number}.0").encode()


@pytest.mark.parametrize("leaves", [True, False])
def test_requests_whose_callers_are_gone_hold_no_memory_and_are_not_staged(leaves: bool) -> None:
    """While the staging database hangs, only those that threads work on are staged."""
    site = Site(options=ReceiverOptions(response_timeout_s=60 if leaves else 0.3))
    site.staging.hold = threading.Event()

    async def run() -> None:
        callers = [Caller(site, build_batch(100 + at)) for at in range(2 * BODIES_MAX)]
        await until(lambda: sum(one.has_read for one in callers) == BODIES_MAX)
        assert site.receiver.bodies.count == BODIES_MAX
        gone = [one for one in callers if one.has_read]
        if leaves:
            for one in gone[THREADS:]:
                await one.leave()
            await until(lambda: all(one.has_read for one in callers[:-THREADS]))
        else:
            await asyncio.gather(*(one.task for one in callers))
            assert {one.status for one in callers} == {400}
            assert site.receiver.bodies.count == THREADS
        site.staging.hold.set()  # type: ignore[union-attr]
        if leaves:
            rest = [one for one in callers if not one.task.done()]
            await asyncio.gather(*(one.task for one in rest))
            assert site.count_staged() == len(rest) == THREADS + BODIES_MAX
        await until(lambda: site.receiver.bodies.count == 0)

    asyncio.run(run())
    site.receiver.close()
    if not leaves:
        assert site.count_staged() == THREADS


def test_bodies_have_so_many_bytes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ones are not read before; one sent in chunks may have requestBytesMax."""
    monkeypatch.setattr(app, "BODIES_BYTES_MAX", 3 * len(build_batch(100)))
    site = Site(options=ReceiverOptions(request_bytes_max=2 * len(build_batch(100))))
    site.staging.hold = threading.Event()

    async def run() -> None:
        callers = [Caller(site, build_batch(100), announces=False)]
        callers += [Caller(site, build_batch(101 + at)) for at in range(4)]
        await until(lambda: sum(one.has_read for one in callers) == 2)
        await asyncio.sleep(0.1)
        assert [one.has_read for one in callers] == [True, True, False, False, False]
        assert site.receiver.bodies.bytes == 3 * len(build_batch(100))
        site.staging.hold.set()  # type: ignore[union-attr]
        await asyncio.gather(*(one.task for one in callers))
        assert {one.status for one in callers} == {200}
        await until(lambda: site.receiver.bodies.bytes == 0)

    asyncio.run(run())
    site.receiver.close()
    assert site.count_staged() == 5


def test_a_body_that_announces_too_much_is_not_read() -> None:
    """The receiver does not wait for it either."""
    site = Site(options=ReceiverOptions(request_bytes_max=len(BODY)))

    async def run() -> None:
        caller = Caller(site, BODY.encode() + b" ")
        await asyncio.wait_for(caller.task, 10)
        assert (caller.status, caller.has_read) == (400, False)

    asyncio.run(run())
    site.receiver.close()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


def test_the_health_of_both_databases(site: Site) -> None:
    """The answers have the published texts."""

    def health() -> tuple[int, str]:
        found = site.client.get("/_/healthz")
        return found.status_code, found.text

    assert health() == (200, "OK")
    site.catalog.fail = PenstockError("away")
    assert health() == (500, "health check failed for target")
    site.staging.get_memo = lambda _key: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    assert health() == (500, "health check failed for staging")


def test_metrics_have_the_published_names(site: Site) -> None:
    """The page has the metrics of receiving."""
    site.post("/shop/public", BODY)
    site.post("/shop/public", BODY)
    site.post("/shop/public", '{"resolved":"8.0"}')
    page = site.client.get("/_/varz").text
    for line in (
        'stage_mutations_total{schema="shop.public",table="accounts"} 1.0',
        'stage_duplicate_mutations_total{schema="shop.public",table="accounts"} 1.0',
        'stage_duration_seconds_count{schema="shop.public",table="accounts"} 2.0',
        'mutations_received_count{kind="webhook",schema="shop.public"} 2.0',
        'mutations_success_count{kind="webhook",schema="shop.public"} 2.0',
        'checkpoint_advance_duration_seconds_count{schema="shop.public"} 1.0',
        'http_status_codes_total{code="200"} 3.0',
        "http_latency_seconds_count 3.0",
        f"http_payload_in_bytes_total {2.0 * len(BODY) + 18}",
        "source_lag_seconds{",
        "jwt_last_refresh_time ",
    ):
        assert line in page, line


# --- access ---------------------------------------------------------------------------------------


def access(*keys: Any, revoked: tuple[str, ...] = ()) -> SignedTokens:
    """Return an access check by tokens of these keys."""
    made = SignedTokens()
    made.load(Keys(public=tuple(map(pem, keys)), revoked=frozenset(revoked)))
    return made


@pytest.mark.parametrize("algorithm", ["ES256", "ES384", "ES512", "RS256", "RS384", "RS512"])
def test_each_algorithm_and_each_active_key(algorithm: str) -> None:
    """The token is in the header or a parameter; a request without one gets the published text."""
    key = RSA_KEY if algorithm[0] == "R" else ec.generate_private_key(CURVES[algorithm]())
    site = Site(access(ec.generate_private_key(ec.SECP256R1()), key))
    good = token(key, algorithm, GRANTED)
    assert site.post("/shop/public", BODY) == (401, "missing or invalid access token")
    for headers in ({"Authorization": f"Bearer {good}"}, {"Authorization": f"bearer  {good} "}):
        assert site.post("/shop/public", BODY, headers=headers)[0] == 200
    assert site.post(f"/shop/public?access_token={good}", BODY)[0] == 200
    assert site.post("/nothing", BODY)[0] == 404


def respell(signed: str) -> str:
    """Return a token with another last character, whose unused bits only are different."""
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    return signed[:-1] + letters[letters.index(signed[-1]) ^ 1]


def test_a_small_rsa_key_may_sign_without_a_warning() -> None:
    """PyJWT would warn of it in the middle of a request."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    program = (
        "import sys\n"
        "from penstock.ports.feeds import Keys\n"
        "from penstock.feeds.receiver.access import SignedTokens\n"
        "tokens = SignedTokens()\n"
        "tokens.load(Keys(public=(sys.argv[1],), revoked=frozenset()))\n"
        "print(tokens.allows(sys.argv[2], ('shop', 'public')))\n"
    )
    arguments = [sys.executable, "-c", program, pem(key), token(key, "RS256", GRANTED)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


KEY = ec.generate_private_key(ec.SECP256R1())


def now_s() -> float:
    """Return the time, when a token is made: a run of all tests takes longer than one is valid."""
    return REAL_CLOCK.now_us() / 1e6


@pytest.mark.parametrize(
    ("made", "allowed"),
    [
        (lambda: token(KEY, "ES256", GRANTED), True),
        (lambda: token(KEY, "ES256", {"jti": "a", CLAIMS[1]: {"schemas": [["SHOP", "*"]]}}), True),
        (lambda: token(KEY, "ES256", {"jti": "a", CLAIMS[0]: {"schemas": [["*", "*"]]}}), True),
        (lambda: token(KEY, "ES256", {**GRANTED, "exp": now_s() + 900, "nbf": now_s() - 9}), True),
        (lambda: token(KEY, "ES256", {"jti": "a", CLAIMS[0]: {"schemas": [["*"]]}}), False),
        (lambda: token(KEY, "ES256", {"jti": "a", CLAIMS[0]: {"schemas": [["x", "*"]]}}), False),
        (lambda: token(KEY, "ES256", {"jti": "a", CLAIMS[0]: {"schemas": [["*"] * 3]}}), False),
        (lambda: token(KEY, "ES256", {"jti": "a", CLAIMS[0]: {"schemas": "*"}}), False),
        (lambda: token(KEY, "ES256", {"jti": "a"}), False),
        (lambda: token(KEY, "ES256", {CLAIMS[0]: GRANTED[CLAIMS[0]]}), False),
        (lambda: token(KEY, "ES256", {**GRANTED, "jti": "gone"}), False),
        (lambda: token(KEY, "ES256", {**GRANTED, "jti": 7}), False),
        (lambda: token(KEY, "ES256", {**GRANTED, "exp": now_s() - 1}), False),
        (lambda: token(KEY, "ES256", {**GRANTED, "exp": "never"}), False),
        (lambda: token(KEY, "ES256", {**GRANTED, "nbf": now_s() + 900}), False),
        (lambda: token(KEY, "ES256", {**GRANTED, "iat": now_s() + 900}), False),
        (lambda: token(KEY, "ES384", GRANTED), False),
        (lambda: token(KEY, "RS256", GRANTED), False),
        (lambda: token(KEY, "HS256", GRANTED), False),
        (lambda: token(KEY, "none", GRANTED), False),
        (lambda: token(KEY, "ES256", GRANTED, crit=["x"]), False),
        (lambda: token(RSA_KEY, "ES256", GRANTED), False),
        (lambda: token(RSA_KEY, "RS256", GRANTED), False),
        (lambda: token(KEY, "ES256", GRANTED)[:-4] + "AAAA", False),
        (lambda: token(KEY, "ES256", GRANTED).rpartition(".")[0] + ".", False),
        (lambda: respell(token(KEY, "ES256", GRANTED)), False),
        (lambda: PyJWS().encode(b'{"jti":"\xff"}', KEY, "ES256"), False),
        (lambda: "Iv8i.e30.e30", False),
        (lambda: "a.b", False),
        (lambda: "....", False),
        (lambda: "é.é.é", False),
        (lambda: "[.[.[", False),
    ],
)  # fmt: skip
def test_who_is_let_in(made: Callable[[], str], allowed: bool) -> None:
    """A request needs an active key's signature, a valid id, the right schema and time."""
    assert access(KEY, revoked=("gone",)).allows(made(), SHOP) is allowed


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "x",
        pem(ed25519.Ed25519PrivateKey.generate()),
        pem(ec.generate_private_key(ec.SECP256K1())),
    ],
)
def test_a_key_that_cannot_be_used_keeps_nothing_from_being_revoked(broken: str) -> None:
    """PublicKeyBroken is raised; revoked tokens and keys stay out, the other keys are in force."""
    other = ec.generate_private_key(ec.SECP256R1())
    tokens = access(KEY, other)
    with pytest.raises(PublicKeyBroken):
        tokens.load(Keys(public=(broken, pem(KEY)), revoked=frozenset({"gone"})))
    assert tokens.allows(token(KEY, "ES256", GRANTED), SHOP)
    assert not tokens.allows(token(KEY, "ES256", {**GRANTED, "jti": "gone"}), SHOP)
    assert not tokens.allows(token(other, "ES256", GRANTED), SHOP)


def test_one_token_opens_every_schema() -> None:
    """The setting is authentication = "token"."""
    site = Site(OneToken("a token that is hard to guess"))
    assert site.post("/shop/public?access_token=wrong", BODY)[0] == 401
    headers = {"Authorization": "Bearer a token that is hard to guess"}
    assert site.post("/shop/public", BODY, headers=headers)[0] == 200


def test_diagnostics_need_a_token() -> None:
    """The token may be of any schema; diagnostics have no key, no token and no revoked id."""
    site = Site(access(KEY, revoked=("gone",)))
    assert site.client.get("/_/diag").status_code == 401
    good = token(KEY, "ES256", {"jti": "a", CLAIMS[0]: {"schemas": [["x"]]}})
    found = site.client.get("/_/diag", headers={"Authorization": f"Bearer {good}"}).json()
    assert found["access"] == {"authentication": "jwt", "public_keys": 1, "revoked": 1}
    assert site.client.get("/_/other").status_code == 404


def test_a_lost_session_is_replaced() -> None:
    """A session that failed like a connection is closed; one that only refused is kept."""
    opened, closed = [], []

    class Counting(FakeStaging):
        def open_session(self) -> Any:  # type: ignore[override]
            from contextlib import contextmanager

            @contextmanager
            def session() -> Iterator[FakeStaging]:
                opened.append(1)
                yield self
                closed.append(1)

            return session()

    database = Counting()
    with Sessions(database, 1) as sessions:
        with sessions.session() as session:
            session.advance(SHOP, "p", Hlc(5))
        with pytest.raises(PenstockError), sessions.session() as session:
            session.advance(SHOP, "p", Hlc(4))
        assert (len(opened), len(closed)) == (1, 0)
        with pytest.raises(OSError, match="away"), sessions.session():
            raise OSError("away")
        assert (len(opened), len(closed)) == (1, 1)
        with sessions.session() as session:
            session.prepare([StagedTable(SHOP, "accounts")])
    assert (len(opened), len(closed)) == (2, 2)
