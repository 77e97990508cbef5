"""What `train` touches, and what no plant takes."""

from pathlib import Path

import pytest

from steadyhand.controllers.errors import BundleError, FileError
from steadyhand.runtime.bundle.signature import generate_key
from steadyhand.training import commands
from tests.support.bundles import BundleKit


@pytest.fixture
def kit(tmp_path: Path) -> BundleKit:
    return BundleKit(tmp_path)


def test_quick_touches_nothing_that_anybody_uses(monkeypatch, tmp_path):
    from steadyhand.training import thermal_release

    asked: list[Path] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        thermal_release, "train_and_save", lambda weights, *rest: asked.append(weights) or {}
    )
    monkeypatch.setattr(
        thermal_release, "release", lambda *given: asked.extend(given[1:3]) or {"made": 1}
    )
    commands.train(quick=True)
    quick = Path("out/quick")
    assert asked == [
        quick / "thermal_storage.pt", quick, quick / "private" / "local.key.pem"
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_bundle_of_another_key_is_replaced_by_force_only(kit, tmp_path):
    bundle = kit.pack()
    other, _ = generate_key(tmp_path, "other", ["controller"])
    for key in (other, tmp_path / "absent.key.pem"):
        with pytest.raises(FileError, match=r"signed with key .*--force replaces it for good"):
            commands._not_another_ones(bundle, key, force=False)
    before = bundle.read_bytes()
    commands._not_another_ones(bundle, other, force=True)
    commands._not_another_ones(bundle, kit.private, force=False)
    commands._not_another_ones(tmp_path / "new.shb", other, force=False)
    assert bundle.read_bytes() == before
    bundle.write_bytes(b"no bundle")
    with pytest.raises(FileError, match="nobody we can tell"):
        commands._not_another_ones(bundle, other, force=False)


def test_a_quick_bundle_is_taken_with_the_word_only(kit):
    quick = kit.pack(provenance={"quick": True})
    with pytest.raises(BundleError, match=r"BUNDLE_QUICK.*Train it without --quick"):
        kit.load(quick)
    assert kit.load(quick, accept_quick=True).manifest.provenance["quick"] is True
    assert kit.load(kit.pack(provenance={"quick": False})).manifest.version == 3
