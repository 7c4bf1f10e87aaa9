"""Set the properties for Spark's start, ours and the user's, and find one that Spark refused.

Spark's message seldom names the property, so it is found by a name, a value, or words of Spark's
own checks. Not here: the start (`session.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from penstock.model import PenstockError

# Jobs are short and few: optimizations that pay off after minutes of work are left out, and code is
# compiled early.
LOCAL_JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.2 -XX:+UseSerialGC -XX:-UsePerfData"
    " -XX:ReservedCodeCacheSize=240m"  # 48 MB with that level, which MERGE of some tables fills
)
# How often a task is tried on a cluster, where a machine may be lost. Work that must not be
# repeated checks its attempt's number (`job.py`).
CLUSTER_FAILURES_MAX = 4
# An executor that is silent for this long counts as lost, not only after Spark's two to three
# minutes: it is given up when the servers end the sessions of a machine that has vanished.
EXECUTOR_SILENT_S = 40
EXECUTOR_LOOK_S = 5
CLASS_PATH, JARS = "spark.driver.extraClassPath", "spark.jars"
SILENCE = "spark.storage.blockManagerHeartbeatTimeoutMs"

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""

# Properties of services that could not listen at their port.
# Source: org.apache.spark.util.Utils.startServiceOnPort.
_SERVICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        r"'sparkDriver' failed": ("spark.driver.port", "spark.driver.bindAddress"),
        r"BlockTransferService' failed": (
            "spark.driver.blockManager.port",
            "spark.blockManager.port",
        ),
        r"SparkUI": ("spark.ui.port",),
    }
)
# Words of messages without a property. Source: org.apache.spark.deploy.SparkSubmitArguments,
# org.apache.spark.storage.DiskBlockManager, and java's messages about its heap.
_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        r"heap size|[Dd]river memory": ("spark.driver.memory",),
        r"Driver cores": ("spark.driver.cores",),
        r"Executor memory|MiB/executor": ("spark.executor.memory",),
        r"Total executor cores": ("spark.cores.max",),
        r"Executor cores": ("spark.executor.cores",),
        r"Number of executors": ("spark.executor.instances",),
        r"any local dir": ("spark.local.dir",),
        r"VM option|Unrecognized option": (
            "spark.driver.extraJavaOptions",
            "spark.driver.defaultJavaOptions",
        ),
    }
)
# Messages of Spark about a duration or size that it cannot read, with the accepted form.
# Source: org.apache.spark.network.util.JavaUtils.
_FORMS: Mapping[str, str] = MappingProxyType(
    {
        r"Time must be specified": r"\d+\s*(us|ms|s|m|min|h|d)?",
        r"Size must be specified": r"\d+\s*([kmgtp]?b?)",
    }
)
_MASTER = re.compile(
    r"[Mm]aster (URL|must|')|[Mm]asters are unresponsive|External scheduler|to run locally with"
    r"|KubernetesClientException"
)
_LEAST_LETTERS = 2


class SparkPropertyRefused(PenstockError):
    """Spark refuses a value of [spark]. fields: property, and Spark's message."""

    code = "LD15"


def properties(
    *, master: str, name: str, is_local: bool, ui: bool, directory: Path, given: Mapping[str, str]
) -> dict[str, str]:
    """Return all properties. Given ones override ours; `extraJavaOptions` are added to ours.

    directory: absolute, for Spark's files; it gets a log4j2.properties.
    """
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOG4J)
    flags = f"-Dlog4j2.configurationFile={log4j.as_uri()} -Dderby.system.home={directory}"
    found = {
        "spark.master": master,
        "spark.app.name": name,
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "true" if ui else "false",
        "spark.ui.killEnabled": "false",  # the pages have no login
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "penstock.load.daemon",
        "spark.python.worker.reuse": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": flags,
        "spark.task.maxFailures": str(CLUSTER_FAILURES_MAX),
        "spark.speculation": "false",
        SILENCE: f"{EXECUTOR_SILENT_S}s",
        "spark.network.timeoutInterval": f"{EXECUTOR_LOOK_S}s",
    }
    if is_local:
        found |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(directory / "temporary"),
            "spark.task.maxFailures": "1",  # a task that failed half-way is redone with its batch
            "spark.driver.extraJavaOptions": f"{LOCAL_JVM_FLAGS} {flags}",
        }
    conf = dict(given)
    if more := conf.pop("spark.driver.extraJavaOptions", ""):
        found["spark.driver.extraJavaOptions"] += f" {more}"
    return found | conf


# Lists, in which the user's entries come first.
_LISTS: Mapping[str, str] = MappingProxyType(
    {
        CLASS_PATH: os.pathsep,
        JARS: ",",
        "spark.sql.extensions": ",",
    }
)


def with_jars(needed: Mapping[str, str]) -> dict[str, str]:
    """Return an engine's properties with one by which Spark sends its jars to executors.

    Executors below the driver have its class path.
    """
    jars = needed.get(CLASS_PATH)
    return {**needed, JARS: ",".join(jars.split(os.pathsep))} if jars else dict(needed)


def add_needed(given: Mapping[str, str], needed: Mapping[str, str]) -> dict[str, str]:
    """Return the user's properties with those that an engine needs.

    The user's value wins, but lists are joined.
    """
    found = {**needed, **given}
    for name, separator in _LISTS.items():
        both = [one for one in (given.get(name), needed.get(name)) if one]
        if both:
            found[name] = separator.join(both)
    return found


def find_refused(
    said: str, given: Mapping[str, str], *, master: str, python: str = ""
) -> SparkPropertyRefused | None:
    """Return the error for the property that Spark's message is about; None if it is about none.

    given: [spark.conf]; master, python: the other keys of [spark].
    """
    if _MASTER.search(said):
        suspects, shown = ["master"], f" = {master!r}"
    elif python and f'Cannot run program "{python}"' in said:
        suspects, shown = ["python"], f" = {python!r}"
    else:
        suspects, shown = _suspects(said, given), ""
    if not suspects:
        return None
    one = suspects[0] if len(suspects) == 1 else ""
    return SparkPropertyRefused(
        f"Spark does not take {one or 'one of ' + ', '.join(suspects)}{shown}: {said}",
        hint="Fix it in [spark] of the pipeline file; Spark's own messages are in spark.log, in "
        "the run directory.",
        property=one,
        said=said,
    )


def _suspects(said: str, given: Mapping[str, str]) -> list[str]:
    """Return the properties of these that a message is about."""
    for words, names in _SERVICES.items():
        if re.search(words, said) and (found := [name for name in names if name in given]):
            return found[:1]
    if named := [name for name in given if re.search(rf"{re.escape(name)}(?![\w.]*\w)", said)]:
        return sorted(named, key=said.index)[:1]
    for words, names in _WORDS.items():
        if re.search(words, said):
            return [name for name in names if name in given][:1]
    for words, form in _FORMS.items():
        if re.search(words, said):
            return [one for one in given if not re.fullmatch(form, given[one].strip().lower())]
    return [one for one in given if _is_told(given[one], said)]


def _is_told(value: str, said: str) -> bool:
    """Return whether a message contains a value, or one of the paths in it."""
    parts = [value, *(part.partition("#")[0] for part in re.split(r"[,\s]+", value))]
    return any(
        len(part) >= _LEAST_LETTERS and re.search(rf"(?<![\w/]){re.escape(part)}(?!\w)", said)
        for part in parts
    )
