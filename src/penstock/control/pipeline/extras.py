"""Extras: packages that only some pipelines need, and the extras that a pipeline file uses.

This is the one table of them: engines name theirs in their descriptors, features have theirs here.
A test compares it with `pyproject.toml` and docs/installing.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec

from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.ports.registry import engine_at, engines

KAFKA, LAKE, PANDAS, REDIS, SERVE, SPARK, STAGE, WEB = (
    "kafka", "lake", "pandas", "redis", "serve", "spark", "stage", "web",
)  # fmt: skip

FEATURES: Mapping[str, tuple[str, ...]] = {
    KAFKA: ("confluent_kafka",),
    LAKE: ("deltalake", "pyiceberg"),
    PANDAS: ("pandas",),
    REDIS: ("redis",),
    SERVE: ("sqlglot",),
    SPARK: ("pyspark",),
    STAGE: ("cryptography", "jwt", "prometheus_client", "starlette", "uvicorn"),
    WEB: ("jinja2", "prometheus_client", "starlette", "uvicorn"),
}
"""Names for `import`, by extra."""

_REDIS_PLUGIN = "RedisCache"
_KAFKA_CLASSES = "penstock.kafka:"


class ExtraMissing(PenstockError):
    """The pipeline file uses a feature whose Python packages are not installed."""

    code = "HS35"
    retry = "operator"


def extras() -> dict[str, tuple[str, ...]]:
    """Return the names for `import` of every extra."""
    return {**{one.extra: one.libraries for one in engines() if one.extra}, **FEATURES}


def missing_libraries(extra: str) -> tuple[str, ...]:
    """Return which packages of an extra are not installed."""
    return tuple(name for name in extras()[extra] if not _is_installed(name))


def _is_installed(name: str) -> bool:
    return find_spec(name) is not None


def extras_of(config: Config) -> tuple[str, ...]:
    """Return the extras that a pipeline file asks for, in order."""
    return tuple(sorted(set(_extras_of(config))))


def _extras_of(config: Config) -> Iterator[str]:
    urls = [config.source.url] if config.stage is None and config.merge is None else []
    if config.has_target:
        urls.append(config.target.url)
    if config.staging is not None:
        urls.append(config.staging.url)
    yield from (found for url in urls if (found := engine_at(url).extra))
    if config.has_target or config.has_base:
        yield SPARK
    if config.stage is not None:
        yield STAGE
    if config.serve is not None:
        yield SERVE
    if any(one.class_.startswith(_KAFKA_CLASSES) for one in config.consumers.values()):
        yield KAFKA
    plugins = config.flexcdc.plugin if config.flexcdc is not None else ()
    if any(_REDIS_PLUGIN in one for one in plugins):
        yield REDIS
    for one in config.inputs:
        yield from _extras_of(one)


def missing_extras(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the packages that are not installed, by the extras that the file asks for."""
    found = {extra: missing_libraries(extra) for extra in extras_of(config)}
    return {extra: missing for extra, missing in found.items() if missing}


def install_line(extras_: Iterable[str]) -> str:
    """Return the command that installs some extras."""
    return f"pip install 'penstock[{','.join(extras_)}]'"


def check_extras(config: Config) -> None:
    """Raise ExtraMissing if the file asks for packages that are not installed."""
    missing = missing_extras(config)
    if missing:
        names = ", ".join(sorted({name for some in missing.values() for name in some}))
        raise ExtraMissing(
            f"{config.path.name} uses {', '.join(missing)}, and {names} is not installed",
            hint=f"Run: {install_line(missing)}",
        )
