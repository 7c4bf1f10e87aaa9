"""The changelog: names of its fragments, and the entry that towncrier builds at a release."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "changelog.d"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
NOT_FRAGMENTS = {"README.md", "template.md"}


def test_fragments_are_named_by_kind() -> None:
    """A fragment is changelog.d/NAME.KIND.md with a kind that towncrier knows, and not empty."""
    for path in FOLDER.iterdir():
        if path.name not in NOT_FRAGMENTS:
            assert path.suffixes[-2:][0][1:] in SETTINGS["fragment"], path.name
            assert path.name.count(".") == 2, path.name
            assert path.read_text(encoding="utf-8").strip(), path.name


def test_a_release_writes_the_fragments_below_the_marker(tmp_path: Path) -> None:
    """The new entry has each kind and text, stands above older entries, and removes its files."""
    pytest.importorskip("towncrier")
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "changelog.d").mkdir()
    for name in NOT_FRAGMENTS:
        shutil.copy(FOLDER / name, tmp_path / "changelog.d")
    (tmp_path / "changelog.d/a-table.added.md").write_text("Tables are copied.\n")
    (tmp_path / "changelog.d/31-late.fixed.md").write_text(
        "Late rows arrive. Before,\nthey did not.\n"
    )
    build = ("-m", "towncrier", "build", "--yes", "--version", "0.2.0", "--date", "2030-01-31")
    subprocess.run([sys.executable, *build], cwd=tmp_path, check=True, capture_output=True)
    text = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    entry = (
        "## 0.2.0 (2030-01-31)\n\n### Added\n\n- Tables are copied.\n\n"
        "### Fixed\n\n- Late rows arrive. Before,\n  they did not.\n"
    )
    before, marker, after = text.partition(SETTINGS["start_string"])
    assert marker
    assert "## " not in before
    assert after.strip().startswith(entry)
    assert after.index(entry) < after.index("## 0.1.0")
    left = {path.name for path in (tmp_path / "changelog.d").iterdir()}
    assert left == NOT_FRAGMENTS
