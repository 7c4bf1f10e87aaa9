"""What a plan asks of MySQL and MariaDB servers."""

from __future__ import annotations

from contextlib import closing

from penstock.codec.typemap import Engine, Server
from penstock.control.config import Config
from penstock.control.plan_facts import APPLICATION_NAME, SourceFacts
from penstock.host.mysql.connect import Connection, connect, rows
from penstock.source.mysql.catalog import Exclusion, open_catalog, survey


def read_source(config: Config) -> SourceFacts:
    """The source and its captured tables. Raises what connecting and the catalogue do."""
    with closing(open_catalog(config.source.url, application_name=APPLICATION_NAME)) as session:
        found = survey(session, config.source.tables)
        out = [one for one in found.excluded if one.reason is not Exclusion.PATTERN]
        return SourceFacts(
            server=_server(session),
            tables=found.tables,
            left_out=tuple(map(str, out)),
            problems=(
                *(f"no table {name} in the source" for name in found.unmatched),
                *(f"{one}, and [source] tables names it" for one in out if one.is_named),
            ),
        )


def read_target(config: Config) -> tuple[Server, int]:
    """The target, and its lower_case_table_names. Raises the errors of connecting."""
    with closing(connect(config.target.url, application_name=APPLICATION_NAME)) as session:
        found = rows(
            session,
            "select @@lower_case_table_names as folding",
            doing="asking the target how it keeps names",
        )
        return _server(session), int(found[0]["folding"])


def _server(session: Connection) -> Server:
    found = session.server
    return Server(engine=Engine(found.flavour.value), version=found.number)
