"""SQL Server: source and target."""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.sqlserver"

DESCRIPTOR = Descriptor(
    name="sqlserver",
    shown="SQL Server",
    extra="sqlserver",
    libraries=("mssql_python",),
    schemes={"sqlserver": "sqlserver"},
    start_keys=frozenset({"startLsn"}),
    options={"changeExtractor": frozenset({"startLsn"})},
    begins=(
        "starts at a log sequence number",
        "name the place with startLsn",
    ),
    has_schemas=True,
    sends_heartbeats=False,
    example="sqlserver://user:${PASSWORD}@host:1433/database",
    parts={
        "extraction": f"{_HERE}.extraction",
        "lag": f"{_HERE}.lag:SQLServerLagReader",
        "options": f"{_HERE}.url",
        "position": "penstock.codec.sqlserver.lsn:SqlServerLsn",
        "positions": f"{_HERE}.positions:positions_of",
        "reach": f"{_HERE}.url:reach",
        "reset": f"{_HERE}.reset",
    },
)
