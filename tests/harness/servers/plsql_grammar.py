"""Debezium's grammar of PL/SQL in a Java process, as an independent judge of texts for Oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)

from harness.maven import copy_jars


@contextmanager
def plsql_grammar() -> Iterator[Callable[[str], int]]:
    """Yield a function that returns the number of errors that the grammar finds in a text."""
    (driver,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
    port = launch_gateway(
        jarpath=str(driver),
        classpath=":".join(map(str, copy_jars("plsql"))),
        # Java's warnings would come before the port, which is read from its standard output.
        javaopts=["-Xmx512m", "-Xlog:disable"],
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield lambda text: count_errors(gateway.jvm, text)
    finally:
        gateway.shutdown()


def count_errors(java: Any, text: str) -> int:
    """Return the number of errors in a text: characters of no token, and places of no rule."""
    antlr = java.org.antlr.v4.runtime
    grammar = java.io.debezium.ddl.parser.oracle.generated
    chars = antlr.CharStreams.fromString(text)
    lexer = grammar.PlSqlLexer(java.io.debezium.antlr.CaseChangingCharStream(chars, True))
    lexer.removeErrorListeners()
    tokens = antlr.CommonTokenStream(lexer)
    tokens.fill()
    known = sum(one.getStopIndex() - one.getStartIndex() + 1 for one in tokens.getTokens())
    parser = grammar.PlSqlParser(tokens)
    parser.removeErrorListeners()
    parser.sql_script()
    errors: int = parser.getNumberOfSyntaxErrors()
    return errors + (known != chars.size())
