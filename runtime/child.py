"""The parent's end of a policy process: start it, wait until it is examined, end it."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from steadyhand.controllers.errors import ModelError
from steadyhand.runtime.policy_spec import PolicySpec

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What a policy process may use. Memory is beyond what the libraries take."""

    memory_bytes: int = 512 * 2**20
    cpu_s: int = 20
    """Processor seconds for loading and examining the graph."""
    start_s: float = 60.0
    """Wall-clock seconds from start to examined."""


class PolicyChild:
    """One child process made from a spec. Whoever makes it must keep the making thread alive:
    the kernel ends the child with the thread that started it.
    """

    def __init__(self, spec: PolicySpec, limits: ChildLimits, *, serve: bool) -> None:
        """Start the process; it is not examined yet.

        Raises:
            OSError: no process can be started.
        """
        self.limits = limits
        self.report: dict[str, Any] = {}
        # A GPU driver reserves far more address space than there is memory.
        memory_bytes = 0 if "cuda" in spec.providers else limits.memory_bytes
        spec_fd = os.memfd_create("steadyhand-policy", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket = ours
        try:
            with os.fdopen(os.dup(spec_fd), "wb") as file:
                file.write(spec.encode())
            numbers = (spec_fd, theirs.fileno(), os.getpid(), memory_bytes, limits.cpu_s, serve)
            self.process = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
                [sys.executable, "-m", "steadyhand.runtime.policy_child"]
                + [str(int(number)) for number in numbers],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(spec_fd, theirs.fileno()),
                env=os.environ | _ONE_THREAD,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            os.close(spec_fd)
            theirs.close()

    def wait_examined(self) -> dict[str, Any]:
        """Wait until the policy is built and has given the known answers.

        Returns:
            The child's report: provider, notice, golden_error, nodes, elements, opset, operators.

        Raises:
            ModelError: refused, or the child died or took too long; it is gone then.
        """
        try:
            if not select.select([self.socket], [], [], self.limits.start_s)[0]:
                raise ModelError(
                    f"not loaded within {self.limits.start_s:g} s: the graph does too much", "LIMIT"
                )
            data = self.socket.recv(1 << 16)
            if not data:
                raise ModelError(*_death(self.process.wait(), self.limits))
            report: dict[str, Any] = json.loads(data)
            if not report["ok"]:
                raise ModelError(report["message"], report["code"])
        except (ModelError, OSError):
            self.kill()
            raise
        self.report = report
        return report

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
