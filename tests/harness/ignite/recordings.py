"""Recorded segments of real Ignite nodes, and the events that Ignite's own utility delivered.

`tests/data/ignite` has, for each recording, the directories that a reader needs, and each call of
CdcMain's consumer as a line of JSON. The programs that made them are in `tests/ignite`.
"""

from __future__ import annotations

import json
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from penstock.codec.ignite import marshal
from penstock.codec.ignite.types import BinaryType, Types
from penstock.codec.ignite.values import (
    UUID,
    BinaryObject,
    Class,
    Date,
    Enum,
    JavaList,
    JavaMap,
    Opaque,
    Time,
    Timestamp,
)
from penstock.codec.ignite.wal import crc
from penstock.consume import CdcConsumer

DATA = Path(__file__).parents[2] / "data" / "ignite"


def unpack_recording(name: str, directory: Path) -> Path:
    """Unpack a recording's work directory below this one, and return it."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(directory)
    return directory


@cache
def files_of(name: str) -> dict[str, bytes]:
    """Return each file of a recording, by its path below the work directory."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        members = [member for member in archive if member.isfile()]
        return {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def segments_of(name: str, node: str = "node_1") -> list[tuple[int, bytes]]:
    """Return number and bytes of the segments in a node's CDC directory, in order."""
    found = {
        int(Path(path).stem): data
        for path, data in files_of(name).items()
        if path.startswith(f"db/wal/cdc/{node}/") and path.endswith(".wal")
    }
    return sorted(found.items())


def types_of(name: str, node: str = "node_1") -> Types:
    """Return the types of a recording, each read again."""
    files = files_of(name)

    def metadata(type_id: int) -> BinaryType | None:
        data = files.get(f"db/binary_meta/{node}/{type_id}.bin")
        return None if data is None else marshal.read_metadata(data)

    def class_name(type_id: int) -> str | None:
        data = files.get(f"db/marshaller/{type_id}.classname0")
        return None if data is None else data.decode()

    return Types(metadata, class_name)


def calls_of(name: str) -> list[dict[str, Any]]:
    """Return the calls of CdcMain to its consumer."""
    text = (DATA / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def events_of(name: str) -> list[dict[str, Any]]:
    """Return the events that CdcMain gave its consumer, in order."""
    return [event for call in calls_of(name) for event in call.get("events", [])]


def shown_entry(entry: Any) -> dict[str, Any]:
    """Return an entry in the form of the recorded events."""
    version = entry.write_version
    return {
        "cacheId": entry.cache_id,
        "key": show_value(entry.key),
        "value": show_value(entry.value),
        "primary": entry.primary,
        "partition": entry.partition,
        "version": [version.topology, version.order, version.node_order, version.data_center],
        "expireTime": entry.expire_time_ms,
    }


def show_value(value: Any) -> Any:
    """Return a value as `Shown.java` shows it; types that are one in Python have one name."""
    for kind, show in _SHOWN:
        if isinstance(value, kind):
            return show(value)
    raise TypeError(type(value))


def plain(value: Any) -> Any:
    """Return a value of `Shown.java` without facts that Python's values lack.

    These are the width of numbers and that an array is of primitives.
    """
    if not isinstance(value, list) or not value:
        return value
    kind, *rest = value
    if kind in ("byte", "short", "integer", "long"):
        return ["int", *rest]
    if kind == "float":
        return ["double", struct.unpack("<q", struct.pack("<d", _single(rest[0])))[0]]
    if kind == "char":
        return ["string", chr(rest[0])]
    if kind == "byte[]":
        return ["bytes", [one % 256 for _, one in rest[0]]]
    if kind == "array" or str(kind).endswith("[]"):
        return ["array", [plain(one) for one in rest[0]]]
    if kind == "collection" and rest[0] == "SingletonList":
        return ["opaque"]  # of java.util.Collections: only a JVM can read it
    if kind == "collection":
        return ["collection", rest[0], _order_items(rest[0] == "HashSet", rest[1])]
    if kind == "map":
        pairs = [[plain(key), plain(one)] for key, one in rest[1]]
        return ["map", rest[0], sorted(pairs, key=repr) if rest[0] == "HashMap" else pairs]
    if kind == "object":
        return ["object", *rest[:2], {name: plain(one) for name, one in rest[2].items()}]
    return value


def _order_items(is_unordered: bool, items: list[Any]) -> list[Any]:
    found = [plain(one) for one in items]
    return sorted(found, key=repr) if is_unordered else found


def _single(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<i", bits))[0])


def _shown_double(value: float) -> list[Any]:
    return ["double", struct.unpack("<q", struct.pack("<d", value))[0]]


def _shown_decimal(value: Any) -> list[Any]:
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    return ["decimal", str(unscaled), -exponent]


def _shown_timestamp(value: Timestamp) -> list[Any]:
    # Java's getTime() has the milliseconds, its getNanos() all below the second.
    return ["timestamp", value.ms, value.ms % 1000 * 1_000_000 + value.nanos]


def _shown_object(value: BinaryObject) -> list[Any]:
    fields = {name: show_value(one) for name, one in value.items() if one is not None}
    return ["object", value.type_name, value.type_id, fields]


def _shown_list(value: JavaList) -> list[Any]:
    items = [show_value(one) for one in value]
    kind = value.kind
    return ["collection", kind, sorted(items, key=repr) if kind == "HashSet" else items]


def _shown_map(value: JavaMap) -> list[Any]:
    pairs = [[show_value(key), show_value(one)] for key, one in value.pairs]
    return ["map", value.kind, sorted(pairs, key=repr) if value.kind == "HashMap" else pairs]


_SHOWN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (type(None), lambda _: None),
    (bool, lambda value: ["boolean", value]),
    (int, lambda value: ["int", value]),
    (float, _shown_double),
    (str, lambda value: ["string", value]),
    (bytes, lambda value: ["bytes", list(value)]),
    (UUID, lambda value: ["uuid", str(value)]),
    (Date, lambda value: ["date", value.ms]),
    (Time, lambda value: ["time", value.ms]),
    (Timestamp, _shown_timestamp),
    (Enum, lambda value: ["enum", value.type_name, value.ordinal, value.name]),
    (Class, lambda value: ["class", value.type_name]),
    (Opaque, lambda _: ["opaque"]),
    (BinaryObject, _shown_object),
    (JavaList, _shown_list),
    (JavaMap, _shown_map),
    (list, lambda value: ["array", [show_value(one) for one in value]]),
    (object, lambda value: _shown_decimal(value)),
)


def plain_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded event in the form of shown_entry()."""
    return {**event, "key": plain(event["key"]), "value": plain(event["value"])}


def walk_entries(name: str, kernel: Any, decode: Any, node: str = "node_1") -> Iterator[Any]:
    """Yield every entry of a recording, as a consumer gets it. kernel: result of wal_kernel().

    decode: as `marshal.decode`.
    """
    types = types_of(name, node)
    walk = kernel[0]
    for number, data in segments_of(name, node):
        yield from walk(
            data,
            number=number,
            name=f"{number:016}.wal",
            begin=0,
            decode=lambda raw, kind: decode(raw, kind, types),
            kind=kernel[1],
        )


# -- segments made here ------------------------------------------------------------------------


def seal_record(data: bytes) -> bytes:
    """Return a record and its checksum."""
    return data + struct.pack("<I", crc(data))


def record_bytes(kind: int, data: bytes, at: int = 0, number: int = 0) -> bytes:
    """Return one record, for this place."""
    return seal_record(struct.pack("<Bqii", kind + 1, number, at, 21 + len(data)) + data)


def entry_bytes(
    *,
    key: bytes = b"\x03\x01\0\0\0",
    value: bytes | None = b"\x09\x02\0\0\0ab",
    op: int = 2,
    near: bytes = b"\0",
    write: bytes = b"\x01" + b"\x01" * 16,
    partition: int = 1,
    counter: int = 2,
    expires: int = 0,
    flags: int = 1,
    cache: int = 77,
    kind: int = 1,
    value_length: int | None = None,
) -> bytes:
    """Return one entry of a data record, as a node writes it."""
    held = b"" if value is None else struct.pack("<b", kind) + value
    length = value_length if value_length is not None else -1 if value is None else len(value)
    return b"".join(
        [
            struct.pack("<iib", cache, len(key), 1) + key,
            struct.pack("<i", length) + held,
            struct.pack("<B", op) + near + write,
            struct.pack("<iqqB", partition, counter, expires, flags),
        ]
    )


def data_segment(
    records: list[list[bytes]],
    *,
    number: int = 0,
    time_ms: int = 1000,
    times_ms: Sequence[int] = (),
    kinds: Sequence[int] = (),
    count: int | None = None,
    more: Sequence[bytes] = (),
) -> bytes:
    """Return a segment with one data record per list of entries, then others, made for this place.

    times_ms, kinds: of each data record; without them all have time_ms, and are DATA_RECORD_V2.
    """
    data = seal_record(struct.pack("<BqiQi", 5, number, 0, 0xB0D045ACE7ED045A, 2))
    for at, entries in enumerate(records):
        time_ms = times_ms[at] if times_ms else time_ms
        entry_count = len(entries) if count is None else count
        body = struct.pack("<iq", entry_count, time_ms) + b"".join(entries)
        data += record_bytes(kinds[at] if kinds else 70, body, len(data), number)
    for one in more:
        data += record_bytes(one[0] - 1, one[17:-4], len(data), number)
    return data


# -- consumers ---------------------------------------------------------------------------------


class Calls(CdcConsumer):
    """Recorder of each call with the state that is saved then; ends after idle calls.

    calls: number of calls with events after which it ends.
    """

    def __init__(self, cdc: Path, per_call: int = 0, answer: bool = True, calls: int = 1 << 30):
        self._state = cdc / "state"
        self._per_call = per_call
        self._answer = answer
        self._calls_left = calls
        self._idle = 0
        self.told: list[dict[str, Any]] = []

    def note(self, call: str, **more: Any) -> None:
        """Record a call with the state that is saved now."""
        files = {"state": "cdc-wal-state.bin", "mode": "cdc-mode.bin"}
        found = {key: self._state / name for key, name in files.items()}
        saved = {k: path.read_bytes().hex() if path.exists() else "" for k, path in found.items()}
        self.told.append({"call": call, **saved, **more})

    def start(self, metrics: Any) -> None:
        self.note("start")

    def alive(self) -> bool:
        """Return False when called for the fourth time since the last call of `on_events`."""
        self._idle += 1
        return self._idle < 4

    def has_enough(self) -> bool:
        """Return whether it was called as often as was wanted."""
        return self._calls_left <= 0

    def on_events(self, events: Iterator[Any]) -> bool:
        """Record the next events, at most `per_call` unless it is 0; return the given answer."""
        self._idle = 0
        taken = []
        while not self._per_call or len(taken) < self._per_call:
            event = next(events, None)
            if event is None:
                break
            taken.append(shown_event(event))
        self._calls_left -= bool(taken)
        self.note("onEvents", events=taken)
        return self._answer

    def on_mappings(self, mappings: Iterator[Any]) -> None:
        found = [[one.type_id, one.type_name, one.platform] for one in mappings]
        self.note("onMappings", mappings=found)

    def on_types(self, types: Iterator[Any]) -> None:
        found = [[one.type_id, one.type_name, one.is_enum, dict(one.fields)] for one in types]
        self.note("onTypes", types=found)

    def on_cache_change(self, caches: Iterator[Any]) -> None:
        self.note("onCacheChange", caches=[[one.cache_id, one.name] for one in caches])

    def on_cache_destroy(self, caches: Iterator[int]) -> None:
        self.note("onCacheDestroy", caches=list(caches))

    def stop(self) -> None:
        self.note("stop")

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events."""
        return [event for call in self.told for event in call.get("events", [])]


def shown_event(event: Any) -> dict[str, Any]:
    """Return an event of a consumer in the form of the recorded events."""
    version = event.version
    return {
        "cacheId": event.cache_id,
        "key": show_value(event.key),
        "value": show_value(event.value),
        "primary": event.primary,
        "partition": event.partition,
        "version": [version.topology, version.order, version.node_order, version.data_center],
        "expireTime": event.expire_time,
    }


def node_pipeline(tmp_path: Path, work: Path, node: str = "node-1", more: str = "") -> Path:
    """Write a pipeline file for a node's directory."""
    file = tmp_path / "node.toml"
    file.write_text(
        f'[pipeline]\nname = "node"\ndirectory = "{tmp_path / "pipeline"}"\n[source]\n'
        f'url = "ignite://{work}?consistentId={node}"\ntables = ["*"]\n'
        f'[consumers.all]\nclass = "none:None"\ncheckFrequency = 20\n{more}'
    )
    return file


def cdc_of(work: Path, node: str = "node_1") -> Path:
    """Return the directory with a node's segments for consumers."""
    return work / "db/wal/cdc" / node


def sorted_call(call: dict[str, Any], *, is_recorded: bool = False) -> dict[str, Any]:
    """Return a call in a form that can be compared: unordered parts are sorted.

    is_recorded: of Ignite's utility, whose events are shown in another form.
    """
    found = dict(call)
    if is_recorded and "events" in found:
        found["events"] = [plain_event(event) for event in found["events"]]
    for name in ("types", "mappings", "caches"):
        if name in found:
            found[name] = sorted(found[name])
    return found
