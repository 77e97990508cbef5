"""The adapter thread: connects, verifies, works, and starts over, for ever and with a cap."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import isnan, nan

from asyncua import ua
from cryptography import x509

from steadyhand.adapters.opcua.channel import heard
from steadyhand.adapters.opcua.commands import Command, Slot
from steadyhand.adapters.opcua.feed import BUSY, Feed, wait
from steadyhand.adapters.opcua.image import Board
from steadyhand.adapters.opcua.lookup import look_up_aside
from steadyhand.adapters.opcua.plant import Plant
from steadyhand.adapters.opcua.refusals import words_of
from steadyhand.adapters.opcua.resolve import VerificationError, remapped, resolve
from steadyhand.adapters.opcua.security import Credentials, ServerIdentityError
from steadyhand.adapters.opcua.session import (
    ChannelError,
    LinkTimeoutError,
    Session,
    open_session,
    within,
)
from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.adapters.opcua.tags import TagMap
from steadyhand.adapters.opcua.wire import WIRE_TYPES, WireType
from steadyhand.controllers.errors import LinkError
from steadyhand.controllers.frames import Fault, LinkState
from steadyhand.controllers.reasons import ReasonCode

_log = logging.getLogger(__name__)

NO_SLOT_PAUSE_S = 30.0
"""Pause after the server had no session left: hammering would keep its slots full."""
CLOSE_GRACE_S = 0.3
HALT_AGAIN_S = 0.1
BUSY_PAUSE_S = 0.01
"""First pause before a busy server is asked again."""
LOOK_S = 0.002
TURN_S = 0.25
"""How often the thread notes that it is alive."""
_LOST = Fault(ReasonCode.LINK_DOWN, text="the connection broke")
INSECURE = Fault(
    ReasonCode.LINK_INSECURE,
    text="the link is neither signed nor encrypted: anyone on the network can drive the plant",
)


class Worker:
    """Owns the adapter thread and everything in it."""

    def __init__(
        self,
        settings: OpcUaSettings,
        tags: TagMap,
        credentials: Credentials | None,
        board: Board,
        slot: Slot,
        monotonic: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._tags = tags
        self._credentials = credentials
        self._board = board
        self._slot = slot
        self._now = monotonic
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._given_up = threading.Event()
        self._main_task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        """A command lies in the slot."""
        self._due = asyncio.Event()
        """Everything should be read now."""
        self._session_number = 0
        self._plant: Plant | None = None
        self._namespaces: dict[str, int] = {}
        self._kinds: dict[str, WireType] = {}
        self._losses: deque[float] = deque(maxlen=settings.flap_count)
        self._lost_s = 0.0
        self._shown: x509.Certificate | None = None
        """The certificate of the last session's server."""
        self._standing: tuple[Fault, ...] = (INSECURE,) if settings.security.insecure else ()
        self.output_kinds = tuple(
            WIRE_TYPES.get(tag.wire_type, WIRE_TYPES["Double"]) for tag in tags.outputs
        )
        """Wire types of the outputs; those left to the server are known once the link is up."""
        self.clock_offset_s = 0.0
        """The server's clock minus ours, measured as the link came up."""
        self.connects = 0
        """How often the link has come up."""
        self.turned_s = monotonic()
        """When the thread last gave a sign of life."""
        self.settled = 0
        """Number of the last command of which it is known what became of it."""
        self.settled_s = self.turned_s
        """When that was."""
        self._withdrawn = 0
        """Number of the last command before the plant was handed back: no such is sent any more."""
        self._given_back = 0
        """Of which hand-backs the plant knows, or need not know any more, by that number."""
        self.not_taken = ""
        """Why the plant does not take it that it is handed back; empty: it does, or need not."""

    @property
    def server_ends_s(self) -> float:
        """When the certificate of the server ends, wall seconds; 0: there is none."""
        shown = self._shown
        return 0.0 if shown is None else shown.not_valid_after_utc.timestamp()

    @property
    def plant_beat(self) -> int:
        """The plant's heartbeat, as last seen; -1 where there is none."""
        plant = self._plant
        beat = nan if plant is None else plant.signs.beat
        return -1 if isnan(beat) else int(beat)

    # the loop thread's side

    def start(self) -> None:
        """Start the thread."""
        _quiet_library()
        self._pin_down(LinkState.CONNECTING, ())
        self._thread = threading.Thread(target=self._run, name="opcua", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread, whatever it waits for."""
        self._stopping = True
        self._given_up.set()
        self._call(self._halt)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def wake(self) -> None:
        """A command lies in the slot."""
        self._call(self._ready.set)

    def release(self, withdrawn: int) -> None:
        """Hand the plant back: nothing up to command `withdrawn` is sent any more, and the plant is
        told, in this session or as the first thing in the next.
        """
        self._withdrawn = withdrawn
        self.wake()

    @property
    def owes(self) -> bool:
        """Has the plant still to be told that it was handed back?"""
        return self._withdrawn > self._given_back

    @property
    def owing(self) -> Fault:
        """That the plant does not take it that it is handed back."""
        text = f"the plant does not take that it is handed back: {self.not_taken}; tried again"
        return Fault(ReasonCode.WRITE_FAILED, text=text)

    def handed_back(self, patience_s: float) -> bool:
        """Has the plant been told? Waits for that, as long as there is a session to tell it in."""
        until_s = time.monotonic() + patience_s
        while self.owes and self._plant is not None and time.monotonic() < until_s:
            time.sleep(LOOK_S)
        return not self.owes

    def _call(self, function: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop closed just now: there is nobody to wake
                loop.call_soon_threadsafe(function)

    # the adapter thread's side

    def _halt(self) -> None:
        """End what is under way: a session at work in order, anything else at once.

        A cancelled connection may wait for a server that says nothing while it tidies up, so it
        is cancelled again until it is gone.
        """
        self._stop.set()
        if self._main_task is not None and self._plant is None:
            self._main_task.cancel()
            asyncio.get_running_loop().call_later(HALT_AGAIN_S, self._halt)

    def _run(self) -> None:
        """The thread never dies of an error: it says so and starts over."""
        while not self._stopping:
            self._stop, self._ready, self._due = (asyncio.Event() for _ in range(3))
            try:
                with asyncio.Runner() as runner:
                    self._loop = runner.get_loop()
                    look_up_aside(self._loop)
                    runner.run(self._main())
            except asyncio.CancelledError:
                continue  # only `stop` cancels
            except BaseException as error:  # noqa: BLE001  nothing may end the link silently
                text = f"the link's thread failed and starts over: {type(error).__name__}: {error}"
                _log.exception("the link's thread failed")
                died = Fault(ReasonCode.TASK_DIED, text=text)
                self._pin_down(LinkState.DOWN, (*self._standing, died))
                self._given_up.wait(self._settings.backoff_cap_s)
        self._pin_down(LinkState.DOWN, self._board.snapshot.faults)

    def _turn(self) -> None:
        self.turned_s = self._now()
        asyncio.get_running_loop().call_later(TURN_S, self._turn)

    async def _main(self) -> None:
        self._turn()
        self._main_task = asyncio.current_task()
        settings = self._settings
        pause_s = settings.backoff_first_s
        while not self._stopping:
            connects = self.connects
            try:
                await self._one_session()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
                # whatever a server can provoke ends here; cancelled are awaits inside the library,
                # when it tears a connection down, and this task itself only by `stop`
                faults = _faults_of(error, self._shown, settings)
                self._pin_down(LinkState.DOWN, (*self._standing, *faults))
                if _no_slot(error):
                    pause_s = NO_SLOT_PAUSE_S
            if self.connects != connects:
                pause_s = settings.backoff_first_s
            await wait(self._stop, pause_s)
            pause_s = min(2.0 * pause_s, settings.backoff_cap_s)

    async def _one_session(self) -> None:
        settings = self._settings
        self._pin_down(LinkState.CONNECTING, self._board.snapshot.faults)
        session: Session | None = None
        try:
            session = await within(
                settings.connect_timeout_s, open_session(settings, self._credentials), "connect"
            )
            self._pin_down(LinkState.VERIFYING, self._board.snapshot.faults)
            plant = await within(settings.connect_timeout_s, self._verify(session), "verify")
            await self._work(session, plant)
        finally:
            self._plant = None
            if self._board.snapshot.state is LinkState.UP:
                self._lost_s = self._now()
                self._losses.append(self._lost_s)
                # readers must know before the closing, which takes a while
                self._pin_down(LinkState.DOWN, (*self._standing, _LOST))
            if session is not None:
                await session.close(CLOSE_GRACE_S if self._stopping else 0.0)
            await _cancel_others()

    async def _verify(self, session: Session) -> Plant:
        """Find and check every node, take the first complete image."""
        resolved = await resolve(session, self._tags, self._kinds)
        for fault in remapped(self._namespaces, resolved.namespaces, self._tags):
            self._board.tell(fault)
        plant = Plant(session, resolved, self._tags, self._settings, self._now, self._board.tell)
        await plant.pulse(whole=True)
        self._namespaces, self._kinds = resolved.namespaces, resolved.kinds
        self.clock_offset_s = plant.clock.offset_s(time.time(), self._now())
        return plant

    async def _work(self, session: Session, plant: Plant) -> None:
        """Read and write until something breaks."""
        self._slot.take()  # whatever was meant for the session before
        self._session_number += 1
        self.connects += 1
        self._shown = session.certificate
        self.output_kinds = plant.output_kinds
        self._plant = plant
        feed = Feed(session, plant, self._settings, self._due, self._now, self._pin)
        self._pin(feed)
        if self._lost_s:
            away_s = self._now() - self._lost_s
            self._board.tell(Fault(ReasonCode.RECOVERED, "", away_s, text="link is up again"))
        tasks = [
            asyncio.create_task(feed.run(), name="read"),
            asyncio.create_task(self._write(plant, feed), name="write"),
            asyncio.create_task(session.channel_lost(), name="renew"),
            asyncio.create_task(self._stop.wait(), name="stop"),
        ]
        for task in tasks:  # a connection that breaks ends them all, and the first says why
            task.add_done_callback(heard)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping:
            return
        for task in done:
            if task.cancelled():
                raise LinkError(f"the {task.get_name()} task was cancelled: starting over")
            error = task.exception()
            if isinstance(error, ChannelError):
                self._board.tell(Fault(ReasonCode.CHANNEL_RENEW_FAIL, text=str(error)))
            if error is not None:
                raise error
        raise LinkError("the link's own tasks ended: starting over")

    async def _write(self, plant: Plant, feed: Feed) -> None:
        """Send what lies in the slot, newest only, and that the plant is handed back."""
        while True:
            if self.owes:
                await self._give_back(plant)
            await wait(self._ready, self._settings.pulse_s)
            self._ready.clear()
            command = self._slot.take()
            if command is None or command.session != self._session_number:
                continue
            try:
                await self._insist(plant, command)
            except BUSY as error:
                text = f"the server was too busy to take the command: {type(error).__name__}"
                self._board.tell(Fault(ReasonCode.WRITE_FAILED, text=text))
            else:  # whoever commands again need not say any more that they had let go
                self._given_back = max(self._given_back, command.sequence - 1)
            finally:
                self.settled, self.settled_s = command.sequence, self._now()
            if plant.behind:
                self._due.set()
            self._pin(feed)

    async def _give_back(self, plant: Plant) -> None:
        """Until the plant has taken it, or somebody commands again.

        Raises:
            LinkError, OSError, asyncua's UaError: see `Plant.write`.
        """
        pause_s = BUSY_PAUSE_S
        try:
            while self.owes:
                withdrawn = self._withdrawn
                self._ready.clear()
                before = self.not_taken
                try:
                    self.not_taken = await plant.release()
                except BUSY as error:
                    self.not_taken = f"the server was too busy: {type(error).__name__}"
                if self.not_taken and not before:  # it may be over before anybody looks
                    self._board.tell(self.owing)
                # taken or refused, an answer it is: no command from before waits for one any more
                self.settled, self.settled_s = max(self.settled, withdrawn), self._now()
                if not self.not_taken:
                    self._given_back = withdrawn
                    return
                if await wait(self._ready, pause_s) and self._withdrawn == withdrawn:
                    return  # a command
                pause_s = min(2.0 * pause_s, self._settings.pulse_s)
        finally:
            self.not_taken = ""

    async def _insist(self, plant: Plant, command: Command) -> None:
        """Write; a busy server is asked again for as long as any answer is waited for, unless the
        command gets too old or a newer one lies ready.

        Raises:
            LinkError, OSError, asyncua's UaError: see `Plant.write`; too busy to the end.
        """
        until_s = min(command.expires_s, self._now() + self._settings.request_timeout_s)
        pause_s = BUSY_PAUSE_S

        def wanted() -> bool:
            return command.sequence > self._withdrawn

        while True:
            try:
                await plant.write(command, wanted)
            except BUSY:
                if not wanted():
                    return
                if self._ready.is_set() or self._now() + pause_s >= until_s:
                    raise
                await asyncio.sleep(pause_s)
                pause_s *= 2.0
            else:
                return

    def _pin(self, feed: Feed) -> None:
        """Show the newest state of the plant."""
        board, plant = self._board, feed.plant
        measured, flapping = plant.measured, self._flapping()
        writable = plant.signs.runs and not flapping
        board.pin(
            replace(
                board.snapshot,
                sequence=board.snapshot.sequence + feed.take_news(),
                time_s=plant.time_s,
                values=measured.values.copy(),
                quality=measured.quality.copy(),
                confirmed_s=measured.confirmed_s(feed.alive_s),
                applied=plant.outputs.applied,
                state=LinkState.UP,
                granted=plant.signs.granted,
                faults=(
                    *self._standing,
                    *self._expired(),
                    *self._clock_fault(plant),
                    *flapping,
                    *feed.busy,
                    *feed.faults,
                    *plant.faults,
                ),
                session=self._session_number if writable else 0,
                out=plant.outputs.out,
            )
        )

    def _clock_fault(self, plant: Plant) -> tuple[Fault, ...]:
        """Do the two clocks disagree? Whichever of them was set wrong."""
        offset_s = plant.clock.offset_s(time.time(), self._now())
        limit_s = self._settings.clock_offset_limit_s
        if abs(offset_s) <= limit_s:
            return ()
        text = f"the server's clock is {offset_s:+.1f} s from ours; ages are corrected for it"
        return (Fault(ReasonCode.CLOCK_OFFSET, "", offset_s, limit_s, text),)

    def _expired(self) -> tuple[Fault, ...]:
        """A session goes on when the server's certificate ends meanwhile; the next one will not."""
        ends_s = self.server_ends_s
        if not 0.0 < ends_s < time.time():
            return ()
        text = "the server's certificate has ended: this session goes on, no other will begin"
        return (Fault(ReasonCode.CERT_EXPIRED, text=text),)

    def _flapping(self) -> tuple[Fault, ...]:
        settings = self._settings
        recent = [t for t in self._losses if self._now() - t < settings.flap_window_s]
        if len(recent) < settings.flap_count:
            return ()
        text = f"the link was lost {len(recent)} times within {settings.flap_window_s:g} s"
        return (Fault(ReasonCode.LINK_FLAP, "", float(len(recent)), settings.flap_count, text),)

    def _pin_down(self, state: LinkState, faults: tuple[Fault, ...]) -> None:
        self._board.pin(
            replace(self._board.snapshot, state=state, granted=False, faults=faults, session=0)
        )


def _no_slot(error: BaseException) -> bool:
    """Has the server no session left?"""
    return isinstance(error, ua.UaError) and "TooManySessions" in type(error).__name__


def _faults_of(
    error: BaseException, shown: x509.Certificate | None, settings: OpcUaSettings
) -> tuple[Fault, ...]:
    """What ended a session or kept it from beginning; `shown`: certificate of the last one."""
    if isinstance(error, VerificationError):
        return error.faults
    text = str(error) or type(error).__name__
    if isinstance(error, ServerIdentityError):
        if error.code is ReasonCode.CERT_EXPIRED:
            return (Fault(ReasonCode.LINK_DOWN, text=text), Fault(error.code, text=text))
        other = error.certificate is not None and shown not in (None, error.certificate)
        return (Fault(ReasonCode.CERT_CHANGED if other else error.code, text=text),)
    if isinstance(error, (LinkTimeoutError, TimeoutError)):
        return (Fault(ReasonCode.LINK_TIMEOUT, text=text),)
    down = Fault(ReasonCode.LINK_DOWN, text=words_of(error, settings))
    return (down, Fault(ReasonCode.NO_SESSION_SLOT, text=text)) if _no_slot(error) else (down,)


async def _cancel_others() -> None:
    """Cancel every task of a finished session, the library's own among them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        done, _ = await asyncio.wait(others, timeout=CLOSE_GRACE_S)
        for task in done:  # one cause is enough: the others only say the same in other words
            if not task.cancelled():
                task.exception()


def _quiet_library() -> None:
    """A lost link is an expected state, told as a fault; the library logs stack traces of it."""
    logger = logging.getLogger("asyncua")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
