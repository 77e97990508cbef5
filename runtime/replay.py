"""Run recorded inputs through present code and show where it decides otherwise.

What comes from outside is taken from the journal: the process images with what was found wrong with
them, the operator's commands, what the link did with each command, and (unless it is run again)
what the policy proposed. Everything else is decided anew from fresh state by the same loop that
runs the plant, and compared with the record bit for bit.

    report = replay(journal, make_loop)      # make_loop(link, policy) -> a Loop on these two

A run is replayed from its start, since modes, dwell times, heuristics and monitors have memory. A
run whose beginning was purged is replayed from where it now begins, and the report says so.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any, Protocol

import numpy as np

from steadyhand.controllers.errors import JournalError, RequestError
from steadyhand.controllers.frames import (
    Fault,
    LinkState,
    Observation,
    Proposal,
    ProposalStatus,
    Sent,
    Source,
)
from steadyhand.controllers.protocols import Policy
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector
from steadyhand.runtime.clock import Beat
from steadyhand.runtime.metrics import FinishedTick
from steadyhand.runtime.modes import Mode, ModeMachine
from steadyhand.runtime.reader import EventRecord, JournalReader
from steadyhand.runtime.record import Encoder, RecordLayout, TickRecord

COMMAND = "Command"
"""Event by which an operator's command is recorded: {"method": ..., "arguments": {...}}, where the
method is one of the mode machine's, or "acknowledge_gate"."""
_METHODS = (
    "request",
    "acknowledge",
    "set_override",
    "clear_override",
    "restore_override",
    "restore_latch",
)
_VOLATILE = (
    "sequence",
    "monotonic_ns",
    "wall_ns",
    "timings",
    "proposal_latency_s",
    "filter_duration_us",
    "config",
    "bundle",
)
"""Fields that tell when and how fast something was decided, not what."""
_KEEP = 100


class RerunTick(FinishedTick, Protocol):
    """What the loop decided anew."""

    @property
    def wanted(self) -> Vector: ...  # noqa: D102


class Rerun(Protocol):
    """A loop under replay."""

    def tick(self, beat: Beat) -> RerunTick:
        """One tick on the image that the link shows."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of one tick in which present code decides otherwise."""

    tick: int
    field: str
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Result of one replay."""

    run: str
    ticks: int
    differing: int
    """Ticks with any difference."""
    fields: dict[str, int]
    """Number of differing ticks per field."""
    differences: tuple[Difference, ...]
    """The first hundred."""
    digest: str
    """SHA-256 over everything that was decided; equal digests mean equal decisions."""
    recorded_digest: str
    """The same over the record."""
    notes: tuple[str, ...]


class ReplayLink:
    """A link that shows recorded images and repeats what happened to recorded commands."""

    def __init__(self, observations: SignalSet, outputs: SignalSet) -> None:
        self.observations = observations
        self.outputs = outputs
        self.sequence = -1
        self._record: TickRecord | None = None
        self._nothing = np.full(len(outputs), nan)

    def show(self, record: TickRecord) -> None:
        """Make `record` the present."""
        self._record = record
        self.sequence = record.observation.sequence

    def open(self) -> None:
        """Nothing to connect to."""

    def close(self) -> None:
        """Nothing to hand back."""

    def read(self, now_s: float) -> Observation:
        """The recorded image.

        Raises:
            JournalError: nothing was shown yet.
        """
        del now_s
        if self._record is None:
            raise JournalError("replay: no record is shown; call show() before read()")
        return self._record.observation

    def write(self, action: Vector, source: Source) -> Sent:
        """What became of the command then: sent or not, with which faults.

        Where it was sent, the present command takes the place of the recorded one, as it would
        have on the wire; a difference shows in both.
        """
        del source
        if self._record is None or self._record.sent is None:
            return Sent(self._nothing, -1, nan, written=False)
        sent = self._record.sent
        return replace(sent, action=action) if sent.written else sent

    def release(self) -> None:
        """Nothing to release."""

    def newest(self) -> tuple[int, float]:
        """Number and plant time (s) of the recorded image."""
        return self.sequence, nan if self._record is None else self._record.observation.time_s

    def condition(self) -> tuple[LinkState, bool, tuple[Fault, ...]]:
        """As it was recorded; nothing is shown before the first record."""
        if self._record is None:
            return LinkState.DOWN, False, ()
        shown = self._record.observation
        return shown.link, shown.granted, shown.faults

    def stuck(self) -> str:
        """Never: there is no thread."""
        return ""

    def wait_fresh(self, after_sequence: int, timeout_s: float) -> bool:
        """Recorded images are always there."""
        del after_sequence, timeout_s
        return True


class RecordedPolicy:
    """Proposes what was proposed then."""

    def __init__(self, n_u: int) -> None:
        self.proposal: Proposal = Proposal(np.full(n_u, nan), ProposalStatus.ABSENT)

    def propose(self, observation: Observation) -> Proposal:
        """The recorded proposal."""
        del observation
        return self.proposal


class RecordedFreshness:
    """Finds nothing: what was wrong with an image stands in the recorded image already."""

    def check(self, observation: Observation) -> tuple[Fault, ...]:
        """No faults beyond the recorded ones."""
        del observation
        return ()

    def lose_sight(self) -> None:
        """Nothing is compared."""


def replay(
    journal: JournalReader,
    make_loop: Callable[[ReplayLink, Policy], tuple[Rerun, ModeMachine]],
    policy: Policy | None = None,
    run: str | None = None,
) -> ReplayReport:
    """Replay one run.

    Args:
        journal: where the record is.
        make_loop: builds a loop, in fresh state, on the given link and policy, with
            `RecordedFreshness` as its judge of images; returns it with its mode machine.
        policy: run this one again instead of taking the recorded proposals.
        run: which run; None takes the last one with ticks.

    Returns:
        what differs, and digests: two replays of the same code give the same.

    Raises:
        JournalError: no such run, or it has no ticks.
    """
    return _Replay(journal, make_loop, policy, run or _last_run(journal)).report()


class _Replay:
    """One replay under way."""

    def __init__(
        self,
        journal: JournalReader,
        make_loop: Callable[[ReplayLink, Policy], tuple[Rerun, ModeMachine]],
        policy: Policy | None,
        run: str,
    ) -> None:
        self._journal = journal
        self._run = run
        segments = [item for item in journal.segments if item.header.get("run") == run]
        if not segments:
            raise JournalError(f"no run {run!r}; there are: {', '.join(journal.runs)}")
        self._layout = segments[0].layout
        self._link = ReplayLink(self._layout.observations, self._layout.outputs)
        self._recorded = RecordedPolicy(len(self._layout.outputs))
        self._rerun_policy = policy is not None
        self._loop, self._modes = make_loop(self._link, policy or self._recorded)
        self._encoder = Encoder(self._layout)
        self._digests = hashlib.sha256(), hashlib.sha256()
        self._fields: Counter[str] = Counter()
        self._kept: list[Difference] = []
        self._ticks = self._differing = 0
        self._notes: dict[str, None] = {}
        self._bundle: str | None = None
        reasons = ("start", "AUDIT_REPAIR")
        if segments[0].header.get("reason") not in reasons:
            self._note("the beginning of the run is gone: memory of the parts starts empty later")

    def report(self) -> ReplayReport:
        """Run it through."""
        for segment, item in self._journal.items(self._run):
            if isinstance(item, EventRecord):
                self._apply(item)
            else:
                self._tick(segment.layout, item)
        if not self._ticks:
            raise JournalError(f"run {self._run!r} has no ticks")
        return ReplayReport(
            run=self._run,
            ticks=self._ticks,
            differing=self._differing,
            fields=dict(self._fields),
            differences=tuple(self._kept),
            digest=self._digests[1].hexdigest(),
            recorded_digest=self._digests[0].hexdigest(),
            notes=tuple(self._notes),
        )

    def _note(self, text: str) -> None:
        self._notes.setdefault(text)

    def _apply(self, event: EventRecord) -> None:
        """Give an operator's command again; the rest of the events are consequences."""
        if event.event == "JournalLost":
            self._note(f"{event.data.get('ticks')} ticks were lost: memory differs after them")
        if event.event != COMMAND:
            return
        method, arguments = event.data.get("method"), dict(event.data.get("arguments", {}))
        gate = getattr(getattr(self._loop, "parts", None), "gate", None)
        if method == "acknowledge_gate" and gate is not None:
            gate.acknowledge()
            return
        if method not in _METHODS:
            self._note(f"command {method!r} is not replayed")
            return
        if method == "request":
            arguments["mode"] = Mode(arguments["mode"])
        if arguments.get("code") is not None:
            arguments["code"] = ReasonCode(arguments["code"])
        try:
            getattr(self._modes, method)(**arguments)
        except RequestError as error:
            self._note(f"command {method} refused: {error}")

    def _tick(self, layout: RecordLayout, record: TickRecord) -> None:
        if record.operator_mode != self._modes.mode:
            self._modes.request(Mode(record.operator_mode), "replay", "as recorded")
            self._note("a change of mode without a recorded command was taken from the ticks")
        if self._bundle not in {None, record.bundle}:
            self._note(f"the bundle changed to {record.bundle}; its trust data are not exchanged")
        self._bundle = record.bundle
        self._link.show(record)
        if record.proposal is not None:
            self._recorded.proposal = record.proposal
        lateness_s = record.timings[0] if record.timings else 0.0
        again = self._loop.tick(Beat(record.now_s, lateness_s, 0, inf))
        before = _decisions(layout, self._bytes(record, record, record.operator_mode))
        after = _decisions(layout, self._bytes(record, again, self._modes.mode))
        self._digests[0].update(before[0].tobytes() + before[1])
        self._digests[1].update(after[0].tobytes() + after[1])
        self._ticks += 1
        self._compare(record.sequence, before, after)

    def _bytes(self, record: TickRecord, tick: RerunTick | TickRecord, mode: str) -> bytes:
        return self._encoder.encode(
            0, 0, 0, record.now_s, tick.observation, tick.proposal, tick.verdict, tick.source,
            mode, tick.wanted, tick.certified, tick.sent, tick.faults, record.timings,
        )  # fmt: skip

    def _compare(
        self, sequence: int, before: tuple[np.void, bytes], after: tuple[np.void, bytes]
    ) -> None:
        (old, old_tail), (new, new_tail) = before, after
        if old.tobytes() == new.tobytes() and old_tail == new_tail:
            return
        self._differing += 1
        names = [n for n in old.dtype.names or () if old[n].tobytes() != new[n].tobytes()]
        pairs = [(name, old[name].tolist(), new[name].tolist()) for name in names]
        if old_tail != new_tail:
            pairs.append(("faults", old_tail.hex(), new_tail.hex()))
        for name, recorded, replayed in pairs:
            self._fields[name] += 1
            if len(self._kept) < _KEEP:
                self._kept.append(Difference(sequence, name, recorded, replayed))


def _decisions(layout: RecordLayout, body: bytes) -> tuple[np.void, bytes]:
    """A record without what varies from run to run, and its faults."""
    size = layout.dtype.itemsize
    row = np.frombuffer(bytearray(body[:size]), layout.dtype)
    for name in _VOLATILE:
        row[name] = 0 if row[name].dtype.kind != "S" else b""
    return row[0], body[size:]


def _last_run(journal: JournalReader) -> str:
    for run in reversed(journal.runs):
        if next(iter(journal.ticks(run=run)), None) is not None:
            return run
    raise JournalError("no run of this journal has a tick")
