"""No descriptor left: what is open goes on, what is lost is told, and nothing ends of it."""

import itertools
import resource
import time
from pathlib import Path

from steadyhand.controllers.frames import LinkState
from tests.support.loop_rig import until


def allow_no_more(pid: int) -> tuple[int, int]:
    """From now on the process gets no new descriptor; returns the limits it had."""
    looks = []
    for _ in range(30):  # those that are open for a moment do not count
        looks.append({int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir()})
        time.sleep(0.01)
    taken = set.intersection(*looks)
    first_free = next(number for number in itertools.count() if number not in taken)
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    return resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free, hard))


def test_control_drives_on_and_a_lost_link_is_told(rig):
    made = rig(time_scale=600.0)
    made.start_runtime()
    made.wait_in_control()
    before = allow_no_more(made.runtime.pid)
    beat = made.truth()["heartbeat"]
    until(lambda: made.truth()["heartbeat"] > beat + 5, what="five more heartbeats")
    until(made.in_control, what="control", instead=made.story)
    lost_s = time.time()
    made.plant.kill()
    made.start_plant()
    time.sleep(5.0)
    assert made.runtime.poll() is None
    resource.prlimit(made.runtime.pid, resource.RLIMIT_NOFILE, before)
    made.wait_in_control(120.0)
    assert made.stop_runtime() == 0
    told = [
        str(fault.code)
        for tick in made.ticks()
        if tick.wall_ns > lost_s * 1e9 and tick.observation.link is not LinkState.UP
        for fault in tick.observation.faults
    ]
    assert "LINK_DOWN" in told
