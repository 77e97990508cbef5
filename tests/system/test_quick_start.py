"""docs/quick-start.md, typed as it stands: every command of the page, in order, in a shell.

Only what another process on this machine may hold is replaced: the two ports and /tmp/plant.
"""

import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "quick-start.md"
COMMAND = f"{sys.executable} -m steadyhand.runtime"
BACKGROUND = (" plant serve ", " run ")


def commands() -> list[str]:
    """Every command of the page, with its continuation lines."""
    blocks = re.findall(r"^ *```\n(.*?)^ *```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    text = "".join(re.sub(r"(?m)^ {3}", "", block) for block in blocks)
    return text.replace("\\\n", "").strip().splitlines()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Typist:
    """Types commands into a shell, in a folder that looks like the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(REPOSITORY / "configs", folder / "configs")
        self.ports = {"4840": str(free_port()), "9464": str(free_port())}
        shipped = folder / "configs" / "thermal_storage" / "steadyhand.yaml"
        text = shipped.read_text("utf-8")
        for known, free in self.ports.items():
            text = text.replace(known, free)
        shipped.write_text(text, "utf-8")
        self.background: list[subprocess.Popen[bytes]] = []

    def local(self, line: str) -> str:
        line = line.replace(".venv/bin/steadyhand", COMMAND).replace("/tmp/plant", "plant")
        line = line.replace("ln -s plant", f"ln -s {self.folder}/plant")
        return line.replace("4840", self.ports["4840"])

    def start(self, line: str) -> None:
        with (self.folder / f"said-{len(self.background)}").open("wb") as said:
            made = subprocess.Popen(  # `exec`: what is stopped is the program, not its shell
                ["bash", "-c", f"exec {self.local(line)}"],
                cwd=self.folder, stdout=said, stderr=said,
            )  # fmt: skip
        self.background.append(made)

    def said(self, number: int) -> str:
        return (self.folder / f"said-{number}").read_text("utf-8")

    def wait_for(self, number: int, words: str) -> None:
        until_s = time.monotonic() + 60.0
        while words not in self.said(number):
            assert self.background[number].poll() is None, self.said(number)
            assert time.monotonic() < until_s, self.said(number)
            time.sleep(0.05)

    def type(self, line: str) -> "subprocess.CompletedProcess[str]":
        """One command; again while the runtime says that it is still starting, as the page says."""
        for _ in range(100):
            done = subprocess.run(
                ["bash", "-c", self.local(line)], cwd=self.folder, capture_output=True, text=True,
                timeout=120, check=False,
            )  # fmt: skip
            if done.returncode != 75:
                break
            assert "STARTING" in done.stderr
            time.sleep(0.2)
        return done


@pytest.fixture
def typist() -> Iterator[Typist]:
    # not pytest's own folder: the name of a Unix socket may have 107 bytes
    with tempfile.TemporaryDirectory(prefix="quick") as name:
        made = Typist(Path(name))
        yield made
        for process in made.background:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30.0)


def test_every_command_of_the_page_works_as_it_stands(typist: Typist) -> None:
    lines = commands()
    assert lines[0] == "make demo"
    assert len(lines) > 15
    told: dict[str, str] = {}
    for line in lines[1:]:
        if any(word in line for word in BACKGROUND):
            typist.start(line)
            number = len(typist.background) - 1
            typist.wait_for(number, '"endpoint"' if "plant serve" in line else "steadyhand runs")
            continue
        done = typist.type(line)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        told[line] = done.stdout

    def out_of(part: str) -> str:
        return next(out for line, out in told.items() if part in line)

    assert "nothing wrong" in out_of(" check ")
    assert "storage_discharge_kw = -50 kW for 8h of plant time" in out_of(" override ")
    assert "link up, control granted, all measurements good" in out_of(" explain ")
    assert "chain intact" in out_of("journal verify")
    assert "override" in out_of("--events").lower()
    assert " 0 decided otherwise" in out_of(" replay ")
    assert typist.background[1].wait(30.0) == 0, "the stop command ended it"
    endpoint = f"opc.tcp://127.0.0.1:{typist.ports['4840']}/steadyhand/thermal_storage"
    assert endpoint in typist.said(0)
    introduced = typist.said(1)
    for words in (
        endpoint, "north-building (thermal_storage)", "thermal_storage-", "mode      off",
        "my-plant/var/operator.sock", f"http://127.0.0.1:{typist.ports['9464']}/metrics",
        "my-plant/var/journal",
    ):  # fmt: skip
        assert words in introduced
