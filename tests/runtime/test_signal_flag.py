"""Signals by the thousand, also in the middle of their own handling: none of them stops anything
but what it asks for.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import signal, sys, time
from pathlib import Path
from steadyhand.runtime.reload import Reload
from steadyhand.runtime.signal_flag import SignalFlag
from steadyhand.runtime.start import _on

stop, done, told = SignalFlag(), [], []
reload = Reload(Path("nothing.yaml"), "", told.append)
reload._look = lambda: told.append(1)
_on(signal.SIGTERM, stop.set)
_on(signal.SIGINT, stop.set)
_on(signal.SIGHUP, reload.ask)
_on(signal.SIGUSR1, lambda: done.append(1))
print("ready", flush=True)
stops = 0
ends_s = time.monotonic() + 30.0
# signals that are looked at together with the last one, on a busy machine, count as well
while not done or (not (stops and told) and time.monotonic() < ends_s):
    reload.begin()
    if stop.is_set():
        stops += 1
        stop.clear()
        stop.set()
print("stops" if stops else "never", "reloads" if told else "never", flush=True)
"""
SIGNALS = 6000
PATIENCE_S = 60.0


def test_a_storm_of_signals_hangs_nothing_up():
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert child.stdout.readline() == "ready\n"
        for number in range(SIGNALS):
            child.send_signal((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[number % 3])
        time.sleep(0.2)
        child.send_signal(signal.SIGUSR1)
        said, _ = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert said == "stops reloads\n"
    assert child.returncode == 0
