"""The work of `penstock web` and `penstock run --web`, except printing.

Light to import: the web server's libraries are imported when something is served.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.control.pipeline.extras import WEB, install_line, missing_libraries
from penstock.model import PenstockError
from penstock.ports.config import Config
from penstock.web.access import TOKEN_VARIABLE

if TYPE_CHECKING:
    from penstock.web.server import Served

Say = Callable[[str, dict[str, str]], None]


class WebNotInstalled(PenstockError):
    """The libraries of the web interface are not installed."""

    code = "WB06"


@contextmanager
def beside(configs: Sequence[Config], host: str, port: int, *, say: Say) -> Iterator[None]:
    """Serve while the block runs. Raises the same errors as `serving`.

    Args:
        configs: The pipelines.
        host: The address to listen at.
        port: The port; 0 is any free one.
        say: Gets the address, as text and fields.
    """
    _check_installed()
    from penstock.web.server import WebOptions, serving

    def format_address(host: str, port: int) -> str:
        return f"--web-host {host} --web-port {port}"

    options = WebOptions(host=host, port=port, token=_token(), written=format_address)
    with serving(configs, options) as served:
        say(*_served_lines(served, "it ends with the run"))
        yield


def serve(
    configs: Sequence[Config], host: str, port: int, allowed: Sequence[str], *, say: Say
) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises the same errors as `serving`.

    Args:
        configs: The pipelines.
        host: The address to listen at.
        port: The port; 0 is any free one.
        allowed: More names under which we may be called.
        say: Gets the address, as text and fields.
    """
    _check_installed()
    from penstock.web.server import WebOptions, serve_until_stopped

    options = WebOptions(host=host, port=port, token=_token(), allowed_hosts=tuple(allowed))
    serve_until_stopped(
        configs, options, on_served=lambda served: say(*_served_lines(served, "Ctrl-C ends it"))
    )


def _token() -> str | None:
    return os.environ.get(TOKEN_VARIABLE) or None


def _served_lines(served: Served, end: str) -> tuple[str, dict[str, str]]:
    text, fields = f"web interface at {served.url} ({end})", {"url": served.url}
    if served.made_token:
        text += f"\ntoken to log in with, shown this once: {served.made_token}"
        fields["token"] = served.made_token
    return text, fields


def _check_installed() -> None:
    missing = missing_libraries(WEB)
    if missing:
        raise WebNotInstalled(
            f"the web interface needs {', '.join(missing)}, which is not installed",
            hint=f"Run: {install_line([WEB])}",
        )
