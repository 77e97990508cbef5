"""Plants to test with: a toy whose numbers can be worked by hand, and real server processes."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asyncua import Client, ua
from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256

from steadyhand.adapters.sim.certificates import USER_NAME, Pki, make_pki
from steadyhand.adapters.sim.plant_runner import PlantRunner
from steadyhand.adapters.sim.process import PlantProcess
from steadyhand.controllers.signals import Signal, SignalSet


class Tank:
    """x' = u + w: level, and an hour hand that shows where between two samples we are.

    Margins: level <= 10, and a ripple that is positive only in the middle of each period.
    Cost: |u| per second. Period 100 s.
    """

    period_s = 100.0
    margin_names = ("full", "ripple")
    operating_limits = ("full", "ripple")
    observations = SignalSet(
        (Signal("level", "m", -100.0, 100.0), Signal("inflow", "m/s", -1.0, 1.0))
    )
    outputs = SignalSet((Signal("pump", "m/s", -0.5, 0.5, rate_per_s=0.004),))

    def step(self, x, u, w, dt_s):
        return np.array([x[0] + (u[0] + w[0]) * dt_s, x[1] + dt_s])

    def measure(self, x, u, w):
        return np.array([x[0], w[0]])

    def cost(self, x, u, w, dt_s):
        return abs(u[0]) * dt_s

    def margins(self, x, u, w):
        return np.stack([x[..., 0] - 10.0, -np.cos(2.0 * pi * x[..., 1] / 100.0) - 0.5], -1)


class Constant:
    """Local control that always wants the same."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.asked: list[float] = []

    def act(self, observation):
        self.asked.append(observation.time_s)
        return np.array([self.value])

    def track(self, observation, sent):
        return None


@pytest.fixture
def tank_runner() -> Callable[..., PlantRunner]:
    def make(local: float = -0.01, inflow: tuple[float, ...] = (0.0,), **kw: Any) -> PlantRunner:
        rows = np.array(inflow)[:, None]
        kw.setdefault("substeps", 4)
        return PlantRunner(Tank(), np.zeros(2), rows, Constant(local), **kw)

    return make


class Process(PlantProcess):
    """A server process and clients for it."""

    @asynccontextmanager
    async def client(self, *, user: str = USER_NAME, password: str | None = None, **certs: Path):
        made = await self.make_client(**certs)
        made.set_user(user)
        made.set_password(self.pki.password if password is None else password)
        async with made:
            yield Nodes(made, await made.get_namespace_index(self.ready["namespace"]))

    async def make_client(self, cert: Path | None = None, key: Path | None = None, uri=None):
        made = Client(self.ready["endpoint"], timeout=4)
        made.application_uri = uri or self.pki.client_uri
        await made.set_security(
            SecurityPolicyBasic256Sha256,
            certificate=str(cert or self.pki.client_cert),
            private_key=str(key or self.pki.client_key),
            server_certificate=str(self.pki.server_cert),
        )
        return made


class Nodes:
    """A connected client and the plant's namespace index."""

    def __init__(self, client: Client, index: int) -> None:
        self.client = client
        self.index = index
        self.beat = 0

    def node(self, name: str):
        return self.client.get_node(ua.NodeId(name, self.index))

    async def data(self, *names: str) -> list[ua.DataValue]:
        return await self.client.read_attributes([self.node(name) for name in names])

    async def value(self, name: str) -> Any:
        (found,) = await self.data(name)
        return found.Value.Value

    async def write(self, **values: ua.Variant) -> list[ua.StatusCode]:
        nodes = [self.node(name) for name in values]
        return await self.client.write_values(nodes, list(values.values()), False)

    async def drive(self, value: float, beat: int | None = None, source: int = 0) -> None:
        self.beat = self.beat + 1 if beat is None else beat
        results = await self.write(
            storage_discharge_kw=ua.Variant(value, ua.VariantType.Double),
            control_request=ua.Variant(1, ua.VariantType.UInt32),
            controller_source=ua.Variant(source, ua.VariantType.Int32),
            controller_heartbeat=ua.Variant(self.beat, ua.VariantType.UInt32),
        )
        for result in results:
            result.check()


@pytest.fixture(scope="session")
def plant_pki() -> Iterator[Pki]:
    with tempfile.TemporaryDirectory(prefix="pki") as directory:
        yield make_pki(Path(directory), "thermal_storage")


@pytest.fixture(scope="module")
def start_server(plant_pki: Pki) -> Iterator[Callable[..., Process]]:
    """Starts a server process; all are killed at the end of the module."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        socket = plant_pki.directory / f"side{len(started)}.sock"
        errors = plant_pki.directory / f"errors{len(started)}.txt"
        options = ("--side-channel", str(socket), *arguments)
        started.append(Process(plant_pki.directory, *options, errors=errors))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Poll until true; False when it never became true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(name="wait_until")
def wait_until_fixture():
    return wait_until
