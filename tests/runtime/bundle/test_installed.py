"""The version state on disk: old or new, never mixed, whatever fails in between."""

import errno
import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle import files
from steadyhand.runtime.bundle.installed import InstalledState
from steadyhand.runtime.bundle.load import Bundle
from tests.support.bundles import NOW, PLANT

DIGESTS = ("a" * 64, "b" * 64)


@pytest.fixture(scope="module")
def bundle(kit, good) -> Bundle:
    return kit.load(good)


def version(bundle: Bundle, number: int):
    return bundle.manifest.model_copy(update={"version": number})


def test_nothing_installed_is_none(tmp_path):
    assert InstalledState(tmp_path / "state").get(PLANT.plant_id) is None
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_what_is_recorded_is_read_back(tmp_path, bundle):
    state = InstalledState(tmp_path / "state")
    state.record(version(bundle, 3), DIGESTS[0], NOW)
    state.record(version(bundle, 5), DIGESTS[1], NOW + timedelta(days=1))
    state.record(version(bundle, 4), DIGESTS[0], NOW)  # back, with the clock set back too
    entry = InstalledState(tmp_path / "state").get(PLANT.plant_id)
    assert (entry.version, entry.highest_version, entry.manifest_sha256) == (4, 5, DIGESTS[0])
    assert entry.last_seen == NOW + timedelta(days=1)
    assert (tmp_path / "state" / "installed.json").stat().st_mode & 0o777 == 0o600


def test_plants_do_not_disturb_each_other(tmp_path, bundle):
    state = InstalledState(tmp_path / "state")
    state.record(version(bundle, 3), DIGESTS[0], NOW)
    other = bundle.manifest.model_copy(update={"plant_id": "tank_2", "version": 9})
    state.record(other, DIGESTS[1], NOW)
    assert state.get(PLANT.plant_id).version == 3
    assert state.get("tank_2").version == 9


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"schema_version": 1, "plants": {}, "more": 1}',
        b'{"schema_version": 1, "plants": {"tank_1": {"version": 0}}}',
        b'{"schema_version": 1, "schema_version": 1}',
        b"\x80\x04N.",
    ],
)
def test_state_that_cannot_be_believed_is_no_permission(kit, good, tmp_path, content):
    state = InstalledState(tmp_path / "state")
    (tmp_path / "state" / "installed.json").write_bytes(content)
    with pytest.raises(BundleError, match="BUNDLE_STATE") as refused:
        kit.load(good, installed=state)
    told = str(refused.value)
    assert str(tmp_path / "state" / "installed.json") in told
    assert "restore it from a backup" in told
    assert "bundle pack" not in told, "nobody packs this file"


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_state_that_is_no_file_names_the_same_remedy(kit, good, tmp_path, kind):
    state = InstalledState(tmp_path / "state")
    place = tmp_path / "state" / "installed.json"
    place.mkdir() if kind == "folder" else place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"BUNDLE_STATE.*restore it from a backup"):
        kit.load(good, installed=state)


def test_planted_links_are_not_followed(tmp_path, bundle):
    state = InstalledState(tmp_path / "state")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for name in ("installed.json", "installed.lock"):
        (tmp_path / "state" / name).unlink(missing_ok=True)
        (tmp_path / "state" / name).symlink_to(victim)
        with pytest.raises(BundleError):
            state.record(version(bundle, 3), DIGESTS[0], NOW)
        (tmp_path / "state" / name).unlink()
    assert victim.read_bytes() == b"precious"


def test_folder_that_others_may_write_is_refused(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(BundleError, match="chmod 700"):
        InstalledState(folder)


CALLS = ("open", "fsync", "replace")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_nth_failure_leaves_old_or_new(tmp_path, bundle, monkeypatch, code):
    """Fail the 1st, 2nd, 3rd … call of the system until a run meets no failure any more."""
    state = InstalledState(tmp_path / "state")
    state.record(version(bundle, 3), DIGESTS[0], NOW)
    old = state.get(PLANT.plant_id)
    failures = 0
    for nth in range(1, 50):
        count = iter(range(1, 1000))
        for name in CALLS:
            real = getattr(os, name)

            def failing(*args, _real=real, _count=count, _nth=nth, **kwargs):
                if next(_count) == _nth:
                    raise OSError(code, os.strerror(code))
                return _real(*args, **kwargs)

            monkeypatch.setattr(files.os, name, failing)
        raised = False
        try:
            state.record(version(bundle, 4), DIGESTS[1], NOW)
        except BundleError:
            raised = True
        monkeypatch.undo()
        entry = state.get(PLANT.plant_id)
        assert entry.manifest_sha256 in DIGESTS
        if not raised:
            break
        failures += 1
        left = sorted(p.name for p in (tmp_path / "state").iterdir())
        assert left == ["installed.json", "installed.lock"]
        if entry.version == 3:
            assert entry == old
        else:  # the rename was done; only the sync of the folder failed
            assert entry.version == 4
            state.record(version(bundle, 3), DIGESTS[0], NOW)
            (tmp_path / "state" / "installed.json").unlink()
            state.record(version(bundle, 3), DIGESTS[0], NOW)
    assert failures >= 5
    assert entry.version == 4


def test_kill_between_any_two_steps_leaves_old_or_new(tmp_path, bundle):
    """A child records and is killed at a random moment; the file is always whole."""
    state = InstalledState(tmp_path / "state")
    state.record(version(bundle, 1), DIGESTS[0], NOW)
    for delay in range(20):
        pid = os.fork()
        if pid == 0:
            number = 2
            while True:
                state.record(version(bundle, number), DIGESTS[number % 2], NOW)
                number += 1
        threading.Event().wait(0.002 + 0.0013 * delay)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        entry = state.get(PLANT.plant_id)
        assert entry.manifest_sha256 == DIGESTS[entry.version % 2] or entry.version == 1


def test_two_installs_at_once_lose_nothing(tmp_path, bundle):
    state = InstalledState(tmp_path / "state")

    def install(plant_id: str) -> None:
        for number in range(1, 16):
            manifest = bundle.manifest.model_copy(update={"plant_id": plant_id, "version": number})
            InstalledState(tmp_path / "state").record(manifest, DIGESTS[0], NOW)

    threads = [threading.Thread(target=install, args=(f"p{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [state.get(f"p{i}").version for i in range(4)] == [15] * 4


def test_replace_leaves_the_old_file_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.replace(path, b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.replace(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_new_file_never_overwrites(tmp_path):
    path = tmp_path / "key"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        files.write_new(path, b"secret")
    assert not Path(tmp_path / "elsewhere").exists()
