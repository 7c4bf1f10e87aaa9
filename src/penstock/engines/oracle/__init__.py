"""Oracle: source and target."""

from penstock.ports.registry import Descriptor

_HERE = "penstock.engines.oracle"

DESCRIPTOR = Descriptor(
    name="oracle",
    shown="Oracle",
    extra="oracle",
    libraries=("oracledb",),
    schemes={"oracle": "oracle"},
    start_keys=frozenset({"startScn"}),
    options={
        "changeExtractor": frozenset({"startScn", "transactionRowsMax", "transactionHoursMax"})
    },
    begins=(
        "starts at a system change number",
        "name the place with startScn",
    ),
    has_schemas=True,
    sends_heartbeats=False,
    example="oracle://c%23%23penstock:${PASSWORD}@host:1521/service?pdb=NAME",
    parts={
        "options": f"{_HERE}.url",
        "reach": f"{_HERE}.url:reach",
        "leftovers": f"{_HERE}.target.progress",
        "progress": f"{_HERE}.target.progress:connect_progress",
        "target": f"{_HERE}.target.target_engine:OracleTargetEngine",
        "target_state": f"{_HERE}.target.progress:connect_progress",
        "type_rules": f"{_HERE}.target.type_rules:TYPE_RULES",
    },
)
