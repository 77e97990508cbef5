"""A plant server and `steadyhand run` as processes of their own, to be killed and asked."""

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from steadyhand.adapters.sim.process import PlantProcess
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.errors import LinkError, RequestError
from steadyhand.runtime.bundle.contract import PlantContract
from steadyhand.runtime.bundle.pack import pack_bundle
from steadyhand.runtime.bundle.signature import generate_key, read_private
from steadyhand.runtime.operator_client import OperatorClient
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.record import TickRecord
from tests.support.command import COMMAND, steadyhand
from tests.support.models import TanhPolicy

SHIPPED = Path(__file__).parents[2] / "configs" / "thermal_storage" / "steadyhand.yaml"
PERIOD_S = 900.0
ASK_EVERY_S = 0.12
"""The operator's socket takes ten commands a second from one person."""
OUTPUT = "storage_discharge_kw"
TRUST = {
    # sure of itself whatever it sees, so that it drives as soon as the loop lets it
    "confidence": {
        "calibrator": {"kind": "platt", "slope": 0.0, "bias": 3.0},
        "settings": {"theta_off": 0.5, "theta_on": 0.6},
    },
    "gate": {"dwell_s": 0.0, "minimum_stay_s": 0.0, "max_switches": 1_000_000},
}


def until(
    condition: Callable[[], Any],
    patience_s: float = 60.0,
    what: str = "it",
    instead: Callable[[], Any] = lambda: "",
) -> float:
    """Wait until true; returns how long that took. `instead` tells what is there if it is not."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > patience_s:
            raise AssertionError(f"{what}: not within {patience_s} s; instead: {instead()}")
        time.sleep(0.01)
    return time.monotonic() - started


@dataclass
class Bundles:
    """Keys, and small bundles that are good for the thermal storage."""

    folder: Path

    def __post_init__(self) -> None:
        kind = plant_kind("thermal_storage")
        plant = kind.plant(kind.parameters)
        self.contract = PlantContract(kind.id, plant.observations, plant.outputs, plant.period_s)
        self.keys = self.folder / "keys"
        self.keys.mkdir(parents=True, exist_ok=True)
        self._private, _ = generate_key(self.keys, "release", ["controller"])
        self.stranger = self.folder / "other"
        self.stranger.mkdir(exist_ok=True)
        self._unknown, _ = generate_key(self.stranger, "nobody", ["controller"])

    def pack(
        self,
        name: str,
        version: int,
        known: bool = True,
        seed: int = 0,
        not_after: datetime | None = None,
    ) -> Path:
        """One bundle; `known` False: signed by a stranger."""
        n_y = len(self.contract.observations)
        maker = TanhPolicy(n_y=n_y, seed=seed)
        file = self.folder / f"{name}.shb"
        pack_bundle(
            file,
            read_private(self._private if known else self._unknown),
            self.contract,
            name=name,
            version=version,
            model=maker.model(),
            golden=maker.golden(),
            trust=TRUST,
            evidence={},
            provenance={"seed": seed},
            not_after=not_after,
        )
        return file


@dataclass
class Rig:
    """One plant and one runtime, in one folder.

    The plant keeps its state and its log of every write that arrives over its own death.
    """

    folder: Path
    time_scale: float = 4500.0
    bundle: Path | None = None
    keys: Path | None = None
    initial: str = "full"
    plant_options: tuple[str, ...] = ()
    changes: dict[str, str] = field(default_factory=dict)
    """Further replacements in the configuration."""
    plant: PlantProcess | None = None
    runtime: "subprocess.Popen[bytes] | None" = None
    _ask_at_s: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.config = self.folder / "steadyhand.yaml"
        self.journal = self.folder / "var" / "journal"
        self.log = self.folder / "writes.jsonl"
        self.said = self.folder / "runtime.log"

    @property
    def period_s(self) -> float:
        """Wall seconds of one tick."""
        return PERIOD_S / self.time_scale

    # -- the plant ---------------------------------------------------------------------------------

    def start_plant(self, *options: str) -> PlantProcess:
        """Start, or start again where it died, on the port it had."""
        port = self.folder / "port"
        again = ("--port", port.read_text()) if port.exists() else ()
        self.plant = PlantProcess(
            self.folder / "pki",
            *("--seed", "1", "--days", "5", "--time-scale", str(self.time_scale)),
            *("--state", str(self.folder / "state.json"), "--log", str(self.log)),
            *again,
            *self.plant_options,
            *options,
        )
        port.write_text(self.plant.ready["endpoint"].split(":")[2].split("/")[0])
        return self.plant

    def truth(self) -> dict[str, Any]:
        """What the plant really is."""
        assert self.plant is not None
        return self.plant.side.truth()

    def writes(self) -> list[dict[str, Any]]:
        """Every write of an output that ever arrived, oldest first."""
        return [row for row in self.arrivals() if row["name"] == OUTPUT]

    def arrivals(self) -> list[dict[str, Any]]:
        """Every write of any node; a line the kill cut short is none."""
        lines = self.log.read_text("utf-8").splitlines() if self.log.exists() else []
        rows = []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                assert line is lines[-1] or "{" in line[1:], line
        return rows

    # -- the runtime -------------------------------------------------------------------------------

    def write_config(self) -> Path:
        """The shipped configuration, for this plant's address and faster time."""
        assert self.plant is not None
        wall_s = self.period_s
        text = SHIPPED.read_text("utf-8")
        changes = {
            "opc.tcp://127.0.0.1:4840/steadyhand/": self.plant.ready["endpoint"],
            "source: paced": f"source: plant\n  time_scale: {self.time_scale}",
            "request_timeout: 1 s": f"request_timeout: {min(1.0, 5.0 * wall_s)} s",
            "deadline: 500 ms": f"deadline: {0.5 * wall_s} s",
            'initial: "off"': f'initial: "{self.initial}"',
            "listen: 127.0.0.1:9464": "listen: 127.0.0.1:0",
            **self.changes,
        }
        if self.bundle is None:
            text = re.sub(r"bundle:\n(  .*\n)+\n", "", text)
        else:
            changes["file: thermal_storage.shb"] = f"file: {self.bundle}"
            changes["trusted_keys: keys"] = f"trusted_keys: {self.keys}"
        for old, new in changes.items():
            assert old in text, f"{old!r} is gone from {SHIPPED}"
            text = text.replace(old, new, 1)
        self.config.write_text(text, "utf-8")
        return self.config

    def start_runtime(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start `steadyhand run`."""
        with self.said.open("ab") as stream:
            self.runtime = subprocess.Popen(
                [*COMMAND, "run", str(self.config), *options], stdout=stream, stderr=stream
            )
        return self.runtime

    def cli(self, *words: str, timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
        """One command of `steadyhand`; CONFIG stands for the configuration."""
        made = [str(self.config) if word == "CONFIG" else word for word in words]
        return steadyhand(*made, timeout_s=timeout_s)

    def ask(self, command: str = "status", **arguments: Any) -> dict[str, Any]:
        """One command over the operator's socket.

        Raises:
            RequestError: refused, or nobody listens.
        """
        time.sleep(max(0.0, self._ask_at_s - time.monotonic()))
        self._ask_at_s = time.monotonic() + ASK_EVERY_S
        with OperatorClient(self.folder / "var" / "operator.sock", 15.0) as client:
            return client.call(command, **arguments)

    def status(self) -> dict[str, Any]:
        """What the runtime says of itself; empty while it says nothing."""
        try:
            return self.ask()
        except (RequestError, OSError):
            return {}

    def in_control(self) -> bool:
        """Does the plant itself see a living controller that drives?"""
        try:
            truth = self.truth()
        except (LinkError, OSError):
            return False
        return bool(truth["controlled"]) and truth["source"] <= 1

    def policy_pid(self) -> int | None:
        """The child of the runtime that serves the policy."""
        assert self.runtime is not None
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rpartition(")")[2].split()
                line = (status.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == self.runtime.pid and b"policy_child" in line:
                found.append(int(status.parent.name))
        return found[0] if found else None

    def story(self) -> str:
        """Everything that may tell why the controller does not drive."""
        now = self.status()
        shown = ("tick", "mode", "source", "cause", "link", "granted", "gate", "latched", "faults")
        parts = [f"{name}={now.get(name)}" for name in shown]
        ended = None if self.runtime is None else self.runtime.poll()
        return " ".join([*parts, f"ended={ended}", self.said.read_text()[-600:]])

    def wait_in_control(self, patience_s: float = 60.0) -> float:
        """Until the controller drives and its heart beats; returns how long that took."""
        started = time.monotonic()
        until(self.in_control, patience_s, "in control", self.story)
        beat = self.truth()["heartbeat"]
        until(lambda: self.truth()["heartbeat"] != beat, patience_s, "a heartbeat")
        return time.monotonic() - started

    def stop_runtime(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit status."""
        assert self.runtime is not None
        if self.runtime.poll() is None:
            self.runtime.send_signal(number)
        return self.runtime.wait(30.0)

    def close(self) -> None:
        """End everything."""
        if self.runtime is not None and self.runtime.poll() is None:
            self.runtime.kill()
            self.runtime.wait()
        if self.plant is not None:
            self.plant.kill()

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- afterwards --------------------------------------------------------------------------------

    def ticks(self) -> Iterator[TickRecord]:
        """Every recorded tick of every run."""
        with JournalReader(self.journal) as journal:
            yield from journal.ticks()

    def runs(self) -> dict[str, list[TickRecord]]:
        """Recorded ticks by run of the runtime, oldest first."""
        with JournalReader(self.journal) as journal:
            return {run: list(journal.ticks(run=run)) for run in journal.runs}


@dataclass
class Judgement:
    """What an independent look at the plant's own log finds."""

    writes: int = 0
    not_finite: int = 0
    outside: int = 0
    second_writer: int = 0
    """Heartbeats that do not follow their predecessor, beyond one per start of the runtime."""
    unrecorded: int = 0
    """Writes without a record of the same value."""
    unrecorded_at_kill: int = 0
    """Of these, writes of the last instant before the runtime was killed."""
    without_reason: int = 0
    """Recorded writes of somebody else than the policy that name no reason."""


def judge(rig: Rig, kills_wall_s: tuple[float, ...] = (), starts: int = 1) -> Judgement:
    """Compare the plant's log of arrivals with the journal.

    Args:
        rig: the plant and the runtime, both stopped.
        kills_wall_s: wall time of each kill of the runtime.
        starts: how often the runtime was started.
    """
    found = Judgement()
    signals = plant_kind("thermal_storage").plant(plant_kind("thermal_storage").parameters)
    low, high = signals.outputs.low[0], signals.outputs.high[0]
    sent = [
        (tick.wall_ns / 1e9, float(tick.sent.action[0]), tick)
        for tick in rig.ticks()
        if tick.sent is not None and tick.sent.written
    ]
    at = 0
    beat = None
    for row in rig.writes():
        found.writes += 1
        value = row["value"]
        if not isinstance(value, float) or not np.isfinite(value):
            found.not_finite += 1
            continue
        found.outside += not low <= value <= high
        if row["sequence"] is not None:  # a set-point of a take-over comes before its heartbeat
            found.second_writer += beat is not None and not 0 < row["sequence"] - beat < 1000
            beat = row["sequence"]
        ahead = at
        late_s = row["wall_s"] + 1.0
        while ahead < len(sent) and (sent[ahead][1] != value or sent[ahead][0] < late_s - 6.0):
            ahead += 1
        if ahead == len(sent) or sent[ahead][0] > late_s:
            found.unrecorded += 1
            near = any(-0.5 < killed - row["wall_s"] < 0.5 for killed in kills_wall_s)
            found.unrecorded_at_kill += near
            continue
        tick = sent[ahead][2]
        found.without_reason += tick.source != 0 and not tick.reasons
        at = ahead + 1
    found.second_writer = max(0, found.second_writer - (starts - 1))
    return found


def copy_of(journal: Path, target: Path) -> Path:
    """A journal as it lies there now, to look at while the writer goes on."""
    return Path(shutil.copytree(journal, target))
