"""One plant on one port: its clock, its image on the nodes, and what clients write."""

import asyncio
import json
from math import isfinite
from pathlib import Path
from typing import Any

from asyncua import ua
from asyncua.common.callback import CallbackType
from asyncua.common.utils import ServiceError

from steadyhand.adapters.sim.address_space import PlantNodes
from steadyhand.adapters.sim.counter_random import uniform
from steadyhand.adapters.sim.guard import GuardedServer
from steadyhand.adapters.sim.latency import Latency
from steadyhand.adapters.sim.plant_runner import PlantRunner
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Source

ALIVE_S = 1.0
"""Wall seconds after which the plant's heartbeat changes even when nothing is new."""
MOST_BEHIND = 100
"""Sub-steps the clock may lag before it lets time slip instead of catching up."""
HEALTHY, DISTURBED = 255, 120
"""ServiceLevel: 200 to 255 is healthy, below is degraded (OPC 10000-4)."""
_GOOD = ua.StatusCode(ua.StatusCodes.Good)


class PlantServer:
    """One plant on one port.

    Args:
        runner: the plant.
        name: of the plant; decides namespace and object.
        server: where it is published, initialised.
        time_scale: plant seconds per wall second; 0 is lock-step.
        state_file: written after every image, so that a killed plant can go on.
    """

    def __init__(
        self,
        runner: PlantRunner,
        name: str,
        server: GuardedServer,
        time_scale: float,
        state_file: Path | None,
    ) -> None:
        self.runner = runner
        self.server = server
        self.nodes = PlantNodes(server, runner, name, time_scale)
        self.time_scale = time_scale
        self.state_file = state_file
        self.stopping = asyncio.Event()
        self.paused = False
        self.end_tick: int | None = None
        """The plant's time ends at the start of this period; None: never."""
        self.latency = Latency()
        self.most_nodes = 0
        self.busy = 0.0
        self.refused = {"too_many": 0, "busy": 0}
        """Requests refused, by why."""
        self.strict = False
        self.refusals: dict[str, ua.StatusCode] = {}
        """Writes of these nodes are refused with these status codes."""
        self.requests = 0
        self.slipped = 0
        self._name = name

    async def start(self, dummies: int, order: int) -> None:
        """Make the nodes, listen, and show the first image."""
        await self.nodes.build(dummies, order)
        internals = self.server.iserver
        internals.subscribe_server_callback(CallbackType.PreRead, self._before_read)
        internals.subscribe_server_callback(CallbackType.PreWrite, self._before_write)
        internals.subscribe_server_callback(CallbackType.PostWrite, self._after_write)
        self._refuse_writes()
        await self.server.start()
        await self.nodes.publish(self.runner.image)
        await self.show_health()

    async def run(self) -> None:
        """Let the plant's time pass until `stopping` is set."""
        clock = asyncio.create_task(self._clock())
        stop = asyncio.create_task(self.stopping.wait())
        done, _ = await asyncio.wait({clock, stop}, return_when=asyncio.FIRST_COMPLETED)
        for task in (clock, stop):
            task.cancel()
        if clock in done:
            clock.result()  # the clock never ends by itself: show why it did

    async def step(self, substeps: int | None = None) -> None:
        """Advance the plant, show the image, save the state."""
        runner = self.runner
        count = runner.substeps if substeps is None else substeps
        if self.end_tick is not None:
            count = min(count, self.end_tick * runner.substeps - runner.steps_done)
        if count > 0:
            await self.nodes.publish(runner.advance(count))
            self.save()

    async def take(self, name: str, value: float, **context: Any) -> None:  # noqa: ANN401
        """Output `name` was written, by whoever `context` says."""
        runner = self.runner
        column = runner.plant.outputs.names.index(name)
        runner.write(column, value, **context)
        stored = float(runner.command[column])
        if stored != value and isfinite(value):  # clamped by the plant
            await self.nodes.put(name, stored)

    @property
    def ended(self) -> bool:
        """Has the plant's time come to its end?"""
        return self.end_tick is not None and self.runner.tick >= self.end_tick

    async def refresh(self) -> None:
        """Show the present state anew, after something about it was changed by hand."""
        await self.nodes.publish(self.runner.refresh())
        await self.show_health()

    async def show_health(self) -> None:
        """ServiceLevel: healthy, or degraded while something is disturbed on purpose."""
        disturbed = self.paused or bool(self.runner.faults.faults) or bool(self.nodes.disguises)
        level = DISTURBED if disturbed else HEALTHY
        node = self.server.get_node(ua.NodeId(ua.ObjectIds.Server_ServiceLevel))
        await node.write_value(ua.Variant(level, ua.VariantType.Byte))

    def save(self) -> None:
        """Write the state file: old or new, never half."""
        if self.state_file is None:
            return
        state = {"plant": self._name, "beats": self.nodes.beats, **self.runner.save()}
        draft = self.state_file.with_suffix(".new")
        draft.write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
        draft.replace(self.state_file)

    def load(self) -> bool:
        """Go on from the state file, if there is one.

        Raises:
            ConfigError: it belongs to another plant or version, or is no state at all.
        """
        if self.state_file is None or not self.state_file.exists():
            return False
        try:
            state = json.loads(self.state_file.read_text(encoding="utf-8"))
            if state["plant"] != self._name:
                raise ConfigError(
                    f"{self.state_file}: state of plant {state['plant']!r}, not {self._name!r}"
                )
            self.runner.restore(state)
            self.nodes.beats = int(state["beats"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.state_file}: no state of a plant ({type(error).__name__}: {error}); "
                "remove the file to start anew"
            ) from None
        return True

    async def _clock(self) -> None:
        """Absolute schedule on the monotonic clock; what is missed beyond measure slips."""
        loop, runner = asyncio.get_running_loop(), self.runner
        origin, first = loop.time(), runner.steps_done
        while True:
            if self.time_scale <= 0.0 or self.paused or self.ended:
                await asyncio.sleep(ALIVE_S)
                origin, first = loop.time(), runner.steps_done
                if not self.paused:
                    await self.nodes.beat()
                continue
            wall_s = runner.substep_s / self.time_scale
            due = int((loop.time() - origin) / wall_s)
            behind = due - (runner.steps_done - first)
            if behind > MOST_BEHIND:
                self.slipped += behind - 1
                origin, first, behind = loop.time(), runner.steps_done, 1
            if behind > 0:
                await self.step(behind)
            elif behind < 0:  # advanced by hand
                origin, first = loop.time(), runner.steps_done
            else:
                await self.nodes.beat()
            next_s = origin + (runner.steps_done - first + 1) * wall_s
            await asyncio.sleep(min(max(next_s - loop.time(), 0.0), ALIVE_S))

    async def _before_read(self, event: Any, _service: Any) -> None:  # noqa: ANN401
        if event.is_external:
            self._refuse_some(len(event.request_params.NodesToRead))
            await asyncio.sleep(self.latency.read_s)

    async def _before_write(self, event: Any, _service: Any) -> None:  # noqa: ANN401
        if not event.is_external:
            return
        items = event.request_params.NodesToWrite
        self._refuse_some(len(items))
        if self.strict and any(_more_than_a_value(item.Value) for item in items):
            raise ServiceError(ua.StatusCodes.BadWriteNotSupported)
        await asyncio.sleep(self.latency.write_s)

    def _refuse_writes(self) -> None:
        """Let single writes of a request fail, as nodes of a real server do."""
        space = self.server.iserver.aspace
        write = space.write_attribute_value

        async def write_or_refuse(node_id: Any, attribute: Any, value: Any) -> Any:  # noqa: ANN401
            status = self.refusals.get(self.nodes.name_of(node_id) or "")
            if status is not None and attribute == ua.AttributeIds.Value:
                return status
            return await write(node_id, attribute, value)

        space.write_attribute_value = write_or_refuse

    def _refuse_some(self, operations: int) -> None:
        """The limits and moods of a real server."""
        if 0 < self.most_nodes < operations:
            self.refused["too_many"] += 1
            raise ServiceError(ua.StatusCodes.BadTooManyOperations)
        self.requests += 1
        if self.busy > 0.0 and uniform(self.requests, 0, 0.0) < self.busy:
            self.refused["busy"] += 1
            raise ServiceError(ua.StatusCodes.BadServerTooBusy)

    async def _after_write(self, event: Any, _service: Any) -> None:  # noqa: ANN401
        """A client wrote: log it, hand it to the plant, and in lock-step let a period pass."""
        if not event.is_external:
            return
        runner, beat = self.runner, None
        outputs = runner.plant.outputs.names
        user = getattr(event.user, "name", None)
        written: dict[str, Any] = {}
        pairs = zip(event.request_params.NodesToWrite, event.response_params, strict=True)
        for item, status in pairs:
            name = self.nodes.name_of(item.NodeId)
            variant = item.Value.Value
            value = None if variant is None else variant.Value
            if not status.is_good() or name is None or item.AttributeId != ua.AttributeIds.Value:
                runner.log.line(
                    runner.time_s, name or str(item.NodeId), value, user=user, status=status.name
                )
                continue
            written[name] = value
        if "controller_source" in written:
            runner.source = _source(written["controller_source"])
        if "control_request" in written:
            runner.requested = bool(written["control_request"])
        beat = written.get("controller_heartbeat")
        for name, value in written.items():
            if name in outputs and isinstance(value, float):
                context = {"source": int(runner.source), "sequence": beat, "user": user}
                await self.take(name, value, **context)
            else:
                runner.log.line(runner.time_s, name, value, user=user)
        if isinstance(beat, int) and runner.beat(beat) and self.time_scale <= 0.0:
            await self.step()
        await asyncio.sleep(self.latency.reply_s)


def _more_than_a_value(value: ua.DataValue) -> bool:
    """Does a written DataValue carry a stamp or a status?"""
    return value.SourceTimestamp is not None or not (value.StatusCode or _GOOD).is_good()


def _source(number: Any) -> Source:  # noqa: ANN401
    """Who drives, as the controller tells; what makes no sense does not drive."""
    try:
        return Source(number)
    except ValueError:
        return Source.HANDS_OFF
