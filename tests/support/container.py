"""A machine of its own with a real systemd: this one's programs, nothing of its state, no network.

`systemd-nspawn --volatile` boots the host's /usr over an empty root in memory. Everything that is
written there is gone with it.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BOOT_S = 30.0
_MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
_CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class CannotBootError(Exception):
    """This machine cannot run a systemd of its own; the message says why."""


class CannotLimitError(Exception):
    """Nobody can limit a unit's memory here; the message says why."""


def reason_not_to() -> str:
    """Why no container can be booted here; empty when one should."""
    if os.geteuid() != 0:
        return "only root can boot a container"
    for program in ("systemd-nspawn", "nsenter", "systemctl"):
        if shutil.which(program) is None:
            return f"{program} is not installed (tests/system/install.sh)"
    return ""


class Container:
    """One booted container; a context manager that ends it."""

    def __init__(self, folder: Path, shown: dict[Path, str], shared: dict[Path, str]) -> None:
        """Boot.

        Args:
            folder: for the console's output.
            shown: folders of ours the container can read, and where.
            shared: folders of ours it can write too, and where.

        Raises:
            CannotBootError: it did not come up.
        """
        name = f"steadyhand-test-{os.getpid()}"
        binds = [f"--bind-ro={ours}:{theirs}" for ours, theirs in shown.items()]
        binds += [f"--bind={ours}:{theirs}" for ours, theirs in shared.items()]
        self._console = folder / "console.log"
        with self._console.open("wb") as log:
            self._process = subprocess.Popen(
                # it ends with us, however we end
                ["setpriv", "--pdeathsig=KILL", "systemd-nspawn", "--quiet", "--volatile=yes",
                 "--directory=/", "--boot", "--private-network", "--register=no", "--keep-unit",
                 f"--machine={name}", "--console=pipe", *binds, "systemd.unit=basic.target"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=_CLEAN,
            )  # fmt: skip
        self._leader = 0
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        until = time.monotonic() + BOOT_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            self._leader = self._leader or self._find_leader()
            if self._leader:
                asked = self.run("systemctl", "is-active", "basic.target", check=False)
                if asked.stdout.strip() == "active":
                    return
            time.sleep(0.1)
        said = self._console.read_text("utf-8", "replace").strip()[-500:]
        raise CannotBootError(f"no systemd came up in a container: {said or 'it said nothing'}")

    def _find_leader(self) -> int:
        """The container's init, as we see it."""
        for tasks in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            for child in tasks.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        return 0

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 60.0, script: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run one command inside, as root; `script` is its standard input."""
        done = subprocess.run(
            ["nsenter", "--target", str(self._leader), "--all", "--", *command],
            input=script, capture_output=True, text=True, timeout=timeout_s, check=False,
            env=_CLEAN,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{_tail(done)}")
        return done

    def sh(self, script: str, check: bool = True, timeout_s: float = 60.0) -> str:
        """Run a shell script inside, as root; its output."""
        return self.run(
            "bash", "-euo", "pipefail", "-s", check=check, timeout_s=timeout_s, script=script
        ).stdout

    def outside(self, pid: int) -> int:
        """The number that a process inside has for us."""
        inside = Path(f"/proc/{self._leader}/ns/pid").readlink()
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                numbers = status.read_text().partition("NSpid:")[2].split("\n")[0].split()
                ours = status.parent
                if numbers[-1:] == [str(pid)] and (ours / "ns" / "pid").readlink() == inside:
                    return int(ours.name)
        raise AssertionError(f"no process {pid} inside")

    def show(self, unit: str) -> dict[str, str]:
        """What systemd knows of a unit."""
        lines = self.run("systemctl", "show", unit).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def log(self, unit: str) -> str:
        """What a unit, and systemd about it, wrote to the system's journal."""
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}").stdout

    @contextmanager
    def little_memory(self, unit: str, more_bytes: int) -> Iterator[None]:
        """The service `unit` may take `more_bytes` of memory; for more, the kernel kills.

        By MemoryMax of the unit. Where the systemd inside has no say over memory, because the
        kernel counts it by control groups of the first version, the unit's group is made from here,
        at the place that systemd would give it.

        Raises:
            CannotLimitError: no group here counts memory.
        """
        shown = self.show(unit)
        group, pid = shown["ControlGroup"], shown["MainPID"]
        if shown["MemoryCurrent"].isdecimal():
            limit = int(shown["MemoryCurrent"]) + more_bytes
            self.run("systemctl", "set-property", "--runtime", unit, f"MemoryMax={limit}")
            try:
                yield
            finally:
                self.run("systemctl", "set-property", "--runtime", unit, "MemoryMax=infinity")
            return
        ours = Path(f"/proc/{self._leader}/cgroup").read_text()
        found = re.search(r"^\d+:memory:(/.*)$", ours, re.M)
        root = _MEMORY_GROUPS / found[1].lstrip("/") if found else None
        if root is None or not os.access(root / "memory.oom_control", os.W_OK):
            raise CannotLimitError(f"no control group counts memory here: {ours.split()}")
        place = root / group.lstrip("/")
        made = [one for one in (place, *place.parents) if root in one.parents and not one.exists()]
        place.mkdir(parents=True, exist_ok=True)
        try:
            # what was taken before is counted where it was taken
            (place / "memory.limit_in_bytes").write_text(str(more_bytes))
            (place / "cgroup.procs").write_text(str(self.outside(int(pid))))
            yield
        finally:
            for task in (place / "cgroup.procs").read_text().split():
                (root / "cgroup.procs").write_text(task)
            for one in made:
                one.rmdir()

    def close(self) -> None:
        """End it. Idempotent."""
        if self._leader:
            with suppress(ProcessLookupError):
                os.kill(self._leader, signal.SIGKILL)  # and with it everything inside
            self._leader = 0
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tail(done: "subprocess.CompletedProcess[str]") -> str:
    return (done.stdout[-3000:] + done.stderr[-3000:]).strip()
