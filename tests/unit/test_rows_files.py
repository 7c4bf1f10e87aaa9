"""Folders for rows that wait in files."""

from pathlib import Path

from penstock.engines.mysql.target.rows_files import RowsFiles


def test_a_folder_per_place_until_the_next_batch_there(tmp_path: Path) -> None:
    """The other place's stays; closing leaves nothing."""
    files = RowsFiles(tmp_path / "run" / "rows")
    first, other = files.begin(0), files.begin(1)
    assert first is not None
    assert other is not None
    (first / "0").write_text("rows")
    again = files.begin(0)
    assert again is not None
    assert (first.exists(), other.exists(), again.exists()) == (False, True, True)
    files.close()
    assert list((tmp_path / "run" / "rows").iterdir()) == []


def test_where_no_folder_can_be_made_rows_do_not_wait_there(tmp_path: Path) -> None:
    """The batch is staged in merge tables, and the loader does not end."""
    (tmp_path / "rows").write_text("a file is in the way")
    assert RowsFiles(tmp_path / "rows").begin(0) is None
    assert RowsFiles(None).begin(0) is None
