"""Folders: nobody else may write in them, whatever the umask; tried before they are needed."""

import os
import stat

import pytest

from steadyhand.runtime.folders import folder_fault, make_folder


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_nobody_else_may_write_in_what_is_made(tmp_path, umask):
    before = os.umask(umask)
    try:
        make_folder(tmp_path / "a" / "b" / "c")
        make_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    for folder in ("a", "a/b", "a/b/c"):
        mode = stat.S_IMODE((tmp_path / folder).stat().st_mode)
        assert mode & 0o022 == 0, folder
        assert mode & 0o700 == 0o700, folder


def test_what_cannot_be_made_says_why(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "file" / "x")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


@pytest.mark.parametrize("name", ["", "a", "a/b/c"])
def test_a_folder_that_can_be_used_has_no_fault_and_is_left_as_it_was(tmp_path, name):
    assert folder_fault(tmp_path / name) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/proc/nothing", "nothing can be written there"),
        ("/sys/nothing", "nothing can be written there"),
        ("/dev/null", "is no folder"),
        ("/dev/null/x", "is no folder"),
    ],
)
def test_what_cannot_be_written_is_found_even_by_root(path, words):
    from pathlib import Path

    assert words in folder_fault(Path(path))


def test_a_dangling_link_is_no_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "is no folder" in folder_fault(tmp_path / "link" / "x")
