"""However the service ends, no process of a policy is left behind."""

import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support.command import COMMAND
from tests.support.dry_run import write_dry_run
from tests.support.loop_kills import alive
from tests.support.loop_rig import until

PATIENCE_S = 30.0


class Watch:
    """Every process of a policy that a runtime ever had, as long as one looks."""

    def __init__(self, runtime: int) -> None:
        self.seen: set[int] = set()
        self._runtime = runtime
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.is_set():
            try:
                tasks = list(Path(f"/proc/{self._runtime}/task").iterdir())
                for task in tasks:
                    self.seen |= {int(pid) for pid in (task / "children").read_text().split()}
            except (OSError, ValueError):
                pass  # it ended just now
            time.sleep(0.002)

    def all_gone(self) -> None:
        """Wait until every one has ended."""
        self._stop.set()
        self._thread.join()
        assert self.seen, "there was never one: nothing is shown"
        until(lambda: not any(map(alive, self.seen)), PATIENCE_S, "no process is left")


def started(rig, *options):
    made = rig(time_scale=2250.0)
    made.start_runtime(*options)
    return made, Watch(made.runtime.pid)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGABRT], ids=lambda s: s.name
)
def test_a_signal(rig, number):
    made, watch = started(rig)
    made.wait_in_control()
    assert made.stop_runtime(number) == (
        0 if number in (signal.SIGTERM, signal.SIGINT) else -number
    )
    watch.all_gone()


@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.05])
def test_whoever_asks_again_gets_the_same_end(rig, pause_s):
    """A second and a third signal in the middle of the hand-back neither hurry nor break it."""
    made, watch = started(rig)
    made.wait_in_control()
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        made.runtime.send_signal(number)
        time.sleep(pause_s)
        if made.runtime.poll() is not None:
            break
    assert made.runtime.wait(PATIENCE_S) == 0
    assert not made.truth()["controlled"], "the plant has itself back"
    watch.all_gone()


def test_a_hang_up_is_no_end(rig):
    """A terminal that is closed, again and again: the file is looked at, and it drives on."""
    made, watch = started(rig)
    made.wait_in_control()
    for _ in range(5):
        made.runtime.send_signal(signal.SIGHUP)
        time.sleep(0.05)
    until(lambda: "reload:" in made.said.read_text(), PATIENCE_S, "the reload is told")
    assert made.runtime.poll() is None
    assert made.truth()["controlled"]
    assert made.stop_runtime(signal.SIGTERM) == 0
    watch.all_gone()


@pytest.mark.parametrize("after_s", [0.2, 0.5, 0.8, 1.1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_a_signal_while_it_starts(rig, number, after_s):
    made, watch = started(rig)
    time.sleep(after_s)
    made.stop_runtime(number)
    watch.all_gone()


def test_the_last_tick(rig):
    made, watch = started(rig, "--max-ticks", "3")
    assert made.runtime.wait(PATIENCE_S) == 0
    watch.all_gone()


def test_a_refused_start(rig):
    """The journal is another's: the policy is examined by then."""
    made, watch = started(rig)
    made.wait_in_control()
    first = made.runtime
    made.start_runtime()
    second = Watch(made.runtime.pid)
    assert made.runtime.wait(PATIENCE_S) == 78
    second.all_gone()
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE_S) == 0
    watch.all_gone()


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_a_signal_during_a_swap(rig, bundles, number, after_s):
    made, watch = started(rig)
    made.wait_in_control()
    second = bundles.pack("second", 2, seed=1)
    made.ask("swap", file=str(second), reason="better")
    time.sleep(after_s)
    assert made.stop_runtime(number) == (0 if number == signal.SIGTERM else -number)
    watch.all_gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_a_loop_of_long_periods_ends_at_once(tmp_path, number):
    config = write_dry_run(tmp_path, "slow", clock="paced")
    command = [*COMMAND, "run", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path) as runtime:
        segments = tmp_path / "var" / "journal"
        until(lambda: any(segments.glob("*.sqlite*")) if segments.exists() else False, PATIENCE_S)
        time.sleep(2.0)  # well inside the first period
        runtime.send_signal(number)
        try:
            assert runtime.wait(10.0) == 0
        finally:
            runtime.kill()
