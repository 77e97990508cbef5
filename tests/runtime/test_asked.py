"""The asked mode across restarts."""

import pytest

from steadyhand.runtime.asked import load_asked, save_asked
from steadyhand.runtime.modes import Mode


@pytest.mark.parametrize("mode", list(Mode))
def test_what_was_asked_comes_back(tmp_path, mode):
    path = tmp_path / "asked.json"
    save_asked(path, Mode.FULL)
    save_asked(path, mode)
    assert load_asked(path) is mode
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["asked.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"asked": "all"}', b'{"mode": "full"}', b"\xff\xfe", b"3"]
)
def test_what_cannot_be_understood_is_off(tmp_path, content):
    path = tmp_path / "asked.json"
    path.write_bytes(content)
    assert load_asked(path) is Mode.OFF
    assert load_asked(tmp_path / "nothing") is Mode.OFF


def test_a_planted_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".asked.json.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        save_asked(tmp_path / "asked.json", Mode.FULL)
    assert victim.read_text() == "precious"


def test_a_failed_write_leaves_the_old_wish(tmp_path):
    path = tmp_path / "asked.json"
    save_asked(path, Mode.SHADOW)
    (tmp_path / ".asked.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        save_asked(path, Mode.FULL)
    assert load_asked(path) is Mode.SHADOW
