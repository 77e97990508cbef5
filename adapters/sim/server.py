"""A simulated plant behind a real OPC UA server, in a process of its own.

    python -m steadyhand.adapters.sim.server --directory /tmp/plant --lockstep

prints one JSON line when it is ready (endpoint, namespace, where the certificates lie, the side
channel) and runs until it is told to stop.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from asyncua import ua
from asyncua.common.callback import CallbackType
from asyncua.common.utils import ServiceError

from steadyhand.adapters.sim.address_space import HANDSHAKE, PlantNodes, namespace_uri
from steadyhand.adapters.sim.certificates import VALID_DAYS, make_pki
from steadyhand.adapters.sim.faults import faults_from_json, uniform
from steadyhand.adapters.sim.guard import GuardedServer
from steadyhand.adapters.sim.observer import WriteLog
from steadyhand.adapters.sim.plant_runner import PlantRunner
from steadyhand.adapters.sim.plants import PLANTS, RunSpec, make_runner
from steadyhand.adapters.sim.side_channel import Latency, SideChannelServer
from steadyhand.controllers.errors import ConfigError, SteadyhandError
from steadyhand.controllers.frames import Source

EX_CONFIG = 78
ALIVE_S = 1.0
"""Wall seconds after which the plant's heartbeat changes even when nothing is new."""
MOST_BEHIND = 100
"""Sub-steps the clock may lag before it lets time slip instead of catching up."""
HEALTHY, DISTURBED = 255, 120
"""ServiceLevel: 200 to 255 is healthy, below is degraded (OPC 10000-4)."""
_GOOD = ua.StatusCode(ua.StatusCodes.Good)
INSECURE = "--insecure-no-encryption-and-anonymous-users"


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
        self.latency = Latency()
        self.most_nodes = 0
        self.busy = 0.0
        self.strict = False
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
        await self.nodes.publish(self.runner.advance(substeps))
        self.save()

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
            ConfigError: it belongs to another plant or version.
        """
        if self.state_file is None or not self.state_file.exists():
            return False
        state = json.loads(self.state_file.read_text(encoding="utf-8"))
        if state.get("plant") != self._name:
            raise ConfigError(
                f"{self.state_file}: state of plant {state.get('plant')!r}, not {self._name!r}"
            )
        self.nodes.beats = int(state["beats"])
        self.runner.restore(state)
        return True

    async def _clock(self) -> None:
        """Absolute schedule on the monotonic clock; what is missed beyond measure slips."""
        loop, runner = asyncio.get_running_loop(), self.runner
        origin, first = loop.time(), runner.steps_done
        while True:
            if self.time_scale <= 0.0 or self.paused:
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

    def _refuse_some(self, operations: int) -> None:
        """The limits and moods of a real server."""
        if 0 < self.most_nodes < operations:
            raise ServiceError(ua.StatusCodes.BadTooManyOperations)
        self.requests += 1
        if self.busy > 0.0 and uniform(self.requests, 0, 0.0) < self.busy:
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
                column = outputs.index(name)
                runner.write(column, value, **context)
                stored = float(runner.command[column])
                if stored != value and isfinite(value):  # clamped by the plant
                    await self.nodes.put(name, stored)
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


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m steadyhand.adapters.sim.server",
        description="A simulated plant behind a real, encrypted OPC UA server.",
    )
    add = made.add_argument
    add("--plant", default="thermal_storage", choices=sorted(PLANTS), help="what to simulate")
    add("--directory", type=Path, required=True, help="private directory for certificates")
    add("--certificate-days", type=float, default=VALID_DAYS, help="validity of new ones")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=0, help="port; 0 picks a free one")
    add("--seed", type=int, default=0, help="scenario and random faults")
    add("--days", type=int, default=5, help="length of the scenario; it repeats")
    add("--season", default=None, help="season of the scenario")
    add("--substeps", type=int, default=3, help="parts of a period judged one by one")
    add("--shed-s", type=float, default=None, help="plant seconds until the plant takes over")
    pace = made.add_mutually_exclusive_group()
    pace.add_argument("--time-scale", type=float, default=1.0, help="plant per wall seconds")
    pace.add_argument("--lockstep", action="store_true", help="one period per new heartbeat")
    add("--state", type=Path, default=None, help="file to resume from and to keep up to date")
    add("--log", type=Path, default=None, help="JSON lines of every write that arrives")
    add("--fsync", action="store_true", help="wait for the disk after every logged write")
    add("--faults", type=Path, default=None, help="JSON list of faults")
    add("--side-channel", type=Path, default=None, help="socket; default DIRECTORY/side.sock")
    add("--dummy-namespaces", type=int, default=0, help="further namespaces with decoy nodes")
    add("--namespace-order", type=int, default=0, help="place of the plant's among them")
    add(INSECURE, dest="insecure", action="store_true", help="for experiments on one machine only")
    add("--log-level", default="ERROR", help="of the OPC UA library, to stderr")
    return made


async def serve(options: argparse.Namespace) -> None:
    """Run one plant server until SIGTERM, SIGINT or the side channel's `stop`.

    Raises:
        ConfigError: an option makes no sense; the message names it.
    """
    if not options.lockstep and not options.time_scale > 0.0:
        raise ConfigError(f"--time-scale {options.time_scale}: must be > 0, or use --lockstep")
    if not 0 <= options.namespace_order <= options.dummy_namespaces:
        raise ConfigError(
            f"--namespace-order {options.namespace_order}: 0 to --dummy-namespaces "
            f"({options.dummy_namespaces})"
        )
    days = options.certificate_days
    pki = make_pki(options.directory, options.plant, options.host, days)
    faults = faults_from_json(options.faults.read_text("utf-8")) if options.faults else ()
    runner = make_runner(
        RunSpec(
            options.plant,
            options.seed,
            options.days,
            options.season,
            options.substeps,
            options.shed_s,
            faults,
        )
    )
    if options.log is not None:
        outputs, period_s = runner.plant.outputs, runner.plant.period_s
        runner.log = WriteLog(outputs, period_s, options.log, fsync=options.fsync)
    server = GuardedServer(pki, insecure=options.insecure)
    await server.init()
    port = options.port or _free_port(options.host)
    endpoint = f"opc.tcp://{options.host}:{port}/steadyhand/{options.plant}"
    server.set_endpoint(endpoint)
    scale = 0.0 if options.lockstep else options.time_scale
    plant = PlantServer(runner, options.plant, server, scale, options.state)
    resumed = plant.load()
    await plant.start(options.dummy_namespaces, options.namespace_order)
    plant.save()
    path = options.side_channel or options.directory / "side.sock"
    side = SideChannelServer(plant, path)
    await side.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, plant.stopping.set)
    ready = {
        "endpoint": endpoint,
        "namespace": namespace_uri(options.plant),
        "server_uri": pki.server_uri,
        "client_uri": pki.client_uri,
        "directory": str(pki.directory),
        "side_channel": str(path),
        "handshake": list(HANDSHAKE),
        "resumed": resumed,
        "pid": os.getpid(),
    }
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    try:
        await plant.run()
    finally:
        plant.save()
        await side.stop()
        await server.stop()
        runner.log.close()


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(serve(options))
    except SteadyhandError as error:
        sys.stderr.write(f"{error}\n")
        return EX_CONFIG
    except OSError as error:
        sys.stderr.write(f"plant server: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
