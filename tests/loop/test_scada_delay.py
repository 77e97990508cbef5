"""What busy and hostile SCADA clients cost the ticks: measured beside a runtime that serves none.

Prints lateness and cycle of the ticks as shares of the period; needs a machine that is quiet.
"""

import asyncio
import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from steadyhand.runtime.reader import JournalReader
from tests.loop.test_scada import Running
from tests.support.loop_rig import Rig, until
from tests.support.scada_rig import ScadaFiles, make_client, scada

TIME_SCALE = 9000.0  # 0.1 s a tick
SECONDS = 15.0


async def _busy(url: str, files: ScadaFiles) -> None:
    """A SCADA system that subscribes to much and reads more."""

    class Nothing:
        def datachange_notification(self, node, value, data):
            pass

    async with scada(url, files, "ann") as one:
        subscription = await one.client.create_subscription(100, Nothing())
        paths = ("Tick", "Mode.Source", "Decision.Explanation", "Health.Text", "Alarms.Texts")
        nodes = [one.client.get_node(one.id(path)) for path in paths]
        await subscription.subscribe_data_change(nodes)
        while True:
            await one.client.read_values(nodes * 20)
            ANSWERED["busy"] += 1
            await asyncio.sleep(0.05)


async def _hostile(url: str, files: ScadaFiles) -> None:
    """The largest requests there are, as fast as they are answered."""
    while True:
        with suppress(Exception):  # cut off: comes back at once
            client = await make_client(url, files, "vic")
            async with client:
                one = await client.get_namespace_index("urn:steadyhand:loop:north-building")
                nodes = [client.get_node(f"ns={one};s=Decision.Explanation")] * 500
                while True:
                    await asyncio.gather(*[client.read_values(nodes) for _ in range(2)])
                    ANSWERED["hostile"] += 2


async def _silent(url: str, files: ScadaFiles) -> None:
    """Subscribes, and then is not heard of any more."""
    client = await make_client(url, files, "vic")
    await client.connect()
    subscription = await client.create_subscription(100, None)
    number = await client.get_namespace_index("urn:steadyhand:loop:north-building")
    await subscription.subscribe_data_change(client.get_node(f"ns={number};s=Tick"))
    client.uaclient.protocol.transport.pause_reading()
    await asyncio.sleep(3600)


ANSWERED: Counter[str] = Counter()
LOADS = {"none": None, "idle": None, "busy": _busy, "hostile": _hostile, "silent": _silent}


def measured(folder: Path, bundles, bundle: Path, load: str) -> dict[str, float]:
    files = ScadaFiles(folder / load / "scada")
    changes = {} if load == "none" else {"operator:\n": files.section() + "operator:\n"}
    rig = Rig(folder / load, TIME_SCALE, bundle, bundles.keys, changes=changes)
    rig.start_plant()
    text = rig.write_config().read_text("utf-8").replace("source: plant", "source: paced")
    text = re.sub(r"request_timeout: .*", f"request_timeout: {0.9 * rig.period_s} s", text)
    rig.config.write_text(text, "utf-8")
    rig.start_runtime()
    try:
        rig.wait_in_control()
        running = Running(rig, files)
        if load != "none":
            until(running.serves, what="the server", instead=rig.story)
        work = LOADS[load]
        if work is not None:

            def go():
                with suppress(Exception):
                    asyncio.run(work(running.url, files))

            threading.Thread(target=go, daemon=True).start()
        time.sleep(3.0)
        first = rig.ask()["tick"]
        time.sleep(SECONDS)
        last = rig.ask()["tick"]
        rig.stop_runtime()
        with JournalReader(rig.journal) as journal:
            ticks = [tick for tick in journal.ticks() if first <= tick.sequence < last]
    finally:
        rig.close()
    late = np.array([tick.timings[0] for tick in ticks]) / rig.period_s
    cycle = np.array([sum(tick.timings[1:]) for tick in ticks]) / rig.period_s
    return {
        "answered": ANSWERED[load],
        "ticks": len(ticks) / (SECONDS / rig.period_s),
        "late_p50": float(np.quantile(late, 0.5)),
        "late_p99": float(np.quantile(late, 0.99)),
        "late_max": float(late.max()),
        "cycle_p50": float(np.quantile(cycle, 0.5)),
        "cycle_p99": float(np.quantile(cycle, 0.99)),
    }


@pytest.mark.slow
def test_no_client_delays_a_tick(bundles, first_bundle):
    """No tick is lost, and the slowest of a hundred is less than a tenth of a period slower."""
    with tempfile.TemporaryDirectory(prefix="scd") as name:
        found = {load: measured(Path(name), bundles, first_bundle, load) for load in LOADS}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    assert ANSWERED["busy"] > 10 and ANSWERED["hostile"] > 10
    base = found["none"]
    for load, one in found.items():
        assert one["ticks"] > 0.97, load
        assert one["late_p99"] < base["late_p99"] + 0.1, load
        assert one["cycle_p99"] < base["cycle_p99"] + 0.1, load
