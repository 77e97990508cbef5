"""Another journal folder, and nobody would know any more which bundles ran here."""

import json
from pathlib import Path

import pytest

from steadyhand.runtime.cli import complete
from steadyhand.runtime.config import Loaded, parse_config
from steadyhand.runtime.exits import guarded
from steadyhand.runtime.state_folder import forgotten_state
from tests.support.loop_rig import SHIPPED


def configured(folder: Path, journal: str) -> Loaded:
    text = SHIPPED.read_text("utf-8")
    assert "directory: var/journal" in text
    text = text.replace("directory: var/journal", f"directory: {journal}")
    (folder / "steadyhand.yaml").write_text(text, "utf-8")
    loaded = parse_config(text.encode(), folder / "steadyhand.yaml")
    assert isinstance(loaded, Loaded)
    return loaded


def remembered(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "installed.json").write_text("{}", "utf-8")


def test_a_new_plant_and_one_that_ran_are_in_order(tmp_path):
    loaded = configured(tmp_path, "var/journal")
    assert forgotten_state(loaded) == ""
    remembered(tmp_path / "var")
    assert forgotten_state(loaded) == ""


@pytest.mark.parametrize(
    "journal", ["other/journal", "var/deeper/journal", "/dev/shm/none/journal"]
)
def test_a_memory_left_behind_is_told_of(tmp_path, journal):
    remembered(tmp_path / "var")
    told = forgotten_state(configured(tmp_path, journal))
    assert f"{tmp_path / 'var'} does" in told
    assert "Move installed.json and installed-*.shb over" in told


def test_what_was_moved_along_is_in_order(tmp_path):
    remembered(tmp_path / "var")
    loaded = configured(tmp_path, "other/journal")
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "var" / "installed.json").rename(tmp_path / "other" / "installed.json")
    assert forgotten_state(loaded) == ""


def test_check_says_so(tmp_path, capsys):
    remembered(tmp_path / "var")
    file = configured(tmp_path, "other/journal").file
    guarded(lambda: complete()(["check", str(file), "--json"], standalone_mode=False))
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert "journal.directory changed?" in warning
