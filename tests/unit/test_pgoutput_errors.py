"""Refusals of the decoder, and lines of COPY: one suite for the twin and the compiled kernel."""

from __future__ import annotations

import struct

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
    positions_of,
    relation,
    rows_of,
    update,
    xlog,
)
from penstock.codec.postgres import pgoutput
from penstock.codec.postgres.pgoutput_outcome import Reason

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


class TestErrors:
    def fails(
        self, decoder: Decoder, block: bytes, reason: Reason, offset: int, start: int = 0
    ) -> DecodeError:
        with pytest.raises(DecodeError) as caught:
            decoder.feed(block, start, len(block), MANY)
        assert caught.value.fields["reason"] == reason.name.lower()
        assert caught.value.offset == offset
        assert caught.value.hint
        return caught.value

    def test_impossible_frame_lengths(self, decoder: Decoder) -> None:
        """A length below its own size, or above what PostgreSQL can build, is broken."""
        for length in (0, 3, 2**30 + 65, 2**32 - 1):
            self.fails(decoder, b"d" + struct.pack(">I", length), Reason.FRAME_LENGTH, 0)
        assert feed(decoder, b"d" + struct.pack(">I", 2**30 + 64)) == 0

    def test_copy_data_of_no_known_kind(self, decoder: Decoder) -> None:
        """The frame is neither a log record nor a keepalive, or is shorter than its head."""
        for payload in (b"", b"x", b"w" + b"\0" * 24, b"k" + b"\0" * 16, b"k" + b"\0" * 18):
            self.fails(decoder, frame(payload), Reason.COPY_DATA, 5)

    def test_transaction_order(self, decoder: Decoder) -> None:
        """Rows and commits are inside a transaction, which ends where it said."""
        self.fails(decoder, insert(T, ["1", "a"]), Reason.NO_TRANSACTION, 30)
        self.fails(decoder, commit(), Reason.NO_TRANSACTION, 30)
        self.fails(decoder, xlog(b"B"), Reason.MESSAGE_LENGTH, 30)
        late = xlog(b"B" + struct.pack(">QqI", 1, 2**63 - 1, 1))
        self.fails(decoder, late, Reason.COMMIT_TIME, 30)
        feed(decoder, begin())
        self.fails(decoder, begin(), Reason.NESTED_BEGIN, 30)
        self.fails(decoder, xlog(b"C"), Reason.MESSAGE_LENGTH, 30)
        self.fails(decoder, commit(101), Reason.COMMIT_MISMATCH, 30)
        self.fails(decoder, xlog(b"?"), Reason.UNKNOWN_MESSAGE, 30)

    def test_row_messages_that_end_early_or_late(self, decoder: Decoder) -> None:
        """A row cut at any byte, inside a whole frame, is refused; no part of it stays."""
        feed(decoder, begin())
        whole = update(T, ["1", UNCHANGED], key=["1", None])[30:]
        for length in range(1, len(whole)):
            with pytest.raises(DecodeError, match="ends early"):
                feed(decoder, xlog(whole[:length]))
        self.fails(decoder, xlog(whole + b"\0"), Reason.TRAILING, 30 + len(whole))
        assert (decoder.gsn, decoder.trx, decoder.row_count) == (0, 0, 0)
        feed(decoder, xlog(whole))
        assert rows_of(decoder)[0]["after"] == {"id": 1, "größe": None}

    def test_row_messages_of_a_wrong_form(self, decoder: Decoder) -> None:
        """Unknown relations, images, cells and column counts name the table."""
        feed(decoder, begin())
        error = self.fails(decoder, insert(9, ["1", "a"]), Reason.UNBOUND, 31)
        assert error.fields["source_id"] == 9
        error = self.fails(decoder, insert(T, ["1"]), Reason.COLUMN_COUNT, 36)
        assert error.fields["table"] == "public.t"
        head = struct.pack(">I", T)
        for message in (
            b"I" + head + b"O",
            b"I" + head + b"K",
            b"U" + head + b"X",
            b"D" + head + b"N",
        ):
            self.fails(decoder, xlog(message), Reason.TUPLE_KIND, 35)
        binary = b"N" + struct.pack(">H", 2) + b"nb" + struct.pack(">I", 1) + b"x"
        error = self.fails(decoder, xlog(b"I" + head + binary), Reason.CELL_KIND, 39)
        assert error.fields["column"] == "größe"
        self.fails(decoder, insert(T, ["1", UNCHANGED]), Reason.UNCHANGED, 44)
        self.fails(decoder, delete(T, key=[UNCHANGED, None]), Reason.UNCHANGED, 38)

    def test_text_that_is_not_utf8(self, decoder: Decoder) -> None:
        """Such text would not survive the log; binary columns take it raw."""
        feed(decoder, begin())
        for text in (b"\xff", b"abcdefg\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"):
            error = self.fails(decoder, insert(T, ["1", text]), Reason.UTF8, 49)
            assert "pg_encoding" in error.hint

    def test_malformed_values_name_table_column_and_place_but_no_value(
        self, decoder: Decoder
    ) -> None:
        """A text that PostgreSQL never prints is not guessed at, and values are never shown."""
        feed(decoder, begin())
        error = self.fails(decoder, insert(T, ["secret", "a"]), Reason.VALUE, 43)
        assert error.fields["table"] == "public.t"
        assert error.fields["column"] == "id"
        assert "secret" not in str(error)
        assert "public.t column id" in error.message

    def test_rows_before_the_error_stay(self, decoder: Decoder) -> None:
        """Earlier rows are complete and may be saved."""
        with pytest.raises(DecodeError):
            feed(decoder, begin() + insert(T, ["1", "a"]) + insert(T, ["x", "b"]))
        assert [row["after"]["id"] for row in rows_of(decoder)] == [1]

    def test_nothing_of_a_broken_row_shows_in_the_next(self, kind: type[Decoder]) -> None:
        """Values stored before the error was found are taken back, in all images and bits."""
        decoder = kind()
        shape = relation(
            column("a", "string"), column("b", "string"), column("n", "int16"), before=(0, 1)
        )
        decoder.bind(T, shape)
        good = update(T, ["new", UNCHANGED, "5"], key=["old", "key", None])
        good += update(T, [UNCHANGED, UNCHANGED, "6"]) + insert(T, ["in", None, "7"])
        feed(decoder, begin() + good)
        for broken in (
            update(T, ["bad", UNCHANGED, "x"], key=["bad", "bad", None]),
            update(T, [UNCHANGED, "bad", "x"]),
            insert(T, ["bad", "bad", "x"]),
            delete(T, key=["bad", UNCHANGED, None]),
        ):
            with pytest.raises(DecodeError):
                feed(decoder, broken)
        with pytest.raises(DecodeError):
            decoder.feed_copy(b"bad\tbad\tx\n", 0, 10, T)
        feed(decoder, good)
        rows = [(row["absent"], row["after"], row["before"]) for row in rows_of(decoder)]
        assert rows[0] == (
            None,
            {"a": "new", "b": "key", "n": 5},
            {"a": "old", "b": "key"},
        )
        assert rows[1] == (b"\x03", {"a": None, "b": None, "n": 6}, None)
        assert rows[2] == (None, {"a": "in", "b": None, "n": 7}, None)
        assert rows[3:] == rows[:3]


class TestCopy:
    def test_lines_become_inserts_of_the_open_transaction(self, decoder: Decoder) -> None:
        """Lines of COPY give the same values as the stream, so a reloaded table is equal."""
        decoder.begin(900, COMMIT_TIME_US, 0)
        lines = b"1\ta\n2\t\\N\n3\t\n4\t\\\\ \\b\\f\\n\\r\\t\\v x\\\\N\n5\trest"
        at = decoder.feed_copy(lines, 0, len(lines), T)
        assert (decoder.stop, at) == (Stop.MORE, lines.index(b"5"))
        decoder.commit(900)
        rows = rows_of(decoder)
        assert [row["after"] for row in rows] == [
            {"id": 1, "größe": "a"},
            {"id": 2, "größe": None},
            {"id": 3, "größe": ""},
            {"id": 4, "größe": "\\ \b\f\n\r\t\v x\\N"},
        ]
        assert {(row["trx"], chr(row["op"])) for row in rows} == {(1, "I")}
        assert positions_of(decoder) == [900]

    def test_limits_and_widening_stop_before_a_line(self, kind: type[Decoder]) -> None:
        """Rows of the stream behave the same."""
        decoder = kind()
        decoder.bind(T, relation(column("d", "date")))
        decoder.begin(900, COMMIT_TIME_US, 0)
        lines = b"2020-01-01\n2020-01-02\ninfinity\n"
        assert decoder.feed_copy(lines, 0, len(lines), T, 1) == 11
        assert decoder.stop is Stop.LIMIT
        assert decoder.feed_copy(lines, 11, len(lines), T) == 22
        assert (decoder.stop, decoder.widen) == (Stop.WIDEN, (T, 0))

    def test_broken_lines(self, decoder: Decoder) -> None:
        """Too few or many fields, and escapes that COPY does not write, are refused."""
        with pytest.raises(DecodeError, match="outside a transaction"):
            decoder.feed_copy(b"", 0, 0, T)
        decoder.begin(900, COMMIT_TIME_US, 0)
        with pytest.raises(DecodeError, match="not announced"):
            decoder.feed_copy(b"", 0, 0, 5)
        for line, reason, offset in (
            (b"1\n", Reason.COPY_FIELDS, 1),
            (b"1\ta\tb\n", Reason.COPY_FIELDS, 3),
            (b"1\ta\\x\n", Reason.COPY_ESCAPE, 3),
            (b"1\tab\\\n", Reason.COPY_ESCAPE, 4),
            (b"1\ta\\N\n", Reason.COPY_ESCAPE, 3),
            (b"\\.\n", Reason.COPY_ESCAPE, 0),
            (b"x\ta\n", Reason.VALUE, 0),
            (b"1\t\xff\n", Reason.UTF8, 2),
        ):
            with pytest.raises(DecodeError) as caught:
                decoder.feed_copy(line, 0, len(line), T)
            assert caught.value.fields["reason"] == reason.name.lower()
            assert caught.value.offset == offset
        assert decoder.row_count == 0

    def test_a_table_without_columns_has_empty_lines(self, kind: type[Decoder]) -> None:
        """Each of its rows is an empty line."""
        decoder = kind()
        decoder.bind(T, relation(before=()))
        decoder.begin(900, COMMIT_TIME_US, 0)
        assert decoder.feed_copy(b"\n\n", 0, 2, T) == 2
        assert decoder.row_count == 2
        with pytest.raises(DecodeError):
            decoder.feed_copy(b"x\n", 0, 2, T)
