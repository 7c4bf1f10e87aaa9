"""A copy of the installed Spark that `local-cluster` may write beside."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyspark


def use_copied_spark(folder: Path) -> None:
    """Copy the files that Spark starts from, link the rest, and set SPARK_HOME for this process."""
    installed, home = Path(pyspark.__file__).parent, folder / "spark-home"
    for name in ("bin", "sbin"):
        shutil.copytree(installed / name, home / name, dirs_exist_ok=True)
    for name in ("jars", "python"):
        if (installed / name).exists() and not (home / name).exists():
            (home / name).symlink_to(installed / name)
    os.environ["SPARK_HOME"] = str(home)
