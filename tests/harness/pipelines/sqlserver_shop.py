"""A shop on SQL Server of the size of the demo's, and customers who keep it busy.

Not here: the demo's own shop (`penstock.engines.postgres.server.shop`).
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing
from typing import Any

from penstock.engines.sqlserver.connect import driver

PRODUCT_COUNT = 400
CUSTOMER_COUNT = 5_000
PURCHASE_COUNT = 20_000
LARGE_ROWS = 20_000
COLUMN_AT, LARGE_AT = 0.4, 0.7  # shares of the time
TABLES = ("product", "customer", "purchase", "purchase_line", "page_view")
CREATE = (
    "CREATE TABLE dbo.product (sku varchar(12) COLLATE Latin1_General_100_BIN2 NOT NULL "
    "PRIMARY KEY, price decimal(10, 2) NOT NULL, description nvarchar(max) NULL, "
    "code uniqueidentifier NULL)",
    "CREATE TABLE dbo.customer (id int NOT NULL PRIMARY KEY, name nvarchar(60) NOT NULL, "
    "born date NULL, is_member bit NOT NULL, balance money NULL)",
    "CREATE TABLE dbo.purchase (id bigint NOT NULL PRIMARY KEY, customer_id int NOT NULL, "
    "state varchar(12) NOT NULL, placed_at datetime2(6) NOT NULL, sent_at datetimeoffset(3) NULL, "
    "note nvarchar(200) NULL)",
    "CREATE TABLE dbo.purchase_line (purchase_id bigint NOT NULL, line int NOT NULL, "
    "sku varchar(12) NOT NULL, quantity smallint NOT NULL, unit_price decimal(10, 2) NOT NULL, "
    "weight float NULL, PRIMARY KEY (purchase_id, line))",
    "CREATE TABLE dbo.page_view (address varchar(40) NOT NULL, page varchar(40) NOT NULL, "
    "viewed_at datetime2(3) NOT NULL)",
)
DIGITS = "(VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9))"
NUMBERS = (
    "(SELECT a.d * 10000 + b.d * 1000 + c.d * 100 + e.d * 10 + f.d + 1 AS i "
    f"FROM {DIGITS} AS a (d) CROSS JOIN {DIGITS} AS b (d) CROSS JOIN {DIGITS} AS c (d) "
    f"CROSS JOIN {DIGITS} AS e (d) CROSS JOIN {DIGITS} AS f (d)) AS numbers WHERE i <= {{}}"
)
FILL = (
    "INSERT INTO dbo.product SELECT concat('sku-', i), i * 1.25, "
    "replicate(cast(concat(N'text ', i, N'; ') AS nvarchar(max)), 900), NULL FROM "
    + NUMBERS.format(PRODUCT_COUNT),
    "INSERT INTO dbo.customer SELECT i, concat(N'customer ', i), '1970-05-06', i % 2, i * 0.5 "
    "FROM " + NUMBERS.format(CUSTOMER_COUNT),
    f"INSERT INTO dbo.purchase SELECT i, i % {CUSTOMER_COUNT} + 1, 'paid', "
    "'2025-01-02T03:04:05.123456', '2025-01-02T03:04:05.120+00:00', NULL FROM "
    + NUMBERS.format(PURCHASE_COUNT),
    f"INSERT INTO dbo.purchase_line SELECT i, 1, concat('sku-', i % {PRODUCT_COUNT} + 1), i % 9, "
    "9.99, i * 0.1 FROM " + NUMBERS.format(PURCHASE_COUNT),
    f"INSERT INTO dbo.purchase_line SELECT i, 2, concat('sku-', i % {PRODUCT_COUNT} + 1), i % 5, "
    "0.01, NULL FROM " + NUMBERS.format(PURCHASE_COUNT),
    "INSERT INTO dbo.page_view SELECT concat('10.0.0.', i % 250), concat('/', i % 40), "
    "'2025-01-02T03:04:05.120' FROM " + NUMBERS.format(2_000),
)


def open_shop(connection_string: str) -> None:
    """Create the tables, capture them, and fill them."""
    capture = (
        f"EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{table}', "
        "@role_name = NULL, @supports_net_changes = 0"
        for table in TABLES
    )
    with closing(driver().connect(connection_string, autocommit=True)) as connection:
        cursor = connection.cursor()
        for text in (*CREATE, *capture, *FILL):
            cursor.execute(text)


class Customers:
    """Customers on a thread of their own: a context manager, which waits for their end.

    Attributes:
        transactions: Number of their transactions so far.
    """

    def __init__(self, connection_string: str, *, seconds: float, seed: int = 7) -> None:
        self.transactions = 0
        self._text = connection_string
        self._seconds = seconds
        self._random = random.Random(seed)
        self._next = PURCHASE_COUNT
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._work_guarded)

    def __enter__(self) -> Customers:
        """Let them begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for their end. Raises their error."""
        self.join()

    def join(self) -> None:
        """Wait for their end. Raises their error."""
        self._thread.join()
        if self._errors:
            raise self._errors.pop()

    def _work_guarded(self) -> None:
        try:
            with closing(driver().connect(self._text, autocommit=True)) as connection:
                self._work(connection.cursor())
        except BaseException as error:
            self._errors.append(error)

    def _work(self, cursor: Any) -> None:
        began_s = time.monotonic()
        has_column = is_large = False
        while (share := (time.monotonic() - began_s) / self._seconds) < 1:
            if share > COLUMN_AT and not has_column:
                has_column = True
                cursor.execute("ALTER TABLE dbo.customer ADD points int NULL")
                cursor.execute(
                    "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', "
                    "@source_name = N'customer', @capture_instance = N'dbo_customer_2', "
                    "@role_name = NULL, @supports_net_changes = 0"
                )
            elif share > LARGE_AT and not is_large:
                is_large = True
                self._commit(cursor, _large())
            else:
                self._commit(cursor, self._choose(has_column=has_column))
        assert has_column
        assert is_large

    def _commit(self, cursor: Any, statements: list[str]) -> None:
        cursor.execute("BEGIN TRANSACTION")
        for text in statements:
            cursor.execute(text)
        cursor.execute("COMMIT TRANSACTION")
        self.transactions += 1

    def _choose(self, *, has_column: bool) -> list[str]:
        chance = self._random
        old = chance.randint(1, PURCHASE_COUNT)
        customer = chance.randint(1, CUSTOMER_COUNT)
        sku = f"sku-{chance.randint(1, PRODUCT_COUNT)}"
        kind = chance.randint(0, 9)
        if kind < 4:
            self._next += 1
            return [
                f"INSERT INTO dbo.purchase VALUES ({self._next}, {customer}, 'new', "
                f"SYSUTCDATETIME(), NULL, N'a note \N{SNOWMAN}')",
                f"INSERT INTO dbo.purchase_line VALUES ({self._next}, 1, '{sku}', 3, 1.50, 0.125), "
                f"({self._next}, 2, '{sku}', 1, 7.25, NULL)",
            ]
        if kind < 6:
            return [
                "UPDATE dbo.purchase SET state = 'sent', "
                f"sent_at = SWITCHOFFSET(SYSDATETIMEOFFSET(), '+00:00') WHERE id = {old}"
            ]
        if kind == 6:
            return [
                f"DELETE FROM dbo.purchase_line WHERE purchase_id = {old}",
                f"DELETE FROM dbo.purchase WHERE id = {old}",
            ]
        if kind == 7:
            change = "price = price + 1"
            if chance.random() < 0.2:
                change = "description = N'new', code = NEWID()"
            return [f"UPDATE dbo.product SET {change} WHERE sku = '{sku}'"]
        if kind == 8 and has_column:
            return [f"UPDATE dbo.customer SET points = {old}, balance = NULL WHERE id = {customer}"]
        return [
            f"INSERT INTO dbo.page_view VALUES ('10.1.1.1', '/{old % 40}', SYSUTCDATETIME())",
            f"UPDATE dbo.purchase_line SET line = line + 10 WHERE purchase_id = {old}",
        ]


def _large() -> list[str]:
    return [
        "INSERT INTO dbo.page_view SELECT '172.16.0.1', concat('/import/', i % 100), "
        "'2025-03-04T05:06:07' FROM " + NUMBERS.format(LARGE_ROWS),
        "UPDATE dbo.customer SET is_member = 1 WHERE id % 2 = 0",
        "DELETE FROM dbo.page_view WHERE page LIKE '/import/1%'",
    ]
