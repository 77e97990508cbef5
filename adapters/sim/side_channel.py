"""The side channel of a simulated plant: what no client of a real plant could do or know.

One JSON object per line over a Unix socket: `{"op": "set", "signal": …}` is answered by
`{"ok": true, …}` or `{"ok": false, "error": "…"}`. Its client is `side_client.SideChannel`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from asyncua import ua

from steadyhand.adapters.sim.address_space import HANDSHAKE, Disguise
from steadyhand.adapters.sim.faults import SignalFault
from steadyhand.adapters.sim.latency import Latency
from steadyhand.adapters.sim.numbers import decode
from steadyhand.adapters.sim.server_clock import set_offset
from steadyhand.adapters.sim.ua_values import Stamp
from steadyhand.controllers.errors import ConfigError, SteadyhandError

if TYPE_CHECKING:
    from steadyhand.adapters.sim.plant_server import PlantServer

MAX_LINE = 1 << 20
MAX_PATH = 100
"""The kernel's limit for a Unix socket is 107 bytes."""

Answer = dict[str, Any]
Operation = Callable[[Answer], Awaitable[Answer | None]]


class SideChannelServer:
    """Answers the side channel of one plant server."""

    def __init__(self, plant: "PlantServer", path: Path) -> None:
        self._plant = plant
        self._path = path
        self._server: asyncio.AbstractServer | None = None
        self._peers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._operations: dict[str, Operation] = {
            name.removeprefix("_do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_do_")
        }

    async def start(self) -> None:
        """Listen, for this user only.

        Raises:
            ConfigError: the path is too long for a socket.
        """
        if len(str(self._path)) > MAX_PATH:
            raise ConfigError(f"side channel {self._path}: longer than {MAX_PATH} characters")
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(
            self._serve, path=str(self._path), limit=MAX_LINE
        )
        self._path.chmod(0o600)

    async def stop(self) -> None:
        """Stop listening, hang up and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        self._path.unlink(missing_ok=True)
        for writer in self._peers.values():
            writer.close()
        if self._peers:
            await asyncio.wait(self._peers, timeout=1.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._peers[task] = writer
        try:
            while line := await reader.readline():
                writer.write((json.dumps(await self._answer(line)) + "\n").encode())
                await writer.drain()
        except (ConnectionError, ValueError):
            return  # the peer left, or sent a line that never ends
        finally:
            del self._peers[task]
            writer.close()

    async def _answer(self, line: bytes) -> Answer:
        try:
            request = json.loads(line)
            operation = self._operations.get(request["op"])
            if operation is None:
                choices = ", ".join(sorted(self._operations))
                raise ConfigError(f"no operation {request['op']!r}; there are: {choices}")
            return {"ok": True, **(await operation(request) or {})}
        except (SteadyhandError, KeyError, TypeError, ValueError, ua.UaError) as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def _disguise(self, request: Answer) -> Disguise:
        name = request["signal"]
        if name not in self._plant.nodes.names:
            raise ConfigError(f"no node {name!r}; there are: {', '.join(self._plant.nodes.names)}")
        return self._plant.nodes.disguises.setdefault(name, Disguise())

    async def _do_set(self, request: Answer) -> None:
        """Show `value` (number, string, boolean, null or list, `times` as long) on `signal`."""
        disguise = self._disguise(request)
        value = request["value"]
        if isinstance(value, list):
            value = value * int(request.get("times", 1))
        disguise.replaces_value = True
        disguise.value = decode(value) if value in ("nan", "inf", "-inf") else value
        if isinstance(value, int) and not isinstance(value, bool):
            disguise.value = float(value)
        await self._plant.refresh()

    async def _do_quality(self, request: Answer) -> None:
        """Show `signal` with the status code called `status`; the value stays beside it."""
        code = _status_code(request["status"])
        self._disguise(request).status = code
        await self._plant.refresh()

    async def _do_stamp(self, request: Answer) -> None:
        """`source` and `server` stamps: seconds of offset, ISO time, "none", or null for normal."""
        disguise = self._disguise(request)
        if "source" in request:
            disguise.source_stamp = _stamp_rule(request["source"])
        if "server" in request:
            disguise.server_stamp = _stamp_rule(request["server"])
        await self._plant.refresh()

    async def _do_type(self, request: Answer) -> None:
        """Change the data type of `signal` to the built-in `type`, such as Int16 or String."""
        self._disguise(request)
        await self._plant.nodes.set_type(request["signal"], ua.VariantType[request["type"]])
        await self._plant.refresh()

    async def _do_unit(self, request: Answer) -> None:
        """Change the engineering unit of `signal` to `unit`."""
        await self._plant.nodes.set_unit(request["signal"], request["unit"])

    async def _do_freeze(self, request: Answer) -> None:
        """Keep `signal` (or all, if absent) as it is, stamps included, while `on`."""
        names = [request["signal"]] if "signal" in request else self._plant.nodes.names
        for name in names:
            self._disguise({"signal": name}).frozen = bool(request.get("on", True))
        await self._plant.refresh()

    async def _do_swap(self, request: Answer) -> None:
        """Let the measurements `signal` and `other` show each other's value."""
        observations = self._plant.runner.plant.observations
        names = (request["signal"], request["other"])
        for name in names:
            observations.index(name)
        for name, other in (names, names[::-1]):
            self._disguise({"signal": name}).shows = other
        await self._plant.refresh()

    async def _do_silence(self, request: Answer) -> None:
        """Subscriptions get nothing while `on`; reads go on."""
        self._plant.nodes.silent = bool(request.get("on", True))

    async def _do_clear(self, request: Answer) -> None:
        """Take every disguise off `signal` (or all, if absent)."""
        nodes = self._plant.nodes
        for name in [request["signal"]] if "signal" in request else list(nodes.disguises):
            disguise = nodes.disguises.pop(name, None)
            if disguise is not None and disguise.variant is not None:
                await nodes.set_type(name, nodes.kind_of(name))
                nodes.disguises.pop(name)
        await self._plant.refresh()

    async def _do_access(self, request: Answer) -> None:
        """Make `signal` `readable` and `writable`, or not."""
        readable, writable = bool(request.get("readable", True)), bool(request["writable"])
        await self._plant.nodes.set_access(request["signal"], readable=readable, writable=writable)

    async def _do_remove(self, request: Answer) -> None:
        """Delete the node of `signal` until the next start."""
        await self._plant.nodes.remove(request["signal"])

    async def _do_fault(self, request: Answer) -> None:
        """Inject `fault` (the JSON form of a SignalFault); without start_s it starts now."""
        runner = self._plant.runner
        runner.faults.add(SignalFault.from_dict({"start_s": runner.time_s, **request["fault"]}))
        await self._plant.refresh()

    async def _do_clear_faults(self, _request: Answer) -> None:
        """Remove every injected fault."""
        self._plant.runner.faults.clear()
        await self._plant.refresh()

    async def _do_latency(self, request: Answer) -> None:
        """Delay reads by `read_s`, writes by `write_s` before and `reply_s` after they act."""
        self._plant.latency = Latency(
            *(max(float(request.get(key, 0.0)), 0.0) for key in ("read_s", "write_s", "reply_s"))
        )

    async def _do_busy(self, request: Answer) -> None:
        """Refuse a share of all requests, `probability`, with BadServerTooBusy."""
        self._plant.busy = min(max(float(request["probability"]), 0.0), 1.0)

    async def _do_strict(self, request: Answer) -> None:
        """Refuse writes that carry stamps or a status, as some servers do, while `on`."""
        self._plant.strict = bool(request.get("on", True))

    async def _do_limit(self, request: Answer) -> None:
        """Refuse requests with more than `nodes` operations; 0 lifts the limit."""
        self._plant.most_nodes = int(request["nodes"])
        value = ua.Variant(self._plant.most_nodes, ua.VariantType.UInt32)
        for which in ("MaxNodesPerRead", "MaxNodesPerWrite"):
            number = getattr(ua.ObjectIds, f"Server_ServerCapabilities_OperationLimits_{which}")
            await self._plant.server.get_node(ua.NodeId(number)).write_value(value)

    async def _do_server_state(self, request: Answer) -> None:
        """Set ServerState to `state`: Running, Failed, Suspended, Shutdown, Test …."""
        state = ua.ServerState[request["state"]]
        server = self._plant.server
        status_node = server.get_node(ua.NodeId(ua.ObjectIds.Server_ServerStatus))
        status = await status_node.read_value()
        status.State = state
        await status_node.write_value(status)
        state_node = server.get_node(ua.NodeId(ua.ObjectIds.Server_ServerStatus_State))
        await state_node.write_value(ua.Variant(int(state), ua.VariantType.Int32))

    async def _do_drop_sessions(self, _request: Answer) -> Answer:
        """Invalidate every session, as a restarted gateway would."""
        sessions = list(self._plant.server.iserver._external_sessions.values())
        for session in sessions:
            await session.close_session(True)
        return {"dropped": len(sessions)}

    async def _do_grant(self, request: Answer) -> None:
        """The plant's operator grants control while `on`."""
        self._plant.runner.permit = bool(request["on"])
        await self._plant.refresh()

    async def _do_keep(self, request: Answer) -> None:
        """The plant's operator keeps output `signal` from the controller while `on`."""
        self._plant.runner.keep(request["signal"], bool(request.get("on", True)))
        await self._plant.refresh()

    async def _do_slots(self, request: Answer) -> None:
        """Give at most `sessions` sessions; 0 lifts the limit, -1 gives none."""
        self._plant.server.iserver.most_sessions = int(request["sessions"])

    async def _do_clock(self, request: Answer) -> None:
        """Set the server's clock `offset_s` ahead of the truth."""
        set_offset(float(request["offset_s"]))
        await self._plant.refresh()

    async def _do_refuse(self, request: Answer) -> None:
        """Refuse writes of `signal` with the status code called `status`; null takes them again."""
        if request["signal"] not in self._plant.nodes.names:
            raise ConfigError(f"no node {request['signal']!r}")
        self._plant.refusals.pop(request["signal"], None)
        if request["status"] is not None:
            self._plant.refusals[request["signal"]] = _status_code(request["status"])

    async def _do_rival(self, request: Answer) -> None:
        """Another client writes `value` to output `signal`."""
        name, value = request["signal"], decode(request["value"])
        self._plant.runner.plant.outputs.index(name)
        await self._plant.nodes.put(name, value)
        await self._plant.take(name, value, user="rival")

    async def _do_reset(self, _request: Answer) -> None:
        """Undo everything this channel did, but for removed nodes and the plant's own state."""
        plant = self._plant
        await self._do_clear({})
        plant.runner.faults.clear()
        plant.latency, plant.busy, plant.strict, plant.paused = Latency(), 0.0, False, False
        plant.nodes.silent = False
        plant.refused = dict.fromkeys(plant.refused, 0)
        plant.refusals.clear()
        set_offset(0.0)
        await self._do_slots({"sessions": 0})
        await self._do_limit({"nodes": 0})
        await self._do_server_state({"state": "Running"})
        for name, (_, writable) in HANDSHAKE.items():
            await plant.nodes.set_access(name, readable=True, writable=writable)
        signals = plant.runner.plant
        for name in signals.observations.names:
            await plant.nodes.set_access(name, readable=True, writable=False)
        for signal in signals.outputs:
            await plant.nodes.set_access(signal.name, readable=True, writable=True)
        for signal in (*signals.observations, *signals.outputs):
            await plant.nodes.set_unit(signal.name, signal.unit)
        plant.runner.permit = True
        plant.runner.kept[:] = False
        await plant.refresh()

    async def _do_shed(self, _request: Answer) -> None:
        """Behave as if the controller's heartbeat had stopped for the shed time."""
        self._plant.runner.shed()
        await self._plant.refresh()

    async def _do_pause(self, request: Answer) -> None:
        """Stop the plant's clock while `on`: no new images, no heartbeat."""
        self._plant.paused = bool(request.get("on", True))
        await self._plant.show_health()

    async def _do_advance(self, request: Answer) -> Answer:
        """Let `periods` pass without a heartbeat; returns the truth."""
        for _ in range(int(request.get("periods", 1))):
            await self._plant.step()
        return self._plant.runner.truth()

    async def _do_truth(self, _request: Answer) -> Answer:
        """What really is: state, cost, violations, who drives, counted writes."""
        plant = self._plant
        return {**plant.runner.truth(), "slipped": plant.slipped, "refused": dict(plant.refused)}

    async def _do_stop(self, _request: Answer) -> None:
        """Stop the server after this answer."""
        asyncio.get_running_loop().call_later(0.05, self._plant.stopping.set)


def _status_code(name: str) -> ua.StatusCode:
    code = getattr(ua.StatusCodes, name, None)
    if code is None:
        raise ConfigError(f"no status code {name!r}")
    return ua.StatusCode(code)


def _stamp_rule(rule: Any) -> Stamp:  # noqa: ANN401
    if rule is None or rule == "none":
        return rule
    return datetime.fromisoformat(rule) if isinstance(rule, str) else float(rule)
