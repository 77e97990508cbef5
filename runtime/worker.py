"""The policy in a child process: it may crash, hang or eat memory, and costs one proposal.

    loop thread      propose ── request ──► child ── answer ──► checked here again ──► proposal
                        │ late, dead: a status, at once
    supervisor       waits for the child's end or a late answer; kills, restarts, gives up

The loop thread never waits longer than its deadline and never starts, kills or reaps anything.
The supervisor does all of that and lives as long as the policy, because the kernel ends a child
together with the *thread* that started it. How a question and its answer are written stands in
`policy_line.py`.
"""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from math import inf
from typing import Any

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.frames import Fault, Observation, Proposal, ProposalStatus
from steadyhand.controllers.policies.answer import SCALARS, SQUARE_LIMIT, AnswerCheck
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.child import ChildLimits, PolicyChild, describe_exit
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.policy_child import ANSWERED, INPUT_NOT_FINITE
from steadyhand.runtime.policy_line import (
    ImproperAnswerError,
    PolicyLine,
    drain,
    readable,
    wait_readable,
)
from steadyhand.runtime.policy_spec import PolicySpec
from steadyhand.runtime.spawn import Spawned

_LAST_WORDS_S = 0.2
"""A process that fell silent may be about to end, and its exit status tells more."""
_HAND_OVER_S = 0.002
"""Longest that the loop waits for a fresh process to take the place of one that grew."""
_GROWN = 1.25
"""A process is not too large before it has grown so far since it was fresh."""
_AGAIN_S = 600.0
"""Least time from one attempt to replace a process that grew to the next."""


class WorkerState(StrEnum):
    """What the child does now."""

    READY = "ready"
    RESTARTING = "restarting"
    CRASH_LOOP = "crash_loop"
    CLOSED = "closed"


class PolicyProcess:
    """Policy in a child process, with a deadline per call and a limit on restarts.

    `propose` belongs to one thread; everything else may be called from any.
    """

    def __init__(
        self,
        spec: PolicySpec,
        *,
        deadline_s: float,
        hang_after_s: float = 1.0,
        limits: ChildLimits | None = None,
        crash_limit: int = 3,
        crash_window_s: float = 600.0,
        restart_pause_s: float = 0.2,
        recycle_bytes: int = 0,
        look_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        spawned: Spawned | None = None,
        wait: bool = True,
    ) -> None:
        """Start the child and wait until it has given the known answers.

        Args:
            spec: what the policy is made from; restarts use the same.
            deadline_s: longest a call may take before it is LATE.
            hang_after_s: a question unanswered for this long means the child hangs.
            limits: of the child.
            crash_limit: so many ends within `crash_window_s` latch CRASH_LOOP.
            crash_window_s: see `crash_limit`.
            restart_pause_s: the first end is mended at once; each further one waits twice as long.
            recycle_bytes: a child that holds more is replaced by a fresh one that has been examined
                while it went on serving; 0: never.
            look_s: how often its memory is looked at.
            clock: monotonic seconds.
            spawned: a process that waits for a policy already, for the first child.
            wait: False returns at once; then call `wait_examined`, and propose nothing before.

        Raises:
            ModelError: the policy is refused.
            OSError: no process can be started.
        """
        self.label = spec.label
        self.events: deque[Fault] = deque(maxlen=100)
        """What happened to the child since last drained, oldest first: for the journal."""
        self.restarts = 0
        self.recycles = 0
        """How often a child that grew was replaced."""
        self._spec = spec
        self._deadline_s = deadline_s
        self._hang_after_s = hang_after_s
        self._limits = limits or ChildLimits()
        self._crash_limit, self._crash_window_s = crash_limit, crash_window_s
        self._restart_pause_s = restart_pause_s
        self._recycle_bytes = recycle_bytes
        self._look_s = look_s if recycle_bytes else inf
        self._fresh_bytes, self._not_before_s = 0, -inf
        self._clock = clock
        self._spawned = spawned
        self._check = AnswerCheck(spec.observations, spec.outputs)

        self._line = PolicyLine(len(spec.observations), len(spec.outputs) + SCALARS)
        self._child: PolicyChild | None = None
        self._state = WorkerState.RESTARTING
        self._why = "starting"
        self._in_call = threading.Lock()
        """Held while the loop thread uses the child's socket; whoever closes it takes it."""
        self._crashes: deque[float] = deque()
        self._late = 0
        self._replace = ""
        self._acknowledged = False
        self._closing = threading.Event()
        self._close_once = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable for ever once it is closing."""
        self._first_start: Future[dict[str, Any]] = Future()
        self._supervisor = Guarded(self._supervise, f"policy-supervisor {spec.label}", lasting=True)
        self._supervisor.start()
        if wait:
            self.wait_examined()

    def wait_examined(self) -> dict[str, Any]:
        """Wait until the first child has given the known answers; returns its report.

        Raises:
            ModelError: the policy is refused, or closed meanwhile; nothing of it is left.
            OSError: no process can be started.
        """
        try:
            return self._first_start.result()
        except BaseException:
            self.close()
            raise

    # -- the loop thread ---------------------------------------------------------------------------

    def propose(self, observation: Observation) -> Proposal:
        """Ask the child; a status instead of an answer when it is late, dead or absent."""
        start = self._clock()
        values = observation.values
        if len(values) != len(self._line.values):
            return self._error(f"{len(values)} values, the policy takes {len(self._line.values)}")
        if not values.dot(values) < SQUARE_LIMIT:
            return self._check.input_refused(values)
        if not self._in_call.acquire(timeout=_HAND_OVER_S):
            return self._absent()  # the supervisor is closing the socket this moment
        try:
            child = self._child
            if child is None:
                return self._absent()
            self._line.values[:] = values
            return self._ask(child, start)
        except ImproperAnswerError as error:
            self._must_replace(str(error))
            return self._dead(start)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
                return self._too_late(start)
            return self._dead(start)
        finally:
            self._in_call.release()

    def _ask(self, child: PolicyChild, start: float) -> Proposal:
        channel, line = child.socket, self._line
        if line.unanswered and not line.answered(channel, 0.0):
            return self._too_late(start)
        line.ask(channel)
        if not line.answered(channel, self._deadline_s):
            return self._too_late(start)
        latency_s = self._clock() - start
        if line.kind == ANSWERED:
            return self._check.proposal(line.numbers, latency_s)
        text = line.words
        if line.kind == INPUT_NOT_FINITE:
            text = "its process says that the observation is not finite"
        if child.report["provider"] != "cpu":
            # One fault can poison a GPU context: later answers may be garbage that looks right.
            self._must_replace(f"failed on {child.report['provider']}: {text}")
        return self._error(f"inference failed: {text}", latency_s)

    def _must_replace(self, why: str) -> None:
        self._replace = why
        os.eventfd_write(self._wake, 1)

    def _too_late(self, start: float) -> Proposal:
        waited = self._clock() - start
        self._late = self._line.unanswered
        os.eventfd_write(self._wake, 1)
        text = f"no answer within {self._deadline_s:g} s"
        fault = Fault(ReasonCode.INFER_LATE, "", waited, self._deadline_s, text)
        return self._check.failed(ProposalStatus.LATE, text, (fault,), waited)

    def _dead(self, start: float) -> Proposal:
        text = "the policy's process ended"
        fault = Fault(ReasonCode.INFER_CRASH, text=text)
        return self._check.failed(ProposalStatus.CRASHED, text, (fault,), self._clock() - start)

    def _absent(self) -> Proposal:
        looping = self._state is WorkerState.CRASH_LOOP
        code = ReasonCode.CRASH_LOOP if looping else ReasonCode.POLICY_ABSENT
        text = f"no policy ({self._state.value}): {self._why}"
        return self._check.failed(ProposalStatus.ABSENT, text, (Fault(code, text=text),))

    def _error(self, text: str, latency_s: float = 0.0) -> Proposal:
        fault = Fault(ReasonCode.INFER_ERROR, text=text)
        return self._check.failed(ProposalStatus.ERROR, text, (fault,), latency_s)

    # -- any thread --------------------------------------------------------------------------------

    @property
    def state(self) -> WorkerState:
        """What the child does now."""
        return self._state

    @property
    def report(self) -> dict[str, Any]:
        """What the running child said of itself: provider, notice, golden_error and more."""
        child = self._child
        return child.report if child else {}

    @property
    def pid(self) -> int | None:
        """Process id of the running child."""
        child = self._child
        return child.process.pid if child else None

    def resident_bytes(self) -> int:
        """Memory the child holds; 0 when there is none."""
        child = self._child
        return child.resident_bytes() if child else 0

    def acknowledge(self) -> bool:
        """Leave CRASH_LOOP and try again; False when there was nothing to acknowledge."""
        if self._state is not WorkerState.CRASH_LOOP:
            return False
        self._acknowledged = True
        # at once, so that the next tick does not find the loop of crashes again and latch it
        self._state, self._why = WorkerState.RESTARTING, "acknowledged"
        os.eventfd_write(self._wake, 1)
        return True

    def close(self) -> None:
        """End the child and its supervisor. Idempotent."""
        with self._close_once:
            if self._closing.is_set():
                return
            self._closing.set()
            os.eventfd_write(self._closed, 1)
            os.eventfd_write(self._wake, 1)
            self._supervisor.join()
            with self._in_call:  # a call of the loop may be about to wake the supervisor
                os.close(self._wake)
                os.close(self._closed)

    # -- the supervisor ----------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Never ends of an error: then nobody would be left to restart or to close anything."""
        try:
            self._start()
        except Exception as error:  # noqa: BLE001  (whatever it is: told to whoever waits)
            self._first_start.set_exception(error)
            return
        self._first_start.set_result(self.report)
        while not self._closing.is_set():
            try:
                why = self._watch()
            except Exception as error:  # noqa: BLE001
                self._retire()
                text = f"watching the policy failed: {type(error).__name__}: {error}"
                why = Fault(ReasonCode.INFER_CRASH, text=text)
            if self._closing.is_set():
                break
            if why.code is ReasonCode.MEM_RECYCLE:
                self.events.append(why)
                continue  # another one serves already
            self._count(why)
            while self._state is not WorkerState.READY and not self._closing.is_set():
                self._revive()
        self._state, self._why = WorkerState.CLOSED, "closed"
        self._retire()

    def _start(self) -> None:
        spawned, self._spawned = self._spawned, None
        child = PolicyChild(self._spec, self._limits, serve=True, spawned=spawned)
        child.wait_examined(self._closed)
        self._put(child)
        self._state = WorkerState.READY

    def _put(self, child: PolicyChild) -> None:
        """`child` is the one that is asked from now on."""
        self._line.fresh()
        self._late = 0
        self._replace = ""
        self._fresh_bytes = child.resident_bytes()
        self._child = child

    def _watch(self) -> Fault:
        """Wait until the child ended, hangs, or must be replaced; says why. It is gone then."""
        child = self._child
        if child is None:
            return Fault(ReasonCode.INFER_CRASH, text="there is no child")
        pidfd = os.pidfd_open(child.process.pid)
        try:
            late, since = 0, inf
            while True:
                patience = max(0.0, since + self._hang_after_s - self._clock())
                patience = min(patience, self._look_s)
                ready = wait_readable((pidfd, self._wake), patience)
                if self._closing.is_set():
                    return Fault(ReasonCode.STOP)
                if pidfd in ready:
                    text = f"the policy's process ended with {describe_exit(self._retire())}"
                    return Fault(ReasonCode.INFER_CRASH, text=text)
                if self._wake in ready:
                    drain(self._wake)
                if self._replace:
                    text = self._replace
                    ended = bool(wait_readable((pidfd,), _LAST_WORDS_S))
                    status = self._retire()
                    if ended:
                        text = f"the policy's process ended with {describe_exit(status)}"
                    code = ReasonCode.INFER_CRASH if ended else ReasonCode.INFER_ERROR
                    return Fault(code, text=text)
                if (
                    late
                    and self._hangs(child, late)
                    and self._clock() >= since + self._hang_after_s
                ):
                    self._retire()
                    text = f"the policy's process gave no answer for {self._hang_after_s:g} s"
                    return Fault(
                        ReasonCode.INFER_HANG, "", self._clock() - since, self._hang_after_s, text
                    )
                if self._late != late:
                    late, since = self._late, self._clock()
                elif late and not self._hangs(child, late):
                    late, since = 0, inf
                    self._late = 0
                if not late and (grown := self._outgrown(child)):
                    return grown
        finally:
            os.close(pidfd)

    def _outgrown(self, old: PolicyChild) -> Fault | None:
        """Replace a child that holds too much, between two questions; None: it stays."""
        if not self._recycle_bytes:
            return None
        held, now = old.resident_bytes(), self._clock()
        most = max(self._recycle_bytes, int(_GROWN * self._fresh_bytes))
        if held <= most or now < self._not_before_s:
            return None
        self._not_before_s = now + _AGAIN_S
        text = f"the policy's process held {held >> 20} MiB, more than {most >> 20} MiB: "
        try:
            fresh = PolicyChild(self._spec, self._limits, serve=True)
            fresh.wait_examined(self._closed)
        except (ModelError, OSError) as error:
            text += f"it goes on, because no other can be started: {error}"
            self.events.append(Fault(ReasonCode.MEM_RECYCLE, "", held, most, text))
            return None
        with self._in_call:
            self._put(fresh)
        old.kill()
        self.recycles += 1
        text += f"a fresh one of {self._fresh_bytes >> 20} MiB has taken its place"
        return Fault(ReasonCode.MEM_RECYCLE, "", held, most, text)

    def _hangs(self, child: PolicyChild, question: int) -> bool:
        """Is `question` still out, with no answer waiting to be read?"""
        return self._line.unanswered == question and not readable(child.socket, 0.0)

    def _retire(self) -> int:
        """Kill and collect the child, then close its socket; returns the exit status."""
        child, self._child = self._child, None
        if child is None:
            return 0
        # Killed first: a call of the loop that waits for it ends at once and lets go of the lock.
        child.end()
        with self._in_call:
            return child.kill()

    def _count(self, fault: Fault) -> None:
        """Note one end of the child; the last allowed one latches CRASH_LOOP."""
        self.events.append(fault)
        now = self._clock()
        self._crashes.append(now)
        while self._crashes[0] < now - self._crash_window_s:
            self._crashes.popleft()
        count = len(self._crashes)
        why = f"{fault.text} (end {count} of {self._crash_limit} in {self._crash_window_s:g} s)"
        if count < self._crash_limit:
            self._why, self._state = why, WorkerState.RESTARTING
            return
        self._why, self._state = f"{why}; acknowledge to try again", WorkerState.CRASH_LOOP
        self.events.append(Fault(ReasonCode.CRASH_LOOP, "", count, self._crash_limit, self._why))

    def _revive(self) -> None:
        """Start again, or wait for the acknowledgement that allows it."""
        if self._state is WorkerState.CRASH_LOOP:
            wait_readable((self._wake,), inf)
            drain(self._wake)
            if not self._acknowledged:
                return
        if self._acknowledged:
            self._acknowledged = False
            self._crashes.clear()
        ends = len(self._crashes)
        if ends > 1 and wait_readable((self._closed,), self._restart_pause_s * 2 ** (ends - 2)):
            return
        try:
            self._start()
        except Exception as error:  # noqa: BLE001  (a supervisor that ends restarts nothing)
            if self._closing.is_set():
                return
            self._count(Fault(ReasonCode.INFER_CRASH, text=f"restart failed: {error}"))
            return
        self.restarts += 1
        self.events.append(Fault(ReasonCode.RECOVERED, text=f"policy restarted: {self._why}"))
