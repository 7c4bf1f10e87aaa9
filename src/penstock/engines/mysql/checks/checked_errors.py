"""Errors of MySQL and MariaDB at a start that doctor's checks find, and reasons for the others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.ports.checks import ITSELF

CHECKS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CT10": ("MY040",),
        "CT11": ("MY040",),
        "CT36": ("MY042",),
        "CT37": ("MY042",),
        "HS28": ("MY016", "MY039"),
        "MY40": (ITSELF,),
        "MY50": ("MY009", "MY041"),
        "MY51": ("MY009",),
        "MY52": ("MY009", "MY041"),
        "MY53": ("MY009", "MY041"),
        "MY54": ("MY010",),
        "MY57": ("MY014",),
        "MY58": ("MY001",),
        "MY60": ("MY010",),
        "MY70": ("MY017",),
        "MY72": ("MY034",),
        "MY88": ("MY041",),
        "TG01": ("PK20",),
        "TG02": ("MY039",),
        "TG10": ("PK20",),
        "TG34": ("PK20",),
        "TG37": ("PK20",),
    }
)
"""See EngineChecks."""

NOT_FOUND_BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "MY89": "a file of the directory, read by every command",
        "CT38": "of asking for the lag: MY010 has looked at which server answers",
        "MY55 MY59 MY80 MY81 MY82 MY83 MY84 MY85 MY86 MY87": "while the binlog is followed",
    }
)
"""See EngineChecks."""
