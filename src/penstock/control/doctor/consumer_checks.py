"""Doctor's checks of the user's Python: consumers' classes, FlexCDC's plugins (PK22, PK23).

Their findings are warnings: the load, and other consumers, run without them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from penstock.consume.classes import check_class
from penstock.consume.plugins import load_plugins
from penstock.model import PenstockError
from penstock.ports.checks import Checks, Finding, Severity, Side, fix_of
from penstock.ports.config import Config

CONSUMER_CHECKS = Checks(Side.HOST)


def _report(config: Config, code: str, error: PenstockError, why: str, name: str = "") -> Finding:
    return Finding(
        code=code,
        severity=Severity.WARNING,
        side=Side.HOST,
        what=error.message,
        why=why,
        command=fix_of(error).replace("FILE NAME", f"{config.path.name} {name}"),
    )


@CONSUMER_CHECKS.check("PK22", "classes of consumers", change_only=True)
def consumer_classes(config: Config) -> Iterator[Finding]:
    """Each class can be imported, is a consumer, and accepts its options; none is instantiated."""
    for name, section in config.consumers.items():
        try:
            with contextlib.redirect_stdout(sys.stderr):  # a module's prints are not findings
                check_class(section.class_, section.options, beside=config.path.parent)
        except PenstockError as error:
            yield _report(config, "PK22", error, f"consumer {name} would end at its start", name)


@CONSUMER_CHECKS.check("PK23", "plugins of FlexCDC", change_only=True)
def flexcdc_plugins(config: Config) -> Iterator[Finding]:
    """Each plugin can be imported and instantiated, and has all nine callbacks."""
    settings = config.flexcdc
    if settings is None or not settings.plugin:
        return
    try:
        with contextlib.redirect_stdout(sys.stderr):
            load_plugins(settings.plugin, settings.plugin_order, config.path.parent)
    except PenstockError as error:
        yield _report(config, "PK23", error, "`penstock flexcdc run` would end at its start")
