"""A panel with a real desk, a real recorder and a loop that is a thread of the test."""

import http.client
import json
import socket
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from steadyhand.controllers.frames import Fault, Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.safety.constraint import ConstraintRow
from steadyhand.runtime.chain import ZERO, Head
from steadyhand.runtime.commands import Command, Desk, DeskSettings
from steadyhand.runtime.journal import Status
from steadyhand.runtime.operator_protocol import COMMANDS
from steadyhand.runtime.panel.server import Panel
from steadyhand.runtime.panel.trends import Trends
from steadyhand.runtime.panel.view import About, BundleFacts, View
from tests.support.records import LAYOUT, fresh_recorder, tick_arguments

ANN, BOB = "a" * 40, "b" * 40
ROWS = (ConstraintRow("energy_low", "kWh", 1000.0), ConstraintRow("energy_high", "kWh", 1000.0))


def status(tick: int, **changes: Any) -> dict[str, Any]:
    """What the service publishes of a sound tick."""
    return {
        "name": "small",
        "tick": tick,
        "now_s": 900.0 * tick + 0.5,
        "time_s": 900.0 * tick,
        "mode": "full",
        "asked": "full",
        "source": "policy",
        "why": None,
        "clean": [0, 4],
        "link": "up",
        "granted": True,
        "handshake": "on",
        "go_live": "by a word",
        "unproven": False,
        "trusted": True,
        "gate": "trust",
        "latched": [],
        "alarms": [],
        "shelved": [],
        "overrides": [],
        "taken_out": [],
        "participation": {"discharge_kw": "policy"},
        "filter": {"mode": "shaped", "outcome": "solved", "nearest": "energy_low"},
        "written": True,
        "alarm": "",
        "timings_s": {"lateness": 0.001, "read": 0.0002},
    } | changes


def alarm(code: str, active: bool = True, **changes: Any) -> dict[str, Any]:
    return {
        "code": code,
        "severity": "warning",
        "text": f"text of {code}",
        "action": f"action of {code}",
        "since_s": 0.0,
        "signals": [],
        "active": active,
        "latched": False,
        "unacknowledged": False,
        "shelved": False,
    } | changes


class Stand:
    """A panel that serves; use as a context manager."""

    def __init__(
        self,
        people: Mapping[str, str] | None = None,
        hosts: tuple[str, ...] = (),
        answer_s: float = 5.0,
        drain: bool = True,
        period_s: float = 900.0,
        time_scale: float = 9000.0,
        listen: str = "127.0.0.1:0",
        **journal: Any,
    ) -> None:
        self.recorder = fresh_recorder()
        self.desk = Desk(
            DeskSettings(answer_s=answer_s, rate_per_s=1e6, burst=1_000_000),
            record=self.recorder.event,
        )
        self.trends = Trends(LAYOUT)
        self.done: list[tuple[str, dict[str, Any], str]] = []
        about = About(
            run="0123456789abcdef", name="small", plant="tank", title="a small tank", version="1",
            period_s=period_s, time_scale=time_scale, address="opc.tcp://127.0.0.1:4840",
            layout=LAYOUT, rows=ROWS, commands=people is not None,
        )  # fmt: skip
        facts = BundleFacts(
            "small", 3, "ab" * 32, "release", datetime.now(UTC) + timedelta(days=90), ()
        )
        kept = Status(Head(0, 0, ZERO), **journal)
        view = View(about, self.recorder, self.trends, lambda: kept, lambda: facts)
        tokens = {name: token.encode() for name, token in (people or {}).items()}
        self.panel = Panel(
            about, view, self.trends, self.recorder, self.desk, tokens, listen, hosts
        )
        self._drain = drain
        self._stop = threading.Event()
        self._loop = threading.Thread(target=self._serve_desk)

    def _serve_desk(self) -> None:
        def carry_out(command: Command) -> dict[str, str]:
            self.done.append((command.name, dict(command.arguments), command.actor))
            return {"did": command.name}

        while not self._stop.wait(0.002):
            if self._drain:
                self.desk.drain(dict.fromkeys(COMMANDS, carry_out))

    def __enter__(self) -> "Stand":
        self.panel.open()
        self.desk.publish({})
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._loop.join()
        self.panel.close()
        self.desk.close()

    @property
    def port(self) -> int:
        assert self.panel.server.address is not None
        return self.panel.server.address[1]

    def tick(
        self, source: Source = Source.POLICY, faults: tuple[Fault, ...] = (), **told: Any
    ) -> int:
        """One tick as the loop makes it; returns its number."""
        number = self.recorder.sequence
        self.recorder.tick(**tick_arguments(number, source=source, faults=faults))
        told = {"source": source.name.lower()} | told
        if source is not Source.POLICY and "why" not in told:
            code = str(faults[0].code if faults else ReasonCode.GATE_OOD)
            told["why"] = {
                "code": code, "severity": "warning", "signal": "", "text": f"because of {code}",
                "action": f"mend {code}",
            }  # fmt: skip
        self.panel.publish(status(number, **told))
        self.panel.sample()
        return number

    # -- asking ------------------------------------------------------------------------------------

    def ask(
        self, method: str, path: str, body: Any = None, token: str = "", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """One request; underscores in header names become dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20.0)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            given["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        connection.request(method, path, data, given)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply.status, dict(reply.getheaders()), content

    def get(self, path: str) -> dict[str, Any]:
        status_, _, content = self.ask("GET", path)
        assert status_ == 200, content
        found = json.loads(content)
        assert isinstance(found, dict)
        return found

    def raw(self, request: bytes, patience_s: float = 20.0) -> bytes:
        """Bytes to the socket, and everything that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=patience_s) as sock:
            sock.sendall(request)
            reply = b""
            while part := sock.recv(65536):
                reply += part
            return reply

    def session(self, token: str = ANN) -> str:
        _, _, content = self.ask("POST", "/api/session", {}, token)
        return str(json.loads(content)["session"])

    def command(
        self, session: str, sequence: int, name: str, token: str = ANN, **arguments: Any
    ) -> tuple[int, dict[str, Any]]:
        body = {
            "session": session, "sequence": sequence, "command": name, "arguments": arguments
        }  # fmt: skip
        status_, _, content = self.ask("POST", "/api/command", body, token)
        return status_, json.loads(content)
