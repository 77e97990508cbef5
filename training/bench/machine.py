"""The machine of a run, and how much of it others used: what a figure is worth nothing without."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("numpy", "numba", "onnxruntime", "torch", "stable_baselines3", "daqp", "qpsolvers"),
    *("proxsuite", "cvxpy", "clarabel", "osqp", "prometheus_client", "pydantic", "orjson"),
    *("asyncua", "o6"),
)
PRIORITY = 40
"""Of the real-time class: above all ordinary work, below the kernel's own threads."""


def describe() -> dict[str, Any]:
    """Processor, kernel and versions."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def load() -> list[float]:
    """Load average over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class Neighbours:
    """Share of all cores that others used while this process measured."""

    def __init__(self) -> None:
        self._busy_s, self._own_s, self._start_s = self._now()

    def share(self) -> float:
        """Between 0 and 1, since construction; NaN where the kernel does not tell."""
        busy_s, own_s, now_s = self._now()
        span_s = (now_s - self._start_s) * (os.cpu_count() or 1)
        others_s = busy_s - self._busy_s - (own_s - self._own_s)
        return round(min(max(others_s / span_s, 0.0), 1.0), 2) if span_s > 0 else float("nan")

    @staticmethod
    def _now() -> tuple[float, float, float]:
        ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy_s = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return busy_s, sum(os.times()[:4]), time.monotonic()


def realtime_permitted() -> bool:
    """May this process enter the real-time class?"""
    try:
        with realtime(True):
            return True
    except PermissionError:
        return False


@contextmanager
def realtime(wanted: bool, policy: int = os.SCHED_RR) -> Iterator[None]:
    """Run the block in the real-time class, on the last core; children inherit both.

    Raises:
        PermissionError: the machine does not permit it.
    """
    if not wanted:
        yield
        return
    cores = os.sched_getaffinity(0)
    before, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, policy, os.sched_param(PRIORITY))
    try:
        os.sched_setaffinity(0, {max(cores)})
        yield
    finally:
        os.sched_setaffinity(0, cores)
        os.sched_setscheduler(0, before, parameter)
