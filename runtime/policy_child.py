"""The process a policy lives in: confined, examined, then answering one question at a time.

Run as `python -m steadyhand.runtime.policy_child`, by `runtime/child.py` only. A message is one
datagram of a sequenced-packet socket: fixed numbers in machine order, never a pickled object.

    request   uint64 sequence | float64 observation[n_y]
    answer    uint64 sequence | int64 kind | float64 numbers[n_u + 3] | error text
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

import numpy as np

from steadyhand.controllers.errors import ModelError
from steadyhand.runtime.policy_spec import ORDER, PolicySpec

if TYPE_CHECKING:
    from steadyhand.controllers.policies.onnx import OnnxPolicy

ANSWERED: Final = 0
INPUT_NOT_FINITE: Final = 1
FAILED: Final = 2
HEAD_BYTES: Final = 16
TEXT_BYTES: Final = 400

_PR_SET_PDEATHSIG = 1
_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN = 65, 1


def main(arguments: list[str]) -> int:
    """Wait for a policy, confine this process, build it, report, then answer till the parent goes.

    What takes long and is ours alone comes first, while the parent still finds out which policy
    it shall be; a byte of a stranger is read only inside the limits.
    """
    spec_fd, socket_fd, parent = (int(word) for word in arguments)
    channel = socket.socket(fileno=socket_fd)
    if not die_with(parent):
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C and a service stop are the parent's
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(ImportError):  # said below, where somebody listens
        import_module("steadyhand.controllers.policies.onnx")
    order = channel.recv(ORDER.size)
    if len(order) != ORDER.size:
        return 0  # nobody wanted this process
    memory_bytes, serving_bytes, cpu_s, serve = ORDER.unpack(order)
    confine(memory_bytes, cpu_s, serving_bytes)
    try:
        with os.fdopen(spec_fd, "rb") as file:
            file.seek(0)
            policy = PolicySpec.decode(file.read()).build()
    except ModelError as error:
        return _refuse(channel, error.code, str(error))
    except MemoryError:
        return _refuse(channel, "LIMIT", "out of its memory limit")
    except ImportError as error:
        text = f"the model's runtime cannot be loaded: {error}; install the extra cpu or gpu"
        return _refuse(channel, "LOAD", text)
    if serve:
        # These limits were for loading a stranger; a policy may serve for years.
        for limit in (resource.RLIMIT_CPU, resource.RLIMIT_AS):
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (hard, hard))
    summary = policy.summary
    _report(
        channel,
        {
            "ok": True,
            "provider": policy.provider,
            "notice": policy.notice,
            "golden_error": policy.golden_error,
            "nodes": summary.nodes,
            "elements": summary.elements,
            "opset": summary.opset,
            "operators": summary.operators,
        },
    )
    if serve:
        gc.freeze()
        gc.disable()
        answer_questions(policy, channel)
    return 0


def die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when its parent ends; False if that is already so."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def confine(memory_bytes: int, cpu_s: int, serving_bytes: int = 0) -> None:
    """Limits for running a stranger's graph: no core, no file written, no machine code made,
    little memory and time.

    Args:
        memory_bytes: address space beyond what the libraries took already; 0 leaves it open
            (a GPU driver maps more than there is).
        cpu_s: processor seconds until the kernel kills it.
        serving_bytes: the same as `memory_bytes` for later, where that is more.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    used = int(sum(os.times()[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (used + cpu_s, hard))
    if memory_bytes:
        # neither Python nor the engine on the CPU makes machine code: who would is an intruder
        # (Linux 6.3; an older kernel says no, and the sandbox of the service is what there is)
        ctypes.CDLL(None).prctl(_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            taken = int(file.read().split()[0]) * resource.getpagesize()
        most = max(memory_bytes, serving_bytes)
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory_bytes, taken + most))


def answer_questions(policy: "OnnxPolicy", channel: socket.socket) -> None:
    """Answer requests until the other end closes."""
    n_y = policy.n_y
    request = bytearray(8 * (1 + n_y))
    sequence = np.frombuffer(request, np.uint64, 1)
    values = np.frombuffer(request, np.float64, n_y, 8)
    answer = bytearray(HEAD_BYTES + 8 * len(policy.numbers))
    head = np.frombuffer(answer, np.uint64, 2)
    numbers = np.frombuffer(answer, np.float64, len(policy.numbers), HEAD_BYTES)
    receive, send = channel.recv_into, channel.send
    while receive(request) == len(request):
        head[0] = sequence[0]
        try:
            head[1] = ANSWERED if policy.run(values) else INPUT_NOT_FINITE
        except Exception as error:  # noqa: BLE001  (whatever fails in there is an answer)
            head[1] = FAILED
            text = f"{type(error).__name__}: {error}".encode("utf-8", "replace")
            send(answer + text[:TEXT_BYTES])
            continue
        numbers[:] = policy.numbers
        send(answer)


def _refuse(channel: socket.socket, code: str, message: str) -> int:
    _report(channel, {"ok": False, "code": code, "message": message[:4000]})
    return 1


def _report(channel: socket.socket, report: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the parent gave up waiting: nobody is left to tell
        channel.send(json.dumps(report).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
