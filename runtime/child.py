"""The parent's end of a policy process: hand it a policy, wait until it is examined, end it."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
from dataclasses import dataclass
from math import isfinite
from typing import Any

from steadyhand.controllers.errors import ModelError
from steadyhand.runtime.policy_spec import ORDER, PolicySpec
from steadyhand.runtime.spawn import Spawned

REPORT_BYTES = 60_000
"""Longest report of a child."""
_LAST_WORDS_S = 2.0
"""A child that closed its socket has this long to end by itself, and so tell why."""
_CODE = re.compile(r"[A-Z_]{1,24}")
_REPORT_TYPES: dict[str, tuple[type, ...]] = {
    "provider": (str,),
    "notice": (str,),
    "golden_error": (int, float),
    "nodes": (int,),
    "elements": (int,),
    "opset": (int,),
    "operators": (list,),
}


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What a policy process may use. Memory is beyond what the libraries take."""

    memory_bytes: int = 512 * 2**20
    """While the graph is loaded and examined."""
    serving_bytes: int = 0
    """Once it is examined, where that is more."""
    cpu_s: int = 20
    """Processor seconds for loading and examining the graph."""
    start_s: float = 60.0
    """Wall-clock seconds from start to examined."""


class PolicyChild:
    """One child process made from a spec. Whoever starts it must keep the starting thread alive:
    the kernel ends the child with the thread that started it.
    """

    def __init__(
        self,
        spec: PolicySpec,
        limits: ChildLimits,
        *,
        serve: bool,
        spawned: Spawned | None = None,
    ) -> None:
        """Hand the spec to `spawned`, or to a process started now; it is not examined yet.

        Raises:
            OSError: no process can be started, or it is gone already.
        """
        self.limits = limits
        self.report: dict[str, Any] = {}
        # A GPU driver reserves far more address space than there is memory.
        gpu = "cuda" in spec.providers
        memory_bytes, serving_bytes = (0, 0) if gpu else (limits.memory_bytes, limits.serving_bytes)
        spawned = spawned or Spawned()
        self.socket, self.process = spawned.socket, spawned.process
        try:
            with os.fdopen(spawned.spec_fd, "wb") as file:
                file.write(spec.encode())
            self.socket.send(ORDER.pack(memory_bytes, serving_bytes, limits.cpu_s, serve))
        except BaseException:
            self.kill()
            raise

    def wait_examined(self, cancel_fd: int = -1) -> dict[str, Any]:
        """Wait until the policy is built and has given the known answers.

        Args:
            cancel_fd: gives up as soon as this can be read.

        Returns:
            The child's report: provider, notice, golden_error, nodes, elements, opset, operators.

        Raises:
            ModelError: refused, no proper report, dead, too slow or given up; it is gone then.
        """
        try:
            self.report = self._report(cancel_fd)
        except OSError as error:
            self.kill()
            raise ModelError(f"the process loading the graph: {error}", "LOAD") from error
        except BaseException:
            self.kill()
            raise
        return self.report

    def _report(self, cancel_fd: int) -> dict[str, Any]:
        watched = [self.socket.fileno()] + ([cancel_fd] if cancel_fd >= 0 else [])
        poll = select.poll()
        for fd in watched:
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(self.limits.start_s * 1e3)]
        if not ready:
            raise ModelError(
                f"not loaded within {self.limits.start_s:g} s: the graph does too much", "LIMIT"
            )
        if self.socket.fileno() not in ready:
            raise ModelError("given up before it was loaded", "CANCELLED")
        data = self.socket.recv(REPORT_BYTES + 1, socket.MSG_DONTWAIT)
        if data:
            return read_report(data)
        try:
            status = self.process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            raise ModelError(
                "the process loading the graph closed its socket and went on", "LOAD"
            ) from None
        raise ModelError(*_death(status, self.limits))

    def end(self) -> None:
        """Tell the kernel to end the process; its socket then reads end of file."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    def kill(self) -> int:
        """End the process, collect it, close the socket; returns its exit status. Idempotent."""
        self.end()
        status = self.process.wait()
        self.socket.close()
        return status

    def resident_bytes(self) -> int:
        """Memory the process holds now; 0 when it is gone."""
        try:
            with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:  # noqa: PTH123
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0


def examine(spec: PolicySpec, limits: ChildLimits | None = None) -> dict[str, Any]:
    """Load `spec` in a limited process that ends afterwards; returns its report.

    Raises:
        ModelError: refused, crashed, too slow or too large.
    """
    child = PolicyChild(spec, limits or ChildLimits(), serve=False)
    report = child.wait_examined()
    child.kill()
    return report


def read_report(data: bytes) -> dict[str, Any]:
    """What a child says of its policy; its word is checked like anybody else's.

    Raises:
        ModelError: the policy is refused, with the child's code; or LOAD: no proper report.
    """
    try:
        if len(data) > REPORT_BYTES:
            raise ValueError(f"longer than {REPORT_BYTES} bytes")
        report = json.loads(data)
        if not isinstance(report, dict) or type(report.get("ok")) is not bool:
            raise ValueError("no mapping with ok")
        if report["ok"]:
            for name, kinds in _REPORT_TYPES.items():
                if type(report.get(name)) not in kinds:
                    raise ValueError(f"{name}={str(report.get(name))[:40]!r}")
            if not (isfinite(report["golden_error"]) and report["golden_error"] >= 0.0):
                raise ValueError(f"golden_error={report['golden_error']}")
            if not all(type(name) is str for name in report["operators"]):
                raise ValueError("operators must be names")
            return report
        message, code = report.get("message"), report.get("code")
        if type(message) is not str or type(code) is not str or not _CODE.fullmatch(code):
            raise ValueError(f"refused with code={str(code)[:40]!r}")
    except (ValueError, RecursionError, OverflowError) as error:
        text = f"the process loading the graph sent no proper report ({len(data)} bytes: {error})"
        raise ModelError(text, "LOAD") from None
    raise ModelError(message, code)


def describe_exit(status: int) -> str:
    """Exit status in words: `signal SIGSEGV` or `status 1`."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def _death(status: int, limits: ChildLimits) -> tuple[str, str]:
    """Message and code for a child that died before it could report."""
    if status == -signal.SIGXCPU:
        return f"loading took more than {limits.cpu_s} processor seconds", "LIMIT"
    text = f"the process loading the graph ended with {describe_exit(status)}"
    if status in (-signal.SIGABRT, -signal.SIGKILL):
        return f"{text}: probably beyond its {limits.memory_bytes >> 20} MiB", "LIMIT"
    return text, "LOAD"
