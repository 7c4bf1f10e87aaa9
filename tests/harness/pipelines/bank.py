"""A bank under load, and a reader who checks its books in the copy.

The invariant: transfers move money between accounts, and between accounts and vaults (another
table); they never create or lose any. Every reader of the target must see the total unchanged at
any moment, because one batch is one transaction over all tables; and when all is quiet the target
equals the source row by row.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

from harness.pipelines.bank_engines import (
    Dialect,
    NothingThere,
    ServerGone,
    Session,
    dialect_of,
    session,
    transaction,
)

ACCOUNT_COUNT = 200
OPENING_BALANCE = 1000
VAULT_COUNT = 5
TOTAL = (ACCOUNT_COUNT + VAULT_COUNT) * OPENING_BALANCE
LARGE_ROWS = 600  # larger than logical_decoding_work_mem: streamed while in progress
READ_INTERVAL_S = 0.02
BOOKS = """
    select (select count(*) from account), (select count(*) from vault),
           (select sum(balance) from account) + (select sum(amount) from vault)
"""

# Tables with equal rows are equal, in any order.
CONTENTS = {
    "account": "select id, owner, balance, {digest} from account",
    "transfer": "select id, giver, taker, amount, {at} from transfer",
    "vault": "select id, amount from vault",
    "journal": "select line, amount from journal",
}


class Bank:
    """A workload of small transactions until it is stopped. It survives a server's crash."""

    def __init__(self, url: str, seed: int, *, xa: bool = False, pause_s: float = 0.002) -> None:
        """Create the tables; seed decides all that follows.

        xa: some transactions are prepared. pause_s: between two transactions.
        """
        self.pause_s = pause_s
        self._url = url
        self._dialect = dialect_of(url)
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._error: BaseException | None = None
        self._has_xa = xa and self._dialect.has_xa
        self.transaction_count = 0
        make(url, self._dialect)

    def __enter__(self) -> Bank:
        """Start the workload."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workload. Raises an error that it could not survive. May be called again."""
        self._stop.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise the error that the workload could not survive, if there is one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    with session(self._url, self._dialect.namespace) as connection:
                        while not self._stop.is_set():
                            self._transact(connection)
                            self.transaction_count += 1
                            time.sleep(self.pause_s)
                except ServerGone:
                    time.sleep(0.1)  # the server was killed: that is part of the test
        except BaseException as error:
            self._error = error

    def _transact(self, connection: Session) -> None:
        roll = self._random.random()
        giver, taker = self._random.sample(range(1, ACCOUNT_COUNT + 1), 2)
        amount = self._random.randint(1, 50)
        if self._has_xa and 0.43 < roll < 0.45:
            _in_two_phases(connection, giver, taker, amount)
            return
        with transaction(connection):
            _transfer(connection, giver, taker, amount)
            if roll < 0.2:
                connection.execute("insert into journal values (%s, %s)", ("line", amount))
            elif roll < 0.25:
                connection.execute(self._dialect.delete_one)
            elif roll < 0.3:
                _swap(connection, giver, taker)
            elif roll < 0.32:
                connection.execute("delete from transfer where mod(id, 7) = %s", (giver % 7,))
            elif roll < 0.42:
                _deposit(connection, giver, 1 + taker % VAULT_COUNT, amount)
            elif roll < 0.425:
                _fill_journal(connection, self._dialect, amount)
            elif roll < 0.427:
                connection.execute(self._dialect.empty)


def make(url: str, dialect: Dialect) -> None:
    """Create the bank's tables and give every account some money."""
    counts = {"opening": OPENING_BALANCE, "accounts": ACCOUNT_COUNT, "vaults": VAULT_COUNT}
    with session(url, dialect.namespace) as connection:
        for statement in dialect.schema:
            connection.execute(statement.format(**counts))


def _transfer(connection: Session, giver: int, taker: int, amount: int) -> None:
    """Transfer money from one account to another."""
    connection.execute("update account set balance = balance - %s where id = %s", (amount, giver))
    connection.execute(
        "insert into transfer (giver, taker, amount) values (%s, %s, %s)", (giver, taker, amount)
    )
    connection.execute("update account set balance = balance + %s where id = %s", (amount, taker))


def _in_two_phases(connection: Session, giver: int, taker: int, amount: int) -> None:
    """Make a transfer that stays prepared for a moment."""
    connection.execute("xa start 'transfer'")
    _transfer(connection, giver, taker, amount)
    for phase in ("end", "prepare", "commit"):
        connection.execute(f"xa {phase} 'transfer'")


def _swap(connection: Session, one: int, other: int) -> None:
    """Swap two accounts: keys swap, unchanged TOAST moves with them."""
    connection.execute("update account set id = -id where id in (%s, %s)", (one, other))
    connection.execute(
        "update account set id = case id when %s then %s else %s end where id in (%s, %s)",
        (-one, other, one, -one, -other),
    )


def _deposit(connection: Session, account: int, vault: int, amount: int) -> None:
    """Move money from one table to another."""
    connection.execute("update account set balance = balance - %s where id = %s", (amount, account))
    connection.execute("update vault set amount = amount + %s where id = %s", (amount, vault))


def _fill_journal(connection: Session, dialect: Dialect, amount: int) -> None:
    """Run a large transaction that is partly rolled back."""
    fill = dialect.fill.format(rows=LARGE_ROWS)
    connection.execute(fill, (amount,))
    connection.execute("savepoint before_more")
    connection.execute(fill, (-amount,))
    connection.execute("rollback to savepoint before_more")
    connection.execute(
        "delete from journal where left(line, 5) = 'large' and line <> 'large 1' and amount = %s",
        (amount,),
    )


@dataclass(slots=True)
class Reader:
    """Reads the target all the time; records every total that is not the bank's.

    Attributes:
        namespace: Schema or database of the bank there.
        excuse: SQL of a number; unless it is 0, tables may be at different commits in that read.
        may_look_again: The excuse is of a moment after the one of the rows: a second read decides.
    """

    url: str
    namespace: str = "public"
    excuse: str = "0"
    may_look_again: bool = False
    excused_count: int = 0
    read_count: int = 0
    wrong: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Reader:
        """Start reading; counting begins when the whole bank is there for the first time."""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _look(self, connection: Session) -> tuple[tuple[int, ...], int]:
        """Return the books, and the excuse for tables at different commits; 0 if there is none."""
        query = f"{BOOKS.rstrip()}, ({self.excuse})"
        found = connection.execute(query + dialect_of(self.url).no_table)[0]
        *row, excuse = (int(value or 0) for value in found)
        return tuple(row), excuse

    def _read(self) -> None:
        complete = False
        while not self._stop.is_set():
            try:
                with session(self.url, self.namespace) as connection:
                    while not self._stop.wait(READ_INTERVAL_S):
                        row, excuse = self._look(connection)
                        seen = row == (ACCOUNT_COUNT, VAULT_COUNT, TOTAL)
                        if not seen and not excuse and self.may_look_again and complete:
                            self.excused_count += 1
                            row, excuse = self._look(connection)
                            seen = row == (ACCOUNT_COUNT, VAULT_COUNT, TOTAL)
                        complete = complete or seen
                        if complete:
                            self.read_count += 1
                            self.excused_count += bool(excuse) and not seen
                            if not seen and not excuse:
                                when = time.strftime("%H:%M:%S")
                                self.wrong.append(f"read {self.read_count} at {when}: {row}")
            except (ServerGone, NothingThere):
                time.sleep(0.1)  # does not exist yet, or the server was killed


def contents(url: str, namespace: str) -> dict[str, list[tuple[object, ...]]]:
    """Return every table's rows, in a fixed order."""
    dialect = dialect_of(url)
    texts = {"at": dialect.at, "digest": dialect.digest.format("story")}
    with session(url, namespace) as connection:
        return {
            table: sorted(map(dialect.show, connection.execute(query.format(**texts))), key=repr)
            for table, query in CONTENTS.items()
        }


def differences(source: str, target: str) -> list[str]:
    """Return the tables whose rows differ between two databases, with the first row that does."""
    found = []
    namespace = dialect_of(source).namespace
    left, right = contents(source, namespace), contents(target, namespace)
    for table, ours in left.items():
        theirs = right[table]
        if ours != theirs:
            missing = sorted(set(map(repr, ours)) - set(map(repr, theirs)))[:3]
            surplus = sorted(set(map(repr, theirs)) - set(map(repr, ours)))[:3]
            found.append(
                f"{table}: {len(ours)} rows here, {len(theirs)} there;"
                f" missing {missing}, surplus {surplus}"
            )
    return found
