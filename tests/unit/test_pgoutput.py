"""Decoder of pgoutput rows: one suite for the twin and the compiled kernel."""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import pyarrow as pa
import pytest

from harness.twins.pgoutput import (
    COMMIT_TIME_US,
    DECODERS,
    MANY,
    TWO,
    UNCHANGED,
    T,
    begin,
    column,
    commit,
    delete,
    feed,
    frame,
    insert,
    keepalive,
    positions_of,
    relation,
    rows_of,
    update,
    xlog,
)
from penstock.codec.columns import TRANSACTIONS_SCHEMA
from penstock.codec.postgres import pgoutput
from penstock.codec.postgres.pgoutput_outcome import BYTE_LIMIT_MAX
from penstock.model import Identity
from penstock.model.position import to_bytes

Decoder = pgoutput.Decoder
DecodeError = pgoutput.DecodeError
Stop = pgoutput.Stop


@pytest.fixture(params=DECODERS)
def kind(request: pytest.FixtureRequest) -> type[Decoder]:
    """Each implementation in turn."""
    return DECODERS[request.param]


@pytest.fixture
def decoder(kind: type[Decoder]) -> Decoder:
    """A decoder with TWO bound."""
    made = kind()
    made.bind(T, TWO)
    return made


def test_the_kernel_is_there_when_it_is_required() -> None:
    """CI sets PENSTOCK_REQUIRE_KERNEL=1: then a missing kernel is a failure, and no fallback is
    used.
    """
    assert pgoutput.COMPILED or os.environ.get("PENSTOCK_REQUIRE_KERNEL") != "1"


def test_make_decoder_picks_the_kernel_unless_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_PURE=1 forces the twin."""
    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    assert type(pgoutput.make_decoder()) is DECODERS.get("kernel", Decoder)
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert type(pgoutput.make_decoder(gsn=4, trx=2)) is Decoder


class TestTransactions:
    def test_rows_carry_numbers_and_operation(self, decoder: Decoder) -> None:
        """GSN counts rows, trx transactions."""
        block = begin() + insert(T, ["1", "a"]) + insert(T, ["2", None]) + commit()
        assert feed(decoder, block) == len(block)
        assert decoder.stop is Stop.MORE
        assert not decoder.in_transaction
        assert (decoder.gsn, decoder.trx, decoder.row_count) == (2, 1, 2)
        assert (decoder.commit_position, decoder.end_position, decoder.xid) == (100, 150, 7)
        assert decoder.commit_time_us == COMMIT_TIME_US
        (taken,) = decoder.take()
        assert taken.relation is TWO
        assert taken.batch.column("gsn").to_pylist() == [1, 2]
        assert taken.batch.column("trx").to_pylist() == [1, 1]
        assert taken.batch.column("op").to_pylist() == [ord("I")] * 2
        assert taken.batch.column("after").to_pylist() == [
            {"id": 1, "größe": "a"},
            {"id": 2, "größe": None},
        ]
        assert decoder.row_count == decoder.byte_count == 0
        assert decoder.take() == []

    def test_an_update_of_the_key_takes_two_numbers(self, decoder: Decoder) -> None:
        """The row has the second one. Equal old values do not make it two."""
        whole = relation(*TWO.columns, name="w", before=(0, 1), identity=Identity.FULL)
        decoder.bind(T + 1, replace(whole, key=(0,)))
        decoder.bind(T + 2, replace(whole, name="keyless", key=()))
        block = begin() + update(T, ["2", "a"], key=["1", None]) + update(T, ["2", "b"])
        block += update(T, ["2", "b"], key=["2", None])  # a server that sends an unnecessary key
        block += update(T + 1, ["2", "b"], old=["2", "a"]) + update(
            T + 1, ["3", "b"], old=["2", "b"]
        )
        block += update(T + 1, [UNCHANGED, "b"], old=["3", "b"])
        block += update(T + 2, ["2", "b"], old=["2", "a"]) + update(
            T + 2, ["2", "b"], old=["2", "b"]
        )
        block += update(T + 2, ["2", None], old=["2", "b"]) + update(
            T + 2, ["2", None], old=["2", None]
        )
        block += update(T + 2, ["2", UNCHANGED], old=["2", "b"]) + update(
            T + 2, ["2", ""], old=["2", None]
        )
        feed(decoder, block + delete(T, key=["2", None]) + insert(T, ["2", "a"]) + commit())
        numbers = sorted(row["gsn"] for row in rows_of(decoder))
        assert numbers == [2, 3, 4, 5, 7, 8, 10, 11, 13, 14, 15, 17, 18, 19]
        assert (decoder.gsn, decoder.trx, decoder.row_count) == (19, 1, 0)

    def test_numbering_goes_on_from_where_it_was(self, kind: type[Decoder]) -> None:
        """After a restart numbers continue after the log's last ones."""
        decoder = kind(gsn=41, trx=8)
        decoder.bind(T, TWO)
        feed(decoder, begin() + insert(T, ["1", "a"]))
        assert decoder.in_transaction
        assert (decoder.gsn, decoder.trx) == (42, 9)

    def test_empty_transactions_are_not_counted(self, decoder: Decoder) -> None:
        """PostgreSQL 14 sends Begin and Commit of every foreign transaction."""
        feed(decoder, begin() + commit() + begin(200) + insert(T, ["1", "a"]) + commit(200, 250))
        assert (decoder.trx, decoder.end_position) == (1, 250)

    def test_a_marker_makes_a_transaction_count_once(self, decoder: Decoder) -> None:
        """A transaction that only truncates has a number too."""
        feed(decoder, begin())
        assert decoder.note_marker() == (0, 1)
        assert decoder.note_marker() == (0, 1)
        feed(decoder, insert(T, ["1", "a"]) + commit())
        assert (decoder.gsn, decoder.trx) == (1, 1)

    def test_transactions_say_where_and_when_they_were_committed(self, decoder: Decoder) -> None:
        """Each counted transaction has one line, with the position that its Begin names."""
        assert decoder.take_transactions() is None
        feed(decoder, begin() + insert(T, ["1", "a"]) + insert(T, ["2", "a"]) + commit())
        feed(decoder, begin(200) + commit(200, 250) + begin(300, xid=9))
        decoder.note_marker()
        feed(decoder, commit(300, 350))
        batch = decoder.take_transactions()
        assert batch.schema.equals(TRANSACTIONS_SCHEMA)
        batch.validate(full=True)
        time = batch.column("commit_time").cast(pa.int64()).to_pylist()
        assert time == [COMMIT_TIME_US] * 2
        rows = batch.drop_columns(["commit_time"]).to_pylist()
        assert [tuple(row.values()) for row in rows] == [
            (to_bytes(100), to_bytes(150), 7, 0),
            (to_bytes(300), to_bytes(350), 9, 0),
        ]
        assert to_bytes(100) == bytes(15) + b"d"
        assert decoder.take_transactions() is None

    def test_begin_and_commit_can_be_called_for_replayed_transactions(
        self, decoder: Decoder
    ) -> None:
        """Dropped (rolled back) subtransactions leave no row and no gap in the numbers."""
        block = insert(T, ["1", "a"], xid=7) + insert(T, ["2", "b"], xid=8)
        block += update(T, ["1", "c"], xid=9) + delete(T, key=["1", None], xid=7)
        decoder.begin(500, COMMIT_TIME_US, 7)
        assert decoder.replay(block, 0, len(block), MANY, [8, 12]) == len(block)
        decoder.commit(550)
        assert [(row["gsn"], chr(row["op"]), row["trx"]) for row in rows_of(decoder)] == [
            (1, "I", 1),
            (2, "U", 1),
            (3, "D", 1),
        ]
        assert positions_of(decoder) == [500]
        assert decoder.end_position == 550

    def test_replay_stops_at_limits_and_messages_and_refuses_begin_and_commit(
        self, decoder: Decoder
    ) -> None:
        """A side file of a streamed transaction has only rows, relations and markers."""
        one = insert(T, ["1", "a"], xid=7)
        relation_frame = xlog(b"R" + struct.pack(">I", 7) + b"...")
        block = one + relation_frame + one + one
        decoder.begin(500, COMMIT_TIME_US, 7)
        at = decoder.replay(block, 0, len(block), MANY, ())
        assert (decoder.stop, at) == (Stop.MESSAGE, len(one + relation_frame))
        assert block[slice(*decoder.message)] == relation_frame[30:]
        at = decoder.replay(block, at, len(block), 2, ())
        assert (decoder.stop, at) == (Stop.LIMIT, len(block) - len(one))
        for misplaced in (begin(), commit(500)):
            with pytest.raises(DecodeError, match="misplaced"):
                decoder.replay(misplaced, 0, len(misplaced), MANY, ())

    def test_misuse_is_refused(self, decoder: Decoder) -> None:
        """Invalid calls raise ValueError and change nothing."""
        for call in (decoder.note_marker, lambda: decoder.commit(5)):
            with pytest.raises(ValueError, match="no transaction"):
                call()
        decoder.begin(1, 2, 3)
        with pytest.raises(ValueError, match="already open"):
            decoder.begin(1, 2, 3)
        with pytest.raises(ValueError, match="row_limit"):
            decoder.feed(b"", 0, 0, 0)
        for start, end in ((-1, 2), (0, 4), (3, 2)):
            with pytest.raises(ValueError, match="within the block"):
                decoder.feed(b"abc", start, end, 1)
        for limit in (0, BYTE_LIMIT_MAX + 1):
            with pytest.raises(ValueError, match="byte_limit"):
                type(decoder)(byte_limit=limit)


class TestImages:
    def test_insert_update_delete(self, decoder: Decoder) -> None:
        """A delete has only a before image; an update has one when the key changed."""
        feed(
            decoder,
            begin()
            + insert(T, ["1", "a"])
            + update(T, ["1", "b"])
            + update(T, ["2", "c"], key=["1", None])
            + delete(T, key=["2", None])
            + commit(),
        )
        assert [(chr(r["op"]), r["after"], r["before"]) for r in rows_of(decoder)] == [
            ("I", {"id": 1, "größe": "a"}, None),
            ("U", {"id": 1, "größe": "b"}, None),
            ("U", {"id": 2, "größe": "c"}, {"id": 1}),
            ("D", None, {"id": 2}),
        ]

    def test_unchanged_toast_is_absent_not_null(self, decoder: Decoder) -> None:
        """Bit i of `absent` says that column i was not sent."""
        feed(decoder, begin() + update(T, ["1", UNCHANGED]) + update(T, ["1", None]) + commit())
        assert [(row["absent"], row["after"]) for row in rows_of(decoder)] == [
            (b"\x02", {"id": 1, "größe": None}),
            (None, {"id": 1, "größe": None}),
        ]

    def test_full_identity_fills_unchanged_cells_from_the_old_image(
        self, kind: type[Decoder]
    ) -> None:
        """The old image of FULL has the values that the new one omits: none is absent."""
        decoder = kind()
        shape = relation(
            column("id", "int64"),
            column("a", "string"),
            column("b", "string"),
            before=(0, 1, 2),
            identity=Identity.FULL,
        )
        decoder.bind(T, shape)
        block = begin() + insert(T, ["1", "x", None])
        block += update(T, ["2", UNCHANGED, UNCHANGED], old=["1", "long", None])
        block += delete(T, old=["2", "long", None]) + commit()
        feed(decoder, block)
        assert [(r["absent"], r["after"], r["before"]) for r in rows_of(decoder)] == [
            (None, {"id": 1, "a": "x", "b": None}, None),
            (None, {"id": 2, "a": "long", "b": None}, {"id": 1, "a": "long", "b": None}),
            (None, None, {"id": 2, "a": "long", "b": None}),
        ]

    def test_unchanged_key_is_filled_from_the_key_image(self, kind: type[Decoder]) -> None:
        """A toasted key is in the key image, and is `unchanged` in the new one."""
        decoder = kind()
        decoder.bind(T, relation(column("k", "string"), column("a", "string")))
        feed(decoder, begin() + update(T, [UNCHANGED, UNCHANGED], key=["long", None]) + commit())
        (row,) = rows_of(decoder)
        assert row["after"] == {"k": "long", "a": None}
        assert row["absent"] == b"\x02"
        assert row["before"] == {"k": "long"}

    def test_thousand_columns_and_absent_bits_in_each_byte(self, kind: type[Decoder]) -> None:
        """PostgreSQL allows 1600 columns; all of them have a bit."""
        decoder = kind()
        shape = relation(*(column(f"c{i}", "int32") for i in range(1600)))
        decoder.bind(T, shape)
        cells = [UNCHANGED if i % 7 == 3 else str(i) for i in range(1600)]
        feed(decoder, begin() + update(T, cells) * 3 + insert(T, list(map(str, range(1600)))))
        rows = rows_of(decoder)
        assert len(rows) == 4
        bits = int.from_bytes(rows[0]["absent"], "little")
        assert [i for i in range(1600) if bits >> i & 1] == list(range(3, 1600, 7))
        assert len(rows[0]["absent"]) == 200
        assert rows[3]["after"] == {f"c{i}": i for i in range(1600)}

    def test_tables_without_columns_or_without_identity(self, kind: type[Decoder]) -> None:
        """Both exist in PostgreSQL; their rows count like others."""
        decoder = kind()
        decoder.bind(1, relation(before=(), name="nothing"))
        decoder.bind(2, relation(column("a", "int16"), before=(), name="no_key"))
        feed(decoder, begin() + insert(1, []) + insert(2, ["5"]) + delete(1, old=[]) + commit())
        assert [(r["gsn"], r["after"], r["before"]) for r in rows_of(decoder)] == [
            (1, {}, None),
            (2, {"a": 5}, None),
            (3, None, {}),
        ]

    def test_columns_that_are_null_in_all_rows(self, kind: type[Decoder]) -> None:
        """Arrow aborts the process on a missing buffer, so there is always one."""
        decoder = kind()
        kinds = ["bool", "int16", "string", "binary", "uuid", "decimal(5,2)", "date", "float32"]
        shape = relation(*(column(f"c{i}", name) for i, name in enumerate(kinds)))
        decoder.bind(T, shape)
        feed(decoder, begin() + insert(T, [None] * 8) + delete(T, key=[None] * 8) + commit())
        rows = rows_of(decoder)
        assert rows[0]["after"] == {f"c{i}": None for i in range(8)}
        assert rows[1]["before"] == {"c0": None}


class TestRelations:
    def test_rows_of_an_old_version_stay_in_its_shape(self, decoder: Decoder) -> None:
        """A table that changes inside a batch gives one batch per version."""
        wider = relation(*TWO.columns, column("n", "int32"), version=2)
        feed(decoder, begin() + insert(T, ["1", "a"]))
        decoder.bind(T, wider)
        assert decoder.bindings() == {T: wider}
        feed(decoder, insert(T, ["2", "b", "3"]) + commit())
        old, new = decoder.take()
        assert (old.relation, new.relation) == (TWO, wider)
        assert old.batch.column("after").to_pylist() == [{"id": 1, "größe": "a"}]
        assert new.batch.column("after").to_pylist() == [{"id": 2, "größe": "b", "n": 3}]

    def test_binding_the_same_relation_again_changes_nothing(self, decoder: Decoder) -> None:
        """The server repeats relations; equal ones share the batch."""
        feed(decoder, begin() + insert(T, ["1", "a"]))
        decoder.bind(T, relation(column("id", "int64"), column("größe", "string")))
        feed(decoder, insert(T, ["2", "b"]))
        assert [rows.batch.num_rows for rows in decoder.take()] == [2]

    def test_many_relations_interleave(self, kind: type[Decoder]) -> None:
        """Rows find their relation among hundreds, whatever the oids are."""
        decoder = kind()
        oids = [16_384 + i * 64 for i in range(500)] + [1, 2**32 - 1]
        for oid in oids:
            decoder.bind(oid, relation(column("id", "int64"), name=f"t{oid}"))
        rounds = b"".join(insert(oid, [str(oid)]) for oid in oids)
        feed(decoder, begin() + rounds * 3 + commit())
        taken = decoder.take()
        assert [rows.relation.name for rows in taken] == [f"t{oid}" for oid in oids]
        assert all(
            rows.batch.column("after").field("id").to_pylist() == [int(rows.relation.name[1:])] * 3
            for rows in taken
        )

    def test_unbinding_forgets_relations_and_keeps_rows(self, decoder: Decoder) -> None:
        """After a reconnect the server announces every relation again."""
        feed(decoder, begin() + insert(T, ["1", "a"]))
        decoder.unbind_all()
        assert decoder.bindings() == {}
        with pytest.raises(DecodeError, match="not announced"):
            feed(decoder, insert(T, ["2", "b"]))
        assert len(rows_of(decoder)) == 1

    def test_ignored_rows_are_passed_over_unread(self, decoder: Decoder) -> None:
        """Ignored rows get no number and do not count for a limit; a transaction of them does not
        count.
        """
        decoder.ignore(9)
        nonsense = xlog(b"I" + struct.pack(">I", 9) + b"anything")
        block = begin(100) + nonsense + delete(9, key=["x", "y", "z"]) + commit(100, 150)
        block += begin(200) + nonsense + insert(T, ["1", "a"]) + nonsense + commit(200, 250)
        assert decoder.feed(block, 0, len(block), 2) == len(block)
        assert (decoder.stop, decoder.gsn, decoder.trx) == (Stop.MORE, 1, 1)
        assert (decoder.row_count, decoder.ignored_count) == (1, 4)
        assert decoder.bindings() == {T: TWO}
        assert [row["after"]["id"] for row in rows_of(decoder)] == [1]

    def test_a_relation_can_be_ignored_and_bound_again(self, decoder: Decoder) -> None:
        """Rows decoded before stay; rows that arrive while it is ignored are dropped."""
        feed(decoder, begin() + insert(T, ["1", "a"]))
        decoder.ignore(T)
        decoder.ignore(T)
        feed(decoder, insert(T, ["2", "b"]) + insert(T, ["3", "c"]))
        decoder.bind(T, TWO)
        feed(decoder, insert(T, ["4", "d"]) + commit())
        assert [(row["gsn"], row["after"]["id"]) for row in rows_of(decoder)] == [(1, 1), (2, 4)]
        assert decoder.ignored_count == 2

    def test_ignored_rows_need_a_transaction_and_an_oid(self, decoder: Decoder) -> None:
        """Ignored rows are refused outside a transaction, without an OID and in a COPY."""
        decoder.ignore(9)
        with pytest.raises(DecodeError, match="outside a transaction"):
            feed(decoder, insert(9, ["1"]))
        with pytest.raises(DecodeError):
            feed(decoder, begin() + xlog(b"I\0\0"))
        with pytest.raises(DecodeError, match="not announced"):
            decoder.feed_copy(b"1\n", 0, 2, 9)

    def test_unbinding_forgets_what_was_ignored(self, decoder: Decoder) -> None:
        """After a reconnect an oid may mean another table."""
        decoder.ignore(9)
        decoder.unbind_all()
        with pytest.raises(DecodeError, match="not announced"):
            feed(decoder, begin() + insert(9, ["1"]))

    def test_many_ignored_relations_among_others(self, kind: type[Decoder]) -> None:
        """There are hundreds, added in any order."""
        decoder = kind()
        for oid in range(1, 600):
            if oid % 3:
                decoder.ignore(oid)
            decoder.bind(oid, relation(column("id", "int64"), name=f"t{oid}"))
            if oid % 3 == 2:
                decoder.ignore(oid)
        feed(decoder, begin() + b"".join(insert(oid, [str(oid)]) for oid in range(1, 600)))
        kept = [oid for oid in range(1, 600) if oid % 3 != 2]
        assert [int(rows.relation.name[1:]) for rows in decoder.take()] == kept

    def test_a_batch_taken_lives_on_its_own(self, kind: type[Decoder]) -> None:
        """Batches own their memory: later rows and the decoder's end do not touch them."""
        decoder = kind()
        decoder.bind(T, TWO)
        block = begin() + b"".join(insert(T, [str(i), "x" * i]) for i in range(100))
        feed(decoder, block)
        (first,) = decoder.take()
        feed(decoder, insert(T, ["7", "y"]) * 500)
        decoder.take()
        del decoder
        assert first.batch.column("after").field("größe").to_pylist()[99] == "x" * 99
        assert first.batch.column("gsn").to_pylist() == list(range(1, 101))


class TestStops:
    def test_a_frame_cut_anywhere_is_left_for_later(self, decoder: Decoder) -> None:
        """The returned offset is the end of the last whole frame at every cut."""
        head = begin()
        block = head + insert(T, ["1", "a"])
        assert feed(decoder, head) == len(head)
        for end in range(len(head), len(block)):
            assert decoder.feed(block, len(head), end, MANY) == len(head)
            assert decoder.stop is Stop.MORE
        assert decoder.feed(block, len(head), len(block), MANY) == len(block)
        assert decoder.row_count == 1

    def test_limit_stops_before_a_row_and_a_commit_passes(self, decoder: Decoder) -> None:
        """A Commit is still read when the limit is reached, so that the batch ends at it."""
        one = insert(T, ["1", "a"])
        block = begin() + one * 2 + commit() + begin(200) + one * 3 + commit(200, 250)
        at = feed(decoder, block, 2)
        assert (decoder.stop, decoder.in_transaction) == (Stop.COMMIT, False)
        assert at == len(begin() + one * 2 + commit())
        decoder.take()
        at = decoder.feed(block, at, len(block), 2)
        assert (decoder.stop, decoder.in_transaction) == (Stop.LIMIT, True)
        assert at == len(block) - len(one + commit())
        assert decoder.feed(block, at, len(block), 2) == at
        decoder.take()
        assert decoder.feed(block, at, len(block), 2) == len(block)
        assert decoder.stop is Stop.MORE

    def test_commit_limit_stops_earlier_than_the_row_limit(self, decoder: Decoder) -> None:
        """Zero stops at every Commit, which gives flush points while the server is busy."""
        one = begin() + insert(T, ["1", "a"]) + commit()
        block = one + begin() + commit() + one
        stops = []
        at = 0
        while at < len(block):
            at = decoder.feed(block, at, len(block), MANY, 0)
            stops.append((decoder.stop, at))
        assert stops == [
            (Stop.COMMIT, len(one)),
            (Stop.COMMIT, len(block) - len(one)),
            (Stop.COMMIT, len(block)),
        ]

    def test_bytes_limit_a_batch_too(self, kind: type[Decoder]) -> None:
        """Text of one batch must stay below what 32-bit offsets reach."""
        decoder = kind(byte_limit=1000)
        decoder.bind(T, TWO)
        one = insert(T, ["1", "x" * 600])
        block = begin() + one * 3 + commit()
        at = feed(decoder, block)
        assert (decoder.stop, at) == (Stop.LIMIT, len(begin() + one * 2))
        assert decoder.byte_count == 2 * (len(one) - 30)
        decoder.take()
        assert decoder.feed(block, at, len(block), MANY) == len(block)

    def test_keepalive_and_messages_are_consumed_and_spanned(self, decoder: Decoder) -> None:
        """Both are parsed by Python from the span."""
        origin = xlog(b"O" + struct.pack(">Q", 1) + b"x\0")
        block = keepalive() + begin() + origin
        at = feed(decoder, block)
        assert (decoder.stop, at) == (Stop.KEEPALIVE, len(keepalive()))
        assert block[slice(*decoder.message)] == keepalive()[5:]
        at = decoder.feed(block, at, len(block), MANY)
        assert (decoder.stop, at) == (Stop.MESSAGE, len(block))
        assert block[slice(*decoder.message)] == origin[30:]

    @pytest.mark.parametrize("letter", "RYOTMSEcAbPKrp")
    def test_every_other_message_is_handed_over(self, decoder: Decoder, letter: str) -> None:
        """A message may have any body: its parser checks it."""
        feed(decoder, xlog(letter.encode()))
        assert decoder.stop is Stop.MESSAGE

    def test_other_frames_are_left_where_they_are(self, decoder: Decoder) -> None:
        """CopyDone, errors and notices are left to the connection."""
        block = begin() + frame(b"SERROR\0\0", b"E")
        at = feed(decoder, block)
        assert (decoder.stop, at) == (Stop.OTHER_FRAME, len(begin()))
        assert block[slice(*decoder.message)] == b"SERROR\0\0"

    def test_rows_of_a_streamed_block_are_passed_over(self, decoder: Decoder) -> None:
        """Between StreamStart and StreamStop frames go to a side file undecoded."""
        rows = insert(T, ["?", b"\xff"], xid=9) * 3
        block = rows + xlog(b"E") + begin()
        at = decoder.skip_rows(block, 0, len(block))
        assert (decoder.stop, at) == (Stop.MESSAGE, len(rows + xlog(b"E")))
        with pytest.raises(DecodeError, match="misplaced"):
            decoder.skip_rows(block, at, len(block))
        assert decoder.row_count == 0


class TestWiden:
    @pytest.mark.parametrize(
        ("neutral", "text"),
        [
            ("date", "infinity"),
            ("timestamp", "-infinity"),
            ("timestamptz", "infinity"),
            ("timestamptz", "294247-01-10 04:00:54.775808+00"),
            ("decimal(5,2)", "NaN"),
            ("decimal(5,2)", "-Infinity"),
            ("time", "24:00:00"),
        ],
    )
    def test_the_row_decodes_after_its_column_became_text(
        self, kind: type[Decoder], neutral: str, text: str
    ) -> None:
        """No part of the row is kept; under the next version the same frame gives the text."""
        decoder = kind()
        shape = relation(column("id", "int64"), column("s", "string"), column("v", neutral))
        decoder.bind(T, shape)
        head = begin() + insert(T, ["1", "one", None])
        block = head + insert(T, ["2", "two", text]) + commit()
        at = feed(decoder, block)
        assert (decoder.stop, at, decoder.widen) == (Stop.WIDEN, len(head), (T, 2))
        assert (decoder.gsn, decoder.row_count) == (1, 1)
        wider = shape.with_text_column(2)
        decoder.bind(T, wider)
        assert decoder.feed(block, at, len(block), MANY) == len(block)
        assert [row["after"]["v"] for row in rows_of(decoder)] == [None, text]

    def test_old_images_widen_too(self, kind: type[Decoder]) -> None:
        """The key of a row may be infinite as well."""
        decoder = kind()
        decoder.bind(T, relation(column("d", "date"), column("s", "string")))
        block = begin() + delete(T, key=["infinity", None])
        assert feed(decoder, block) == len(begin())
        assert (decoder.stop, decoder.widen, decoder.trx) == (Stop.WIDEN, (T, 0), 0)
