"""A runtime over a plant, and a real Prometheus with the shipped alarms over both."""

import contextlib
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.controllers.errors import RequestError
from tests.support.loop_rig import SHIPPED, Rig, until
from tests.support.memory import Growth
from tests.support.prometheus import Monitoring, free_port

TIME_SCALE = 3000.0
PATIENCE_S = 60.0


@dataclass
class Site:
    """What is watched, and who watches."""

    rig: Rig
    monitoring: Monitoring
    port: int
    growth: Growth | None = None
    """Of the runtime's memory, while there is one."""
    disk: Path | None = None
    """A small disk of the journal's own, where there is one."""

    @property
    def pid(self) -> int:
        """Of the runtime."""
        assert self.rig.runtime is not None
        return self.rig.runtime.pid

    def firing(self, alarm: str) -> bool:
        """Does it fire now?"""
        return alarm in self.monitoring.alerts()

    def wait_for(self, *alarms: str, says: str = "") -> dict[str, dict[str, str]]:
        """Until each has fired, and the description of the first one says that; their words.

        They need not fire at the same moment: one that goes by itself may be gone before the last.
        """
        words: dict[str, dict[str, str]] = {}

        def all_there() -> bool:
            for name, alert in self.monitoring.alerts().items():
                if name in alarms:
                    words[name] = dict(alert["annotations"])
            first = words.get(alarms[0], {})
            return len(words) == len(alarms) and says in first.get("description", "")

        until(
            all_there,
            PATIENCE_S,
            f"{', '.join(alarms)}, saying {says!r}",
            lambda: (words, sorted(self.monitoring.alerts()), self.rig.story()),
        )
        return words

    def wait_without(self, alarm: str) -> None:
        """Until it does not fire any more."""
        until(lambda: not self.firing(alarm), PATIENCE_S, f"{alarm} ends", self.rig.story)

    def wait_driven(self) -> None:
        """Until the policy drives. What a machine with much else to do has latched meanwhile is
        acknowledged: a beat that came too late, a clock that stood still.
        """

        def driven() -> bool:
            now = self.rig.status()
            if now.get("latched"):
                with contextlib.suppress(RequestError):
                    self.rig.ask("ack")
            return bool(now.get("source") == "policy")

        until(driven, PATIENCE_S, "the policy drives", self.rig.story)

    def acknowledge(self) -> None:
        """Until nothing is latched."""

        def clear() -> bool:
            with contextlib.suppress(RequestError):
                self.rig.ask("ack")
            return self.rig.status().get("latched") == []

        until(clear, PATIENCE_S, "nothing latched", self.rig.story)

    def fault(self, signal_name: str, kind: FaultKind, **parameters: float) -> None:
        """Something is wrong with a signal from now on."""
        now_s = self.rig.truth()["time_s"]
        made = SignalFault(signal_name, kind, now_s, parameters=parameters)
        assert self.rig.plant is not None
        self.rig.plant.side.inject(made)

    def side(self, operation: str, **fields: object) -> None:
        """One word to the plant."""
        assert self.rig.plant is not None
        self.rig.plant.side.call(operation, **fields)

    def limit(self, which: int, soft: int) -> None:
        """Another soft limit for the runtime."""
        _, hard = resource.prlimit(self.pid, which)
        resource.prlimit(self.pid, which, (soft, hard))

    def start(self) -> None:
        """The runtime, with the configuration as it is now, until somebody of ours drives."""
        self.rig.start_runtime()
        self.rig.wait_in_control()

    def restart(self) -> None:
        """In order, with the configuration written anew; whoever is to drive drives."""
        self.rig.stop_runtime()
        self.rig.write_config()
        self.start()

    def freeze(self, periods: float) -> None:
        """The process stands still for so many periods, and goes on."""
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(periods * self.rig.period_s)
        os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def watched(**settings: Any) -> Iterator[Site]:
    """A runtime that drives, and Prometheus over it."""
    with tempfile.TemporaryDirectory(prefix="prom") as name, contextlib.ExitStack() as opened:
        folder, port = Path(name), free_port()
        changes = {
            "listen: 127.0.0.1:9464": f"listen: 127.0.0.1:{port}\n  plant_values: true",
            # control changes hands more often here than any plant would let it
            "clean_ticks: 4": "clean_ticks: 4\n  max_raises: 1000",
        }
        rig = Rig(
            folder / "rig",
            **{
                "time_scale": TIME_SCALE,
                "bundle": SHIPPED.parent / "thermal_storage.shb",
                "keys": SHIPPED.parent / "keys",
                "plant_options": ("--certificate-days", "365"),
            }
            | settings
            | {"changes": changes | settings.get("changes", {})},
        )
        opened.callback(rig.close)
        monitoring = Monitoring(folder / "monitoring", port)
        opened.callback(monitoring.close)
        made = Site(rig, monitoring, port)
        rig.start_plant()
        rig.write_config()
        made.start()
        until(
            lambda: monitoring.value('up{job="steadyhand"}') == 1.0,
            PATIENCE_S,
            "a scrape",
            lambda: (monitoring.get("targets")["activeTargets"], rig.story()),
        )
        yield made
