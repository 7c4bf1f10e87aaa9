"""The folder that penstock was installed from, for the pip commands that hints name."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit


def reinstall_command() -> str:
    """Return the command that installs penstock again as it was installed, kernels built.

    It names the folder that penstock was installed from, or, if that is not known, the current
    folder: penstock is not on a package index.
    """
    python = shlex.quote(sys.executable)
    folder, is_editable = _origin()
    editable = "--editable " if is_editable else ""
    command = f"{python} -m pip install --force-reinstall --no-deps {editable}"
    if folder:
        return command + shlex.quote(folder)
    return f"{command}.  # in the folder of penstock's source"


def _origin() -> tuple[str, bool]:
    """Return the folder, empty if not known, and whether the installation is editable."""
    with suppress(PackageNotFoundError, ValueError):
        text = distribution("penstock").read_text("direct_url.json") or "{}"
        found = json.loads(text)
        url = urlsplit(str(found.get("url", "")))
        if url.scheme == "file" and "dir_info" in found:
            return unquote(url.path), bool(found["dir_info"].get("editable"))
    return "", False
