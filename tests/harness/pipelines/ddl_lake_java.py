"""One JVM with a lake's classes, which all loaders of a test process share.

A loader that is killed leaves the JVM and a commit that is under way there, as on a machine that is
slow to end it. Jobs run in the loader's own process.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple
from unittest.mock import patch

from py4j.clientserver import (  # type: ignore[import-untyped]
    ClientServer,
    JavaParameters,
    PythonParameters,
)

from penstock.engines.lake.own_java import OwnJava, keep_java

DELTA, ICEBERG, ICEBERG_2 = "delta", "iceberg", "iceberg2"
LAKES = (DELTA, ICEBERG, ICEBERG_2)
_ANY_LAKE = {
    DELTA: "delta+file:///lake",
    ICEBERG: "iceberg://lake/shop?catalog.type=hadoop&catalog.warehouse=/lake",
}
FRUGAL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # compiling costs more than it saves


class JavaPlace(NamedTuple):
    """Address of a JVM."""

    port: int
    secret: str


def java_of(kind: str) -> OwnJava:
    """Return the JVM for a format, which ends with this process."""
    with patch.dict(os.environ, {"JAVA_TOOL_OPTIONS": FRUGAL}):
        return keep_java(_ANY_LAKE[DELTA if kind == DELTA else ICEBERG])


def place_of(kind: str) -> JavaPlace:
    """Return the address of the JVM for a format."""
    given = java_of(kind)._client.java_parameters
    return JavaPlace(given.port, given.auth_token)


class _Elsewhere:
    """Process of a JVM that another process has started."""

    def poll(self) -> None:
        """Return that it runs."""


def connect(place: JavaPlace) -> OwnJava:
    """Connect to a JVM that another process has started."""
    client: Any = ClientServer(
        java_parameters=JavaParameters(port=place.port, auth_token=place.secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False, auth_token=place.secret),
    )
    return OwnJava(_Elsewhere(), client, {})  # type: ignore[arg-type]
