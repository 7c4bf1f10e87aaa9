"""Drive a pgoutput decoder through a case and record its behaviour; compare twin and kernel.

A case can be made from plain bytes, so that the fuzzer and the kept corpus use the same driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.twins.pgoutput import COMMIT_TIME_US, DECODERS, assert_same_batch, column, relation
from penstock.codec.postgres.pgoutput import DecodeError, Decoder, Stop
from penstock.model import Identity, Relation, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

NEUTRALS = (
    "int64",
    "bool",
    "int16",
    "int32",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "decimal(5,2)",
    "decimal(38,10)",
    "decimal(20,0)",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "uuid",
    "binary",
    "string",
)
IGNORED_COUNT_PLACE = 7  # in the result of `state`
MODES = ("feed", "replay", "skip", "copy")
_EVERY_TYPE = tuple(column(f"c{i}", neutral) for i, neutral in enumerate(NEUTRALS))

# The relations of cases that are made from bytes alone.
WORLD: dict[int, Relation] = {
    1: relation(*_EVERY_TYPE, name="every"),
    2: relation(
        *_EVERY_TYPE,
        name="full",
        before=tuple(range(len(NEUTRALS))),
        identity=Identity.FULL,
    ),
    3: relation(
        column("a", "date"),
        column("größe", "string"),
        column("raw", "binary", source_type="text"),
        name="index",
        before=(2, 0),
        identity=Identity.INDEX,
    ),
    4: relation(name="empty", before=()),
}
# Stands for the transactions in the result of `run`.
RECORDED = relation(name="transactions", before=())


@dataclass(frozen=True, kw_only=True)
class Case:
    """Bytes, their division into blocks, and the limits."""

    block: bytes
    mode: str = "feed"
    cuts: tuple[int, ...] = ()
    row_limit: int = 1_000_000
    commit_limit: int | None = None
    byte_limit: int = 1 << 20
    relations: dict[int, Relation] = field(default_factory=lambda: WORLD)
    dropped: tuple[int, ...] = ()
    ignored: tuple[int, ...] = ()
    source_id: int = 1

    @classmethod
    def of(cls, data: bytes) -> Case:
        """Return a case from any bytes: the first five choose mode, limits, cut; the rest is the
        block.
        """
        head, block = data[:5].ljust(5, b"\0"), data[5:]
        return cls(
            block=block,
            mode=MODES[head[0] % 4],
            row_limit=head[1] % 8 + 1 if head[1] < 128 else 1_000_000,
            commit_limit=head[2] % 4 if head[2] < 128 else None,
            byte_limit=200 * (head[3] + 1),
            cuts=(len(block) * head[4] // 256,),
            dropped=(9, 12),
            source_id=head[1] % 4 + 1,
        )


def _call(decoder: Decoder, case: Case, at: int, end: int) -> Callable[[], int]:
    block = case.block
    return {
        "feed": lambda: decoder.feed(block, at, end, case.row_limit, case.commit_limit),
        "replay": lambda: decoder.replay(block, at, end, case.row_limit, case.dropped),
        "skip": lambda: decoder.skip_rows(block, at, end),
        "copy": lambda: decoder.feed_copy(block, at, end, case.source_id, case.row_limit),
    }[case.mode]


def state(decoder: Decoder) -> tuple[Any, ...]:
    """Return the visible state of a decoder."""
    return (
        decoder.stop,
        decoder.message,
        decoder.widen,
        decoder.gsn,
        decoder.trx,
        decoder.row_count,
        decoder.byte_count,
        decoder.ignored_count,
        decoder.in_transaction,
        decoder.commit_position,
        decoder.end_position,
        decoder.commit_time_us,
        decoder.xid,
        decoder.bindings(),
    )


def run(kind: type[Decoder], case: Case) -> tuple[list[Any], list[Any]]:
    """Decode a case to its end or first error; return events and batches."""
    decoder = kind(byte_limit=case.byte_limit)
    for source_id, shape in case.relations.items():
        decoder.bind(source_id, shape)
    for source_id in case.ignored:
        decoder.ignore(source_id)
    if case.mode in ("replay", "copy"):
        decoder.begin(100, COMMIT_TIME_US, 7)
    events: list[Any] = []
    batches: list[Any] = []
    at = 0
    try:
        for end in [*sorted(case.cuts), len(case.block)]:
            while True:
                at = _call(decoder, case, at, end)()
                events.append((at, *state(decoder)))
                if decoder.stop in (Stop.MORE, Stop.OTHER_FRAME):
                    break
                _answer(decoder, batches)
    except DecodeError as error:
        events.append((type(error), error.message, error.hint, error.fields, *state(decoder)))
    if decoder.in_transaction:
        decoder.commit(999)
    batches.extend(decoder.take())
    transactions = decoder.take_transactions()
    if transactions is not None:
        batches.append(Rows(relation=RECORDED, batch=transactions))
    events.append(state(decoder))
    return events, batches


def _answer(decoder: Decoder, batches: list[Any]) -> None:
    """Act like a caller at each stop."""
    if decoder.stop in (Stop.LIMIT, Stop.COMMIT):
        batches.extend(decoder.take())
    elif decoder.stop is Stop.WIDEN:
        source_id, index = decoder.widen
        shape = decoder.bindings()[source_id]
        assert shape.columns[index].neutral not in ("string", "binary")
        decoder.bind(source_id, shape.with_text_column(index))
    elif decoder.stop is Stop.MESSAGE and decoder.in_transaction:
        decoder.note_marker()


def assert_same(case: Case) -> tuple[list[Any], list[Any]]:
    """Raise an error unless twin and kernel behave alike; return the twin's result."""
    events, batches = run(DECODERS["twin"], case)
    for name, kind in DECODERS.items():
        if name == "twin":
            continue
        other_events, other_batches = run(kind, case)
        assert other_events == events
        assert [rows.relation for rows in other_batches] == [rows.relation for rows in batches]
        for rows, other in zip(batches, other_batches, strict=True):
            assert_same_batch(rows.batch, other.batch)
    return events, batches
