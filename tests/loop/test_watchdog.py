"""The watchdog is fed by control that works, and by nothing else: real plant, real runtime, a
notify socket of ours. Each case breaks one part of the running process and leaves the rest alive.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import Source
from tests.support.loop_rig import OUTPUT, Rig, until

WATCHDOG_S = 1.2
UNIT_WATCHDOG_S = 10.0
"""WatchdogSec of the shipped unit."""
SILENT_S = 3.0
"""Several times what lies between two signs of life."""

# What SIGUSR1 breaks, in the process of the runtime itself.
BREAK = {
    # the loop's own thread hangs between two ticks, in something that never ends
    "loop hangs": "Service._between = lambda self: time.sleep(1e6)",
    # it hangs within a tick
    "tick hangs": "Loop.tick = lambda self, beat: threading.Event().wait()",
    # it goes through its waiting all the time, and no tick ever comes
    "no tick comes": """
def wait(self, after_sequence):
    while True:
        self._idle.take()
        time.sleep(0.01)
PlantClock.wait = wait
""",
    # the thread of the link is blocked: a callback that does not return
    "link hangs": "service.link._worker._loop.call_soon_threadsafe(time.sleep, 1e6)",
    # it is gone, and nobody says so
    "link is gone": """
service.link._worker._call = lambda function: None
service.link._worker._loop.call_soon_threadsafe(service.link._worker._loop.stop)
service.link._worker._stopping = True
""",
    # it turns, and commands get lost in it: neither confirmed nor refused
    "commands get lost": """
async def write(self, *given):
    await asyncio.Event().wait()
Plant.write = write
""",
}

PROGRAM = """
import asyncio, signal, sys, threading, time
from pathlib import Path
from steadyhand.adapters.opcua.plant import Plant
from steadyhand.runtime import service as module
from steadyhand.runtime.clock import PlantClock
from steadyhand.runtime.loop import Loop
from steadyhand.runtime.run import run
from steadyhand.runtime.service import Service

def remember(self):
    globals()["service"] = self
    return enter(self)

enter, Service.__enter__ = Service.__enter__, remember
signal.signal(signal.SIGUSR1, lambda *_: exec(sys.argv[2], globals()))
run(Path(sys.argv[1]), None, True)
"""


@pytest.fixture(scope="module")
def site(bundles, first_bundle):
    """A plant that runtimes come to and go from."""
    with tempfile.TemporaryDirectory(prefix="rig") as name:
        rig = Rig(Path(name), bundle=first_bundle, keys=bundles.keys,
                  changes={"clean_ticks: 4": "clean_ticks: 4\n  max_raises: 1000"})  # fmt: skip
        with rig:
            rig.start_plant()
            rig.write_config()
            yield rig


class Manager:
    """The service manager's end of the notify socket."""

    def __init__(self, path):
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.heard = []
        self.fed_s = 0.0
        """When the watchdog was last fed."""

    def listen(self):
        while True:
            try:
                text = self._socket.recv(65536).decode()
            except BlockingIOError:
                return
            self.heard.append(text)
            if "WATCHDOG=1" in text:
                self.fed_s = time.monotonic()

    def ready(self):
        self.listen()
        return any(text.startswith("READY=1") for text in self.heard)

    def close(self):
        self._socket.close()
        self.path.unlink()


@pytest.fixture
def manager(site):
    made = Manager(site.folder / "notify")
    yield made
    made.close()


@pytest.fixture
def start(site, manager):
    """A runtime, told what SIGUSR1 breaks in it."""
    started = []

    def begin(damage):
        environment = os.environ | {
            "NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": str(round(1e6 * WATCHDOG_S)),
        }  # fmt: skip
        with site.said.open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(site.config), damage],
                stdout=stream, stderr=stream, env=environment,
            )  # fmt: skip
        started.append(process)
        site.runtime = process
        site.wait_in_control()
        until(manager.ready, what="READY", instead=lambda: manager.heard)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
    (site.folder / "var" / "crash_loop.json").unlink(missing_ok=True)  # these were no bundle's


def fed_since(manager, moment_s):
    manager.listen()
    return manager.fed_s > moment_s


@pytest.mark.parametrize("what", BREAK)
def test_nothing_feeds_it_once_control_is_dead(site, manager, start, what):
    process = start(BREAK[what])
    before = time.monotonic()
    until(lambda: fed_since(manager, before), what="a sign of life while all is well")
    process.send_signal(signal.SIGUSR1)
    until(
        lambda: manager.listen() or time.monotonic() - manager.fed_s > SILENT_S,
        what="silence", instead=lambda: manager.heard[-5:],
    )  # fmt: skip
    assert process.poll() is None  # it lives, all the same
    assert not any("STOPPING" in text for text in manager.heard)
    # and the plant has noticed by itself
    until(lambda: not site.truth()["controlled"], what="the plant's own control")


def test_a_plant_that_is_away_is_no_reason_to_starve_it(site, manager, start):
    start("")
    assert site.plant is not None
    site.plant.kill()
    until(lambda: site.status().get("link") not in (None, "up"), what="the link is down")
    for _ in range(4):
        before = time.monotonic()
        until(lambda moment=before: fed_since(manager, moment), what="a sign of life")
    site.start_plant()
    site.wait_in_control()


@pytest.mark.parametrize(
    ("status", "code"),
    [("BadDeviceFailure", "WRITE_FAILED"), ("BadNotWritable", "WRITE_DENIED")],
)
def test_a_plant_that_refuses_every_write_is_told_and_no_reason_to_starve_it(
    site, manager, start, status, code
):
    """A refusal is an answer: it has its own reaction, and a restart would only ask again."""
    process = start("")
    assert site.plant is not None
    site.plant.side.call("refuse", signal=OUTPUT, status=status)
    until(lambda: code in reasons(site.status()), what=code, instead=site.story)
    end = time.monotonic() + 4.0 * WATCHDOG_S
    while time.monotonic() < end:
        before = time.monotonic()
        until(lambda moment=before: fed_since(manager, moment), what="a sign of life")
    assert process.poll() is None
    # nobody drives on with set-points that the plant does not take
    assert not site.truth()["controlled"] or site.status()["source"] in ("hold", "safe")
    site.plant.side.call("refuse", signal=OUTPUT, status=None)
    until(lambda: acknowledged(site), what="control back after an acknowledgement",
          instead=site.story)  # fmt: skip
    assert process.poll() is None


def reasons(shown):
    return {shown.get("cause", {}).get("code"), *shown.get("latched", ())} | {
        fault["code"] for fault in shown.get("faults", ())
    }


def acknowledged(site):
    """Acknowledge what is latched, once its cause is gone; does the runtime drive again?"""
    with suppress(RequestError):
        site.ask("ack")
    return site.in_control()


def test_a_machine_that_is_starved_is_told_and_no_command_is_worse_for_it(site, manager, start):
    """Another process has the runtime's only core for itself, but for what the kernel leaves: some
    tens of milliseconds a second.
    """
    process = start("")
    ours = [process.pid, site.policy_pid()]
    before, begun_ns = site.truth()["writes"], time.time_ns()
    cores = os.sched_getaffinity(0)
    with busy(max(cores)):
        pin(ours, {max(cores)})
        for _ in range(4):  # control works, so the unit's watchdog is fed
            moment = time.monotonic()
            until(lambda since=moment: fed_since(manager, since), UNIT_WATCHDOG_S, "a sign of life")
            time.sleep(1.0)
    pin(ours, cores)
    site.wait_in_control()
    assert process.poll() is None
    ticks = [tick for tick in site.ticks() if tick.wall_ns > begun_ns]
    skipped = [tick for tick in ticks if {"TICK_OVERRUN", "TICK_GAP"} & set(tick.reasons)]
    assert skipped, "not starved"
    assert all(tick.source >= Source.FALLBACK for tick in skipped)
    late = [tick for tick in ticks if "TICK_LATE" in tick.reasons and tick.sent.faults]
    assert not any(tick.sent.written for tick in late)
    after = site.truth()["writes"]
    assert after["arrived"] > before["arrived"]
    for name in ("nonfinite", "outside", "rate", "ungranted"):
        assert after[name] == before[name]


@contextmanager
def busy(core):
    """A process of the real-time class that does nothing but turn, on one core."""
    turn = (
        f"import os; os.sched_setaffinity(0, {{{core}}})\n"
        "os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)); print(flush=True)\n"
        "while True: pass"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", turn], stdout=subprocess.PIPE) as hog:
        try:
            if not hog.stdout.readline():
                pytest.skip("this machine lets nobody into the real-time class")
            yield
        finally:
            hog.kill()


def pin(processes, cores):
    """Every thread of them."""
    for process in processes:
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


def test_a_loop_that_breaks_ends_the_process_with_the_plant_handed_back(site, manager, start):
    process = start("Loop.tick = lambda self, beat: 1 / 0")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30.0) == 1
    truth = site.truth()
    assert not truth["controlled"]
    manager.listen()
    assert any(text.startswith("STOPPING=1") for text in manager.heard)


def test_the_manager_is_told_step_by_step(site, manager, start):
    process = start("")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30.0) == 0
    manager.listen()
    states = [text for text in manager.heard if not text.startswith(("STATUS=", "WATCHDOG=1"))]
    first, waiting, ready, stopping = states
    assert "EXTEND_TIMEOUT_USEC=180000000" in first and "verifying" in first
    assert "EXTEND_TIMEOUT_USEC=" in waiting and "waiting for the plant" in waiting
    assert ready.startswith("READY=1\nSTATUS=")
    assert stopping.startswith("STOPPING=1\nEXTEND_TIMEOUT_USEC=20000000\nSTATUS=")
