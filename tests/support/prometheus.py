"""A real Prometheus, and a real Alertmanager, that watch one runtime with the shipped rules.

The rules are the shipped ones word for word but for their patience: half a day of `for` would be
half a day of test. What stands in `QUICK` is all that is changed.
"""

import json
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus"
SCRAPE_MS = 500
"""A page is made within this even on a busy machine, where the metrics have the lowest priority."""
EVALUATE_MS = 250
WINDOW_S = 8
"""Every range of the rules, but for the starts of a runtime, of which three take longer."""
STARTS_S = 90
QUICK = (
    (re.compile(r"\bfor: \d+[smh]\b"), "for: 1s"),
    (re.compile(r"(changes\([^)\[]*)\[1h\]"), rf"\1[{STARTS_S}s]"),
    (re.compile(r"\[\d+[mhd]\]"), f"[{WINDOW_S}s]"),
    (re.compile(r"(steadyhand_period_seconds) \+ 10\b"), r"\1 + 1"),
    # windows of four hours, one after the other; the growth in each; when the first may begin
    (re.compile(r"\boffset (\d+)h\b"), lambda found: f"offset {int(found[1]) * WINDOW_S // 4}s"),
    (re.compile(r"(deriv\([^)]+\)) \* 4 \* 3600"), rf"\1 * {WINDOW_S}"),
    (re.compile(r"> 13 \* 3600\b"), f"> {13 * WINDOW_S // 4}"),
    # as far ahead of its window as three days are of six hours
    (re.compile(r"(predict_linear\([^,]+), 3 \* 86400\)"), rf"\1, {12 * WINDOW_S})"),
)
JOB = "steadyhand"
INSTANCE = "north-building"


def missing() -> str:
    """Why these tests cannot run here, or empty."""
    programs = ("prometheus", "promtool", "prometheus-alertmanager", "amtool")
    lacking = [name for name in programs if shutil.which(name) is None]
    return f"not installed: {', '.join(lacking)} (tests/system/install.sh)" if lacking else ""


def quick(rules: str) -> str:
    """Shipped rules without their patience."""
    for pattern, replacement in QUICK:
        rules = pattern.sub(replacement, rules)
    return rules


def free_port() -> int:
    """A port of loopback nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ask(url: str) -> Any:
    """JSON from `url`; None while nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10.0) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read().decode()}") from None
    except OSError:
        return None


def panels() -> list[tuple[str, dict[str, Any]]]:
    """Every panel of every board that shows something, with the board's name."""
    return [
        (name, panel) for name, board in boards() for panel in board["panels"]
        if panel["type"] != "row"
    ]  # fmt: skip


def boards() -> list[tuple[str, dict[str, Any]]]:
    """Every board with its name."""
    files = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
    return [(file.stem, json.loads(file.read_text("utf-8"))) for file in files]


def annotations() -> list[tuple[str, str, str]]:
    """Every annotation: board, name, query."""
    return [
        (board, made["name"], made["expr"])
        for board, data in boards()
        for made in data["annotations"]["list"]
    ]


def variables() -> list[tuple[str, str, str, str]]:
    """Every variable that is looked up: board, name, selector, label whose values it takes."""
    found = []
    for board, data in boards():
        for made in data["templating"]["list"]:
            if made["type"] == "query":
                asked = re.fullmatch(r"label_values\((.+), (\w+)\)", made["query"])
                assert asked is not None, made["query"]
                found.append((board, made["name"], asked[1], asked[2]))
    return found


def filled_in(expression: str) -> str:
    """A panel's query as Grafana would send it here."""
    for name, value in (
        ("$instance", INSTANCE),
        ("$signal", ".+"),
        ("$__rate_interval", f"{WINDOW_S}s"),
        ("$__interval", "1s"),
    ):
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


class Daemon:
    """One program that answers HTTP."""

    def __init__(self, folder: Path, command: list[str], ready: str) -> None:
        self.log = folder / f"{Path(command[0]).name}.log"
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(command, stdout=stream, stderr=stream, cwd=folder)
        deadline_s = time.monotonic() + 30.0
        while True:
            with suppress(OSError), urllib.request.urlopen(ready, timeout=2.0):
                return
            ended = self.process.poll()
            if ended is not None or time.monotonic() > deadline_s:
                self.close()
                raise AssertionError(f"{command[0]}: {ended}: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Monitoring:
    """Prometheus and Alertmanager over one target."""

    def __init__(self, folder: Path, target_port: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, alert_port = free_port(), free_port()
        self.alertmanager = f"http://127.0.0.1:{alert_port}"
        self.url = f"http://127.0.0.1:{self.port}"
        for name in ("steadyhand.rules.yml", "steadyhand.alerts.yml"):
            (folder / name).write_text(quick((RULES / name).read_text()))
        text = (RULES / "prometheus.yml").read_text()
        for old, new in (
            ("scrape_interval: 15s", f"scrape_interval: {SCRAPE_MS}ms\n"
             f"  scrape_timeout: {SCRAPE_MS}ms"),
            ("evaluation_interval: 15s", f"evaluation_interval: {EVALUATE_MS}ms"),
            ("127.0.0.1:9093", f"127.0.0.1:{alert_port}"),
            ("127.0.0.1:9464", f"127.0.0.1:{target_port}"),
        ):  # fmt: skip
            assert old in text, old
            text = text.replace(old, new)
        (folder / "prometheus.yml").write_text(text)
        self.checked = subprocess.run(
            ["promtool", "check", "config", "prometheus.yml"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        self._daemons: list[Daemon] = []
        try:
            self._start(folder, alert_port)
        except BaseException:
            self.close()
            raise

    def _start(self, folder: Path, alert_port: int) -> None:
        self._daemons.append(
            Daemon(
                folder,
                [
                    "prometheus-alertmanager",
                    f"--config.file={RULES / 'alertmanager.yml'}",
                    f"--storage.path={folder / 'alerts'}",
                    f"--web.listen-address=127.0.0.1:{alert_port}",
                    "--cluster.listen-address=",
                    "--log.level=error",
                ],
                f"{self.alertmanager}/-/ready",
            )
        )
        self._daemons.append(
            Daemon(
                folder,
                [
                    "prometheus",
                    "--config.file=prometheus.yml",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                    "--query.lookback-delta=3s",
                    "--log.level=warn",
                ],
                f"{self.url}/-/ready",
            )
        )

    def close(self) -> None:
        """End both."""
        for daemon in reversed(self._daemons):
            daemon.close()

    # -- what they say -----------------------------------------------------------------------------

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of one answer of Prometheus."""
        reply = ask(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        assert reply is not None, f"{path}: no answer"
        assert reply["status"] == "success", reply
        return reply["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Samples of an instant query: {"metric": labels, "value": [time, text]}."""
        data = self.get("query", query=expression)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        return list(data["result"])

    def over_time(self, expression: str, last_s: float = 20.0) -> list[dict[str, Any]]:
        """Series of a range query over the newest `last_s`."""
        now_s = time.time()
        data = self.get(
            "query_range",
            query=expression,
            start=str(now_s - last_s),
            end=str(now_s),
            step="1s",
        )
        return list(data["result"])

    def value(self, expression: str) -> float | None:
        """The one value of an instant query; None when there is no sample."""
        found = self.query(expression)
        assert len(found) <= 1, f"{expression}: {found}"
        return float(found[0]["value"][1]) if found else None

    def alerts(self) -> dict[str, dict[str, Any]]:
        """Firing alarms by name."""
        firing = [a for a in self.get("alerts")["alerts"] if a["state"] == "firing"]
        return {alert["labels"]["alertname"]: alert for alert in firing}

    def told(self) -> set[str]:
        """Alarms a person is told of: those that nothing worse holds back."""
        found = ask(f"{self.alertmanager}/api/v2/alerts?active=true&silenced=false&inhibited=false")
        now = set(self.alerts())
        return {a["labels"]["alertname"] for a in found or ()} & now

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]
