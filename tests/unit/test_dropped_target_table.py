"""A captured table that the target does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.engines.mysql.target.target import require as require_mysql
from penstock.engines.postgres.target.target import require as require_postgres
from penstock.model import TableName
from penstock.ports.target import TargetTableMissing


@pytest.mark.parametrize("require", [require_mysql, require_postgres])
def test_the_hint_loads_the_table_again(
    require: Callable[[dict[TableName, Any], TableName], object],
) -> None:
    """Setting a mode that is already in use would have no effect: the hint is the command for a
    table.
    """
    with pytest.raises(TargetTableMissing) as caught:
        require({}, TableName("shop", "item"))
    assert "penstock table resync FILE TABLE" in caught.value.hint
    assert "mode" not in caught.value.hint
