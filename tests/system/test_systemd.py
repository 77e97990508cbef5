"""The service as it is deployed: a real systemd, installed by the installer, run by the unit.

One container is booted for all of it. The tests are one story and run in their order: installed,
started, looked at, hung, killed, stopped, taken away.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from steadyhand.adapters.sim.side_client import SideChannel
from steadyhand.controllers.errors import LinkError
from steadyhand.controllers.frames import Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.events import EFFECTS
from steadyhand.runtime.go_live import REMEDY
from steadyhand.runtime.reader import JournalReader
from tests.support.container import (
    CannotBootError,
    CannotLimitError,
    Container,
    reason_not_to,
)
from tests.support.loop_rig import OUTPUT, until
from tests.support.memory import touch

pytestmark = pytest.mark.timeout(300)
REPOSITORY = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "controllers", "adapters",
           "runtime", "training", "configs", "docs", "deploy/systemd", "deploy/prometheus",
           "deploy/grafana")  # fmt: skip
UNIT = "steadyhand@north"
CONFIG = "/etc/steadyhand/north/steadyhand.yaml"
STATE = "/var/lib/steadyhand/north"
INSTALL = "/src/deploy/systemd/install.sh"
DOCS = "/opt/steadyhand/share/doc"
SCALE = 2250.0
PERIOD_S = 900.0 / SCALE
EXPOSURE_LIMIT = 2.5
MIB = 2**20


def wheels() -> Path:
    """All packages of an edge box for the system's Python, downloaded once."""
    version = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    constraints = REPOSITORY / "constraints.txt"
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = ["setuptools>=77", *project["project"]["dependencies"]]
    wanted += [*extras["cpu"], *extras["opcua"]]
    name = sha256(f"{version} {wanted} {constraints.read_text()}".encode()).hexdigest()[:16]
    target = REPOSITORY / "out" / "system" / f"wheels-{name}"
    if (target / "complete").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
         "--only-binary=:all:", "--python-version", version, "--dest", str(target),
         "--constraint", str(constraints), *wanted],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"the packages cannot be downloaded: {done.stderr.strip()[-300:]}")
    (target / "complete").touch()
    return target


@dataclass
class Site:
    """The container, the plant in it, and what the plant itself sees."""

    box: Container
    shared: Path
    installed: str
    """What the installer said."""

    def start_plant(self) -> None:
        """The plant's server, a unit of its own."""
        self.box.sh(
            "systemd-run --quiet --unit=plant --property=User=steadyhand "
            "--setenv=NUMBA_CACHE_DIR=/var/cache/steadyhand/native --collect "
            "/opt/steadyhand/bin/steadyhand plant serve thermal_storage --directory /plant/pki "
            f"--port 4840 --seed 1 --days 5 --time-scale {SCALE} --state /plant/state.json "
            "--log /plant/writes.jsonl"
        )

    def truth(self) -> dict:
        """What the plant really is; empty while it is not there."""
        try:
            with SideChannel(self.shared / "pki" / "side.sock") as side:
                return side.truth()
        except (LinkError, OSError):
            return {}

    def driven(self) -> bool:
        """Does the plant see a controller that drives, by its policy or its heuristic?"""
        truth = self.truth()
        return bool(truth) and bool(truth["controlled"]) and truth["source"] <= Source.FALLBACK

    def wait_driven(self, source: Source = Source.POLICY) -> None:
        """Until the plant is driven by `source`."""
        until(
            lambda: self.driven() and self.truth()["source"] == source,
            40.0, f"{source.name} drives", self.story,
        )  # fmt: skip

    def arrivals(self) -> list[dict]:
        """Every write that arrived at the plant, oldest first."""
        return [
            json.loads(line) for line in (self.shared / "writes.jsonl").read_text().splitlines()
        ]

    def unit(self, name: str) -> str:
        """One property of the service's unit."""
        return self.box.show(UNIT).get(name, "")

    def status(self) -> dict:
        """What the runtime says of itself."""
        done = self.box.run(
            "/opt/steadyhand/bin/steadyhand", "status", CONFIG, "--json", check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def events(self, *names: str) -> list[tuple[str, str, str]]:
        """Name, code and text of recorded events, oldest first."""
        copy = self.shared / "journal"
        shutil.rmtree(copy, ignore_errors=True)
        self.box.sh(f"cp -r {STATE}/journal /plant/journal")
        with JournalReader(copy) as journal:
            return [
                (event.event, event.data.get("code", ""), event.data.get("text", ""))
                for event in journal.events()
                if event.event in names
            ]

    def restarted(self, before: str) -> bool:
        """Is the service running again, in another process than `before`?"""
        shown = self.box.show(UNIT)
        return shown["SubState"] == "running" and shown["MainPID"] not in ("0", before)

    def story(self) -> str:
        """Everything that may tell why it is not as expected."""
        shown = self.box.show(UNIT)
        names = ("ActiveState", "SubState", "Result", "NRestarts", "StatusText")
        return " ".join([*(f"{n}={shown.get(n)}" for n in names), self.box.log(UNIT)[-2000:]])


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Booted and installed; nothing is started yet."""
    reason = reason_not_to()
    if reason:
        pytest.skip(reason)
    packages = wheels()
    with tempfile.TemporaryDirectory(prefix="sd") as name:
        folder = Path(name)
        source, shared = folder / "src", folder / "plant"
        shared.mkdir()
        for part in SOURCES:  # as it stands now: nothing that changes meanwhile is installed
            ours, theirs = REPOSITORY / part, source / part
            theirs.parent.mkdir(parents=True, exist_ok=True)
            if ours.is_dir():
                shutil.copytree(ours, theirs, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ours, theirs)
        try:
            box = Container(folder, {source: "/src", packages: "/wheels"}, {shared: "/plant"})
        except CannotBootError as error:
            pytest.skip(str(error))
        with box:
            done = box.run(INSTALL, "--wheels", "/wheels", "--instance", "north", timeout_s=240.0)
            site = Site(box, shared, done.stdout + done.stderr)
            box.sh("chown steadyhand: /plant")
            yield site


def listing(box: Container) -> str:
    """Everything the installer may have made, with owner, mode, size and time."""
    places = "/etc/steadyhand /etc/systemd/system /opt/steadyhand /var/cache/steadyhand"
    return box.sh(f"find {places} -printf '%p %u:%g %m %s %T@\\n' 2>/dev/null | sort", check=False)


def test_a_second_installation_changes_nothing(site):
    before = listing(site.box)
    assert "/opt/steadyhand" in before
    done = site.box.run(INSTALL, "--wheels", "/wheels", "--instance", "north")
    assert "is there already" in done.stdout
    assert listing(site.box) == before


def test_a_dry_run_changes_nothing_and_names_everything(site):
    before = listing(site.box)
    done = site.box.run(INSTALL, "--dry-run", "--instance", "south", "--allow", "10.0.0.0/24")
    assert "/etc/steadyhand/south" in done.stdout
    assert "IPAddressAllow" in done.stdout or "plant.conf" in done.stdout
    gone = site.box.run(INSTALL, "--dry-run", "--uninstall", "--purge")
    assert "/var/lib/steadyhand" in gone.stdout
    assert listing(site.box) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--instance", "North Building"], "small letters"),
        (["--instance", "../etc"], "small letters"),
        (["--allow", "10.0.0.1"], "--instance"),
        (["--instance", "a", "--allow", "plant.local;reboot"], "an address"),
        (["--purge"], "--uninstall"),
        (["--form", "x"], "--help"),
        (["--from", "/nowhere.whl"], "no wheel"),
        (["--python", "/bin/false"], "3.11"),
        (["--runbooks", "wiki, second floor"], "an address"),
        (["--instance"], "needs a value"),
    ],
)
def test_the_installer_refuses_what_makes_no_sense(site, words, said):
    done = site.box.run(INSTALL, *words, check=False)
    assert done.returncode != 0
    assert said in done.stderr


def named_pages() -> set[str]:
    """Every page that an alarm's own words send a person to."""
    words = [f"{effect.alarm} {effect.action}" for effect in EFFECTS.values()]
    return set(re.findall(r"docs/([a-z-]+\.md)", " ".join([*words, REMEDY])))


def test_what_alarms_send_a_person_to_is_on_the_box(site):
    """Without a network: pages, and a runbook for each alarm at the very address it names."""
    there = set(site.box.sh(f"cd {DOCS} && find . -type f -printf '%P\\n'").split())
    assert len(named_pages()) >= 3
    assert named_pages() <= there
    alarms = site.box.sh("cat /opt/steadyhand/share/prometheus/steadyhand.alerts.yml")
    named = re.findall(r"runbook_url: file://(\S+)", alarms)
    assert len(named) > 30
    assert {name.removeprefix(f"{DOCS}/") for name in named} <= there
    boards = site.box.sh("ls /opt/steadyhand/share/grafana/dashboards").split()
    assert boards == ["engineering.json", "loop.json", "model.json", "overview.json"]


def test_runbooks_may_be_read_elsewhere(site):
    """Their address goes into alarms and boards alike; said no more, it is the box again."""
    count = (
        "{ grep -rlF https://wiki.example/steady /opt/steadyhand/share || true; }"
        " | sort | xargs -r -n1 basename"
    )
    site.box.run(INSTALL, "--wheels", "/wheels", "--runbooks", "https://wiki.example/steady/")
    changed = site.box.sh(count).split()
    site.box.run(INSTALL, "--wheels", "/wheels")
    assert changed == [
        "engineering.json", "loop.json", "model.json", "overview.json",
        "steadyhand.alerts.yml", "tests.yml",
    ]  # fmt: skip
    assert site.box.sh(count).split() == []


def test_the_edge_has_no_torch_and_no_tools_it_does_not_need(site):
    packages = site.box.sh("ls /opt/steadyhand/bin/../lib/python3*/site-packages").split()
    assert "onnxruntime" in packages
    assert not {"torch", "onnx", "scipy", "pytest"} & set(packages)


def test_the_sandbox_is_tight(site, capsys):
    done = site.box.run("systemd-analyze", "security", "--no-pager", f"{UNIT}.service")
    (value,) = re.findall(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    with capsys.disabled():
        print(f"\nsystemd-analyze security {UNIT}: {value}")
    assert float(value) <= EXPOSURE_LIMIT
    verified = site.box.run("systemd-analyze", "verify", f"{UNIT}.service", check=False)
    assert "steadyhand" not in verified.stdout + verified.stderr


@pytest.mark.parametrize("name", ["gpu", "cpu", "realtime", "encrypted-credentials", "journal-key"])
def test_each_drop_in_is_understood(site, name):
    folder = f"/run/systemd/system/{UNIT}.service.d"
    site.box.sh(
        f"install -D -m 0644 /src/deploy/systemd/{name}.conf {folder}/{name}.conf\n"
        "systemctl daemon-reload"
    )
    try:
        done = site.box.run("systemd-analyze", "verify", f"{UNIT}.service", check=False)
        assert f"{name}.conf" not in done.stdout + done.stderr
        shown = site.box.show(UNIT)
        expected = {
            "gpu": ("PrivateDevices", "no"),
            "cpu": ("CPUAffinity", "2-3"),
            "realtime": ("RestrictRealtime", "no"),
            "encrypted-credentials": ("LoadCredential", ""),
            "journal-key": ("UMask", "0027"),
        }[name]
        assert shown.get(expected[0], "") == expected[1]
        if name == "gpu":
            security = site.box.run("systemd-analyze", "security", "--no-pager", f"{UNIT}.service")
            (value,) = re.findall(r"Overall exposure level for .*: ([0-9.]+)", security.stdout)
            assert float(value) <= EXPOSURE_LIMIT
    finally:
        site.box.sh(f"rm -r {folder}; systemctl daemon-reload")


def test_a_missing_credential_is_told_and_tried_again(site):
    site.box.run("systemctl", "start", UNIT, check=False)
    until(lambda: int(site.unit("NRestarts")) >= 1, what="one more try", instead=site.story)
    assert "credential" in site.box.log(UNIT).lower()
    site.box.run("systemctl", "stop", UNIT)


def test_it_waits_for_its_plant_and_is_ready_when_it_sees_it(site):
    """No plant at boot: alive, not ready, and not given up."""
    site.start_plant()
    until(site.truth, what="the plant")
    site.box.sh(
        "cd /etc/steadyhand/north\n"
        "install -m 0644 /plant/pki/client_cert.der /plant/pki/server_cert.der pki/\n"
        "install -m 0600 /plant/pki/client_key.pem credentials/private_key\n"
        "install -m 0600 /plant/pki/password credentials/password\n"
        "sed -i -e 's|4840/steadyhand/|4840/steadyhand/thermal_storage|' "
        f"-e 's|source: paced|source: plant\\n  time_scale: {SCALE}|' "
        "-e 's|deadline: 500 ms|deadline: 200 ms|' "
        "-e 's|clean_ticks: 4|clean_ticks: 4\\n  max_raises: 1000|' "
        "-e 's|initial: \"off\"|initial: full|' steadyhand.yaml\n"
        "systemctl stop plant"
    )
    site.box.run("systemctl", "start", "--no-block", UNIT)
    until(
        lambda: "waiting for the plant at opc.tcp://127.0.0.1:4840" in site.unit("StatusText")
        or "hands off" in site.unit("StatusText"),
        what="it waits", instead=site.story,
    )  # fmt: skip
    assert site.unit("SubState") == "start"
    site.start_plant()
    until(lambda: site.unit("SubState") == "running", what="ready", instead=site.story)
    assert site.unit("NRestarts") == "0"
    site.wait_driven()
    until(
        lambda: re.match(r".* v\d+ drives, confidence .*; mode full\b", site.unit("StatusText")),
        what="who drives", instead=site.story,
    )  # fmt: skip


def test_the_secrets_are_for_the_service_only(site):
    box = site.box
    pid = site.unit("MainPID")
    word = (site.shared / "pki" / "password").read_text().strip()
    folder = f"/run/credentials/{UNIT}.service"
    # nobody else, not even the user of the service outside of it, sees more than it should
    for path in (f"{folder}/password", "/etc/steadyhand/north/credentials/password",
                 f"{folder}/private_key", f"{STATE}/journal"):  # fmt: skip
        seen = box.run("setpriv", "--reuid=nobody", "--clear-groups", "cat", path, check=False)
        assert seen.returncode != 0, path
    inside = ("nsenter", f"--target={pid}", "--mount", "--", "setpriv", "--reuid=steadyhand",
              "--clear-groups")  # fmt: skip
    assert box.run(*inside, "cat", f"{folder}/password").stdout.strip() == word
    for path in ("/etc/steadyhand/north/credentials", "/home", "/root"):
        assert box.run(*inside, "ls", path, check=False).returncode != 0, path
    for path in ("/etc/steadyhand/north/x", "/opt/steadyhand/x", "/usr/x", "/var/lib/x"):
        assert box.run(*inside, "touch", path, check=False).returncode != 0, path
    # the word itself stands in no log, no record, no argument, no environment
    places = (
        f"/proc/{pid}/environ /proc/{pid}/cmdline /var/lib/steadyhand /etc/steadyhand/north/*.yaml"
    )
    found = box.run("bash", "-c", f"grep -rlF -- '{word}' {places}", check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert word not in box.log(UNIT)
    assert word not in box.run("systemctl", "show", UNIT).stdout


def test_it_runs_confined_and_reports_to_nobody(site):
    pid = site.unit("MainPID")
    status = site.box.run("cat", f"/proc/{pid}/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert all(int(fields[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb"))
    assert fields["Uid"].split()[0] != "0"
    # native code is compiled here, yet what it is written to is not executable at the same time;
    # a page or two of the bridge between Python and C are
    maps = site.box.run("cat", f"/proc/{pid}/maps").stdout
    both = [line.split()[0] for line in maps.splitlines() if line.split()[1].startswith("rwx")]
    spans = [span.split("-") for span in both]
    assert sum(int(high, 16) - int(low, 16) for low, high in spans) <= 4 * 4096
    said = site.box.run("journalctl", "--no-pager", "--output=cat", "--identifier=steadyhand")
    assert "steadyhand runs" in said.stdout
    for word in ("elemetry", "Traceback", "rror", "arning"):
        assert word not in said.stdout


def test_a_reload_tells_what_a_restart_would_make_of_the_file(site):
    box, pid = site.box, site.unit("MainPID")

    def reload(count):
        box.run("systemctl", "reload", UNIT)
        until(lambda: len(site.events("Reload")) == count, what="an answer", instead=site.story)
        _, code, text = site.events("Reload")[-1]
        assert code == ReasonCode.CFG_RELOAD
        assert f"reload: {text}" in box.log(UNIT)
        return text

    assert "is what runs" in reload(1)
    box.sh(f"cp -p {CONFIG} /root/good; sed -i 's/clean_ticks: 4/clean_ticks: 0/' {CONFIG}")
    refused = reload(2)
    assert refused.startswith("refused, what runs goes on")
    assert "modes.clean_ticks" in refused
    box.sh(f"sed -i 's/clean_ticks: 0/clean_ticks: 5/' {CONFIG}")
    assert "a restart takes it over" in reload(3)
    box.sh(f"cp -p /root/good {CONFIG}")
    assert site.unit("MainPID") == pid
    assert site.driven()


def test_a_process_that_stands_still_is_restarted_by_the_watchdog(site):
    pid = site.unit("MainPID")
    beat = site.truth()["heartbeat"]
    site.box.run("kill", "-STOP", pid)
    until(lambda: not site.truth()["controlled"], what="the plant's own control")
    until(lambda: site.restarted(pid), what="the watchdog", instead=site.story)
    log = site.box.log(UNIT)
    assert "Failed with result 'watchdog'" in log
    assert "most recent call first" in log  # the stacks of all threads
    until(site.driven, 40.0, "it drives", site.story)
    assert site.truth()["heartbeat"] != beat
    told = site.events("Restart")
    assert [code for _, code, _ in told] == [ReasonCode.WATCHDOG_PREV]


def test_a_loop_that_hangs_among_living_threads_is_restarted_by_the_watchdog(site):
    """Held in the middle of whatever it does next; link, metrics, sockets and journal go on."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (tests/system/install.sh)")
    pid = site.unit("MainPID")
    loop = site.box.outside(int(pid))  # the first thread of the process is the loop's
    held = subprocess.Popen(
        ["strace", "--quiet=all", "-o", "/dev/null", "-p", str(loop), "-e", "trace=all",
         "-e", "inject=all:delay_enter=600s"],
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: not site.truth()["controlled"], what="the plant's own control")
        states = {int(task.name): (task / "stat").read_text().rpartition(")")[2].split()[0]
                  for task in Path(f"/proc/{loop}/task").iterdir()}  # fmt: skip
        assert states.pop(loop) == "t"  # held
        assert len(states) > 3
        assert not {"t", "T", "Z"} & set(states.values())
        until(
            lambda: site.box.log(UNIT).count("Watchdog timeout") == 2,
            what="the watchdog", instead=site.story,
        )  # fmt: skip
    finally:
        held.kill()  # who is held cannot even die
        held.wait()
    until(lambda: site.restarted(pid), what="a restart", instead=site.story)
    assert site.box.log(UNIT).count("Failed with result 'watchdog'") == 2
    until(site.driven, 40.0, "it drives", site.story)
    assert [code for _, code, _ in site.events("Restart")] == 2 * [ReasonCode.WATCHDOG_PREV]


def test_the_third_crash_with_one_bundle_starts_the_heuristic_alone(site):
    """The watchdog was there twice; here is one more."""
    pid = site.unit("MainPID")
    site.box.run("kill", "-KILL", pid)
    until(lambda: site.restarted(pid), what="a restart", instead=site.story)
    notes = json.loads(site.box.run("cat", f"{STATE}/crash_loop.json").stdout)
    assert len(notes["crashes"]) == 3
    site.wait_driven(Source.FALLBACK)
    until(lambda: "CRASH_LOOP" in site.unit("StatusText"), what="why", instead=site.story)
    assert "CRASH_LOOP" in site.status()["latched"]
    assert "crashed 3 times within 10 min" in site.status()["alarm"]
    assert [code for _, code, _ in site.events("Restart")] == [
        ReasonCode.WATCHDOG_PREV, ReasonCode.WATCHDOG_PREV, ReasonCode.RESTART,
    ]  # fmt: skip


def test_it_stays_so_over_a_restart_until_it_is_acknowledged(site):
    site.box.run("systemctl", "restart", UNIT)
    site.wait_driven(Source.FALLBACK)
    assert "crashed 3 times" in site.status()["alarm"]
    done = site.box.run("/opt/steadyhand/bin/steadyhand", "ack", CONFIG)
    assert "CRASH_LOOP" in done.stdout
    until(lambda: "CRASH_LOOP" not in site.status().get("latched", "CRASH_LOOP"), what="the end")
    notes = json.loads(site.box.run("cat", f"{STATE}/crash_loop.json").stdout)
    assert notes["latched"] == []


def test_a_stop_hands_the_plant_back_and_writes_nothing_more(site):
    site.box.run("systemctl", "restart", UNIT)
    site.wait_driven(Source.POLICY)  # acknowledged, so it is back
    before = len(site.arrivals())
    done = site.box.sh(f"date +%s.%N; systemctl stop {UNIT}; date +%s.%N").split()
    asked_s, stopped_s = (float(word) for word in done)
    shown = site.box.show(UNIT)
    assert (shown["ActiveState"], shown["Result"]) == ("inactive", "success")
    assert stopped_s - asked_s < 30.0
    assert not site.truth()["controlled"]
    rows = [row for row in site.arrivals()[before:] if row["wall_s"] > asked_s]
    # who drives is told with every command; the word that nobody does ends it
    ends = [k for k, row in enumerate(rows) if row["name"] == "controller_source"
            and row["value"] == Source.HANDS_OFF]  # fmt: skip
    (end,) = ends
    told, after = rows[: end + 1], rows[end + 1 :]
    asked = [row["value"] for row in told if row["name"] == "control_request"]
    assert asked[-1] == 0.0
    # at most the tick that was under way comes before the hand-back, and nothing at all after it
    assert [row["name"] for row in told].count(OUTPUT) <= 1
    assert after == []
    beat = site.truth()["heartbeat"]
    now_s = site.truth()["time_s"]
    until(lambda: site.truth()["time_s"] > now_s + 2 * 900.0, what="two periods")
    assert site.truth()["heartbeat"] == beat
    notes = json.loads(site.box.run("cat", f"{STATE}/crash_loop.json").stdout)
    assert (notes["running"], notes["crashes"]) == (None, [])
    assert [name for name, _, _ in site.events("Stop")]


def test_a_kill_for_want_of_memory_is_told_as_such_and_counted(site):
    """The kernel ends the runtime; the manager alone would call it a signal like any other."""
    box = site.box
    box.run("systemctl", "start", UNIT)
    site.wait_driven(Source.POLICY)
    pid = site.unit("MainPID")
    notes = json.loads(box.run("cat", f"{STATE}/crash_loop.json").stdout)
    ours, told = box.outside(int(pid)), len(site.events("Restart"))
    group = group_of(site)
    try:
        with box.little_memory(UNIT, 8 * MIB):
            with suppress(OSError):  # it dies of it
                touch(ours, 64 * MIB)
            until(lambda: site.restarted(pid), what="a restart", instead=site.story)
    except CannotLimitError as error:
        box.run("systemctl", "stop", UNIT)
        pytest.skip(str(error))
    until(lambda: len(site.events("Restart")) > told, what="how it ended", instead=site.story)
    how = "oom-kill, signal KILL"
    assert site.events("Restart")[told:] == [
        ("Restart", ReasonCode.OOM_PREV, f"the run before ended: {how}")
    ]
    until(lambda: "OOM_PREV" in codes(site), what="its alarm", instead=site.story)
    # one crash of this bundle, which is given another try
    counted = json.loads(box.run("cat", f"{STATE}/crash_loop.json").stdout)
    (crash,) = counted["crashes"][len(notes["crashes"]) :]
    assert (crash["policy"], crash["how"]) == (notes["running"], how)
    assert (counted["latched"], counted["running"]) == ([], notes["running"])
    site.wait_driven(Source.POLICY)
    # each start has a group of its own: somebody else's kill is not told as this one later
    assert group_of(site) != group
    box.run("systemctl", "stop", UNIT)


def group_of(site: Site) -> str:
    """The identity of the service's control group."""
    place = site.unit("ControlGroup")
    folders = f"/sys/fs/cgroup{place} /sys/fs/cgroup/unified{place}"
    (number,) = site.box.sh(f"stat -c %i {folders} 2>/dev/null", check=False).split()
    return number


def codes(site: Site) -> set[str]:
    """Of the alarms on the operators' list."""
    return {alarm["code"] for alarm in site.status().get("alarms", ())}


def test_secrets_encrypted_at_rest_serve_as_well(site):
    """Encrypted by this machine's key: the files say nothing elsewhere."""
    site.box.sh(
        "cd /etc/steadyhand/north/credentials\n"
        "systemd-creds setup 2>/dev/null\n"
        "for c in private_key password; do "
        "systemd-creds encrypt --with-key=host --name=$c $c $c.cred && rm $c; done\n"
        "install -D -m 0644 /src/deploy/systemd/encrypted-credentials.conf "
        f"/etc/systemd/system/{UNIT}.service.d/encrypted-credentials.conf\n"
        "systemctl daemon-reload"
    )
    site.box.run("systemctl", "enable", "--now", UNIT)
    until(site.driven, 40.0, "it drives", site.story)


def test_taken_away_nothing_is_left_but_the_data(site):
    done = site.box.run(INSTALL, "--uninstall")
    assert "still in /etc/steadyhand and /var/lib/steadyhand" in done.stdout
    assert not site.truth()["controlled"]  # it was running, and handed the plant back
    left = site.box.sh(
        "find / -xdev \\( -path /proc -o -path /sys -o -path /src -o -path /plant \\) -prune -o "
        "-iname '*steadyhand*' -print"
    ).split()
    mine = {"/etc/steadyhand", "/var/lib/steadyhand",
            f"/etc/systemd/system/{UNIT}.service.d"}  # fmt: skip
    data = ("/etc/steadyhand/", "/var/lib/steadyhand/", "/run/host/")
    assert {path for path in left if not path.startswith(data)} <= mine
    assert site.box.run("systemctl", "cat", f"{UNIT}.service", check=False).returncode != 0
    assert site.box.run("bash", "-c", f"ls {STATE}/journal").stdout
    site.box.run("systemctl", "stop", "plant", check=False)
    site.box.run(INSTALL, "--uninstall", "--purge")
    assert "steadyhand" not in site.box.run("cat", "/etc/passwd", "/etc/group").stdout
    for path in mine:
        assert site.box.run("ls", path, check=False).returncode != 0
