"""docs/bundles.md, word for word: update, refusal of the older one, and going back with a token."""

import shutil

from tests.support.loop_rig import until


def test_an_older_bundle_comes_back_with_a_token_only(rig, bundles, tmp_path):
    private = tmp_path / "keys"
    private.mkdir()
    made = rig(time_scale=3000.0, bundle=None, keys=None)
    made.close()
    keys = made.folder / "trusted"
    keys.mkdir()
    for file in bundles.keys.glob("*.pub.pem"):
        (keys / file.name).write_bytes(file.read_bytes())
    done = made.cli("bundle", "keygen", str(private), "--name", "duty", "--purpose", "rollback")
    assert done.returncode == 0, done.stderr
    (keys / "duty.pub.pem").write_bytes((private / "duty.pub.pem").read_bytes())
    old, new = bundles.pack("going", 3), bundles.pack("going-on", 4)
    site = rig(time_scale=3000.0, bundle=old, keys=keys)
    site.start_runtime()
    until(lambda: site.status().get("source") == "policy", what="the old one")

    def swapped(file):
        assert site.cli("swap", "CONFIG", str(file), "--reason", "test").returncode == 0

        def outcome():
            told = site.status().get("swap") or {}
            return told if told.get("file") == file.name and told["outcome"] != "verifying" else {}

        until(outcome, what=f"the outcome of {file.name}")
        return outcome()

    assert swapped(new)["outcome"] == "done"
    until(lambda: site.status().get("source") == "policy", what="the new one, and its memory")
    refused = swapped(old)
    assert (refused["outcome"], refused["code"]) == ("refused", "BUNDLE_ROLLBACK")
    assert "permit-rollback" in refused["text"]
    old = shutil.copy(old, tmp_path / "again.shb")
    token = str(old) + ".rollback"
    key = str(private / "duty.key.pem")
    done = site.cli("bundle", "permit-rollback", str(old), token, "--key", key, "--days", "7")
    assert done.returncode == 0, done.stderr
    assert swapped(old)["outcome"] == "done"
    assert site.status()["bundle"] == "going v3"
    until(lambda: site.status().get("source") == "policy", what="the old one again")
