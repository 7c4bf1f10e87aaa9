"""Options of a client's stream: the output plugin's options in START_REPLICATION. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.plugin_json import Wal2Json
from penstock.codec.postgres.plugin_text import TestDecoding
from penstock.model.whole_number import parse_whole
from penstock.serve.forms import AsJson, AsText, Form, PgOutput
from penstock.serve.settings import YUGABYTE

_TEXT, _JSON = "test_decoding", "wal2json"
PLUGINS = ("pgoutput", _TEXT, _JSON)
_YBOUTPUT = "yboutput"
PLUGINS_YUGABYTE = (_YBOUTPUT, *PLUGINS)
PLUGINS_BINARY = ("pgoutput", _YBOUTPUT)
_INVALID, _UNSUPPORTED, _SYNTAX = "22023", "0A000", "42601"
_PROTOCOLS = range(1, 5)
_OPTIONS = (
    *("proto_version", "publication_names", "messages", "binary", "streaming", "two_phase"),
    "origin",
)
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^",\s]+))\s*')
_TRUE, _FALSE = ("true", "on", "yes", "1", "t", ""), ("false", "off", "no", "0", "f")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a stream.

    Streaming of transactions in progress and an origin are accepted: transactions in our log are
    whole, so each is sent as B to C; no row has an origin.

    Attributes:
        publications: names; empty if the form needs none.
    """

    form: Form
    publications: tuple[str, ...] = ()


def check_plugin(name: str, *, dialect: str) -> None:
    """Refuse an output plugin that is not supported. Raises Refused."""
    known = PLUGINS_YUGABYTE if dialect == YUGABYTE else PLUGINS
    if name not in known:
        raise Refused(
            _UNSUPPORTED,
            f'output plugin "{name}" is not served',
            hint=f"Served here: {', '.join(known)}.",
        )


def check_lsn_type(word: str, *, dialect: str) -> None:
    """Refuse unsupported LSNs; `word` is empty for the default. Raises Refused."""
    if word and dialect != YUGABYTE:
        raise Refused(_SYNTAX, f'syntax error at or near "{word}"')


def stream_options(
    plugin: str,
    given: dict[str, str],
    *,
    hybrid: bool = False,
    repeated: Collection[str] = (),
) -> StreamOptions:
    """Return the options of a slot's output plugin. Raises Refused.

    Args:
        plugin: the plugin.
        given: options of the client.
        hybrid: LSNs are of HYBRID_TIME.
        repeated: names that were given twice.
    """
    if repeated and plugin not in (_TEXT, _JSON) and set(repeated) <= set(_OPTIONS):
        raise Refused(_SYNTAX, "conflicting or redundant options")
    found = _of_plugin(plugin, given)
    return replace(found, form=replace(found.form, hybrid=hybrid))


def _of_plugin(plugin: str, given: dict[str, str]) -> StreamOptions:
    if plugin == _TEXT:
        return StreamOptions(form=AsText(plugin=TestDecoding.of(given)))
    if plugin == _JSON:
        return StreamOptions(form=AsJson(plugin=Wal2Json.of(given)))
    return _of_pgoutput(given, changes_only=plugin == _YBOUTPUT)


def _of_pgoutput(given: dict[str, str], *, changes_only: bool) -> StreamOptions:
    for name in given:
        if name not in _OPTIONS:
            raise Refused(_INVALID, f"unrecognized pgoutput option: {name}")
    if "two_phase" in given and _boolean("two_phase", given["two_phase"]):
        raise Refused(
            _UNSUPPORTED,
            "two_phase is not served: the log holds a prepared transaction when it is committed",
            hint="Create the subscription with two_phase = false.",
        )
    if given.get("origin", "any").lower() not in ("none", "any"):
        raise Refused(_INVALID, f'unrecognized origin value: "{given["origin"]}"')
    if given.get("streaming", "").lower() != "parallel":
        _boolean("streaming", given.get("streaming", "off"))
    _check_protocol(given.get("proto_version", "0"))
    if "publication_names" not in given:
        raise Refused(_INVALID, "publication_names option missing")
    return StreamOptions(
        form=PgOutput(
            messages=_boolean("messages", given.get("messages", "off")),
            binary=_boolean("binary", given.get("binary", "off")),
            changes_only=changes_only,
        ),
        publications=_names(given["publication_names"]),
    )


def _check_protocol(value: str) -> None:
    number = parse_whole(value, 2**32 - 1)
    if number is None:
        raise Refused(_INVALID, "invalid proto_version")
    if number not in _PROTOCOLS:
        reason = f"client sent proto_version={number} but server only supports protocol "
        bound = "4 or lower" if number > _PROTOCOLS.stop - 1 else "1 or higher"
        raise Refused(_UNSUPPORTED, reason + bound)


def _names(value: str) -> tuple[str, ...]:
    """Return identifiers between commas: in quotes unchanged, otherwise in lower case."""
    found: list[str] = []
    at = 0
    while True:
        match = _NAME.match(value, at)
        if match is None:
            raise Refused("42602", "invalid publication_names syntax")
        quoted, plain = match.groups()
        found.append(plain.lower() if quoted is None else quoted.replace('""', '"'))
        if match.end() == len(value):
            return tuple(dict.fromkeys(found))
        if value[match.end()] != ",":
            raise Refused("42602", "invalid publication_names syntax")
        at = match.end() + 1


def _boolean(name: str, value: str) -> bool:
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise Refused(_SYNTAX, f"{name} requires a Boolean value")
