"""PostgreSQL's errors at a start that doctor's checks find, and reasons for the others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.ports.checks import ITSELF

CHECKS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("PG42", "PG43"), (ITSELF, "PK06")),
        "CT10": ("PG07",),
        "CT11": ("PG07",),
        "CT30": ("PG35",),
        "CT31": ("PG08", "PG35"),
        "CT33": ("PG11",),
        "HS28": ("PG21", "PK10"),
        "LD46": ("PG33", "PG34"),
        "PG47": ("PG15",),
        "PG48": ("PG13", "PG17"),
        "PG50": ("PG10",),
        "PG51": ("PG10",),
        "PG52": ("PG09",),
        "PG53": ("PG10",),
        "PG54": ("PG10",),
        "PG55": ("PG07",),
        "PG56": ("PG07",),
        "PG57": ("PG07",),
        "PG58": ("PG31",),
        "PG59": ("PG11",),
        "PG61": ("PG01",),
        "PG63": ("PG12",),
        "PG64": ("PG12",),
        "PG65": ("PK06",),
        "PG67": ("PG13",),
        "PG74": ("PG09",),
        "PG75": ("PG09",),
        "TG01": ("PK14",),
        "TG02": ("PK08",),
        "TG10": ("PK12",),
        "TG11": ("PK13",),
        "TG12": ("PK13",),
        "TG13": ("PK09",),
        "TG34": ("PG33",),
    }
)
"""See EngineChecks."""

NOT_FOUND_BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "PG60": "the pipeline file: the name of a slot, which is read before doctor's checks",
        "PG44": "of a server at the moment that it is asked for something",
        "PG46 PG66 PG71 PG72": "while changes are followed",
    }
)
"""See EngineChecks."""
