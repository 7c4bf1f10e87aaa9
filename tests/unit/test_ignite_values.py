"""Marshalled values: those that recordings lack, and broken or unreadable ones."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from harness.ignite.recordings import files_of, types_of, walk_entries
from penstock.codec.ignite import _marshal, _wal, marshal, wal
from penstock.codec.ignite.errors import TypeUnknown, ValueBroken
from penstock.codec.ignite.types import BinaryType, Types, cache_id, id_of, java_hash, schema_id
from penstock.codec.ignite.values import (
    BinaryObject,
    Class,
    Date,
    Enum,
    JavaMap,
    Opaque,
    Timestamp,
)

Decode = Callable[[bytes, int, Types], Any]
BOTH = pytest.mark.parametrize("decode", [marshal.decode, _marshal.decode], ids=["twin", "kernel"])
PERSON = BinaryType(
    type_id=7,
    type_name="Person",
    fields={"name": "String", "age": "int"},
    names={11: "name", 12: "age"},
    schemas={5: ("name", "age"), 6: ()},
)


def person_types() -> Types:
    """Return one type, and no names in marshaller/."""
    return Types({7: PERSON}.get)


def binary(
    fields: bytes,
    footer: bytes,
    *,
    flags: int = 0x2B,
    type_id: int = 7,
    schema: int = 5,
    version: int = 1,
    offset: int | None = None,
) -> bytes:
    """Return a binary object."""
    length = 24 + len(fields) + len(footer)
    place = 24 + len(fields) if offset is None else offset
    head = struct.pack("<BBHiiiii", 103, version, flags, type_id, 99, length, schema, place)
    return head + fields + footer


def text(value: str) -> bytes:
    """Return a string."""
    return b"\x09" + struct.pack("<i", len(value.encode())) + value.encode()


ANN = binary(text("Ann") + b"\x03\x1f\0\0\0", bytes([24, 32]))


def test_hashes_are_those_of_java() -> None:
    """Hashes of names, caches and versions of types equal those that a node wrote."""
    assert java_hash("intstr") == cache_id("intstr") == -1183749150
    assert cache_id("person") == -991716523
    assert cache_id("") == 1
    assert java_hash("\U0001f600") == 1772899
    assert id_of("Node$Person") == 32693303
    assert schema_id((3373707, 96511)) == 0x7400A905


def test_types_of_a_recording() -> None:
    """The recording has the names, fields and versions of every type."""
    for path in files_of("one"):
        if "/binary_meta/" in path:
            found = marshal.read_metadata(files_of("one")[path])
            assert path.endswith(f"/{found.type_id}.bin")
    shape = types_of("one").find(id_of("demo.Shape"))
    assert shape is not None
    assert sorted(shape.schemas.values()) == [
        (), ("a",), ("a", "b"), ("b", "a", "d", "inner"), ("c",), ("c", "b"),
    ]  # fmt: skip
    colours = types_of("one").find(id_of("Node$Colour"))
    assert colours is not None
    assert (colours.is_enum, dict(colours.constants)) == (True, {0: "RED", 1: "GREEN", 2: "BLUE"})


def metadata_file(**fields: bytes) -> bytes:
    """Return a file of binary_meta with these fields."""
    given = {"typeId": b"\x03\x07\0\0\0", "typeName": text("T"), **fields}
    footer, offset = b"", 24
    for name, value in given.items():
        footer += struct.pack("<ii", id_of(name), offset)
        offset += len(value)
    return binary(b"".join(given.values()), footer, flags=0x02, type_id=0x55, schema=1)


def test_a_file_that_is_no_type() -> None:
    """No type is invented for it."""
    no_file = "not a file of binary_meta"
    opaque = b"\xfe\x07\0\0\0" + bytes(7)
    for data, cause in (
        (b"\x03\x01\0\0\0", no_file),
        (metadata_file(typeId=text("7")), no_file),
        (metadata_file(typeId=b"\x08\x01"), no_file),
        (metadata_file(typeName=b"\x65"), no_file),
        (binary(b"", b"", flags=0x02, type_id=0x55), no_file),
        (metadata_file(affKeyFieldName=b"\x03\0\0\0\0"), "names no affinity field"),
        (metadata_file(fields=b"\x19\x01\0\0\0\x01" + text("a") + opaque), "without a number"),
        (metadata_file(fields=b"\x19\x01\0\0\0\x01\x65" + opaque), "without a number"),
        (metadata_file(schemaIds=b"\x18\x01\0\0\0\x03" + text("a")), "that is not a number"),
        (metadata_file(isEnum=b"\x08\x01", ordinalToName=b"\x19\x01\0\0\0\x01\x65\x65"),
         "without a name"),
    ):  # fmt: skip
        with pytest.raises(ValueBroken, match=cause):
            marshal.read_metadata(data)
    found = marshal.read_metadata(metadata_file())
    assert (found.type_id, found.type_name, dict(found.fields)) == (7, "T", {})


@BOTH
def test_an_object_is_a_mapping(decode: Decode) -> None:
    """An object has its type; a missing field is null, a field that the type lacks is an error."""
    found = decode(ANN, 100, person_types())
    assert (found.type_name, found.type_id, dict(found)) == (
        "Person",
        7,
        {"name": "Ann", "age": 31},
    )
    empty = decode(binary(b"", b"", schema=6), 100, person_types())
    nulls = decode(binary(b"\x65\x65", bytes([24, 25])), 100, person_types())
    assert (dict(empty), empty["age"], empty.get("age")) == ({}, None, None)
    assert empty == nulls != found
    with pytest.raises(KeyError):
        empty["other"]
    assert {found: 1}[decode(ANN, 100, person_types())] == 1
    assert "Ann" in repr(found)


@BOTH
def test_footers_of_every_width(decode: Decode) -> None:
    """Footers have one, two or four bytes, with fields' numbers, or raw data after the fields."""
    values = text("Ann") + b"\x03\x1f\0\0\0"
    for flags, form in ((0x2B, "B"), (0x33, "H"), (0x23, "i")):
        for more in (0, 64):  # written by .NET
            data = binary(values, struct.pack(f"<{form}{form}", 24, 32), flags=flags | more)
            assert dict(decode(data, 100, person_types())) == {"name": "Ann", "age": 31}
        footer = struct.pack(f"<i{form}i{form}", 12, 32, 11, 24)
        data = binary(values, footer, flags=flags & ~0x20)
        assert dict(decode(data, 100, person_types())) == {"name": "Ann", "age": 31}
    data = binary(
        values + b"raw", bytes([24, 32]) + struct.pack("<i", 24 + len(values)), flags=0x2F
    )
    assert decode(data, 100, person_types()).raw == b"raw"
    data = binary(b"all raw", b"", flags=0x05, offset=24)
    found = decode(data, 100, person_types())
    assert (found.raw, dict(found), found["age"]) == (b"all raw", {}, None)


@BOTH
def test_an_object_of_a_class_that_is_not_registered(decode: Decode) -> None:
    """The object contains its name; its number is the name's hash."""
    data = binary(text("my.Thing"), b"", type_id=0, flags=0x01)
    found = decode(data, 100, person_types())
    assert (found.type_name, found.type_id) == ("my.Thing", id_of("my.Thing"))


@BOTH
def test_types_that_are_not_there(decode: Decode) -> None:
    """A compact object cannot be read without its type: none is guessed."""
    with pytest.raises(TypeUnknown, match="type 8: there is no file") as caught:
        decode(binary(b"", b"", type_id=8, schema=6), 100, person_types())
    assert caught.value.fields["type_id"] == 8
    with pytest.raises(TypeUnknown, match="has no version 9"):
        decode(binary(b"", b"", schema=9), 100, person_types())
    with pytest.raises(TypeUnknown, match="has no field 13"):
        decode(binary(b"\x65", struct.pack("<iB", 13, 24), flags=0x0B), 100, person_types())


@BOTH
def test_a_type_that_grows_is_looked_up_again(decode: Decode) -> None:
    """The node writes its file before the first object of the new version."""
    known: dict[int, BinaryType] = {7: PERSON}
    types = Types(known.get)
    assert decode(ANN, 100, types)["age"] == 31
    known[7] = BinaryType(type_id=7, type_name="Person", schemas={9: ("age", "name")})
    turned = binary(b"\x03\x1f\0\0\0" + text("Ann"), bytes([24, 29]), schema=9)
    assert dict(decode(turned, 100, types)) == {"age": 31, "name": "Ann"}


def forms(decode: Decode) -> list[Any]:
    """Return the values of the recorded cache `form`, in the order of `Forms.java`."""
    found = walk_entries("forms", (wal.Walk, wal.Entry), decode)
    return [entry.value for entry in found if entry.cache_id == cache_id("form")]


@BOTH
def test_rare_forms_of_a_node(decode: Decode) -> None:
    """Raw data, enum constants with a body, objects within wrapped ones, and cycles are read."""
    found = forms(decode)
    assert len(found) == 40
    assert [dict(one) for one in found[:3]] == [{}, {"text": "named and raw"}, {"text": None}]
    number = struct.Struct("<i").pack
    assert [one.raw for one in found[:3]] == [
        number(7) + text("raw only"),
        number(8) + text("named and raw"),
        number(9) + b"\x65",
    ]
    for at, kind in ((3, ""), (4, "org.apache.ignite.internal.binary.BinaryTreeSet")):
        assert (found[at].type_name, dict(found[at])) == (kind, {})
        assert len(found[at].raw) > 10
    pair, beside = found[16], found[16]["right"]
    assert (pair["left"]["name"], beside["left"], beside["right"]) == (
        "inner",
        pair["left"],
        "beside",
    )
    assert found[17] == [pair["left"], beside, pair["left"]]
    one, two = Enum("Forms$Odd", 1825826618, 0, "ONE"), Enum("Forms$Odd", 1825826618, 1, "TWO")
    assert (found[18], dict(found[19]), found[20]) == (
        two,
        {"left": one, "right": two},
        [one, None, two],
    )
    assert dict(found[21]) == {"left": [two], "right": Class("Forms$Odd", 1825826618)}
    assert found[25] == [[1], [2, 3]]
    assert found[26][0][0] == found[26][0][1] == found[27][1] == found[27][0][0]
    assert isinstance(found[28], JavaMap)
    assert found[28].pairs == [(found[27][1], [found[27][1]])]
    assert (found[33].type_name, dict(found[33])) == ("java.util.Optional", {"value": "x"})
    assert found[39]["left"][0] is found[39]
    assert found[39]["right"] == "round"


@BOTH
def test_what_a_node_wrote_for_java_alone(decode: Decode) -> None:
    """Lists of their own classes, unmodifiable ones, java.time and Externalizable stay opaque."""
    found = forms(decode)
    optimized = [5, 6, 7, 8, 9, 10, 11, 12, 22, 23, *range(29, 33), 34, 35, 36, 37]
    assert {found[at].form for at in optimized} == {"optimized"}
    assert [found[at].type_name for at in optimized] == [
        "java.util.Vector", "Forms$Mine", "java.util.concurrent.ConcurrentHashMap",
        "java.util.Collections$UnmodifiableList", "java.util.CollSer", "java.util.CollSer",
        "java.util.Collections$EmptyList", "java.util.Arrays$ArrayList", "int", "Forms$Named",
        "java.time.Ser", "java.time.Ser", "java.math.BigInteger",
        "java.util.concurrent.atomic.AtomicInteger", "java.lang.StringBuilder", "java.util.Locale",
        "java.util.BitSet", "Node$Opaque",
    ]  # fmt: skip
    assert found[5].type_id == java_hash("java.util.Vector")
    unknown = b"\xfe\x05\0\0\0\x66abcd"
    assert decode(unknown, 1, person_types()) == Opaque("optimized", None, 0x64636261, unknown[5:])
    assert [one.form for one in found[24]] == ["optimized"] * 2
    assert [one.form for one in found[38]] == ["optimized"]
    assert found[37].data.endswith(b"of my own making")
    assert (found[14].form, found[15]["left"], found[15]["right"]) == ("proxy", found[14], 1)
    assert found[14].data[:5] == b"\x23\x01\0\0\0"


@BOTH
def test_an_old_object_knows_the_fields_that_its_type_got_later(decode: Decode) -> None:
    """New fields are null in it; a reader that is told to look the type up again knows them."""
    known: dict[int, BinaryType] = {7: PERSON}
    types = Types(known.get)
    with pytest.raises(KeyError):
        decode(ANN, 100, types)["phone"]
    known[7] = replace(PERSON, fields={**PERSON.fields, "phone": "String"})
    types.forget(7)
    assert decode(ANN, 100, types)["phone"] is None


@BOTH
def test_handles_mean_the_object_itself(decode: Decode) -> None:
    """An object and a list contain themselves; a handle to another value is read or refused."""
    itself = binary(text("me") + b"\x66" + struct.pack("<i", 31), bytes([24, 31]))
    found = decode(itself, 100, person_types())
    assert found["age"] is found
    assert "..." in repr(found)
    items = b"\x18\x02\0\0\0\x01" + b"\x66\x06\0\0\0" + b"\x03\x01\0\0\0"
    found = decode(items, 1, person_types())
    assert found[0] is found
    assert found[1] == 1
    items = b"\x18\x02\0\0\0\x01" + b"\x03\x05\0\0\0" + b"\x66\x05\0\0\0"
    assert decode(items, 1, person_types()) == [5, 5]
    with pytest.raises(ValueBroken, match="a handle 7 bytes back"):
        decode(b"\x18\x01\0\0\0\x01\x66\x07\0\0\0", 1, person_types())


@BOTH
def test_wrapped_objects_and_what_only_java_reads(decode: Decode) -> None:
    """The latter are bytes, with their kind."""
    wrapped = b"\x1b" + struct.pack("<i", len(ANN) + 2) + b"xx" + ANN + struct.pack("<i", 2)
    assert decode(wrapped, 1, person_types()) == decode(ANN, 100, person_types())
    assert decode(b"\xfd123", 1, person_types()) == Opaque("transformed", None, 0, b"\xfd123")
    assert decode(b"\xfe\x02\0\0\0ab", 1, person_types()) == Opaque("optimized", None, 0, b"ab")
    proxy = b"\x23\x01\0\0\0" + struct.pack("<i", 7) + b"\x65"
    assert decode(proxy, 1, person_types()) == Opaque("proxy", None, 0, proxy)
    assert decode(b"\xfd12", 2, person_types()) == b"\xfd12"


@BOTH
def test_handles_to_what_is_no_container(decode: Decode) -> None:
    """The value is read once for any number of handles: 40,000 to 40,000 bytes stay small."""
    count = 40_000
    handles = b"".join(b"\x66" + struct.pack("<i", 11 + count + 5 * at - 6) for at in range(count))
    head = b"\x18" + struct.pack("<i", count + 1) + b"\x01"
    held = b"\x0c" + struct.pack("<i", count) + bytes(count)
    found = decode(head + held + handles, 1, person_types())
    assert len(found) == count + 1
    assert all(one is found[1] for one in found[1:])
    assert found[1] == found[0] == bytes(count)


@BOTH
def test_overlapping_arrays_do_not_fill_the_memory(decode: Decode) -> None:
    """Each handle refers to another array that extends to the end: 10,000 of 25 KB are 250 MB."""
    count = 10_000
    held = b"".join(b"\x0c" + struct.pack("<i", 5 * (count - at - 1)) for at in range(count))
    handles = (b"\x66" + struct.pack("<i", len(held))) * count
    head = b"\x18" + struct.pack("<i", count + 1) + b"\x01\x0c" + struct.pack("<i", len(held))
    with pytest.raises(ValueBroken, match="bytes are read more than 32 times"):
        decode(head + held + handles, 1, person_types())


@BOTH
def test_fields_that_lie_on_each_other(decode: Decode) -> None:
    """Objects whose two fields are one object, 60 deep, would be 2 ** 60 values."""
    data = b"\x65"
    for _ in range(60):
        data = binary(data, struct.pack("<HH", 24, 24), flags=0x33)
    with pytest.raises(ValueBroken, match="bytes are read more than 32 times"):
        decode(data, 100, person_types())


@BOTH
def test_numbers_of_any_length(decode: Decode) -> None:
    """Decimals are exact, whatever Python's context says."""
    digits = b"\x7f" * 5000
    data = b"\x1e" + struct.pack("<ii", 3, len(digits)) + digits
    found = decode(data, 1, person_types())
    assert found.as_tuple().exponent == -3
    assert Fraction(found) == Fraction(int.from_bytes(digits, "big"), 1000)
    for scale, unscaled, shown in (
        (-2, b"\x85", "-5E+2"), (2, b"\x00", "0.00"), (2, b"\x80", "0.00"), (0, b"\x01\0", "256"),
        (2**31 - 1, b"\x07", "7E-2147483647"), (-(2**31), b"\x07", "7E+2147483648"),
        (1, b"\xff" * 8, "-922337203685477580.7"), (30, b"\x80\x01", "-1E-30"),
        (3, b"\x7f" + b"\xff" * 8, "2361183241434822606.847"),
    ):  # fmt: skip
        data = b"\x1e" + struct.pack("<ii", scale, len(unscaled)) + unscaled
        found = decode(data, 1, person_types())
        assert (str(found), found.as_tuple()) == (shown, Decimal(shown).as_tuple())


@BOTH
@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x04\0", b"\x63", b"\x08\x02", b"\x09\xff\xff\xff\xff", b"\x09\x09\0\0\0a",
        b"\x09\x01\0\0\0\xff", b"\x0e\x09\0\0\0", b"\x18\x01\0\0\0\x07\x65",
        b"\x19\x01\0\0\0\x09\x65\x65",
        b"\x18\xff\xff\xff\x7f\x01", b"\x14\x01\0\0\0\x03\0\0\0\0", b"\x1d\x07\0\0\0\x01\0\0\0\x03",
        b"\x1e\0\0\0\0\0\0\0\0", b"\x1c\0\0\0\0\x03", b"\x66\0\0\0\0", b"\x66\xff\xff\xff\xff",
        b"\x1b\x01\0\0\0\x65\x01\0\0\0", ANN[:-1], ANN[:20], b"g\x02" + ANN[2:],
        binary(b"\x65", b"\x18"), binary(b"\x65\x65", b"\x17\x18"),
        binary(b"\x65\x65", b"\x18\xff"), binary(b"\x65" * 78, b"\x65\x66"),
        binary(b"", b"", offset=23), binary(b"", b"", offset=25), binary(b"", b"\0", flags=0x33),
        binary(b"", b"", flags=0x05, offset=200), binary(b"", b"", flags=0x2F),
        b"\x18\x01\0\0\0\x01" * 300 + b"\x65",
    ],
)  # fmt: skip
def test_broken_values_are_told(decode: Decode, data: bytes) -> None:
    """Broken values never cause an IndexError, a crash, or a value."""
    with pytest.raises(ValueBroken):
        decode(data, 1, person_types())


def test_both_refuse_a_kind_that_is_not_known() -> None:
    """The kind is that of an entry's key or value."""
    for decode in (marshal.decode, _marshal.decode):
        with pytest.raises(ValueBroken, match="an object of kind 3"):
            decode(b"", 3, person_types())


def test_times_in_python() -> None:
    """Nanoseconds are kept; a datetime has microseconds."""
    time = Timestamp(-1, 999_999)
    assert time.datetime == datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.UTC)
    assert Date(86_400_000).datetime == datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)
    with pytest.raises(OverflowError):
        assert Date(-(1 << 63)).datetime


def test_kernels_are_built_and_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_PURE=1 selects the twins."""
    monkeypatch.delenv("PENSTOCK_PURE", raising=False)
    assert marshal.decode_kernel() is _marshal.decode
    assert wal.wal_kernel() == (_wal.Walk, _wal.Entry, _wal.find_record)
    assert marshal.COMPILED
    assert wal.COMPILED
    assert marshal.decoder(person_types()).__self__.__class__ is _marshal.Decoder  # type: ignore[attr-defined]
    assert marshal.decoder(person_types())(ANN, 100)["age"] == 31
    monkeypatch.setenv("PENSTOCK_PURE", "1")
    assert marshal.decoder(person_types())(ANN, 100)["age"] == 31
    assert not hasattr(marshal.decoder(person_types()), "__self__")
    assert marshal.decode_kernel() is marshal.decode
    assert wal.wal_kernel() == (wal.Walk, wal.Entry, wal.find_record)
    assert isinstance(marshal.decode(ANN, 100, person_types()), BinaryObject)
