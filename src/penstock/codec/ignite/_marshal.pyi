from typing import Any

from penstock.codec.ignite.types import Types

def decode(data: bytes, kind: int, types: Types) -> Any: ...
