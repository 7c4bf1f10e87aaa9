"""The client of the schema registry: ids, lookups, refusals, and a registry that is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness.kafka.registry import RegistryServer
from harness.pipelines.log import ITEM, ITEM_2
from penstock.host.server_process import free_port
from penstock.kafka.avro_format import AvroFormat, adjust_names, avro_schema
from penstock.kafka.envelope import Style, TableMessages
from penstock.kafka.errors import RegistryUnreachable, SchemaRefused, TopicOptionInvalid
from penstock.kafka.modes import Modes
from penstock.kafka.options import Options
from penstock.kafka.protobuf_format import ProtobufFormat, protobuf_schema
from penstock.kafka.registry import AVRO, PROTOBUF, Registry
from penstock.kafka.schemas import INT64, STRING, STRUCT, Schema

STYLE = Style(prefix="shop", modes=Modes(engine="postgresql"))


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry without schemas."""
    with RegistryServer() as made:
        yield made


def registry(url: str, **others: Any) -> Registry:
    """Return a client that does not wait."""
    return Registry(Options({"schema.registry.url": url, "broker.wait.ms": 0, **others}))


def test_a_schema_has_one_id(server: RegistryServer) -> None:
    """The same schema of two subjects has one id; a subject's latest one is found."""
    client = registry(server.url)
    first = client.register("a-value", '"string"', AVRO)
    assert client.register("a-value", '"string"', AVRO) == first
    assert client.register("b/c-value", '"string"', AVRO) == first
    other = client.register("p-value", 'syntax = "proto3";', PROTOBUF)
    assert other != first
    assert (client.latest("p-value"), client.latest("b/c-value")) == (other, first)
    assert client.latest("nothing") is None
    assert server.schemas[other][0] == PROTOBUF


def test_without_registration_a_schema_must_be_there(server: RegistryServer) -> None:
    """KF13 names the subject if the registry does not have the schema."""
    client = registry(server.url, **{"auto.register.schemas": False})
    with pytest.raises(SchemaRefused, match="a-value"):
        client.register("a-value", '"string"', AVRO)
    found = registry(server.url).register("a-value", '"string"', AVRO)
    assert client.register("a-value", '"string"', AVRO) == found


@pytest.mark.parametrize("format_", [AvroFormat, ProtobufFormat])
def test_a_new_column_is_compatible_and_a_new_type_is_not(
    server: RegistryServer, format_: Any
) -> None:
    """A column that is added has a default; one that changes its type is refused, with the
    setting that allows it.
    """
    made = format_(registry(server.url))
    for relation in (ITEM, ITEM_2):
        TableMessages(relation, "shop.public.item", STYLE, made).of_truncate(1)
    assert len(server.subjects["shop.public.item-value"]) == 2
    if format_ is AvroFormat:
        note = replace(ITEM.columns[1], neutral="int64")
        changed = replace(ITEM, columns=(ITEM.columns[0], note), version=3)
        with pytest.raises(SchemaRefused, match="incompatible") as refused:
            TableMessages(changed, "shop.public.item", STYLE, made).of_truncate(1)
        assert "PUT /config/shop.public.item-value" in refused.value.hint
        server.levels["shop.public.item-value"] = "NONE"
        TableMessages(changed, "shop.public.item", STYLE, made).of_truncate(1)


def test_a_registry_that_fails_is_asked_again(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry is tried for broker.wait.ms, at each of its addresses; KF12 names them."""
    monkeypatch.setattr("penstock.kafka.registry.PAUSE_S", 0.01)
    server.failing = 3
    client = registry(server.url, **{"broker.wait.ms": 20_000})
    assert client.register("a-value", '"string"', AVRO) == 1
    away = f"http://127.0.0.1:{free_port()}"
    assert registry(f"{away}, {server.url}/").register("a-value", '"string"', AVRO) == 1
    with pytest.raises(RegistryUnreachable, match=away):
        registry(away).latest("a-value")
    server.failing = 1
    with pytest.raises(RegistryUnreachable, match="Error in the backend"):
        registry(server.url).latest("a-value")


def test_user_and_password(server: RegistryServer) -> None:
    """Both are sent as the registry asks for them."""
    server.user = "me:secret"
    with pytest.raises(SchemaRefused, match="Unauthorized"):
        registry(server.url).latest("a-value")
    known = {"schema.registry.user": "me", "schema.registry.password": "secret"}
    assert registry(server.url, **known).latest("a-value") is None
    with pytest.raises(TopicOptionInvalid, match="http"):
        registry("localhost:8081")


def test_names_that_the_formats_do_not_have() -> None:
    """Names are adjusted, and stay different."""
    fields = {"a b": INT64, "a-b": STRING, "1st": INT64}
    assert adjust_names(fields) == ["a_b", "a_b2", "_1st"]
    schema = Schema(kind=STRUCT, name="shop.my schema.été.Value", fields=fields)
    made = avro_schema(schema)
    assert (made["namespace"], made["name"]) == ("shop.my_schema._t_", "Value")
    assert [one["name"] for one in made["fields"]] == ["a_b", "a_b2", "_1st"]
    assert made["connect.name"] == schema.name
    assert "package shop.my_schema._t_;" in protobuf_schema(schema)


def test_numbers_of_columns_stay_the_same() -> None:
    """A column keeps its number in Protobuf when another one is dropped."""
    numbered = {"a": replace(INT64, number=1), "b": replace(INT64, number=2)}
    later = {"b": numbered["b"], "c": replace(INT64, number=19_001)}
    first = protobuf_schema(Schema(kind=STRUCT, name="t.Value", fields=numbered))
    second = protobuf_schema(Schema(kind=STRUCT, name="t.Value", fields=later))
    assert "int64 b = 2;" in first
    assert "int64 b = 2;" in second
    assert "int64 c = 20001;" in second, "19000 to 19999 are reserved"
    assert json.dumps(avro_schema(Schema(kind=STRUCT, name="t.Value", fields=numbered)))
