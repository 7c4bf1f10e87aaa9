"""All Iceberg tables at one commit without the table of batches: tags, and commits of several.

Money is moved between tables, as in `test_versions.py`. Not here: `penstock.lake`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from harness.lake.iceberg import Place, rest_place, run_sql
from harness.lake.rest_catalogue import RestCatalogue, serve_catalogue
from harness.lake.spark import lake_session
from lake.test_versions import TABLES, TOTAL, Bank, check
from penstock.control.status.lake_view import LakeCommit
from penstock.engines.iceberg.catalogue import FORMAT
from penstock.engines.lake.format import Expiry
from penstock.engines.lake.jars import ICEBERG_JARS, class_path
from penstock.engines.lake.tags import KEPT_US, PREFIX
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.target import AppliedByAnother
from plugins.shared import SharedSpark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    # py4j closes the connection of a thread that has ended only when it is collected.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

ROUNDS = 3
FUTURE_US = 4_000_000_000_000_000
POINTS = (
    "lake.together.before",
    "iceberg.together.before",
    "iceberg.together.after",
    "lake.together.after",
    "lake.batch.after",
)
Versions = tuple[int, ...]


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session with Iceberg's classes."""
    shared_spark.close()
    conf = {"spark.driver.extraClassPath": class_path(ICEBERG_JARS)}
    with lake_session(tmp_path_factory.mktemp("spark"), conf) as running:
        yield running


# --- tags -----------------------------------------------------------------------------------------


class TaggedPlace(Place):
    """Catalogue whose loader tags each batch."""

    def url(self, format_version: int = 3) -> str:
        """Return the URL of a target in the catalogue."""
        return f"{super().url(format_version)}&tagMinutes=0.00001"


def find_table(bank: Bank, name: str) -> Any:
    """Return a table as another loader finds it."""
    table = FORMAT.open(bank.url, bank.session, {}).find(TableName(*name.split(".")))
    assert table is not None
    return table


def list_tags(table: Any) -> dict[str, Any]:
    """Return Iceberg's references of a table that penstock has named."""
    refs = table._java.refs()
    return {str(name): refs.get(name) for name in list(refs) if str(name).startswith(PREFIX)}


def money_at(bank: Bank, tag: str) -> dict[str, int]:
    """Return the money of each table at a tag, as Spark reads it."""
    assert bank.place is not None
    found = {}
    for name in TABLES:
        table = bank.place.sql_name(find_table(bank, name))
        rows = bank.session.spark.sql(f"select sum(money) from {table} version as of '{tag}'")
        found[name] = int(rows.head().getLong(0))
    return found


def test_a_tag_names_one_commit_of_all_tables(session: Session, tmp_path: Path) -> None:
    """Spark reads all tables at each tag as the source had them, also after versions expired."""
    place = TaggedPlace({"type": "hadoop", "warehouse": str(tmp_path / "lake")})
    bank = Bank(tmp_path, session, FORMAT, place)
    place.register(session)
    for _ in range(ROUNDS):
        bank.transfer()
        bank.run.run()
    tags = list_tags(find_table(bank, "penstock.batches"))
    assert len(tags) == ROUNDS + 1
    for name in TABLES:
        table = find_table(bank, name)
        own = list_tags(table)
        assert own.keys() == tags.keys()
        assert {int(ref.maxRefAgeMs()) for ref in own.values()} == {KEPT_US // 1000}
        table.expire(Expiry(before_us=FUTURE_US))
    seen = [money_at(bank, tag) for tag in sorted(tags, key=lambda tag: int(tag[len(PREFIX) :]))]
    assert seen == list(bank.balances.values())
    bank.close()


def test_a_tag_that_fails_stops_nothing(session: Session, tmp_path: Path) -> None:
    """A loader that ends between two tables' tags leaves a batch that is applied."""
    place = TaggedPlace({"type": "hadoop", "warehouse": str(tmp_path / "lake")})
    bank = Bank(tmp_path, session, FORMAT, place)
    bank.transfer()
    with faults.arming("lake.tag.before:1:error"), pytest.raises(FaultInjected):
        bank.run.run()
    bank.run.kill()
    bank.transfer()
    bank.go_on()
    check(penstock.lake(bank.url).at_commit(), bank)
    assert len(list_tags(find_table(bank, "penstock.batches"))) >= 2
    bank.close()


# --- commits of several tables --------------------------------------------------------------------


class Watched(RestCatalogue):
    """REST catalogue that notes the versions of all tables after each request.

    Attributes:
        states: The versions seen.
    """

    def __init__(self, *where: Any, **how: Any) -> None:
        """Build the catalogue; nothing is noted until `is_watching` is set."""
        super().__init__(*where, **how)
        self.is_watching = False
        self.states: set[Versions] = set()

    def _route(self, method: str, path: list[str], query: Any, body: str) -> str:
        answer = super()._route(method, path, query, body)
        if self.is_watching and method == "POST":
            self.states.add(tuple(self._version(name) for name in TABLES))
        return answer

    def _version(self, name: str) -> int:
        schema, _, table = name.partition(".")
        java = self._catalogue.loadTable(self._iceberg.identifier(("shop", schema), table))
        return int(java.currentSnapshot().snapshotId())


Serve = Callable[..., tuple[Watched, Bank]]


@pytest.fixture
def serve(session: Session, tmp_path: Path) -> Iterator[Serve]:
    """Function that makes a bank behind a REST catalogue."""
    with ExitStack() as stack:

        def make(*, has_transactions: bool = True) -> tuple[Watched, Bank]:
            catalogue = Watched(session, tmp_path / "lake", has_transactions=has_transactions)
            uri = stack.enter_context(serve_catalogue(catalogue))
            return catalogue, Bank(tmp_path, session, FORMAT, rest_place(tmp_path / "lake", uri))

        yield make


def sum_at(bank: Bank, versions: Versions) -> int:
    """Return the money at these versions of the tables."""
    found = penstock.lake(bank.url).at_commit()
    other = LakeCommit(
        versions=dict(zip(TABLES, versions, strict=True)),
        gsn=0,
        trx=0,
        position=0,
        commit_time=None,
        _reader=found._reader,
    )
    return sum(sum(other.arrow(name)["money"].to_pylist()) for name in TABLES)


def test_a_catalogue_never_has_half_a_batch(serve: Serve) -> None:
    """Kill the loader around the commit; the catalogue has all tables at one commit all the time.

    Another writer's commit to one of the tables is looked at, and the batch's is repeated.
    """
    catalogue, bank = serve()
    catalogue.is_watching = True
    for point in POINTS:
        bank.transfer()
        with faults.arming(f"{point}:1:error"), pytest.raises(FaultInjected):
            bank.run.run(files_max=1)
        bank.run.kill()
        bank.transfer()
        bank.go_on()
        check(penstock.lake(bank.url).at_commit(), bank)
    bank.place.register(bank.session)
    people = bank.place.sql_name(find_table(bank, "bank.people"))
    before = catalogue.transaction_count
    run_sql(bank.session, f"update {people} set money = money where id < 5")
    bank.transfer()
    bank.run.run()
    check(penstock.lake(bank.url).at_commit(), bank)
    assert catalogue.transaction_count == before + 1 >= 2 * len(POINTS) - 1
    catalogue.is_watching = False
    assert {sum_at(bank, versions) for versions in catalogue.states} == {TOTAL}
    assert len(catalogue.states) > len(POINTS)
    bank.close()


def test_a_second_loader_is_refused(serve: Serve) -> None:
    """A batch that another loader has committed meanwhile is not committed again."""
    _, bank = serve()
    bank.transfer()
    second = bank.connect()
    staged = second.stage()
    bank.run.run()
    with pytest.raises(AppliedByAnother):
        second.apply(staged)
    second.kill()
    check(penstock.lake(bank.url).at_commit(), bank)
    bank.close()


def test_tables_are_committed_one_by_one_without_the_endpoint(serve: Serve) -> None:
    """A catalogue that does not announce the endpoint gets each table's commit."""
    catalogue, bank = serve(has_transactions=False)
    bank.transfer()
    bank.run.run()
    check(penstock.lake(bank.url).at_commit(), bank)
    assert catalogue.transaction_count == 0
    bank.close()
