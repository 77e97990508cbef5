"""The server dies and comes back with its namespaces in another order, decoys where we looked."""

import asyncio

import pytest
from asyncua import Client, ua
from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256

from steadyhand.adapters.sim.certificates import USER_NAME
from steadyhand.adapters.sim.plants import RunSpec, thermal_storage_scenario
from steadyhand.controllers.frames import LinkState
from steadyhand.controllers.reasons import ReasonCode
from tests.support.loop_rig import OUTPUT, judge

RESTARTS = 2
DECOYS = "urn:steadyhand:dummy:0"
"""Its nodes have the plant's identifiers and show the middle of each range."""


async def _values(ready, pki, namespace, names):
    client = Client(ready["endpoint"], timeout=10)
    client.application_uri = pki.client_uri
    await client.set_security(
        SecurityPolicyBasic256Sha256,
        certificate=str(pki.client_cert),
        private_key=str(pki.client_key),
        server_certificate=str(pki.server_cert),
    )
    client.set_user(USER_NAME)
    client.set_password(pki.password)
    async with client:
        index = await client.get_namespace_index(namespace)
        nodes = [client.get_node(ua.NodeId(name, index)) for name in names]
        return index, [await node.read_value() for node in nodes]


def look(rig, namespace, *names):
    """(index of the namespace now, values of its nodes), seen by another client."""
    return asyncio.run(_values(rig.plant.ready, rig.plant.pki, namespace, names))


@pytest.mark.timeout(240)
def test_reordered_namespaces_are_told_and_never_read_through(rig):
    made = rig(plant_options=("--dummy-namespaces", "1"))
    made.start_runtime()
    made.wait_in_control()
    seen = []
    for restart in range(1, RESTARTS + 1):
        made.plant.kill()
        made.start_plant("--namespace-order", str(restart % 2))
        made.wait_in_control()
        own, (energy,) = look(made, made.plant.ready["namespace"], "storage_energy_kwh")
        # the decoys answer to the same identifiers, and nothing was ever written to them
        other, (decoy, written) = look(made, DECOYS, "storage_energy_kwh", OUTPUT)
        assert energy != decoy
        assert written == 25.0
        seen.append((own, other))
    assert seen[0][0] != seen[0][1]
    assert seen[0] == seen[1][::-1]
    assert made.stop_runtime() == 0
    made.plant.stop()

    load = thermal_storage_scenario(RunSpec(seed=1, days=5)).w[:, 0]
    told = live = 0
    for tick in made.ticks():
        told += ReasonCode.NS_REMAP in tick.reasons
        image = tick.observation
        if image.link is not LinkState.UP:
            assert not tick.sent.written
            continue
        live += 1
        period = int(image.time_s / 900.0 + 1e-6)
        assert image.values[1] == load[period % len(load)], f"tick {tick.sequence}"
    assert told >= RESTARTS
    assert live > 5 * RESTARTS
    found = judge(made)
    assert (found.not_finite, found.outside, found.second_writer, found.unrecorded) == (0, 0, 0, 0)
    assert found.writes > RESTARTS
