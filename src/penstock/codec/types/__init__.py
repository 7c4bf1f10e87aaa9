"""Mapping of types from each source to each target: the target's type, conversion and losses.

`map_table` and `map_column` return it for a table and a column. Names across engines are here too.
No I/O.
"""

from penstock.codec.types.lake_values import (
    ValueUnfit,
    convert_values,
    lake_arrow_type,
    parse_value,
)
from penstock.codec.types.mapping import (
    FULL_YEAR,
    LOSSES,
    NO_CHOICES,
    Choices,
    Equality,
    Loss,
    Mapping,
    TypeChoiceInvalid,
    TypeChoiceUnknown,
    Write,
    fill_template,
    parse_choices,
)
from penstock.codec.types.names import (
    NameRefused,
    NameRules,
    problems,
    target_columns,
    target_names,
)
from penstock.codec.types.prepare import prepare_values
from penstock.codec.types.source_type import Engine, Server, SourceType, builtin_types
from penstock.codec.types.table import (
    fit_row,
    key_room,
    key_room_of_rows,
    map_column,
    map_lake_column,
    map_table,
)
from penstock.codec.types.to_lake import (
    LakeMapping,
    feature_of,
)

__all__ = [
    "FULL_YEAR",
    "LOSSES",
    "NO_CHOICES",
    "Choices",
    "Engine",
    "Equality",
    "LakeMapping",
    "Loss",
    "Mapping",
    "NameRefused",
    "NameRules",
    "Server",
    "SourceType",
    "TypeChoiceInvalid",
    "TypeChoiceUnknown",
    "ValueUnfit",
    "Write",
    "builtin_types",
    "convert_values",
    "feature_of",
    "fill_template",
    "fit_row",
    "key_room",
    "key_room_of_rows",
    "lake_arrow_type",
    "map_column",
    "map_lake_column",
    "map_table",
    "parse_choices",
    "parse_value",
    "prepare_values",
    "problems",
    "target_columns",
    "target_names",
]
