"""Replication commands as real clients write them, and invalid ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.servers.commands import MALFORMED
from penstock.codec.postgres.pgwire import quoted_name, quoted_string, start_replication
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.replication_commands import (
    AlterSlot,
    Command,
    CreateSlot,
    DropSlot,
    IdentifySystem,
    ReadSlot,
    Show,
    StartReplication,
    TimelineHistory,
    parse,
)
from penstock.serve.forms import stream_options

SYNC = "pg_16396_sync_16384_7710562921208483796"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IDENTIFY_SYSTEM", IdentifySystem()),
        (" IDENTIFY_SYSTEM ; ", IdentifySystem()),
        ("SHOW data_directory_mode", Show(name="data_directory_mode")),
        ("SHOW a.b", Show(name="a.b")),
        ("TIMELINE_HISTORY 1", TimelineHistory(timeline=1)),
        # A subscriber of PostgreSQL 15 to 18, its synchronizing workers, and with options.
        (
            "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'nothing')",
            CreateSlot(slot="s", plugin="pgoutput", snapshot="nothing"),
        ),
        (
            f"CREATE_REPLICATION_SLOT \"{SYNC}\" LOGICAL pgoutput (SNAPSHOT 'use')",
            CreateSlot(slot=SYNC, plugin="pgoutput", snapshot="use"),
        ),
        (
            "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (TWO_PHASE, SNAPSHOT 'nothing')",
            CreateSlot(slot="s", plugin="pgoutput", snapshot="nothing", two_phase=True),
        ),
        (
            "CREATE_REPLICATION_SLOT s LOGICAL pgoutput (TWO_PHASE false, FAILOVER)",
            CreateSlot(slot="s", plugin="pgoutput", failover=True),
        ),
        # pg_recvlogical, psycopg2, pgjdbc, and clients of servers before 15.
        (
            'CREATE_REPLICATION_SLOT "rl" LOGICAL "pgoutput" ( SNAPSHOT \'nothing\')',
            CreateSlot(slot="rl", plugin="pgoutput", snapshot="nothing"),
        ),
        (
            'CREATE_REPLICATION_SLOT "p2" LOGICAL "pgoutput"',
            CreateSlot(slot="p2", plugin="pgoutput"),
        ),
        (
            'CREATE_REPLICATION_SLOT "dbz"  LOGICAL pgoutput',
            CreateSlot(slot="dbz", plugin="pgoutput"),
        ),
        (
            "CREATE_REPLICATION_SLOT y LOGICAL yboutput NOEXPORT_SNAPSHOT HYBRID_TIME",
            CreateSlot(slot="y", plugin="yboutput", snapshot="nothing", lsn_type="HYBRID_TIME"),
        ),
        (
            "CREATE_REPLICATION_SLOT y LOGICAL yboutput SEQUENCE",
            CreateSlot(slot="y", plugin="yboutput", lsn_type="SEQUENCE"),
        ),
        (
            'CREATE_REPLICATION_SLOT "t" TEMPORARY LOGICAL pgoutput USE_SNAPSHOT',
            CreateSlot(slot="t", plugin="pgoutput", temporary=True, snapshot="use"),
        ),
        (
            'CREATE_REPLICATION_SLOT "t" LOGICAL pgoutput NOEXPORT_SNAPSHOT TWO_PHASE',
            CreateSlot(slot="t", plugin="pgoutput", snapshot="nothing", two_phase=True),
        ),
        ("ALTER_REPLICATION_SLOT f1 ( FAILOVER false );", AlterSlot(slot="f1", failover=False)),
        ('ALTER_REPLICATION_SLOT "f1" ( TWO_PHASE )', AlterSlot(slot="f1", two_phase=True)),
        (f'DROP_REPLICATION_SLOT "{SYNC}" WAIT', DropSlot(slot=SYNC, wait=True)),
        ("DROP_REPLICATION_SLOT RL", DropSlot(slot="rl")),
        ('READ_REPLICATION_SLOT "s"', ReadSlot(slot="s")),
        (
            "START_REPLICATION SLOT \"s\" LOGICAL 0/0 (proto_version '3', streaming 'on', "
            "publication_names '\"p\",\"q''s\"', binary 'true')",
            StartReplication(
                slot="s",
                position=0,
                options={
                    "proto_version": "3",
                    "streaming": "on",
                    "publication_names": '"p","q\'s"',
                    "binary": "true",
                },
            ),
        ),
        (
            'START_REPLICATION SLOT "rl" LOGICAL 16/B374D848 ("proto_version" \'1\')',
            StartReplication(slot="rl", position=0x16_B374D848, options={"proto_version": "1"}),
        ),
        (
            "START_REPLICATION SLOT dbz LOGICAL 0/00000000",
            StartReplication(slot="dbz", position=0),
        ),
    ],
)
def test_what_clients_write(text: str, expected: Command) -> None:
    """Commands may be quoted or not, in the forms of all versions."""
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "select 1", "SELECT pg_catalog.set_config('search_path', '', false);", "BEGIN", "("],
)
def test_sql_is_none(text: str) -> None:
    """A text that does not begin with a command's word is left to the catalogue."""
    assert parse(text) is None


@pytest.mark.parametrize(("text", "sqlstate"), MALFORMED)
def test_what_is_refused(text: str, sqlstate: str) -> None:
    """The SQLSTATE is PostgreSQL's, with which `servers/test_serve_sql.py` compares it."""
    assert outcome(text) == sqlstate


def test_a_repeated_option_is_the_plugins_affair() -> None:
    """The last value counts, and pgoutput refuses both."""
    found = parse("START_REPLICATION SLOT s LOGICAL 0/0 (a '1', a '2', b)")
    assert isinstance(found, StartReplication)
    assert (found.options, found.repeated) == ({"a": "2", "b": ""}, {"a"})
    options = {"proto_version": "1", "publication_names": "p"}
    with pytest.raises(Refused, match="conflicting"):
        stream_options("pgoutput", options, repeated=["proto_version"])
    assert stream_options("pgoutput", options).publications == ("p",)


def test_names_are_cut_as_the_server_cuts_them() -> None:
    """Names are cut to 63 bytes."""
    assert parse(f"DROP_REPLICATION_SLOT {'s' * 70}") == DropSlot(slot="s" * 63)


@pytest.mark.parametrize(
    ("text", "timeline"), [("4294967297", 1), ("9" * 5000, 2**32 - 1), ("0001", 1)]
)
def test_a_timeline_is_a_number_of_32_bits(text: str, timeline: int) -> None:
    """A number of any length is accepted; it wraps around, or is the maximum if it is too long."""
    assert parse(f"TIMELINE_HISTORY {text}") == TimelineHistory(timeline=timeline)


LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
WORDS = st.text(LETTERS, min_size=1, max_size=15)


@given(slot=WORDS, options=st.dictionaries(WORDS, WORDS, min_size=1, max_size=4))
def test_our_own_client_is_understood(slot: str, options: dict[str, str]) -> None:
    """Names and values may contain anything, also quotes and parentheses."""
    sent = start_replication(slot, "A/B", list(options.items()))
    assert parse(sent) == StartReplication(slot=slot, position=0xA_0000000B, options=options)


@given(
    st.lists(st.sampled_from(["SLOT", "LOGICAL", "(", ")", ",", "'", '"', "0/0", "s", "é", "1"]))
)
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    """No other error is raised, however the words are combined."""
    for command in ("START_REPLICATION", "CREATE_REPLICATION_SLOT", "ALTER_REPLICATION_SLOT"):
        for between in ("", " "):
            text = command + " " + between.join(words)
            assert (
                outcome(text) in ("42601", "42602", "0A000", "22023", "XX000")
                or parse(text) is not None
            )


def outcome(text: str) -> str:
    """Return the SQLSTATE of its refusal, or an empty text if it is read."""
    try:
        parse(text)
    except Refused as refused:
        return refused.sqlstate
    return ""


def test_quoting_is_the_clients() -> None:
    """The functions on which the test above depends do quote."""
    assert (quoted_name('a"b'), quoted_string("a'b")) == ('"a""b"', "'a''b'")
