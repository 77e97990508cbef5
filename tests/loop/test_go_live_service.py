"""From shadow to full with real processes: refused, shadowed, signed, granted, refused again."""

import json

import pytest

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.bundle.signature import generate_key
from steadyhand.runtime.config_schema import UNPROVEN_WORD
from tests.support.loop_rig import Bundles, Rig, until

TICKS = 40
LAX = f"""evidence: go.evidence
  minimum_time: {0.9 * TICKS / 96} d
  minimum_coverage: 0.2
  minimum_support: 0.0
  minimum_availability: 0.0
  maximum_violation_rate: 1.0
  maximum_correction: 1.0"""


def test_mode_full_has_to_be_earned(tmp_path):
    bundles = Bundles(tmp_path / "bundles")
    key, _ = generate_key(bundles.keys, "site", ["go-live"])
    good, other = bundles.pack("good", 1), bundles.pack("other", 2, seed=1)
    word = f"without_evidence: {UNPROVEN_WORD}"
    evidence = tmp_path / "rig" / "go.evidence"
    make = ("evidence", "make", "CONFIG", "--key", str(key), "--by", "anna", "--out", str(evidence))
    with Rig(tmp_path / "rig", 22_500.0, good, bundles.keys, changes={word: LAX}) as rig:
        rig.start_plant()
        rig.write_config()
        checked = rig.cli("check", "CONFIG")
        assert checked.returncode == 0
        assert "mode full is refused" in checked.stdout and "evidence make" in checked.stdout
        rig.start_runtime()
        until(lambda: rig.status().get("link") == "up", instead=rig.story)
        now = rig.status()
        assert now["mode"] == "off", "the configuration asks for full, and gets nothing"
        assert "GO_LIVE_FILE" in now["go_live"]
        with pytest.raises(RequestError) as refused:
            rig.ask("mode", mode="full", reason="now")
        assert refused.value.code == "NO_EVIDENCE"
        assert "run it in mode shadow" in str(refused.value)
        refused_yet = rig.cli(*make)
        assert refused_yet.returncode == 1 and "days is 0; at least 0.375" in refused_yet.stdout
        rig.ask("mode", mode="shadow", reason="to show it")
        first = rig.status()["tick"]
        until(lambda: rig.status().get("tick", 0) > first + TICKS + 2, instead=rig.story)
        assert rig.truth()["writes"]["arrived"] == 0
        rig.stop_runtime()
        short = rig.cli(*make, "--days", "7")
        assert short.returncode == 1 and "at least 7" in short.stdout
        less = rig.cli(*make, "--days", "0.1", "--violation-high", "1")
        assert less.returncode == 2, less.stdout + less.stderr
        assert "days 0.1 instead of 0.375" in less.stderr
        made = rig.cli(*make, "--json")
        assert made.returncode == 0, made.stdout + made.stderr
        assert json.loads(made.stdout)["figures"]["ticks"] > TICKS
        shown = rig.cli("evidence", "show", str(evidence), "--keys", str(bundles.keys))
        assert shown.returncode == 0 and "anna" in shown.stdout
        assert "signed off by anna" in rig.cli("check", "CONFIG").stdout
        rig.start_runtime()
        rig.wait_in_control()
        now = rig.status()
        assert (now["mode"], now["handshake"]) == ("full", "on")
        rig.ask("swap", file=str(other), reason="newer")
        until(lambda: _told(rig, "SwapRefused"), instead=rig.story)
        assert "NO_EVIDENCE" in _told(rig, "SwapRefused")
        assert rig.status()["bundle"].startswith("good")


def _told(rig, name):
    shown = rig.cli("journal", "show", str(rig.journal), "--events", "--last", "2000", "--json")
    return next((row["text"] for row in json.loads(shown.stdout) if row["event"] == name), "")
