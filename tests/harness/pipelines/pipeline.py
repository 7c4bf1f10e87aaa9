"""Pipeline files for tests, and the command line as a user calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.control.pipeline.config import load_config
from penstock.ports.config import Config


def write_pipeline(
    folder: Path,
    source: str,
    target: str | None,
    *,
    name: str = "shop",
    mode: str = "data+change",
    directory: str = "shop",
    tables: Sequence[str] = ("public.*",),
    sections: Mapping[str, Mapping[str, Any]] | None = None,
    file: str = "shop.toml",
) -> Path:
    """Write a pipeline file; sections: keys of further sections, or more keys of these.

    target: None leaves it out, and the mode with it.
    """
    wanted: dict[str, dict[str, Any]] = {
        "pipeline": {"name": name, "mode": mode, "directory": directory},
        "source": {"url": source, "tables": list(tables)},
        "target": {"url": target},
    }
    if target is None:
        del wanted["target"], wanted["pipeline"]["mode"]
    for section, keys in (sections or {}).items():
        wanted.setdefault(section, {}).update(keys)
    lines = []
    for section, keys in wanted.items():
        lines.append(f"[{section}]")
        lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in keys.items()]
    path = folder / file
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _key(name: str) -> str:
    """Return a key of TOML, in quotes unless it is a bare one. Source: TOML 1.0, Keys."""
    return name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)


def pipeline(folder: Path, source: str, target: str | None, **options: Any) -> Config:
    """Return the configuration of such a file."""
    return load_config(write_pipeline(folder, source, target, **options))


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> dict[str, Any]:
        """Error as `--json` printed it: the last line of standard error."""
        found: dict[str, Any] = json.loads(self.err.strip().splitlines()[-1])
        return found

    @property
    def result(self) -> Any:
        """Last object that `--json` printed."""
        return json.loads(self.out.strip().splitlines()[-1])


def penstock(
    *arguments: object, timeout_s: float = 120, environment: Mapping[str, str] | None = None
) -> Ran:
    """Run the command line in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    return Ran(done.returncode, done.stdout, done.stderr)
