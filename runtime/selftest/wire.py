"""The bench over OPC UA: runtime, plant's server and bad network, each by itself, as in a plant.

The plant keeps a log of every write that arrives; it is read here beside the journal, and judged
by `audit.py`. One plant and one wire serve all rows; between rows everything is put right again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from steadyhand.adapters.sim.chaos_proxy import ChaosProxy
from steadyhand.adapters.sim.process import PlantProcess
from steadyhand.controllers.errors import JournalError, LinkError, RequestError
from steadyhand.controllers.frames import Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.crash_loop import STATE_FILE
from steadyhand.runtime.kept import KEPT_FILE
from steadyhand.runtime.operator_client import OperatorClient
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.record import TickRecord
from steadyhand.runtime.selftest.audit import Arrival, Bounds, audit
from steadyhand.runtime.selftest.rows import Result, Row, Wire
from steadyhand.runtime.selftest.twin import plant_options, write_config

ASK_EVERY_S = 0.12
"""The operator's socket takes ten commands a second from one person."""
POLL_S = 0.04
PATIENCE_S = 40.0
"""Longest wait for control to come back."""
POLICY_S = 8.0
"""Longest wait for the policy to drive before a row; a gate that does not let it is no reason to
leave a row out."""
FLAP_WINDOW_S, FLAP_LOSSES = 60.0, 2
"""One more loss of the link within the window, and it counts as flapping."""
STOP_S = 20.0
SLACK_S = 0.25
"""What a command may be under way."""
RECORDED_S = 5.0
"""Longest that the journal may be behind the loop."""


class Site:
    """The processes of one twin. Use as a context manager.

    Attributes:
        proxy: the network.
        plant: the server's process; `plant_op` disturbs it.
    """

    def __init__(
        self,
        loaded: Loaded,
        parts: PlantParts,
        folder: Path,
        wall_period_s: float = 0.2,
        bundle: tuple[Path, Path] | None = None,
    ) -> None:
        self.loaded, self.parts, self.folder = loaded, parts, folder
        self.wall_period_s = wall_period_s
        self._options = plant_options(parts, folder, wall_period_s)
        self._order = 0
        self._journal = folder / "var" / "journal"
        self._log = folder / "writes.jsonl"
        self._ask_at_s = 0.0
        self._stopped: set[int] = set()
        self._losses: deque[float] = deque()
        self._others: list[PlantProcess] = []
        self.withdrawals = 0
        self.overridden: set[str] = set()
        """Outputs that a row has overridden."""
        self.renew = False
        """Can only a restart put the plant's server right?"""
        self.runtime: subprocess.Popen[bytes] | None = None
        self.plant = self._start_plant()
        self.proxy = ChaosProxy("127.0.0.1", _port(self.plant))
        self.config = write_config(
            loaded, parts, folder, self.plant, self.proxy.port, wall_period_s, bundle
        )

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
        self._continue()
        if self.runtime is not None and self.runtime.poll() is None:
            self.runtime.kill()
            self.runtime.wait()
        for process in (self.plant, *self._others):
            process.kill()
        self.proxy.close()

    # -- processes ---------------------------------------------------------------------------------

    def _start_plant(self) -> PlantProcess:
        return PlantProcess(
            self.folder / "pki", *self._options, "--namespace-order", str(self._order)
        )

    def kill_plant(self) -> None:
        """The plant's server dies without a word."""
        self.plant.kill()

    def restart_plant(self, reorder: bool = False) -> None:
        """It dies and comes back, with its namespaces in another order if wanted."""
        self.plant.kill()
        self._order = 1 - self._order if reorder else self._order
        self.plant = self._start_plant()
        self.proxy.target = ("127.0.0.1", _port(self.plant))

    def stranger(self) -> None:
        """Another server, with certificates of its own, answers where the plant was."""
        folder = self.folder / f"stranger{len(self._others)}"
        other = PlantProcess(folder, "--plant", self.parts.kind.id, "--dummy-namespaces", "1")
        self._others.append(other)
        self.proxy.target = ("127.0.0.1", _port(other))
        self.proxy.reset()

    def start_runtime(self) -> None:
        """`steadyhand run`."""
        command = [sys.executable, "-m", "steadyhand.runtime", "run", str(self.config)]
        with (self.folder / "runtime.log").open("ab") as log:
            self.runtime = subprocess.Popen(  # noqa: S603  (our own module)
                command, stdout=log, stderr=log, start_new_session=True
            )
        self._losses.clear()

    def stop_runtime(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end, or make it; its exit status."""
        assert self.runtime is not None  # noqa: S101  (started before any row)
        if self.runtime.poll() is None:
            self.runtime.send_signal(number)
        try:
            return self.runtime.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.runtime.kill()
            return self.runtime.wait()

    def renew_runtime(self) -> None:
        """End it in order and start it again; ends and losses before count no more."""
        self.stop_runtime()
        for name in (STATE_FILE, KEPT_FILE):  # what they hold was made up
            (self.folder / "var" / name).unlink(missing_ok=True)
        self.start_runtime()

    def freeze(self, what: str, seconds: float | None = None) -> None:
        """SIGSTOP the "plant", the "runtime" or its "policy"; for so long, or until the end."""
        pid = {"plant": self.plant.child.pid, "policy": self.policy_pid()}.get(what)
        if what == "runtime" and self.runtime is not None:
            pid = self.runtime.pid
        if pid is None:
            raise LinkError(f"there is no process of the {what}")
        os.kill(pid, signal.SIGSTOP)
        self._stopped.add(pid)
        if seconds is not None:
            time.sleep(seconds)
            self._continue()

    def kill_policy(self, number: int = signal.SIGKILL) -> None:
        """The policy's process dies."""
        pid = self.policy_pid()
        if pid is None:
            raise LinkError("there is no process of the policy")
        os.kill(pid, number)

    def policy_pid(self) -> int | None:
        """The child of the runtime that serves the policy."""
        if self.runtime is None:
            return None
        with suppress(OSError, ValueError):
            for task in Path(f"/proc/{self.runtime.pid}/task").iterdir():
                for text in (task / "children").read_text().split():
                    if b"policy_child" in Path(f"/proc/{text}/cmdline").read_bytes():
                        return int(text)
        return None

    def resident_bytes(self) -> int:
        """Memory that the runtime holds now, without its policy's process."""
        if self.runtime is None:
            return 0
        pages = Path(f"/proc/{self.runtime.pid}/statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def _continue(self) -> None:
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()

    # -- what rows do, and look at -----------------------------------------------------------------

    def plant_op(self, operation: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        """One operation of the plant's side channel."""
        return self.plant.side.call(operation, **fields)

    def grant(self, on: bool) -> None:
        """The plant grants control, or takes it."""
        self.withdrawals += not on
        self.plant.side.grant(on)

    def keep(self, output: str) -> None:
        """The plant keeps one output to itself."""
        self.withdrawals += 1
        self.plant.side.keep(output, True)

    def ask(self, command: str = "status", **arguments: Any) -> dict[str, Any]:  # noqa: ANN401
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

    def periods(self, count: float) -> None:
        """Let so many periods pass."""
        time.sleep(count * self.wall_period_s)

    def ticks(self, since: int) -> list[TickRecord]:
        """Recorded ticks from number `since` on."""
        try:
            with JournalReader(self._journal) as journal:
                return list(journal.ticks(since))
        except JournalError:
            return []

    def events(self, since: int) -> set[str]:
        """Reason codes of the events since tick `since`."""
        try:
            with JournalReader(self._journal) as journal:
                return {
                    str(event.data["code"])
                    for event in journal.events()
                    if event.tick >= since and event.data.get("code")
                }
        except JournalError:
            return set()

    def next_tick(self) -> int:
        """Number of the tick that comes next."""
        try:
            with JournalReader(self._journal) as journal:
                return journal.span()[1] + 1
        except JournalError:
            return 0

    def recorded_s(self) -> float:
        """Wall time of the newest record."""
        newest = self.ticks(self.next_tick() - 1)
        return newest[-1].wall_ns / 1e9 if newest else 0.0

    def log_size(self) -> int:
        """Bytes in the plant's log of arrivals."""
        return self._log.stat().st_size if self._log.exists() else 0

    def arrivals(self, start: int) -> list[Arrival]:
        """Writes of outputs that arrived since the log was `start` bytes long."""
        names = self.parts.outputs.names
        found = []
        if not self._log.exists():
            return []
        with self._log.open("rb") as stream:
            stream.seek(start)
            for line in stream:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # cut short by the death of the plant
                if row["name"] in names and "status" not in row:
                    found.append(Arrival.of(row))
        return found

    def in_control(self) -> bool:
        """Does the plant itself see a living controller that drives?"""
        try:
            truth = self.plant.side.truth()
        except (LinkError, OSError):
            return False
        return bool(truth["controlled"]) and truth["source"] <= Source.FALLBACK

    # -- between rows ------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything is well again; what is latched still waits for a person."""
        self._continue()
        self.proxy.heal()
        if self.renew or self.plant.child.poll() is not None:
            self.renew = False
            self.restart_plant()
        self.proxy.target = ("127.0.0.1", _port(self.plant))
        while self._others:
            self._others.pop().kill()
            self.proxy.reset()
        self.plant.side.call("reset")
        while self.overridden:
            with suppress(RequestError):
                self.ask("clear-override", output=self.overridden.pop())
        if self.runtime is None or self.runtime.poll() is not None:
            self.start_runtime()
        elif self.status().get("mode", "full") != "full":
            self.ask("mode", mode="full", reason="selftest")

    def settle(self, losses: int) -> str:
        """Wait for a controller that drives with nothing to complain of; what keeps it from that.

        Args:
            losses: of the link, that the coming row will cost.
        """
        self.heal()
        horizon = time.monotonic() - FLAP_WINDOW_S
        while self._losses and self._losses[0] < horizon:
            self._losses.popleft()
        if losses and len(self._losses) + losses > FLAP_LOSSES:
            self.renew_runtime()
        if not self.wait(self._sound, PATIENCE_S):
            return self.story()
        self.wait(lambda: self.status().get("source") == "policy", POLICY_S)
        return ""

    def _sound(self) -> bool:
        now = self.status()
        if now.get("latched"):
            with suppress(RequestError):
                self.ask("ack")
            return False
        return now.get("source") in ("policy", "fallback") and self.in_control()

    def lost(self, times: int) -> None:
        """Note losses of the link."""
        self._losses.extend([time.monotonic()] * times)

    def wait(self, condition: Callable[[], Any], patience_s: float) -> bool:
        """Until true, at most so long."""
        until_s = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > until_s:
                return False
            time.sleep(POLL_S)
        return True

    def story(self) -> str:
        """What the runtime says of itself, in short."""
        now = self.status()
        shown = ("mode", "source", "cause", "link", "granted", "latched", "gate")
        words = " ".join(f"{name}={now.get(name)}" for name in shown)
        ended = None if self.runtime is None else self.runtime.poll()
        log = self.folder / "runtime.log"
        tail = log.read_text("utf-8", "replace")[-300:] if log.exists() else ""
        return f"{words} ended={ended} {tail.strip()}"


HEALED = 5.0
"""So many periods after the event no tick tells of it any more: it did no harm to any."""


def run_wire(site: Site, row: Row) -> Result:
    """Try one row."""
    result = Result(row)
    trouble = site.settle(row.losses)
    if trouble:
        result.findings.append(f"no control before anything is done: {trouble}")
        return result
    since, start, site.withdrawals = site.next_tick(), site.log_size(), 0
    injected_s = time.time()
    row.do(site)
    told_s = _wait_told(site, row, result, since, injected_s)
    site.periods(row.hold)
    if row.latch and not row.may_latch:
        if not site.wait(lambda: row.latch in site.status().get("latched", ()), PATIENCE_S):
            result.findings.append(f"{row.latch} is not latched: {site.story()}")
        elif row.each:
            _must_refuse(site, row, result)
    healed_s = time.time()
    result.findings += row.unfounded(site, ())
    site.heal()
    if row.slow_back:
        site.renew_runtime()
    _recover(site, row, result, since, healed_s)
    site.lost(row.losses)
    if row.restarts:
        site.renew_runtime()
    _judge(site, row, result, since, start, told_s, healed_s)
    return result


def _wait_told(site: Site, row: Row, result: Result, since: int, injected_s: float) -> float:
    """Wait until the fault is told and obeyed; the moment of that."""
    if not row.codes:
        return injected_s
    until_s = time.monotonic() + row.within_s
    codes = {ReasonCode(code) for code in row.codes}
    healed_s = inf
    while time.monotonic() < until_s:
        told = False
        for tick in site.ticks(since):
            told = told or bool(tick.reasons & codes)
            if told and tick.source >= row.demand:
                result.reaction_ticks = tick.sequence - since + 1
                result.reaction_s = round(max(0.0, tick.wall_ns / 1e9 - injected_s), 3)
                return tick.wall_ns / 1e9
        if site.events(since) & set(row.codes):
            if row.demand is Source.POLICY or time.monotonic() > healed_s:
                return time.time()
            if row.may_heal:
                healed_s = min(healed_s, time.monotonic() + HEALED * site.wall_period_s)
        time.sleep(POLL_S)
    seen = {code for tick in site.ticks(since) for code in tick.reasons} - _COMMON
    worst = max((tick.source for tick in site.ticks(since)), default=Source.POLICY)
    result.findings.append(
        f"none of {', '.join(row.codes)} with {row.demand.name} within {row.within_s:g} s; "
        f"seen: {', '.join(sorted(seen)) or 'nothing'}, {worst.name}"
    )
    return time.time()


def _must_refuse(site: Site, row: Row, result: Result) -> None:
    """While the cause is there, nobody can acknowledge it away."""
    try:
        site.ask("ack", code=row.latch)
    except RequestError as error:
        if error.code != "ACK_DENIED":
            result.findings.append(f"acknowledgement refused with {error.code}: {error}")
    else:
        result.findings.append("acknowledged while the cause was there")


def _recover(site: Site, row: Row, result: Result, since: int, healed_s: float) -> None:
    """By itself, or once a person has acknowledged what is latched, and only then."""
    may = set(row.latch.removeprefix("?").split("|")) - {""}
    if row.latch and not row.may_latch:
        site.periods(3)
        if row.latch not in site.status().get("latched", ()):
            result.findings.append(f"{row.latch} did not wait for a person")
    wrong: set[str] = set()

    def back() -> bool:
        now = site.status()
        latched = set(now.get("latched", ()))
        wrong.update(latched - may)
        if latched:
            with suppress(RequestError):
                site.ask("ack")
            return False
        return bool(now) and site.in_control()

    if site.wait(back, PATIENCE_S):
        result.back_s = round(time.time() - healed_s, 3)
    else:
        result.findings.append(f"control did not come back: {site.story()}")
    if wrong:
        result.findings.append(f"latched: {', '.join(sorted(wrong))}")


def _judge(
    site: Site,
    row: Row,
    result: Result,
    since: int,
    start: int,
    told_s: float,
    healed_s: float,
) -> None:
    """Everything that arrived and everything that was recorded."""
    arrivals = site.arrivals(start)
    if arrivals:  # the journal is a little behind
        last_s = arrivals[-1].wall_s
        site.wait(lambda: site.recorded_s() > last_s + site.wall_period_s, RECORDED_S)
    ticks = site.ticks(max(0, since - 20))
    mine = [tick for tick in ticks if tick.sequence >= since]
    here = [tick for tick in mine if tick.wall_ns / 1e9 <= healed_s]
    codes = {str(code) for tick in here for code in tick.reasons} | site.events(since)
    result.seen = tuple(sorted(codes - _COMMON))
    result.worst = max((tick.source for tick in here), default=Source.POLICY)
    result.findings += [f"{code} was told" for code in sorted(codes & set(row.never))]
    result.writes = len(arrivals)
    plant = site.parts.plant
    bounds = Bounds(
        site.parts.outputs,
        plant.observations,
        plant.period_s,
        site.wall_period_s,
        frozenset({"rival"}),
        site.withdrawals,
        row.under_way * len(site.parts.outputs),
    )
    result.findings += audit(arrivals, ticks, bounds, row.unrecorded)
    late_s = told_s + site.wall_period_s + SLACK_S
    held = sum(late_s < one.wall_s < healed_s and one.user != "rival" for one in arrivals)
    if row.wire is Wire.NOTHING and held:
        result.findings.append(f"{held} writes arrived where none should")
    if row.wire is Wire.GOES_ON and not held and healed_s - late_s > 3.0 * site.wall_period_s:
        result.findings.append("no write arrived although commands go on")


_COMMON = frozenset({"FILTER_SHAPED", "LIMIT_CLIPPED", "OK", "HANDBACK", "RECOVERED"})


def _port(plant: PlantProcess) -> int:
    return int(plant.ready["endpoint"].split(":")[2].split("/")[0])
