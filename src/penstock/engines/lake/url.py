"""URLs of lakes: format, place and settings.

A pipeline file spreads the facts of a lake over [target] (options) and [spark.conf] (the catalogue
and the object store). `complete_url` writes them all into the URL's query when the file is read,
because every part of an engine, in the driver, in workers and in other processes, gets the URL
alone; `parse_url` reads them again. Not here: connections (`storage.py`, the engines' catalogues).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from penstock.engines.lake.object_store import S3A, complete_settings, is_on_s3
from penstock.engines.lake.partitions import Term, parse_terms
from penstock.host.errors import UrlInvalid
from penstock.ports.config import Apply, TargetSection

DELTA = "delta"
ICEBERG = "iceberg"
DELTA_EXAMPLE = "delta+file:///data/lake"
ICEBERG_EXAMPLE = "iceberg://CATALOG/NAMESPACE"

FORMAT_VERSIONS = (2, 3)
FORMAT_VERSION_DEFAULT = 3
FILE_MEGABYTES_DEFAULT = 128
VACUUM_HOURS_DEFAULT = 168.0
VACUUM_HOURS_MIN = 24.0
"""Files of a copy that is not committed yet must be younger."""

DELTA_VERSION_HOURS = 24.0
ICEBERG_VERSION_HOURS = 3.0
"""Shorter than Delta's, because each commit writes the list of all versions again."""

HOURS_MAX = 8760
TAG_MINUTES_MAX = 10_080
"""A week: tags are kept as long."""
STATE_FOLDER = "_penstock"

_CATALOG = "catalog."
"""Prefix in the query of a catalogue's properties, which follow it as Iceberg spells them."""

_S3 = "s3a."
"""Prefix in the query of an object store's settings, which follow it as Hadoop spells them."""

_CATALOG_CONF = "spark.sql.catalog."
_SPARK_ONLY = frozenset({"cache-enabled"})
_PLAIN_OPTIONS = frozenset(
    {
        "apply",
        "formatVersion",
        "fileMegabytes",
        "history",
        "partition",
        "state",
        "classPath",
        "tagMinutes",
        "versionHours",
        "vacuumHours",
    }
)
_NUMBER = re.compile(r"\d{1,5}(\.\d{1,6})?\Z")
_URI = re.compile(r"[a-z][a-z0-9+.\-]*:/")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeUrl:
    """Parsed URL of a lake.

    Attributes:
        format: DELTA or ICEBERG.
        root: URI of the folder with Delta's tables, or of Iceberg's warehouse; without a slash at
            the end. Empty for an Iceberg catalogue whose warehouse is not a URI.
        state: URI of penstock's own folder.
        catalog: Iceberg's catalogue as Spark names it; empty for Delta.
        namespace: Parts of Iceberg's namespace; empty for Delta.
        properties: The catalogue's properties as Iceberg spells them, such as `type`, `warehouse`.
        s3: Settings of the object store as Hadoop spells them, without `fs.s3a.`.
        class_path: Jars of the user's, such as a JDBC driver's, separated as in a class path.
        format_version: Iceberg's format of new tables, 2 or 3.
        file_bytes: Size of files that the bulk load writes, at most.
        tag_minutes: Shortest time between two tags of all tables; 0: there are none.
        version_hours: Time for which the table of batches names versions; they can be read.
        vacuum_hours: Age at which Delta's removed files are deleted.
        history: Whether each table has a history beside it.
        merges: Whether rows are applied by Spark's MERGE.
        partition: By the source's name of a table the terms by which it is partitioned.
    """

    format: str
    root: str
    state: str
    catalog: str = ""
    namespace: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    s3: Mapping[str, str] = field(default_factory=dict, repr=False)
    class_path: str = ""
    format_version: int = FORMAT_VERSION_DEFAULT
    file_bytes: int = FILE_MEGABYTES_DEFAULT * 2**20
    tag_minutes: float = 0
    version_hours: float = DELTA_VERSION_HOURS
    vacuum_hours: float = VACUUM_HOURS_DEFAULT
    history: bool = False
    merges: bool = False
    partition: Mapping[str, tuple[Term, ...]] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Return whether penstock's own folder is on a disk of this machine."""
        return self.state.startswith("file:")

    @property
    def is_on_s3(self) -> bool:
        """Return whether tables, or penstock's own folder, are in an object store."""
        return is_on_s3(self.root) or is_on_s3(self.state)


def parse_url(url: str) -> LakeUrl:
    """Return the parts of a lake's URL, complete or as written in a file. Raises UrlInvalid."""
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in ("delta+file", "delta+s3", "iceberg"):
        raise UrlInvalid(
            "url names no lake", hint=f"Write it like {DELTA_EXAMPLE} or {ICEBERG_EXAMPLE}."
        )
    place, _, query_text = rest.partition("?")
    if "#" in place:
        raise UrlInvalid("url has a #", hint="Name a folder without this character.")
    query = dict(parse_qsl(query_text, keep_blank_values=True))
    _check_query(query)
    if scheme == "iceberg":
        return _parse_iceberg(place, query)
    return _parse_delta(scheme.removeprefix("delta+"), place, query)


def _parse_delta(scheme: str, place: str, query: Mapping[str, str]) -> LakeUrl:
    path = place.rstrip("/")
    if scheme == "file" and (not path.startswith("/") or not path.strip("/")):
        raise UrlInvalid(
            "url names no folder: after delta+file:// its absolute path follows",
            hint=f"Write it like {DELTA_EXAMPLE}.",
        )
    if scheme == "s3" and not re.match(r"[A-Za-z0-9][A-Za-z0-9.\-]+(/|\Z)", path):
        raise UrlInvalid(
            "url names no bucket", hint="Write it like delta+s3://bucket/path/of/the/lake."
        )
    if given := [name for name in query if name.startswith(_CATALOG)]:
        raise UrlInvalid(
            f"url has {given[0]}, and Delta tables have no catalogue", hint="Leave it out."
        )
    if "formatVersion" in query:
        raise UrlInvalid(
            "formatVersion is of Iceberg, and this url names Delta tables", hint="Leave it out."
        )
    root = f"{scheme}://{path}"
    return LakeUrl(
        format=DELTA,
        root=root,
        state=_plain_scheme(query.get("state", f"{root}/{STATE_FOLDER}")),
        s3=complete_settings(_with_prefix(query, _S3), {}),
        class_path=query.get("classPath", ""),
        file_bytes=_file_bytes(query),
        version_hours=float(query.get("versionHours", DELTA_VERSION_HOURS)),
        vacuum_hours=float(query.get("vacuumHours", VACUUM_HOURS_DEFAULT)),
        history=query.get("history") == "true",
        merges=query.get("apply") == Apply.MERGE,
        partition=_partition(query, has_transforms=False),
    )


def _parse_iceberg(place: str, query: Mapping[str, str]) -> LakeUrl:
    catalog, _, path = place.partition("/")
    namespace = tuple(part for part in re.split(r"[/.]", path) if part)
    if not re.match(r"\w+\Z", catalog) or not namespace:
        raise UrlInvalid(
            "url names no catalogue and namespace",
            hint=f"Write it like {ICEBERG_EXAMPLE}, with spark.sql.catalog.CATALOG.type and the "
            "catalogue's other properties below [spark.conf].",
        )
    if wrong := next((part for part in namespace if not re.match(r"[\w\-]+\Z", part)), ""):
        raise UrlInvalid(
            f"the namespace has the part {wrong!r}", hint="Use letters, digits, _ and -."
        )
    properties = _with_prefix(query, _CATALOG)
    warehouse = properties.get("warehouse", "").rstrip("/")
    if warehouse.startswith("/"):
        warehouse = f"file://{warehouse}"
    root = _plain_scheme(warehouse) if _URI.match(warehouse) else ""
    root = re.sub(r"\Afile:/(?!/)", "file:///", root)
    beside = "/".join((root, *namespace, STATE_FOLDER)) if root else ""
    return LakeUrl(
        format=ICEBERG,
        root=root,
        state=_plain_scheme(query.get("state", beside)),
        catalog=catalog,
        namespace=namespace,
        properties=properties,
        s3=complete_settings(_with_prefix(query, _S3), properties),
        class_path=query.get("classPath", ""),
        format_version=int(query.get("formatVersion", FORMAT_VERSION_DEFAULT)),
        file_bytes=_file_bytes(query),
        version_hours=float(query.get("versionHours", ICEBERG_VERSION_HOURS)),
        tag_minutes=float(query.get("tagMinutes", 0)),
        history=query.get("history") == "true",
        merges=query.get("apply") == Apply.MERGE,
        partition=_partition(query, has_transforms=True),
    )


def _plain_scheme(location: str) -> str:
    """Return a location with the scheme `s3:` for those that Hadoop has."""
    return re.sub(r"\As3[an]:", "s3:", location.rstrip("/"))


def _check_query(query: Mapping[str, str]) -> None:
    for name, value in query.items():
        if name not in _PLAIN_OPTIONS and not name.startswith((_CATALOG, _S3)):
            raise UrlInvalid(
                f"url has the key {name!r}, which no lake knows",
                hint=f"Known here: {', '.join(sorted(_PLAIN_OPTIONS))}; the catalogue's properties "
                "belong below [spark.conf].",
            )
        if name == "formatVersion" and value not in map(str, FORMAT_VERSIONS):
            raise UrlInvalid(f"formatVersion is {value}", hint="Write 2 or 3.")
        if name == "fileMegabytes" and not re.match(r"[1-9]\d{0,4}\Z", value):
            raise UrlInvalid(f"fileMegabytes is {value}", hint="Write a number from 1 to 99999.")
        if name in ("versionHours", "vacuumHours") and not _is_hours(value):
            raise UrlInvalid(
                f"{name} is {value}", hint=f"Write a number of more than 0, at most {HOURS_MAX}."
            )
        if name == "tagMinutes" and not (_NUMBER.match(value) and float(value) <= TAG_MINUTES_MAX):
            raise UrlInvalid(
                f"tagMinutes is {value}", hint=f"Write a number from 0 to {TAG_MINUTES_MAX}."
            )
        if name == "apply" and value not in tuple(Apply):
            raise UrlInvalid(f"apply is {value}", hint="Write position or merge.")
        if name == "apply" and value == Apply.MERGE and query.get("history") == "true":
            raise UrlInvalid(
                "a history is written by position, not by MERGE", hint="Leave history=true out."
            )
        if name == "history" and value not in ("true", "false"):
            raise UrlInvalid(f"history is {value}", hint="Write true or false.")
        if name == "state" and not _URI.match(value):
            raise UrlInvalid(f"state is {value}", hint="Write a URI such as file:///data/state.")


def _partition(query: Mapping[str, str], *, has_transforms: bool) -> dict[str, tuple[Term, ...]]:
    """Return the terms of each table from a JSON object of lists of texts."""
    try:
        given = json.loads(query.get("partition", "{}"))
        return {
            table: parse_terms([str(one) for one in texts], has_transforms=has_transforms)
            for table, texts in given.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise UrlInvalid(
            f"partition {error}",
            hint='Write it below [target]: partition = { "public.orders" = "region" }.',
        ) from None


def _is_hours(text: str) -> bool:
    return re.match(r"\d{1,4}(\.\d{1,6})?\Z", text) is not None and 0 < float(text) <= HOURS_MAX


def _file_bytes(query: Mapping[str, str]) -> int:
    return int(query.get("fileMegabytes", FILE_MEGABYTES_DEFAULT)) * 2**20


def _with_prefix(query: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name.removeprefix(prefix): value
        for name, value in query.items()
        if name.startswith(prefix) and name != prefix
    }


def terms_in(value: str | list[str]) -> list[str]:
    """Return the texts of a value of [target] partition."""
    return [value] if isinstance(value, str) else list(value)


def complete_url(target: TargetSection, conf: Mapping[str, str]) -> str:
    """Return the target's URL with the options of [target] and the properties of [spark.conf].

    Keys that the URL has itself are kept. Raises UrlInvalid.
    """
    parse_url(target.url)
    place, _, query_text = target.url.partition("?")
    added: dict[str, str] = {}
    if target.format_version is not None:
        added["formatVersion"] = str(target.format_version)
    if target.file_megabytes is not None:
        added["fileMegabytes"] = str(target.file_megabytes)
    if target.version_hours is not None:
        added["versionHours"] = f"{target.version_hours:.6f}"
    if target.tag_minutes is not None:
        added["tagMinutes"] = f"{target.tag_minutes:.6f}"
    if target.vacuum_hours is not None:
        added["vacuumHours"] = f"{target.vacuum_hours:.6f}"
    if target.apply is not Apply.POSITION:
        added["apply"] = str(target.apply)
    if target.history:
        added["history"] = "true"
    if target.partition:
        terms = {name: terms_in(value) for name, value in sorted(target.partition.items())}
        added["partition"] = json.dumps(terms, ensure_ascii=False)
    scheme, _, rest = target.url.partition("://")
    if scheme.lower() == ICEBERG:
        catalog = urlsplit(f"//{rest}").netloc
        prefix = f"{_CATALOG_CONF}{catalog}."
        added |= {
            _CATALOG + name.removeprefix(prefix): value
            for name, value in conf.items()
            if name.startswith(prefix) and name.removeprefix(prefix) not in _SPARK_ONLY
        }
    added |= {
        _S3 + name.removeprefix(S3A): value for name, value in conf.items() if name.startswith(S3A)
    }
    jars = [conf.get("spark.driver.extraClassPath", "")]
    jars += [jar.strip() for jar in conf.get("spark.jars", "").split(",")]
    if any(jars):
        added["classPath"] = os.pathsep.join(filter(None, jars))
    query = {**added, **dict(parse_qsl(query_text, keep_blank_values=True))}
    parse_url(completed := f"{place}?{urlencode(query, quote_via=quote)}" if query else place)
    return completed
