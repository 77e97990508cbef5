"""Secrets stay where they are: a real runtime with known ones, and everything it ever says read.

The password of the plant, the tokens of metrics and panel, the passwords of SCADA's users and the
private keys are known to the test. The runtime drives, is asked by every door, rightly and wrongly,
is refused a start, and dies of SIGABRT in the end; then all that it wrote and said is searched.
"""

import asyncio
import base64
import json
import signal
import tempfile
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from asyncua import ua

from steadyhand.adapters.opcua.application_certificate import write_private
from steadyhand.adapters.sim.certificates import make_pki
from steadyhand.runtime.check import check
from steadyhand.runtime.reader import JournalReader
from tests.support.loop_rig import OUTPUT, Rig, until
from tests.support.scada_rig import ROLES, ScadaFiles, make_client, password_of, scada

PASSWORD = "canary-password-Zk3vQ9"
METRICS_TOKEN = "canary-metrics-token-Yt7wP2-0123456789abcdef"
PANEL_TOKEN = "canary-panel-token-Xs5uN4-0123456789abcdef"
WRONG_TOKEN = "canary-wrong-token-Hh1kL8-0123456789abcdef"


def lines_of_key(file: Path) -> list[str]:
    """Pieces of an RSA key that would give it away: what comes first in it is public."""
    body = [line for line in file.read_text().splitlines() if "-----" not in line]
    raw = base64.b64decode("".join(body))
    return [*(line for line in body[7:] if len(line) == 64), raw[330:362].hex()]


class House:
    """A runtime with every door open, and what it says."""

    def __init__(self, folder: Path, bundles, bundle: Path) -> None:
        self.files = ScadaFiles(folder / "rig" / "scada")
        tokens = folder / "rig" / "tokens"
        tokens.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(tokens, f"ann {PANEL_TOKEN}\n".encode())
        write_private(folder / "rig" / "metrics_token", f"{METRICS_TOKEN}\n".encode())
        pki = folder / "rig" / "pki"
        pki.mkdir(mode=0o700)
        write_private(pki / "password", f"{PASSWORD}\n".encode())
        make_pki(pki, "thermal_storage", days=20.0)  # near their end: told, and nothing more
        self.rig = Rig(
            folder / "rig",
            bundle=bundle,
            keys=bundles.keys,
            changes={
                "operator:\n": self.files.section()
                + "panel:\n  listen: 127.0.0.1:0\n  token_file: tokens\n\noperator:\n",
                "metrics:\n": "metrics:\n  token_file: metrics_token\n  plant_values: true\n",
            },
        )
        self.said: list[str] = []
        self.rig.start_plant()
        self.rig.write_config()
        self.rig.start_runtime()
        self.rig.wait_in_control()
        until(lambda: "scada" in self.rig.said.read_text(), what="the introduction")

    def address(self, name: str) -> str:
        line = next(
            text for text in self.rig.said.read_text().splitlines() if text.startswith(f"  {name}")
        )
        return line.split()[1]

    def web(self, url: str, token: str = "", body: bytes | None = None, **headers: str) -> bytes:
        """One request; its answer counts as said, whatever it is."""
        request = urllib.request.Request(url, data=body)
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                content, head = reply.read(), str(reply.headers)
        except urllib.error.HTTPError as error:
            content, head = error.read(), str(error.headers)
        self.said += [head, content.decode("latin-1")]
        return content

    def cli(self, *words: str) -> None:
        done = self.rig.cli(*words)
        self.said += [done.stdout, done.stderr]


@pytest.fixture(scope="module")
def told(bundles, first_bundle):
    """Everything that was said and written, and the secrets."""
    with tempfile.TemporaryDirectory(prefix="shc") as name:
        folder = Path(name)
        house = House(folder, bundles, first_bundle)
        rig = house.rig
        try:
            house.now = rig.status()
            ask_rightly(house)
            ask_wrongly(house)
            look_into_the_process(house)
            rig.runtime.send_signal(signal.SIGABRT)
            rig.runtime.wait(30.0)
            refuse_to_start(house)
            assert not list(folder.rglob("core*")), "a core file"
            secrets = {
                "password": [PASSWORD],
                "metrics token": [METRICS_TOKEN],
                "panel token": [PANEL_TOKEN, WRONG_TOKEN],
                "SCADA passwords": [password_of(user) for user in ROLES] + ["a wrong password"],
                "our key": lines_of_key(rig.folder / "pki" / "client_key.pem"),
                "SCADA key": lines_of_key(house.files.folder / "server_key.pem"),
                "session": [house.session],
            }
            yield rig, house.said, secrets, house.now
        finally:
            rig.close()


def ask_rightly(house: House) -> None:
    rig = house.rig
    for words in (
        ("status", "CONFIG"), ("check", "CONFIG"),
        ("mode", "CONFIG", "limited", "--reason", "canary"),
        ("override", "CONFIG", OUTPUT, "0kW", "--for", "10 min", "--reason", "canary"),
        ("explain", str(rig.journal), "--json"),
        ("journal", "show", str(rig.journal)), ("journal", "verify", str(rig.journal)),
        ("journal", "export", str(rig.journal), str(rig.folder / "export.jsonl")),
        ("pki", "show", str(rig.folder / "pki")),
    ):  # fmt: skip
        house.cli(*words)
    metrics, panel = house.address("metrics"), house.address("panel")
    assert b"steadyhand_" in house.web(metrics, METRICS_TOKEN)
    for path in ("", "api/plant.json", "api/state.json", "api/trends.bin", "api/decisions.json"):
        house.web(panel + path)
    kind = {"Content_Type": "application/json"}
    answered = json.loads(house.web(panel + "api/session", PANEL_TOKEN, b"{}", **kind))
    house.said.pop()  # the session is for whoever asked, and for nobody else
    house.session = answered["session"]
    command = {"session": house.session, "sequence": 1, "command": "ack", "arguments": {}}
    house.web(panel + "api/command", PANEL_TOKEN, json.dumps(command).encode(), **kind)

    async def every_node() -> None:
        async with scada(house.address("scada"), house.files, "eng") as client:
            wanted, found = [client.client.get_node(client.id("Loop"))], []
            while wanted:
                node = wanted.pop()
                found.append(node)
                if "." not in str(node.nodeid.Identifier).partition(".")[2]:
                    wanted += await node.get_children()
            assert len(found) > 50
            for i in range(0, len(found), 50):
                part = [node.nodeid for node in found[i : i + 50]]
                results = await client.client.uaclient.read_attributes(part, ua.AttributeIds.Value)
                house.said += [str(one.Value) for one in results]
            house.said += await client.call("Mode.Request", "full", "canary")

    asyncio.run(every_node())


def ask_wrongly(house: House) -> None:
    metrics, panel = house.address("metrics"), house.address("panel")
    kind = {"Content_Type": "application/json"}
    house.web(metrics)
    house.web(metrics, WRONG_TOKEN)
    house.web(f"{metrics}?token={METRICS_TOKEN}")
    house.web(panel + "api/session", WRONG_TOKEN, b"{}", **kind)
    house.web(panel + "api/session", PANEL_TOKEN[:-1], b"{}", **kind)
    house.web(panel + "api/command", PANEL_TOKEN, f'{{"session":"{PANEL_TOKEN}"'.encode(), **kind)
    house.web(panel + PANEL_TOKEN, PANEL_TOKEN)

    async def log_in(password: str) -> None:
        client = await make_client(house.address("scada"), house.files, "ann", password=password)
        with suppress(Exception):
            async with client:
                pass

    asyncio.run(log_in("a wrong password"))
    asyncio.run(log_in(password_of("eng")))


def sockets_of(pid: int) -> tuple[set[str], set[str]]:
    """Addresses it listens on, and those it is connected to, as the kernel writes them."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            own.add(str(link.readlink()).removeprefix("socket:[").rstrip("]"))
    listening, connected = set(), set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[9] in own:
                (listening if fields[3] == "0A" else connected).add(
                    fields[1] if fields[3] == "0A" else fields[2]
                )
    return listening, connected


def look_into_the_process(house: House) -> None:
    listening, connected = sockets_of(house.rig.runtime.pid)
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert len(listening) == 3, "metrics, panel, SCADA"
    assert {address.split(":")[0] for address in listening | connected} <= loopback
    pids = [house.rig.runtime.pid, house.rig.policy_pid()]
    for pid in filter(None, pids):
        for name in ("cmdline", "environ", "comm"):
            house.said.append(Path(f"/proc/{pid}/{name}").read_bytes().decode("latin-1"))
        limit = Path(f"/proc/{pid}/limits").read_text()
        line = next(row for row in limit.splitlines() if row.startswith("Max core file size"))
        assert line.split()[4:6] == ["0", "0"], line


def problems(config: Path) -> list[str]:
    """What `check` and `run` say."""
    found = [problem.text(str(config)) for problem in check(config, bundle=False)[1]]
    assert found, "not noticed"
    return found


def refuse_to_start(house: House) -> None:
    """Files of secrets spoilt in every way: what is said of it names the file, not its content."""
    rig = house.rig
    spoilt = {
        "pki/password": [f"{PASSWORD}\n{PASSWORD}\n", ""],
        "metrics_token": [f"{METRICS_TOKEN}\nmore\n"],
        "tokens": [
            f"Ann {PANEL_TOKEN}\n", f"{PANEL_TOKEN}\n",
            f"ann {PANEL_TOKEN}\nbob {PANEL_TOKEN}\n",
        ],
        "pki/client_key.pem": [
            (rig.folder / "pki/client_key.pem").read_text().replace("-----BEGIN", "-----BEGUN"),
            (rig.folder / "pki/client_key.pem").read_text()[:-200],
        ],
        "scada/users": [f"ann:operator:{password_of('ann')}\n"],
    }  # fmt: skip
    for name, contents in spoilt.items():
        file = rig.folder / name
        good = file.read_bytes()
        for content in contents:
            file.write_text(content)
            house.said += problems(rig.config)
        file.chmod(0o644)
        house.said += problems(rig.config)
        file.chmod(0o600)
        file.write_bytes(good)
    text = rig.config.read_text()
    inline = text.replace("password_file: pki/password", f"password: {PASSWORD}")
    assert inline != text
    for wrong in (
        inline, text.replace("opc.tcp://", f"opc.tcp://controller:{PASSWORD}@"),
    ):  # fmt: skip
        rig.config.write_text(wrong)
        house.said += problems(rig.config)
    rig.config.write_text(text)


KEPT = ("password", "metrics_token", "tokens", "users")
"""Files of secrets; keys are files of their own too."""


def test_no_secret_in_anything_said(told):
    _, said, secrets, _ = told
    assert len(said) > 100
    everything = "\n".join(said)
    found = {name for name, words in secrets.items() for word in words if word in everything}
    assert not found
    assert "Traceback" not in everything


def test_no_secret_in_any_file_but_its_own(told):
    rig, _, secrets, _ = told
    looked = 0
    for file in rig.folder.rglob("*"):
        if not file.is_file() or file.name in KEPT or "_key" in file.name:
            continue
        content = file.read_bytes()
        looked += 1
        for name, words in secrets.items():
            for word in words:
                assert word.encode() not in content, f"{name} in {file}"
                raw = bytes.fromhex(word) if name.endswith("key") and len(word) == 64 and all(
                    c in "0123456789abcdef" for c in word) else b""  # fmt: skip
                assert not raw or raw not in content, f"{name} in {file}"
    names = {file.name for file in rig.folder.rglob("*")}
    assert {"runtime.log", "export.jsonl", "writes.jsonl", "kept.json"} <= names
    assert looked > 10


def test_the_canaries_would_have_been_found(told):
    """The search finds what is there: each secret in the file where it belongs."""
    rig, _, secrets, _ = told
    texts = {
        "password": rig.folder / "pki" / "password",
        "metrics token": rig.folder / "metrics_token",
        "panel token": rig.folder / "tokens",
        "our key": rig.folder / "pki" / "client_key.pem",
        "SCADA key": rig.folder / "scada" / "server_key.pem",
    }
    for name, file in texts.items():
        assert secrets[name][0] in file.read_text(), name


def test_certificates_near_their_end_are_told_by_every_way(told):
    rig, said, _, now = told
    alarm = next(item for item in now["alarms"] if item["code"] == "CERT_EXPIRING")
    assert (alarm["severity"], alarm["active"], alarm["latched"]) == ("warning", True, False)
    assert now["source"] in ("policy", "fallback"), "nobody is stopped by a date"
    states = {item["name"]: item["state"] for item in now["certificates"]}
    assert states == {"own": "expires in 20 days", "trusted": "expires in 20 days",
                      "server": "expires in 20 days", "scada": "good",
                      "scada_client": "EXPIRED"}  # fmt: skip
    everything = "\n".join(said)
    for name in states:
        series = f'steadyhand_certificate_not_after_timestamp_seconds{{certificate="{name}"}}'
        assert series in everything
    assert "certificate" in everything and "own expires in 20 days" in everything
    with JournalReader(rig.journal) as journal:
        events = [event for event in journal.events() if event.event == "Certificate"]
    found = sorted((event.data["text"].split(":")[0], event.data["code"]) for event in events)
    assert found == [
        ("own", "CERT_EXPIRING"), ("scada_client", "CERT_EXPIRED"),
        ("server", "CERT_EXPIRING"), ("trusted", "CERT_EXPIRING"),
    ]  # fmt: skip
