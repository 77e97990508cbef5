"""The desk: every person's command goes over it, whatever way it came in.

    operator socket ─┐                                    ┌─► bounded queue ─► loop: `drain`
    SCADA (OPC UA)  ─┼─► may they? well-formed? too fast? ┤                        │
    panel           ─┘             answer, refusal or time-out ◄──────────────────┘

Who somebody is, the door they came through knows (peer of a socket, certificate, password); what
they may do and what the loop answers is the same for all. The loop never waits for anybody.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from steadyhand.controllers.errors import RequestError, SteadyhandError
from steadyhand.runtime.operator_people import Bucket
from steadyhand.runtime.operator_protocol import COMMANDS, Door, Role, check_arguments
from steadyhand.runtime.refusals import Record, Refusals

_log = logging.getLogger(__name__)
MAX_PEOPLE = 256
"""Buckets kept; beyond it the oldest is forgotten, which gives that person a fresh burst."""


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """One command of an authorised person, waiting for the loop."""

    name: str
    arguments: Mapping[str, Any]
    actor: str
    role: Role
    answer: "Future[Mapping[str, Any]]"


Handler = Callable[[Command], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class DeskSettings:
    """How hard people may press. Times are real seconds."""

    answer_s: float = 10.0
    """A command the loop has not begun by then is withdrawn."""
    rate_per_s: float = 10.0
    burst: int = 20
    """Commands per person: so many at once, and `rate_per_s` on the long run."""
    queue_length: int = 32


class Desk:
    """Takes commands in any thread; the loop calls `publish` and `drain`."""

    def __init__(
        self,
        settings: DeskSettings | None = None,
        wake: Callable[[], None] = lambda: None,
        record: Record | None = None,
    ) -> None:
        """Make the queue.

        Args:
            settings: how hard people may press.
            record: takes an event for the journal.
            wake: called from the asking thread when a command waits, so that a loop with a long
                period can cut its sleep short.
        """
        self.refusals = Refusals(record)
        """What was refused to whom."""
        self._settings = settings or DeskSettings()
        self._wake = wake
        self._queue: queue.Queue[Command] = queue.Queue(self._settings.queue_length)
        self._status: Mapping[str, Any] = {}
        self._starting = ""
        """What the runtime is doing before its first status; empty: it has one."""
        self._starting_s = 0.0
        self._accepting = True
        self._buckets: dict[Hashable, Bucket] = {}
        self._lock = threading.Lock()

    @property
    def refused(self) -> Counter[str]:
        """Refusals by code since the start."""
        return self.refusals.counts

    @property
    def waiting(self) -> int:
        """Commands that wait for the loop."""
        return self._queue.qsize()

    # -- the loop's side ---------------------------------------------------------------------------

    def starting(self, what: str, accepting: bool = False) -> None:
        """Answer that the runtime is still starting, until the first `publish`.

        Args:
            what: it is doing now.
            accepting: does the loop take commands already? Then only the status has to wait.
        """
        self._starting_s = time.monotonic() if not self._starting else self._starting_s
        self._starting, self._accepting = what, accepting

    def publish(self, status: Mapping[str, Any]) -> None:
        """Replace what `status` answers; the loop hands over a mapping it will not change."""
        self._status, self._starting, self._accepting = status, "", True
        self.refusals.settle()

    def drain(self, handlers: Mapping[str, Handler], limit: int = 8) -> int:
        """Carry out waiting commands; called by the loop thread between ticks, never waits.

        A handler returns the result or raises a `SteadyhandError`, whose message the client gets.
        Anything else that is raised is logged here and told as INTERNAL.

        Returns:
            How many commands were begun.
        """
        begun = 0
        while begun < limit:
            try:
                command = self._queue.get_nowait()
            except queue.Empty:
                break
            if not command.answer.set_running_or_notify_cancel():
                continue  # withdrawn: its client was told that nothing was done
            begun += 1
            try:
                command.answer.set_result(handlers[command.name](command))
            except SteadyhandError as error:
                command.answer.set_exception(error)
            except Exception as error:  # noqa: BLE001  (no command may end the loop)
                _log.exception("command %s of %s failed", command.name, command.actor)
                command.answer.set_exception(error)
        return begun

    def close(self) -> None:
        """Tell whoever waits that nothing was done. Idempotent."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait().answer.cancel()
        self.refusals.settle(last=True)

    # -- the doors' side ---------------------------------------------------------------------------

    def pace(self, person: Hashable) -> None:
        """Count one request of a person.

        Raises:
            RequestError: RATE.
        """
        with self._lock:
            bucket = self._buckets.pop(person, None)
            if bucket is None:
                bucket = Bucket(self._settings.rate_per_s, self._settings.burst)
                if len(self._buckets) >= MAX_PEOPLE:
                    del self._buckets[next(iter(self._buckets))]
            self._buckets[person] = bucket  # last used, last forgotten
            if not bucket.take():
                raise RequestError(
                    "RATE", f"at most {self._settings.rate_per_s:g} commands per second"
                )

    def call(
        self, name: str, arguments: Mapping[str, Any], actor: str, role: Role, door: Door
    ) -> Mapping[str, Any]:
        """From the door to the answer: pace, form, role, loop. Waits for the loop.

        Raises:
            RequestError: RATE, UNKNOWN_COMMAND, ARGUMENTS, or see `carry_out`.
        """
        try:
            self.pace(actor)
            return self.carry_out(name, check_arguments(name, arguments), actor, role, door)
        except RequestError as error:
            self.refusals.tell(error, actor, name, door)
            raise

    def carry_out(
        self, name: str, arguments: Mapping[str, Any], actor: str, role: Role, door: Door
    ) -> Mapping[str, Any]:
        """Have one well-formed command carried out.

        Raises:
            RequestError: ROLE, STARTING, QUEUE_FULL, TIMEOUT, INTERNAL, or what the handler
                refused.
        """
        spec = COMMANDS[name]
        needed = spec.role
        if door not in spec.doors:
            raise RequestError("ROLE", f"{name} is not for the {door}: use the command line")
        if role < needed:
            raise RequestError("ROLE", f"{name} needs the role {needed.name.lower()}")
        starting = self._starting
        if starting and (name == "status" or not self._accepting):
            for_s = time.monotonic() - self._starting_s
            raise RequestError(
                "STARTING",
                f"still starting ({starting}, {for_s:.0f} s): nothing was done; try again",
            )
        if name == "status":
            return self._status
        command = Command(name, arguments, actor, role, Future())
        try:
            self._queue.put_nowait(command)
        except queue.Full:
            raise RequestError("QUEUE_FULL", "too many commands wait: try again") from None
        self._wake()
        try:
            return command.answer.result(self._settings.answer_s)
        except TimeoutError:
            return self._late(command)
        except CancelledError:
            raise RequestError("STOPPING", "the runtime stops; nothing was done") from None
        except RequestError:
            raise
        except SteadyhandError as error:
            raise RequestError("REFUSED", str(error)) from None
        except Exception:  # noqa: BLE001  (the loop has logged it; the client gets no insides)
            raise RequestError("INTERNAL", "the command failed: see the runtime's log") from None

    def _late(self, command: Command) -> Mapping[str, Any]:
        """Withdraw a command that has not begun; of one that has, the status will tell."""
        if command.answer.cancel():
            raise RequestError("TIMEOUT", "the loop did not take it in time; nothing was done")
        raise RequestError("UNKNOWN", "begun, but not finished in time: look at the status")
