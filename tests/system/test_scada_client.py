"""A SCADA client that is not ours (node-opcua) at a real runtime with a real plant behind it."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from steadyhand.runtime.scada.model import CONTROLS
from tests.support.loop_rig import OUTPUT, Bundles, Rig, until
from tests.support.scada_rig import LOOP_URI, ScadaFiles, password_of

HERE = Path(__file__).parent
PACKAGE = HERE / "node_modules" / "node-opcua-client"
READ = (
    "Plant", "PeriodSeconds", "Mode.InForce", "Mode.Source", "Mode.ReasonCode", "Handshake.Granted",
    "Handshake.State", "Bundle.GoLive",
    "Handshake.ControllerHeartbeat", "Handshake.PlantHeartbeat", "Trust.Confidence", "Bundle.Name",
    "Bundle.Number", "Health.Level", f"Outputs.{OUTPUT}.Request", f"Outputs.{OUTPUT}.Feedback",
    "Observations.storage_energy_kwh", "Decision.Explanation", "Alarms.Codes", "Journal.Fault",
)  # fmt: skip

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine"),
    pytest.mark.skipif(not PACKAGE.exists(), reason="no node-opcua: tests/system/install.sh"),
]


@pytest.fixture(scope="module")
def results():
    """Everything the other client did and saw, from one run."""
    with tempfile.TemporaryDirectory(prefix="sc") as name:
        folder = Path(name)
        bundles = Bundles(folder / "bundles")
        files = ScadaFiles(folder / "rig" / "scada")
        rig = Rig(
            folder / "rig",
            time_scale=1800.0,
            bundle=bundles.pack("first", 7),
            keys=bundles.keys,
            changes={"operator:\n": files.section() + "operator:\n"},
        )
        rig.start_plant()
        rig.write_config()
        try:
            rig.start_runtime()
            rig.wait_in_control()
            until(lambda: rig.status().get("source") == "policy", what="the policy")
            until(lambda: "  scada" in rig.said.read_text(), what="the address")
            url = next(line.split()[1] for line in rig.said.read_text().splitlines()
                       if line.startswith("  scada"))  # fmt: skip

            def who(cert, user, password=None):
                return {
                    "certificate": str(files.pem(cert)),
                    "key": str(files.folder / f"{cert}_key.pem"),
                    "uri": f"urn:test:{cert}",
                    "user": user,
                    "password": password or password_of(user),
                }

            settings = {
                "endpoint": url,
                "loop": LOOP_URI,
                "output": OUTPUT,
                "read": READ,
                "pki": str(folder / "pki"),
                "server": str(files.pem("server")),
                "clients": {
                    "operator": who("client", "ann"),
                    "viewer": who("client", "vic"),
                    "engineer": who("client", "eng"),
                    "liar": who("client", "ann", "a guess"),
                    "stranger": who("stranger", "ann"),
                    "expired": who("expired", "ann"),
                },
            }
            serves(rig, url)
            seen = play(folder, settings)
            latch(rig)
            bundles.pack("second", 8)
            seen |= play(folder, settings | {"latched": LATCHED, "swap": "second.shb"})
            seen["ended"] = rig.runtime.wait(30.0)
            seen["controlled"] = rig.truth()["controlled"]
            yield seen
        finally:
            rig.close()


LATCHED = "WRITE_DENIED"


def play(folder, settings):
    """One run of the other client; what it saw."""
    given = folder / "settings.json"
    given.write_text(json.dumps(settings), "utf-8")
    done = subprocess.run(
        ["node", str(HERE / "scada_client.mjs"), str(given)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(lines[-1])


def latch(rig):
    """The plant refuses our writes for a moment: that stays until a person acknowledges it."""
    rig.wait_in_control()
    rig.plant.side.call("refuse", signal=OUTPUT, status="BadUserAccessDenied")
    until(lambda: LATCHED in rig.status().get("latched", ()), what="the latch", instead=rig.story)
    rig.plant.side.call("refuse", signal=OUTPUT, status=None)
    until(
        lambda: (LATCHED, False) in [(one["code"], one["active"]) for one in rig.ask()["alarms"]],
        what="the end of the cause",
        instead=rig.story,
    )


def serves(rig, url):
    """Wait until the server has made its address space, a moment after the first tick."""
    import asyncio

    from asyncua import Client

    async def there():
        try:
            return bool(await Client(url, timeout=2).connect_and_get_server_endpoints())
        except Exception:  # noqa: BLE001  (not yet, whatever it says)
            return False

    until(lambda: asyncio.run(there()), what="the server", instead=rig.story)


def good(results, step):
    assert results[step]["ok"], (step, results[step])
    return results[step]


def test_the_story_came_to_its_end(results):
    good(results, "story")


def test_browse(results):
    found = good(results, "browse")["found"]
    for path in READ:
        assert path in found, path
    assert found["Mode"]["type"].endswith("s=ModeType")
    assert found[f"Outputs.{OUTPUT}"]["type"].endswith("s=OutputType")
    assert found["Mode.Request"]["kind"] == 4  # a method
    assert found["Mode.Source"]["id"].endswith("s=Mode.Source")
    assert found[f"Outputs.{OUTPUT}.Request"]["type"] == "ns=0;i=2368"  # AnalogItemType
    assert found["Mode.Source"]["type"] == "ns=0;i=2376"  # MultiStateDiscreteType


def test_read(results):
    values = good(results, "read")["values"]
    assert {one["status"] for one in values.values()} == {"Good"}
    shown = {path: one["value"] for path, one in values.items()}
    assert shown["Plant"] == "thermal_storage" and shown["PeriodSeconds"] == 900.0
    assert (shown["Bundle.Name"], shown["Bundle.Number"]) == ("first", 7)
    assert shown["Mode.InForce"] == 4 and shown["Mode.Source"] == 0
    assert shown["Handshake.Granted"] is True
    assert CONTROLS[shown["Handshake.State"]] == "on"
    assert "without evidence" in shown["Bundle.GoLive"]
    assert 0.0 < shown["Trust.Confidence"] <= 1.0
    assert 0 < shown["Observations.storage_energy_kwh"] < 1500
    assert shown["Health.Level"] == 255
    assert any(line.startswith("driver:") for line in shown["Decision.Explanation"])


def test_units_and_ranges(results):
    seen = good(results, "units")
    assert (seen["low"], seen["high"]) == (-400.0, 450.0)
    assert seen["unit"] == "kW" and seen["number"] == int.from_bytes(b"KWT", "big")


def test_arguments_describe_themselves(results):
    seen = good(results, "arguments")
    assert seen["names"] == ["Value", "Duration", "Reason"]


def test_the_server_says_how_it_is(results):
    seen = good(results, "service")
    assert (seen["level"], seen["state"], seen["product"]) == (255, 0, "steadyhand")


def test_subscribe(results):
    seen = good(results, "subscribe")["seen"]
    assert len(seen) >= 4 and seen == sorted(set(seen))


@pytest.mark.parametrize(
    ("step", "status", "code", "words"),
    [
        ("mode", "Good", "OK", "shadow"),
        ("mode-by-type", "Good", "OK", "full"),
        ("mode-unknown", "BadInvalidArgument", "ARGUMENTS", "off, shadow, advisory, limited, full"),
        ("override", "Good", "OK", OUTPUT),
        ("override-too-far", "BadOutOfRange", "OUT_OF_RANGE", "must be within [-400.0, 450.0]"),
        ("override-of-a-type", "BadInvalidArgument", "ARGUMENTS", "Value: a number"),
        ("override-short", "BadArgumentsMissing", "ARGUMENTS", "Duration (Double)"),
        ("clear", "Good", "OK", OUTPUT),
        ("clear-again", "BadNothingToDo", "NO_OVERRIDE", "not overridden"),
        ("ack", "BadInvalidState", "ACK_DENIED", "nothing to acknowledge"),
        ("shelve", "Good", "OK", "OBS_STALE"),
        ("unshelve", "Good", "OK", "OBS_STALE"),
        ("swap-as-operator", "BadUserAccessDenied", "ROLE", "needs the role engineer"),
        ("viewer", "BadUserAccessDenied", "ROLE", "needs the role operate"),
    ],
)
def test_commands_and_their_refusals(results, step, status, code, words):
    seen = good(results, step)
    assert seen["status"].startswith(status), seen
    assert seen["outputs"][0] == code
    assert words in seen["outputs"][1]


def test_events_of_alarms(results):
    seen = good(results, "refresh")
    assert seen["status"] == "Good"
    event = seen["event"]
    assert (event["Severity"], event["Retain"], event["SourceName"]) == (
        700,
        True,
        "north-building",
    )
    assert (event["ActiveState.Id"], event["AckedState.Id"]) == (False, False)
    assert "the plant refuses our writes" in event["Message"]


def test_an_alarm_is_acknowledged_with_success(results):
    seen = good(results, "acknowledge")
    assert (seen["status"], seen["outputs"]) == ("Good", [])
    event = seen["event"]
    assert (event["AckedState.Id"], event["Retain"]) == (True, False)
    assert event["ClientUserId"] == "scada:eng"
    assert event["Comment"] == "rights are given again"


def test_a_bundle_is_swapped_with_success(results):
    seen = good(results, "swap")
    assert (seen["status"], seen["name"]) == ("Good", "second")


def test_stop_is_told_to_the_client_before_it_hangs_up(results):
    seen = good(results, "stop")
    assert (seen["status"], seen["outputs"][0]) == ("Good", "OK")
    assert seen["states"] == [0, 4]  # running, shutdown
    assert results["ended"] == 0 and results["controlled"] is False


def test_an_override_is_seen_with_owner_and_reason(results):
    values = good(results, "overridden")["values"]
    assert values == {
        "OverrideActive": True,
        "OverrideValue": 20.0,
        "OverrideOwner": "scada:ann",
        "OverrideReason": "valve is being watched",
    }


def test_nothing_is_writable(results):
    assert good(results, "write")["status"].startswith("BadUserAccessDenied")


@pytest.mark.parametrize(
    "step", ["anonymous", "wrong-password", "stranger", "expired", "unencrypted"]
)
def test_who_is_not_let_in(results, step):
    assert not results[step]["ok"], results[step]
