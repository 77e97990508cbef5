"""No descriptor left: what is open goes on, what is lost is told, and nothing ends of it."""

import itertools
import os
import resource
import time
from pathlib import Path

from steadyhand.controllers.frames import LinkState
from tests.support.loop_rig import until


def allow_no_more(pid: int) -> tuple[int, int]:
    """From now on the process gets no new descriptor; returns the limits it had."""
    taken = {int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    first_free = next(number for number in itertools.count() if number not in taken)
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    return resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free, hard))


def test_control_drives_on_and_a_lost_link_is_told(rig):
    made = rig(time_scale=3000.0)
    made.start_runtime()
    made.wait_in_control()
    before = allow_no_more(made.runtime.pid)
    beat = made.truth()["heartbeat"]
    until(lambda: made.truth()["heartbeat"] > beat + 10, what="ten more heartbeats")
    assert made.in_control()
    assert made.status() == {}, "nobody new gets in"
    lost_s = time.time()
    made.plant.kill()
    made.start_plant()
    time.sleep(5.0)
    assert not made.in_control(), "there is no descriptor for a new link"
    assert made.runtime.poll() is None
    os.kill(made.runtime.pid, 0)
    resource.prlimit(made.runtime.pid, resource.RLIMIT_NOFILE, before)
    made.wait_in_control()
    assert made.stop_runtime() == 0
    told = [
        str(fault.code)
        for tick in made.ticks()
        if tick.wall_ns > lost_s * 1e9 and tick.observation.link is not LinkState.UP
        for fault in tick.observation.faults
    ]
    assert "LINK_DOWN" in told
