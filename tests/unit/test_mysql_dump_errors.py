"""Errors with which servers refuse a binlog dump, in old and new words: each has its condition."""

from __future__ import annotations

import pickle

import pytest

from penstock.codec.mysql.mysqlwire import ServerError
from penstock.engines.mysql.source import dump_errors as r
from penstock.host.errors import ConnectionLost, PrivilegeMissing, StatementFailed
from penstock.model import PenstockError

FATAL = 1236
SENTENCES: list[tuple[int, str, type[PenstockError]]] = [
    (FATAL, "Could not find first log file name in binary log index file", r.LogPurged),
    (
        FATAL,
        "The slave is connecting using CHANGE MASTER TO MASTER_AUTO_POSITION = 1, but the master "
        "has purged binary logs containing GTIDs that the slave requires.",
        r.GtidsPurged,
    ),
    (
        FATAL,
        "Cannot replicate because the master purged required binary logs. Replicate the missing "
        "transactions from elsewhere, or provision a new slave from backup.",
        r.GtidsPurged,
    ),
    (
        FATAL,
        "Cannot replicate because the source purged required binary logs. Replicate the missing "
        "transactions from elsewhere. The GTID set sent by the replica is '', and the missing "
        "transactions are 'b3f0:1-5'",
        r.GtidsPurged,
    ),
    (
        FATAL,
        "Could not find GTID state requested by slave in any binlog files. Probably the slave "
        "state is too old and required binlog files have been purged.",
        r.GtidsPurged,
    ),
    (
        FATAL,
        "Slave has more GTIDs than the master has, using the master's SERVER_UUID. This may "
        "indicate that the end of the binary log was truncated or that the last binary log file "
        "was lost",
        r.ServerBehind,
    ),
    (
        FATAL,
        "Replica has more GTIDs than the source has, using the source's SERVER_UUID.",
        r.ServerBehind,
    ),
    (
        FATAL,
        "Error: connecting slave requested to start from GTID 0-1-4000, which is not in the "
        "master's binlog",
        r.ServerBehind,
    ),
    (
        FATAL,
        "Error: connecting slave requested to start from GTID 0-7-3, which is not in the master's "
        "binlog. Since the master's binlog contains GTIDs with higher sequence numbers, it "
        "probably means that the slave has diverged due to executing extra erroneous transactions",
        r.ServerBehind,
    ),
    (FATAL, "Client requested master to start replication from position > file size",
     r.PositionUnfit),
    (FATAL, "Client requested source to start replication from position > file size",
     r.PositionUnfit),
    (FATAL, "Client requested master to start replication from position < 4", r.PositionUnfit),
    (FATAL, "Client requested master to start replication from impossible position",
     r.PositionUnfit),
    (
        FATAL,
        "binlog truncated in the middle of event; consider out of disk space on master; the first "
        "event 'binlog.000001' at 150, the last event read from './binlog.000001' at 123",
        r.PositionUnfit,
    ),
    (FATAL, "bogus data in log event; the first event 'binlog.000001' at 150", r.PositionUnfit),
    (
        FATAL,
        "could not find next log; the first event 'binlog.000002' at 4, the last event read from",
        r.LogReset,
    ),
    (
        FATAL,
        "A slave with the same server_uuid/server_id as this slave has connected to the master",
        r.ServerIdInUse,
    ),
    (
        FATAL,
        "A replica with the same server_uuid/server_id as this replica has connected to the "
        "source",
        r.ServerIdInUse,
    ),
    (4052, "A slave with the same server_id is already connected", r.ServerIdInUse),
    (FATAL, "I/O error reading log event; the first event 'binlog.000001' at 4", r.LogUnreadable),
    (
        FATAL,
        "log event entry exceeded max_allowed_packet; Increase max_allowed_packet on master",
        r.EventTooLong,
    ),
    (FATAL, "Binary log is not open", r.LogOff),
    (
        FATAL,
        "The replication sender thread cannot start in AUTO_POSITION mode: this server has "
        "GTID_MODE = OFF instead of ON.",
        r.LogOff,
    ),
    (FATAL, "Something that no server has said before", r.DumpRefused),
    (1227, "Access denied; you need (at least one of) the REPLICATION SLAVE privilege(s)",
     PrivilegeMissing),
    (1045, "Access denied for user 'u'@'h'", PrivilegeMissing),
    (1053, "Server shutdown in progress", ConnectionLost),
    (1064, "You have an error in your SQL syntax", StatementFailed),
]  # fmt: skip


@pytest.mark.parametrize(("number", "said", "kind"), SENTENCES)
def test_a_sentence_is_its_condition(number: int, said: str, kind: type[PenstockError]) -> None:
    """The error has the place, the server's words and what to do; across processes too."""
    error = r.dump_error(
        ServerError(number=number, sqlstate="HY000", message=said), place="h:1", start="b.1:4"
    )
    assert type(error) is kind
    assert "h:1" in error.message
    assert "b.1:4" in error.message
    assert said in error.message
    assert error.hint
    assert error.fields["errno"] == number
    assert pickle.loads(pickle.dumps(error)).as_dict() == error.as_dict()


def test_the_oldest_position_is_named_where_it_helps() -> None:
    """The oldest position helps after a purge or reset; other errors do not show it."""
    purged = ServerError(number=FATAL, sqlstate="", message="could not find first log file name")
    error = r.dump_error(purged, place="h:1", start="b.1:4", oldest="b.7:4")
    assert error.message.endswith("the oldest position left is b.7:4")
    assert error.fields["oldest"] == "b.7:4"


def test_missing_rights_name_the_grant() -> None:
    """The hint is the statement to type."""
    denied = ServerError(number=1227, sqlstate="42000", message="Access denied")
    assert "grant replication slave" in r.dump_error(denied, place="h", start="b.1:4").hint
