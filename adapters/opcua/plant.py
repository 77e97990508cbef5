"""One verified session at work: reads the plant, writes commands, watches both. Adapter thread.

Reading and writing take turns under one lock, so that a read-back belongs to the write before it,
and at most one command is ever on the wire unanswered.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf, isnan, nan
from typing import Any

import numpy as np
from asyncua import ua

from steadyhand.adapters.opcua.columns import Columns
from steadyhand.adapters.opcua.commands import Command
from steadyhand.adapters.opcua.fast_read import CyclicRead
from steadyhand.adapters.opcua.freshness import ServerClock
from steadyhand.adapters.opcua.image import Measurements
from steadyhand.adapters.opcua.outputs import NOT_WRITTEN, Outputs
from steadyhand.adapters.opcua.resolve import Resolved
from steadyhand.adapters.opcua.session import LinkTimeoutError, Session, within
from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.adapters.opcua.signs import Signs
from steadyhand.adapters.opcua.tags import SERVER_STATE, TagMap
from steadyhand.adapters.opcua.wire import (
    BAD_STATUS,
    EPOCH_1601_S,
    TICKS_PER_S,
    WIRE_TYPES,
    Samples,
    WireType,
    decode,
    severity,
    status_name,
    to_variant,
)
from steadyhand.controllers.errors import LinkError
from steadyhand.controllers.frames import Fault, Source
from steadyhand.controllers.reasons import ReasonCode

SHED_PERIODS = 1.5
"""So long after our last heartbeat a plant that watches it may have taken its outputs back: what
they show is then no sign of another writer.
"""
_COHERENT_TRIES = 3
"""How often a torn image is read again before it waits for the next turn."""


class Plant:
    """What is known of the plant in this session, and how it is asked and told.

    Args:
        session: open.
        resolved: its nodes.
        tags: what they mean.
        settings: times.
        monotonic: our clock.
        tell: where one-off events go.
    """

    def __init__(
        self,
        session: Session,
        resolved: Resolved,
        tags: TagMap,
        settings: OpcUaSettings,
        monotonic: Callable[[], float],
        tell: Callable[[Fault], None],
    ) -> None:
        self._session = session
        self._nodes = resolved.nodes
        self._kinds = resolved.kinds
        self._tags = tags
        self._settings = settings
        self._now = monotonic
        self._tell = tell
        self._lock = asyncio.Lock()
        self._columns = Columns(tags)
        self._partial = bool((self._columns.participation >= 0).any())
        """Can the plant take single outputs out?"""
        self._all_columns = np.arange(len(tags.observations))
        self._read_control = self._reader(self._columns.control)
        self._read_whole = self._reader(self._columns.whole)
        self.observation_kinds = tuple(resolved.kinds[n] for n in tags.observation_signals.names)
        self.output_kinds = tuple(resolved.kinds[n] for n in tags.output_signals.names)
        self.outputs = Outputs(tags, monotonic())
        self._image_time_s = nan
        self._driving = False
        """Were the last set-points accepted, and has the plant been told that we drive?"""
        self._beaten_s = -inf
        """When the last heartbeat that the server took was written."""
        self.measured = Measurements(tags, settings.future_tolerance_s)
        self.clock = ServerClock(0, monotonic())
        self.signs = Signs(tags, self._columns, resolved.kinds, settings, monotonic())
        self._image_number = nan
        """Number of the image that was last taken whole."""
        self._control_faults: tuple[Fault, ...] = ()
        self._write_faults: tuple[Fault, ...] = ()

    def _reader(self, names: tuple[str, ...]) -> CyclicRead:
        state = ua.NodeId(ua.ObjectIds.Server_ServerStatus_State)
        nodes = [state if name == SERVER_STATE else self._nodes[name] for name in names]
        kinds = tuple(
            WIRE_TYPES["Int32"] if name == SERVER_STATE else self._kinds[name] for name in names
        )
        return CyclicRead(self._session, nodes, kinds)

    # what a subscription may watch

    @property
    def numbered(self) -> bool:
        """Does the plant number its images?"""
        return self._columns.sequence >= 0

    @property
    def behind(self) -> bool:
        """Has the plant a newer image than the one taken?"""
        number = self.signs.sequence
        return self.numbered and not isnan(number) and number != self._image_number

    @property
    def time_s(self) -> float:
        """Plant time of the observations. Control nodes are read more often than whole images, so
        where images are numbered their time is the one that was read with them.
        """
        return self.signs.time_s if isnan(self._image_time_s) else self._image_time_s

    def subscribed_nodes(self) -> list[Any]:
        """Nodes for a subscription: the image's number alone, or every observation; and a witness
        that moves whenever the plant does.
        """
        if self.numbered:
            return [self._nodes["sequence"]]
        nodes = [self._nodes[name] for name in self._tags.observation_signals.names]
        if self._columns.plant_heartbeat >= 0:
            nodes.append(self._nodes["plant_heartbeat"])
        return nodes

    @property
    def witness_column(self) -> int:
        """Place of the witness among `subscribed_nodes`; past the end when there is none."""
        return 0 if self.numbered else len(self._tags.observations)

    @property
    def witness(self) -> float:
        """The witness as last read; NaN when there is none."""
        return self.signs.sequence if self.numbered else self.signs.beat

    # reading

    async def pulse(self, whole: bool) -> bool:
        """Read control nodes, or everything; one deadline each, bounded in all.

        Returns:
            True when there is a new image.

        Raises:
            LinkError, OSError, asyncua's UaError: the session is no good any more.
        """
        async with self._turn("read"):
            if not whole:
                await self._take_control()
            # a notification can be late or lost; the number itself tells that there is a new image
            return await self._take_whole() if whole or self.behind else False

    @asynccontextmanager
    async def _turn(self, what: str) -> AsyncIterator[None]:
        """One exchange at a time; waiting for the turn has a deadline too."""
        await within(self._settings.request_timeout_s, self._lock.acquire(), f"turn to {what}")
        try:
            yield
        finally:
            self._lock.release()

    async def _take_control(self, after_write: bool = False) -> None:
        samples, sent_s = await self._ask(self._read_control)
        self._absorb_control(samples, sent_s, after_write)

    async def _ask(self, reader: CyclicRead) -> tuple[Samples, float]:
        asked_s = self._now()
        samples, ticks = await reader.read()
        now_s = self._now()
        if ticks > self.clock.ticks:
            self.signs.server_alive_s = now_s
        if ticks:
            self.clock = ServerClock(ticks, 0.5 * (asked_s + now_s))
        return samples, now_s

    async def _take_whole(self) -> bool:
        columns = self._columns
        for _ in range(_COHERENT_TRIES):
            samples, now_s = await self._ask(self._read_whole)
            first, last = samples.values[columns.sequence], samples.values[-1]
            if columns.sequence < 0 or first == last or isnan(first):
                break
        else:
            return False  # the plant is faster than we read: the next turn tries again
        before, self._image_number = self._image_number, float(samples.values[columns.sequence])
        self._absorb_control(samples, now_s, after_write=False)
        if self.numbered:
            self._image_time_s = self.signs.time_s
        part = columns.observations
        self.take(
            self._all_columns,
            Samples(*(getattr(samples, field)[part] for field in Samples.__slots__)),
        )
        return not self.numbered or self._image_number != before

    def take(self, columns: Any, samples: Samples) -> None:  # noqa: ANN401
        """Take samples of some observations, read or reported."""
        now_s = self._now()
        clock = self.clock if self.clock.ticks else _wall_clock(now_s)
        self.measured.absorb(columns, samples, clock, now_s)

    def take_reported(self, changes: list[tuple[int, Any]]) -> None:
        """Take DataValues a subscription reported, by observation column."""
        columns = np.array([column for column, _ in changes], dtype=np.intp)
        kinds = tuple(self.observation_kinds[column] for column in columns)
        self.take(columns, decode([value for _, value in changes], kinds))

    def _absorb_control(self, samples: Samples, now_s: float, after_write: bool) -> None:
        columns, values = self._columns, samples.values
        usable = (severity(samples.status) == 0) & ~samples.wrong
        values = np.where(usable, values, nan)
        missing = [
            self._columns.whole[i]
            for i in np.flatnonzero(samples.status == ua.StatusCodes.BadNodeIdUnknown)
        ]
        if missing:
            raise LinkError(
                f"{', '.join(missing)}: gone from the server: everything is verified anew"
            )
        signs = self.signs
        faults = signs.absorb(values, now_s)
        silent = now_s - self._beaten_s > SHED_PERIODS * self._settings.period_s
        if not signs.grants or (silent and self._tags.handshake.heartbeat is not None):
            self.outputs.forget()  # the plant has them back and may move them
            self._driving = False
        if self._partial:
            seen = columns.participation
            faults += self.outputs.take_part(np.where(seen < 0, 1.0, values[seen]))
        self.outputs.absorb(values[columns.outputs], values[columns.feedback])
        if not after_write:
            faults += self.outputs.contention()
        faults += self.outputs.not_following(now_s)
        self._control_faults = tuple(faults)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything wrong now."""
        return self._control_faults + self._write_faults + self.measured.faults()

    # writing

    async def write(self, command: Command, wanted: Callable[[], bool] = lambda: True) -> None:
        """Send one command if it is still `wanted`, then read back what the plant made of it.

        Raises:
            LinkError, OSError, asyncua's UaError: the session is no good any more.
        """
        async with self._turn("write"):
            if not wanted():
                return
            late_s = self._now() - command.expires_s
            if late_s > 0.0:
                self._tell(_dropped(command, late_s))
                return
            await self._send(self._pairs(command), command)

    async def release(self) -> str:
        """Withdraw the request and say that nobody drives; the heartbeat stops by itself.

        Returns:
            Why the plant did not take that; empty: it did.

        Raises:
            LinkError, OSError, asyncua's UaError: see `write`.
        """
        pairs = [
            ("request", to_variant(0.0, self._kinds["request"]))
            if self._tags.handshake.request
            else None,
            ("source", to_variant(float(Source.HANDS_OFF), self._kinds["source"]))
            if self._tags.handshake.source
            else None,
        ]
        wanted = [pair for pair in pairs if pair is not None]
        async with self._turn("release"):  # a write under way would remember its set-points again
            self.outputs.forget()
            self._driving = False
            if not wanted:
                return ""
            written = [(self._nodes[name], variant) for name, variant in wanted]
            statuses = await self._session.write(written, "release")
        refused = [
            f"{name}: {status_name(status)}"
            for (name, _), status in zip(wanted, statuses, strict=True)
            if status >= BAD_STATUS
        ]
        return ", ".join(refused)

    def _pairs(self, command: Command) -> list[tuple[str, Any]]:
        """What goes out together: outputs, then who drives, then the heartbeat last."""
        pairs: list[tuple[str, Any]] = []
        if command.wire is not None:
            for i in self._written(command):
                value, kind = command.wire[i], self.output_kinds[i]
                pairs.append((self._tags.output_signals.names[i], to_variant(value, kind)))
        shake = self._tags.handshake
        for role, tag, value in (
            ("request", shake.request, 1.0),
            ("source", shake.source, float(command.source)),
            ("heartbeat", shake.heartbeat, float(command.heartbeat)),
        ):
            if tag is not None:
                pairs.append(
                    (role, to_variant(_wrapped(value, self._kinds[role]), self._kinds[role]))
                )
        return pairs

    def _written(self, command: Command) -> list[int]:
        """Outputs that `command` writes: none that the plant keeps, now or when it was made."""
        if command.wire is None:
            return []
        out = [mask for mask in (command.out, self.outputs.out) if mask is not None]
        return [i for i in range(len(command.wire)) if not any(mask[i] for mask in out)]

    async def _send(self, pairs: list[tuple[str, Any]], command: Command) -> None:
        if not pairs:
            return
        written = self._written(command)
        try:
            if written and not self._driving:
                statuses = await self._take_over(pairs[: len(written)], pairs[len(written) :])
            else:
                statuses = await self._put(pairs)
        except LinkTimeoutError as error:
            self.outputs.forget()
            text = f"{error}: the command may or may not have arrived; reading back"
            self._tell(Fault(ReasonCode.WRITE_UNKNOWN, text=text))
            await self._take_control(after_write=True)
            return
        self._driving = bool(written) and not _refused(statuses[: len(written)])
        faults = self.outputs.judge([name for name, _ in pairs[: len(statuses)]], statuses)
        try:
            await self._take_control(after_write=True)
        except ua.UaError:
            self.outputs.forget()  # written, but not read back: what is found there is ours
            raise
        if command.wire is None:
            self.outputs.forget()
        else:
            codes = [NOT_WRITTEN] * len(command.wire)
            for i, status in zip(written, statuses, strict=False):
                codes[i] = status
            faults += self.outputs.compare(command.wire, codes)
        self._write_faults = tuple(faults)

    async def _take_over(
        self, outputs: list[tuple[str, Any]], signs: list[tuple[str, Any]]
    ) -> list[int]:
        """Set-points first, alone: a plant that is told that we drive while they are refused would
        follow those of another time. Then it keeps its own control, and still sees us alive.
        """
        statuses = await self._put(outputs)
        if _refused(statuses):
            if self._tags.handshake.source is None:
                return statuses
            nobody = to_variant(float(Source.HANDS_OFF), self._kinds["source"])
            signs = [(name, nobody if name == "source" else value) for name, value in signs]
        return statuses + (await self._put(signs) if signs else [])

    async def _put(self, pairs: list[tuple[str, Any]]) -> list[int]:
        began_s = self._now()
        wanted = [(self._nodes[name], variant) for name, variant in pairs]
        statuses = await self._session.write(wanted, "write")
        beats = [s for (name, _), s in zip(pairs, statuses, strict=True) if name == "heartbeat"]
        if beats and not _refused(beats):
            self._beaten_s = began_s
        return statuses


def _refused(statuses: list[int]) -> bool:
    return any(status >= BAD_STATUS for status in statuses)


def _wrapped(value: float, kind: WireType) -> float:
    """A counter that fits the type: it only has to change."""
    if kind.name == "Boolean":
        return value % 2.0
    span = min(kind.high, 2.0**53) + 1.0
    return value % span


def _dropped(command: Command, late_s: float) -> Fault:
    text = f"command {command.sequence} was {late_s:.3f} s past its life and was not sent"
    return Fault(ReasonCode.WRITE_STALE_DROP, "", late_s, 0.0, text)


def _wall_clock(now_s: float) -> ServerClock:
    """Our own wall clock, for a server that does not say what its clock reads."""
    return ServerClock(round((time.time() + EPOCH_1601_S) * TICKS_PER_S), now_s)
