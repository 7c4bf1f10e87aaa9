"""One table of types, from each source to each target: what holds a value, how, and at what loss.

`map_table` and `map_column` say it for a table and a column. Names across engines are here
too. No I/O.
"""

from penstock.codec.types.forms import FULL_YEAR, filled
from penstock.codec.types.losses import (
    LOSSES,
    NO_CHOICES,
    Choices,
    Loss,
    TypeChoiceInvalid,
    TypeChoiceUnknown,
    parse_choices,
)
from penstock.codec.types.mapping import Equality, Mapping, Write
from penstock.codec.types.names import (
    NameRefused,
    NameRules,
    problems,
    target_columns,
    target_names,
)
from penstock.codec.types.prepare import prepared
from penstock.codec.types.sides import Engine, Server
from penstock.codec.types.source_type import SourceType, builtin_types
from penstock.codec.types.table import fit_row, key_room, map_column, map_table

__all__ = [
    "FULL_YEAR",
    "LOSSES",
    "NO_CHOICES",
    "Choices",
    "Engine",
    "Equality",
    "Loss",
    "Mapping",
    "NameRefused",
    "NameRules",
    "Server",
    "SourceType",
    "TypeChoiceInvalid",
    "TypeChoiceUnknown",
    "Write",
    "builtin_types",
    "filled",
    "fit_row",
    "key_room",
    "map_column",
    "map_table",
    "parse_choices",
    "prepared",
    "problems",
    "target_columns",
    "target_names",
]
