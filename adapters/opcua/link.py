"""A plant behind an OPC UA server, as the loop sees it: read and write never wait.

loop thread                     adapter thread
read  ◄── snapshot (swapped) ── reads, subscription, read-back
write ──► slot (newest only) ──► one batch write, then read-back
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from steadyhand.adapters.opcua.commands import Command, Encoder, Slot
from steadyhand.adapters.opcua.image import Board
from steadyhand.adapters.opcua.security import load_credentials
from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.adapters.opcua.tags import TagMap
from steadyhand.adapters.opcua.worker import Worker
from steadyhand.controllers.frames import (
    Fault,
    LinkState,
    Observation,
    Quality,
    Sent,
    Source,
)
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import SignalSet, Vector

_log = logging.getLogger(__name__)

RELEASE_S = 0.5
"""Longest wait of a loop for the plant to hear that it has its own control back."""
CLOSE_REQUESTS, CLOSE_MOST_S = 4, 4.0
"""The same at the end, when nobody can tell it later: so many requests before the word is through,
each as slow as its time-out lets it be (a first command takes two and a read-back); at most.
"""
LATE_SHARE = 0.5
"""A command without an answer for this share of a period, when the next image is looked at, is
late: it may arrive among the commands after it."""
HUNG_S = 5.0
"""A link's thread that gives no sign of life for so long hangs."""
JOIN_S = 5.0
"""More than the thread ever needs: it ends what is under way by itself."""


class OpcUaLink:
    """Implements `adapters.link.Link`.

    Args:
        settings: endpoint, security, times.
        tags: which node is which signal.
        monotonic: clock of ages and lives, injectable for tests.
    """

    def __init__(
        self,
        settings: OpcUaSettings,
        tags: TagMap,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.observations: SignalSet = tags.observation_signals
        self.outputs: SignalSet = tags.output_signals
        self._settings = settings
        self._tags = tags
        self._monotonic = monotonic
        self._board = Board(len(self.observations), len(self.outputs))
        self._slot = Slot()
        self._encoder = Encoder(tags)
        self._worker: Worker | None = None
        self._sequence = 0
        self._put = 0
        """Number of the last command that was handed over."""
        self._heartbeat = secrets.randbelow(1 << 30)
        self._told = False
        """Has the plant been told anything that has to be taken back?"""
        self._handed_s = monotonic()
        """When a command was last handed over while none was out."""
        self._handed_session = 0
        self._answer_s = 3.0 * settings.request_timeout_s + HUNG_S
        """A command waits for its turn, is written and read back, each with its own deadline."""

    @property
    def state(self) -> LinkState:
        """State of the link at this moment, for any thread."""
        return self._board.snapshot.state

    @property
    def heartbeats(self) -> tuple[int, int]:
        """Ours, as last handed over, and the plant's, as last seen; -1 where there is none."""
        worker = self._worker
        return self._heartbeat, -1 if worker is None else worker.plant_beat

    @property
    def connects(self) -> int:
        """How often the link has come up since it was opened."""
        return 0 if self._worker is None else self._worker.connects

    @property
    def clock_offset_s(self) -> float:
        """The server's clock minus ours, measured as the link last came up; ages allow for it."""
        return 0.0 if self._worker is None else self._worker.clock_offset_s

    @property
    def server_ends_s(self) -> float:
        """When the certificate that the server showed ends, wall seconds; 0: it showed none."""
        return 0.0 if self._worker is None else self._worker.server_ends_s

    @property
    def overtaken(self) -> int:
        """How many commands a newer one replaced before they were sent."""
        return self._slot.replaced

    def open(self) -> None:
        """Read the certificates and start connecting; returns at once.

        Raises:
            LinkError: a certificate, key or password file cannot be used.
        """
        if self._worker is not None:
            return
        credentials = load_credentials(self._settings.security)
        self._worker = Worker(
            self._settings, self._tags, credentials, self._board, self._slot, self._monotonic
        )
        self._worker.start()

    def close(self) -> None:
        """Hand the plant back, log out, stop the thread. Idempotent."""
        if self._worker is None:
            return
        self._let_go(self._worker)
        worker, self._worker = self._worker, None
        worker.handed_back(min(CLOSE_REQUESTS * self._settings.request_timeout_s, CLOSE_MOST_S))
        worker.stop(JOIN_S)
        if worker.owes:
            _log.warning(
                "the plant could not be told that it is handed back: it takes itself back when it "
                "misses our heartbeat"
            )

    def read(self, now_s: float) -> Observation:
        """Newest process image, aged to this moment.

        Args:
            now_s: the loop's time; not used, ages are taken from the link's own clock.
        """
        del now_s
        observation = self._board.observation(self._monotonic(), self._settings.time_scale)
        stuck = self.stuck()
        if not stuck:
            unanswered = tuple(self._unanswered())
            if not unanswered:
                return observation
            return replace(observation, faults=(*observation.faults, *unanswered))
        died = Fault(ReasonCode.TASK_DIED, text=stuck)
        return replace(
            observation,
            quality=np.full(len(observation.quality), Quality.BAD, dtype=np.int8),
            link=LinkState.DOWN,
            granted=False,
            faults=(died, *observation.faults),
        )

    def write(self, action: Vector, source: Source) -> Sent:
        """Hand `action` (n_u,) to the adapter thread; returns what the wire types make of it.

        Nothing is handed over while the link is not up, the server not running or the link
        flapping, nor ever a value that is not finite or outside its limits.
        """
        self._sequence += 1
        shot, worker = self._board.snapshot, self._worker
        if worker is None or shot.session == 0:
            return self._refuse(action, _why_not(shot.state))
        wire, sent = None, action
        if source is not Source.HANDS_OFF:
            fault = self._encoder.fault(action)
            if fault is not None:
                return self._refuse(action, fault)
            wire, sent = self._encoder.encode(action, worker.output_kinds)
            if shot.out is not None:
                sent = np.where(shot.out, action, sent)  # not written: the plant keeps them
        self._heartbeat = (self._heartbeat + 1) & 0x7FFFFFFF
        expires_s = self._monotonic() + self._settings.command_life_s
        if worker.settled >= self._put or self._handed_session != shot.session:
            self._handed_s = self._monotonic()
        self._put, self._handed_session = self._sequence, shot.session
        self._slot.put(
            Command(
                self._sequence, wire, source, self._heartbeat, expires_s, shot.session, shot.out
            )
        )
        self._told = True
        worker.wake()
        return Sent(sent, self._sequence, shot.time_s, written=wire is not None)

    def _refuse(self, action: Vector, fault: Fault) -> Sent:
        shown = np.array(action, dtype=np.float64)
        return Sent(
            shown, self._sequence, self._board.snapshot.time_s, written=False, faults=(fault,)
        )

    def release(self) -> None:
        """Withdraw our request and stop the heartbeat; waits at most `RELEASE_S` for the plant.

        A plant that is away, or does not take it, is told as soon as it does. Who never wrote has
        nothing to withdraw, and may be watching another controller at work.
        """
        if self._worker is not None:
            self._let_go(self._worker)
            self._worker.handed_back(RELEASE_S)

    def _let_go(self, worker: Worker) -> None:
        if self._told:
            self._told = False
            self._slot.take()
            worker.release(self._sequence)

    def condition(self) -> tuple[LinkState, bool, tuple[Fault, ...]]:
        """State of the link at this moment, the plant's grant, what is wrong; for any thread."""
        shot = self._board.snapshot
        return shot.state, shot.granted, shot.faults

    def stuck(self) -> str:
        """Does the thread hang, or is a command out that nothing is heard of? See `Link.stuck`."""
        worker = self._worker
        if worker is None:
            return ""
        now_s = self._monotonic()
        silent_s = now_s - worker.turned_s
        if silent_s > HUNG_S:
            return f"the link's thread gives no sign of life since {silent_s:.0f} s"
        waits_s = self._out_s()
        if waits_s > self._answer_s:
            return f"command {self._put} is neither confirmed nor refused since {waits_s:.0f} s"
        return ""

    def _unanswered(self) -> Iterator[Fault]:
        """What the plant has not taken yet."""
        late_s = self._out_s()
        if late_s >= LATE_SHARE * self._settings.command_life_s:
            yield Fault(ReasonCode.WRITE_LATE, "", late_s, self._settings.command_life_s)
        if self._worker is not None and self._worker.not_taken:
            yield self._worker.owing

    def _out_s(self) -> float:
        """How long a command has been out without an answer; 0 while none is."""
        worker = self._worker
        if (
            worker is None
            or worker.settled >= self._put
            or self._handed_session != self._board.snapshot.session
        ):
            return 0.0
        return self._monotonic() - max(self._handed_s, worker.settled_s)

    def newest(self) -> tuple[int, float]:
        """Number and plant time (s) of the newest image."""
        shot = self._board.snapshot
        return shot.sequence, shot.time_s

    def wait_fresh(self, after_sequence: int, timeout_s: float) -> bool:
        """Block until an image newer than `after_sequence` exists; False on time-out."""
        return self._board.wait(after_sequence, timeout_s)


def _why_not(state: LinkState) -> Fault:
    if state is LinkState.UP:
        text = "nothing is written while the server is not running or the link is flapping"
        return Fault(ReasonCode.WRITE_FAILED, text=text)
    return Fault(ReasonCode.LINK_DOWN, text=f"nothing is written: the link is {state.value}")
