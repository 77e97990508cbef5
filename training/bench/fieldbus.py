"""Goal 7: OPC UA against a server in C: the cyclic read, and many tags fresh at every tick."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from steadyhand.adapters.opcua.race import Race, read_race
from steadyhand.adapters.sim.certificates import Pki, make_pki
from steadyhand.controllers.errors import ConfigError
from steadyhand.training.bench.freshness import PERIOD_S, STALE, library_ticks, link_ticks
from steadyhand.training.bench.goals import Check, Measured
from steadyhand.training.bench.machine import realtime
from steadyhand.training.bench.opcua_server import NAMESPACE, PKI_NAME
from steadyhand.training.bench.turns import Setting

BOUNDS = {20: 1 / 4, 100: 1 / 6}
"""Tags → largest ratio to asyncua's `read_values`."""
TAGS = 100
CALLS_PER_ROUND = 50
FRESH_TAGS = 250
WAITS = 1 / 10
"""Largest ratio of what a tick waits for its values, to a tick that reads them itself."""
TICKS_PER_ROUND = 20
FOLLOWED, POLLED = "link, subscription", "link, cyclic read"
OURS, RIVAL = "cyclic read", "asyncua read_values"


def measure(setting: Setting) -> Measured:
    """Both sizes on one server; in the real-time class server and client share one core."""
    races = {}
    with realtime(setting.realtime), c_server() as endpoint:
        for tags in BOUNDS:
            names = [f"v{i}" for i in range(tags)]
            races[tags] = read_race(endpoint, names, NAMESPACE, CALLS_PER_ROUND * setting.rounds)
    tables = {f"{tags} tags": _rows(race, setting) for tags, race in races.items()}
    title = f"{FRESH_TAGS} tags that change, a tick every {PERIOD_S * 1e3:g} ms"
    tables[title] = list(_fresh_rows(setting))
    *ours, rival = tables[title]
    checks = []
    for row in ours:
        waits = row["p50_us"] / rival["p50_us"]
        checks += [
            Check(f"{FRESH_TAGS} tags: ticks with an old value, {row['name']}", row[STALE], 0.0),
            Check(f"{FRESH_TAGS} tags: a tick waits, {row['name']} / {RIVAL}", waits, WAITS),
        ]
    for tags, race in races.items():
        title = f"{tags} tags"
        checks += [
            Check(f"{title}: {OURS} / {RIVAL}", race.ratio, BOUNDS[tags]),
            Check(f"{title}: values that differ", float(not race.equal), 0.0),
        ]
    shares = ", ".join(f"{race.columns_share:.1%} of {tags}" for tags, race in races.items())
    many = "signed and encrypted" if setting.encrypted else "security None, too"
    notes = [
        "server: open62541 through the package o6, security None, a process of its own",
        f"{FRESH_TAGS} tags: a server for each row, {many}",
        f"replies decoded as columns: {shares} tags",
    ]
    return Measured(tables, checks, notes)


def _fresh_rows(setting: Setting) -> Iterator[dict[str, Any]]:
    """Each with a server of its own, which lives no longer than ten minutes."""
    ticks = TICKS_PER_ROUND * setting.rounds
    with TemporaryDirectory(prefix="bench") as name, realtime(setting.realtime):
        pki = make_pki(Path(name), PKI_NAME) if setting.encrypted else None
        for row, subscribe in ((FOLLOWED, True), (POLLED, False)):
            with c_server(FRESH_TAGS, FRESH_TAGS, pki) as endpoint:
                yield {"name": row} | link_ticks(endpoint, FRESH_TAGS, ticks, subscribe, pki)
        with c_server(FRESH_TAGS, FRESH_TAGS, pki) as endpoint:
            yield {"name": f"{RIVAL} in the tick"} | library_ticks(endpoint, FRESH_TAGS, ticks, pki)


def _rows(race: Race, setting: Setting) -> list[dict[str, Any]]:
    calls = CALLS_PER_ROUND * setting.rounds
    return [
        {"name": OURS, "p50_us": race.ours_us, "p99_us": race.ours_p99_us, "calls": calls},
        {"name": RIVAL, "p50_us": race.library_us, "p99_us": race.library_p99_us, "calls": calls},
    ]


@contextmanager
def c_server(tags: int = TAGS, changing: int = 0, pki: Pki | None = None) -> Iterator[str]:
    """Endpoint of a running server in C; `changing` of its tags hold the time.

    With `pki` it also signs and encrypts; it trusts the one client in there.

    Raises:
        ConfigError: the package is missing, or the server did not start.
    """
    if find_spec("o6") is None:
        raise ConfigError(
            "bench: goal 7 needs a server in C, the package o6: pip install 'steadyhand[bench]'"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module = f"{__package__}.opcua_server"
    command = [sys.executable, "-m", module, str(port), str(tags), str(changing)]
    if pki is not None:
        command.append(str(pki.directory))
    process = subprocess.Popen(  # noqa: S603  (our own module)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
        text=True,
    )
    try:
        if process.stdout is None or not any(line == "ready\n" for line in process.stdout):
            raise ConfigError(f"bench: the OPC UA server did not start on port {port}")
        yield f"opc.tcp://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait()
