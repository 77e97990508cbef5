"""Two runtimes on one plant, over real OPC UA: who only watches must not disturb who drives."""

import json
import shutil
import signal
import subprocess
import time
from itertools import pairwise

import pytest

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.operator_client import OperatorClient
from tests.support.command import COMMAND
from tests.support.loop_rig import ASK_EVERY_S, until


class Second:
    """Another runtime on the plant of a rig, with a folder of its own."""

    def __init__(self, rig, initial):
        self.folder = rig.folder / "second"
        self.folder.mkdir()
        (self.folder / "pki").symlink_to(rig.folder / "pki")
        text = rig.config.read_text("utf-8").replace('initial: "full"', f'initial: "{initial}"')
        self.config = self.folder / "steadyhand.yaml"
        self.config.write_text(text, "utf-8")
        self.said = self.folder / "said"
        with self.said.open("wb") as stream:
            self.process = subprocess.Popen(
                [*COMMAND, "run", str(self.config)], stdout=stream, stderr=stream
            )

    def status(self):
        assert self.process.poll() is None, self.said.read_text()
        time.sleep(ASK_EVERY_S)
        try:
            with OperatorClient(self.folder / "var" / "operator.sock", 5.0) as client:
                return client.call("status")
        except (RequestError, OSError):
            return {}

    def mode(self, mode):
        with OperatorClient(self.folder / "var" / "operator.sock", 15.0) as client:
            client.call("mode", mode=mode, reason="test")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30.0)


@pytest.fixture
def driving(rig):
    """A runtime that drives, and its plant."""
    made = rig(time_scale=3000.0, bundle=None)
    made.start_runtime()
    made.wait_in_control()
    return made


def test_a_runtime_whose_folder_another_one_took_hands_the_plant_back_and_ends(driving):
    """Somebody removed var/ under a living runtime, and started the service once more."""
    first = driving.runtime
    shutil.rmtree(driving.folder / "var")
    driving.start_runtime()
    assert first.wait(60.0) == 78
    said = driving.said.read_text()
    assert "steadyhand: the journal was taken over: " in said
    assert "Traceback" not in said
    driving.wait_in_control()
    before = driving.truth()["writes"]["arrived"]
    until(lambda: driving.truth()["writes"]["arrived"] > before + 3, what="writes")
    assert driving.stop_runtime() == 0
    done = driving.cli("journal", "verify", str(driving.journal))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_a_second_runtime_that_watches_does_not_disturb_the_first(driving, mode):
    before = len(driving.arrivals())
    second = Second(driving, mode)
    try:
        until(lambda: second.status().get("link") == "up", what="the second runtime sees the plant",
              instead=second.said.read_text)  # fmt: skip
        first = second.status()["tick"]
        until(lambda: second.status().get("tick", 0) > first + 10, what="ten ticks of the second")
        assert not second.status()["written"]
        assert driving.in_control()
        assert second.stop() == 0
    finally:
        second.process.kill()
    time.sleep(3.0 * driving.period_s)
    assert driving.in_control(), "its end takes nothing from the first either"
    now = driving.status()
    assert now["latched"] == []
    assert now["source"] in ("policy", "fallback")
    codes = {code for tick in driving.ticks() for code in tick.reasons}
    assert "WRITE_CONTENTION" not in codes
    beats = [r["value"] for r in driving.arrivals()[before:] if r["name"] == "controller_heartbeat"]
    assert len(beats) > 10
    assert all(0 < later - earlier < 1000 for earlier, later in pairwise(beats))


def test_a_second_runtime_that_drives_is_a_second_writer(driving):
    """Nobody knows which of the two is right: one lets go and says why until a person acts."""
    second = Second(driving, "off")
    try:
        until(lambda: second.status().get("link") == "up", what="the second runtime sees the plant",
              instead=second.said.read_text)  # fmt: skip
        second.mode("full")
        until(
            lambda: any(
                "WRITE_CONTENTION" in one.get("latched", ())
                for one in (driving.status(), second.status())
            ),
            what="contention",
            instead=lambda: json.dumps([driving.status(), second.status()], default=str)[:2000],
        )
    finally:
        second.process.kill()
