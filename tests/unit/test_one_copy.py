"""Messages of `penstock copy` name its options: the user has no file, and no section of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.begin import copy
from penstock.codec.errors import unfit
from penstock.codec.types import Engine, parse_choices
from penstock.control.run import new_pipeline
from penstock.control.run.new_pipeline import FILE, in_options
from penstock.control.status.live import LineView
from penstock.model import LOAD_AFRESH, PenstockError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'Write "zero dates" = "error" below [target.types] (or null, text); `penstock plan` '
            "shows all of them.",
            'Write --type "zero dates=error" (or null, text).',
        ),
        (
            'Write "zero dates" = "null" in [target.types]; `penstock plan FILE` shows '
            "the choices.",
            'Write --type "zero dates=null".',
        ),
        ('Take it out: "!public.a" in [source] tables.', 'Take it out: "!public.a" in --tables.'),
        ("copy.toml line 9, [source]: tables has a wrong value", "tables has a wrong value"),
        ("Name one of: public.a, public.b.", "Name one of: public.a, public.b."),
    ],
)
def test_words_of_a_file_become_options(tmp_path: Path, text: str, expected: str) -> None:
    """The printed options can be typed after `penstock copy SOURCE TARGET`."""
    assert in_options(text, tmp_path / FILE) == expected


def test_the_file_that_a_hint_names_is_there(tmp_path: Path) -> None:
    """A failed copy keeps its state; before a copy, `penstock init` writes a file to examine."""
    file = tmp_path / FILE
    hint = "Run `penstock doctor`: it prints the GRANT to type."
    assert "`penstock init SOURCE TARGET` and then `penstock doctor`" in in_options(hint, file)
    file.touch()
    assert in_options(hint, file) == f"Run `penstock doctor {file}`: it prints the GRANT to type."
    again = in_options(LOAD_AFRESH, file)
    assert again.endswith(f"penstock reset {file} --target, then the same command")


def test_hints_of_values_and_choices_name_existing_options() -> None:
    """The options that replace the words are those of the command."""
    names = {name for one in copy.params for name in one.opts}
    errors: list[PenstockError] = [unfit(1, 0, "no such text")]
    with pytest.raises(PenstockError) as unknown:
        parse_choices({"zero date": "null"}, Engine.MYSQL)
    errors.append(unknown.value)
    for error in errors:
        for text in (error.message, error.hint):
            shown = in_options(text, Path(FILE))
            assert "[" not in shown
            words = {word.strip(".,;:") for word in shown.split() if word.startswith("--")}
            assert words <= names


def test_an_error_of_a_copy_is_raised_in_the_words_of_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any part of the copy may raise it."""

    def fail(*_: object, **__: object) -> list[str]:
        raise unfit(1, 0, "no such text")

    monkeypatch.setattr(new_pipeline, "_copy", fail)
    url = "postgresql://u@127.0.0.1:1/shop"
    with pytest.raises(PenstockError) as failed:
        new_pipeline.copy_once(
            url, url, tables=(), choices={}, folder=tmp_path, view=LineView(), verbose=False
        )
    assert failed.value.hint.endswith("leave the table out of --tables.")
