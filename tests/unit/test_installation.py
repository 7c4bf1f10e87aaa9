"""The pip command that reinstalls penstock: typed as it is printed, it finds a project."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import cast

import pytest

from penstock.control.doctor import local_checks
from penstock.control.doctor.local_checks import reinstall_command
from penstock.ports.config import Config


def test_the_command_names_the_folder_that_penstock_is_from() -> None:
    """The folder has a project, and the interpreter is the running one."""
    python, *rest = shlex.split(reinstall_command())
    assert Path(python).exists()
    assert rest[:3] == ["-m", "pip", "install"]
    assert (Path(rest[-1]) / "pyproject.toml").is_file()


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('{"dir_info": {}, "url": "file:///srv/my%20penstock"}', "--no-deps '/srv/my penstock'"),
        (
            '{"dir_info": {"editable": true}, "url": "file:///srv/p"}',
            "--no-deps --editable /srv/p",
        ),
        (
            '{"archive_info": {}, "url": "file:///srv/p.whl"}',
            "# in the folder of penstock's source",
        ),
        (None, "# in the folder of penstock's source"),
        ("broken", "# in the folder of penstock's source"),
    ],
)
def test_however_it_was_installed_no_index_is_named(
    monkeypatch: pytest.MonkeyPatch, text: str | None, end: str
) -> None:
    """`pip install penstock` would find nothing."""

    class Told:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return text

    monkeypatch.setattr("penstock.control.doctor.local_checks.distribution", lambda _: Told())
    assert reinstall_command().endswith(end)


@pytest.mark.parametrize(("variable", "word"), [("", "gcc"), ("1", "unset PENSTOCK_PURE")])
def test_the_hint_of_the_kernel_check_fits_the_reason(
    monkeypatch: pytest.MonkeyPatch, variable: str, word: str
) -> None:
    """A kernel that is switched off needs no compiler."""
    monkeypatch.setenv("PENSTOCK_PURE", variable)
    monkeypatch.setattr(local_checks, "all_compiled", lambda: False)
    (finding,) = local_checks.kernel(cast(Config, None))
    assert word in finding.command
    assert ("pip install" in finding.command) == (not variable)
