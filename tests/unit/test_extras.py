"""The extras: one table of them, and a start that needs one which is not installed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from penstock.control.doctor.doctor import PreflightFailed, examine
from penstock.control.pipeline import extras
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.extras import ExtraMissing, check_extras, extras_of
from penstock.ports.config import Config

ROOT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
WHOLE = "all"
NO_IMPORTS = {"demo"}  # the server's own code finds its program

POSTGRES = "postgresql://me@127.0.0.1:1/shop"
MYSQL = "mysql://me@127.0.0.1:1/shop"
SOURCE = f'[source]\nurl = "{POSTGRES}"\ntables = ["public.*"]\n'
TARGET = f'[target]\nurl = "{MYSQL}"\n'
STAGE = f'[stage]\n[staging]\nurl = "{POSTGRES}"\n'
SERVE = '[serve]\nlisten = "127.0.0.1:0"\nusers = { sub = "${SUB}" }\n'
FLEXCDC_SOURCE = SOURCE.replace(POSTGRES, MYSQL).replace("public.", "shop.")
REDIS = f"""{FLEXCDC_SOURCE}[flexcdc]
dest = "{MYSQL}"
plugin = "penstock.consume.plugins:RedisCache"
[flexcdc.redis_cache]
url = "redis://localhost"
"""
KAFKA = f"""{SOURCE}[consumers.kafka]
class = "penstock.kafka:Topics"
[consumers.kafka.options]
bootstrap.servers = "127.0.0.1:1"
topic.prefix = "shop"
"""


def name_of(requirement: str) -> str:
    """Return the distribution that a requirement names."""
    return re.split(r"[\[><=~! ]", requirement)[0].replace("_", "-")


def config_of(tmp_path: Path, text: str) -> Config:
    """Return a pipeline with these sections."""
    file = tmp_path / "shop.toml"
    mode = 'mode = "change"\n' if TARGET in text and STAGE not in text else ""
    file.write_text(f'[pipeline]\nname = "shop"\ndirectory = "shop"\n{mode}{text}')
    return load_config(file, {"SUB": "a password that is long"})


def test_the_table_of_the_docs_is_that_of_the_project() -> None:
    """The table has each extra with the packages that it installs; `all` has every other."""
    text = (ROOT / "docs/installing.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)
    shown = {extra: set(names.strip().split(", ")) for extra, names in rows}
    assert shown == {
        extra: set(map(name_of, requirements))
        for extra, requirements in DECLARED.items()
        if extra != WHOLE
    }
    (whole,) = DECLARED[WHOLE]
    assert whole == f"penstock[{','.join(sorted(shown))}]"


def test_names_for_import_are_of_the_packages_of_the_extra() -> None:
    """The packages are those installed here."""
    of_module = packages_distributions()
    assert extras.extras().keys() == DECLARED.keys() - {WHOLE} - NO_IMPORTS
    for extra, modules in extras.extras().items():
        declared = {name_of(one).lower() for one in DECLARED[extra]}
        for module in modules:
            assert {name_of(one).lower() for one in of_module[module]} & declared, (extra, module)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SOURCE, {"postgres"}),
        (SOURCE + TARGET, {"postgres", "mysql", "spark"}),
        (SOURCE + SERVE, {"postgres", "serve"}),
        (STAGE + TARGET, {"postgres", "mysql", "spark", "stage"}),
        (REDIS, {"mysql", "redis"}),
        (KAFKA, {"postgres", "kafka"}),
    ],
)
def test_a_file_asks_for_the_extras_of_what_it_uses(
    tmp_path: Path, text: str, found: Collection[str]
) -> None:
    """The extras are drivers of its databases, Spark for a target, and those of its sections."""
    assert set(extras_of(config_of(tmp_path, text))) == found


@pytest.mark.parametrize(
    ("text", "library", "line"),
    [
        (SOURCE + TARGET, "pyspark", "pip install 'penstock[spark]'"),
        (SOURCE + TARGET, "pymysql", "pip install 'penstock[mysql]'"),
        (SOURCE + SERVE, "sqlglot", "pip install 'penstock[serve]'"),
        (STAGE + TARGET, "uvicorn", "pip install 'penstock[stage]'"),
        (REDIS, "redis",
         "pip install 'penstock[redis]'"),
        (KAFKA, "confluent_kafka", "pip install 'penstock[kafka]'"),
    ],
)  # fmt: skip
def test_a_feature_that_is_not_installed_is_an_error_of_doctor_and_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, library: str, line: str
) -> None:
    """The error is the only one, with the line to type: no other check can run without packages."""
    config = config_of(tmp_path, text)
    check_extras(config)
    monkeypatch.setattr(extras, "_is_installed", lambda name: name != library)
    report = examine(config)
    assert [(one.code, one.command) for one in report.errors] == [("PK25", line)]
    with pytest.raises(PreflightFailed, match=library) as preflight:
        report.require()
    assert line in preflight.value.hint
    with pytest.raises(ExtraMissing, match=library) as missing:
        check_extras(config)
    assert missing.value.hint == f"Run: {line}"
