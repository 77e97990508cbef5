"""A virtual plant and a real runtime on one machine: for the demonstration and for evaluations."""

import signal
import subprocess
import sys
from pathlib import Path

from steadyhand.adapters.sim.process import PlantProcess
from steadyhand.controllers.errors import ConfigError

SHIPPED = "configs/thermal_storage/steadyhand.yaml"
STOP_S = 15.0


def shipped_config() -> Path:
    """The shipped configuration, from the working folder or beside the code.

    Raises:
        ConfigError: it is not here.
    """
    for base in (Path.cwd(), *Path(__file__).resolve().parents):
        file = base / SHIPPED
        if file.exists():
            return file
    raise ConfigError(f"{SHIPPED} is not here; run this in the repository")


def virtual_config(
    folder: Path,
    plant: PlantProcess,
    time_scale: float,
    publishing_s: float | None = None,
    bundle: Path | None = None,
    trusted: Path | None = None,
) -> Path:
    """The shipped configuration for a virtual plant whose certificates lie in `folder`/pki.

    Args:
        folder: where the configuration and everything the runtime writes goes.
        plant: the running plant.
        time_scale: plant seconds per second.
        publishing_s: how often the link looks for a new image; its own choice by default.
        bundle: file of the controller; the shipped one by default.
        trusted: folder of the public keys that may sign it; the shipped one by default.

    Raises:
        ConfigError: the shipped configuration is not there, or no longer holds what is changed.
    """
    shipped = shipped_config()
    file = bundle or shipped.parent / "thermal_storage.shb"
    keys = trusted or shipped.parent / "keys"
    text = shipped.read_text(encoding="utf-8")
    wall_period_s = 900.0 / time_scale
    often = "" if publishing_s is None else f"\n  publishing: {publishing_s} s"
    changes = {
        "opc.tcp://127.0.0.1:4840/steadyhand/": plant.ready["endpoint"],
        "source: paced": f"source: plant\n  time_scale: {time_scale}",
        "request_timeout: 1 s": f"request_timeout: {min(1.0, 2.5 * wall_period_s)} s{often}",
        "deadline: 500 ms": f"deadline: {0.5 * wall_period_s} s",
        'initial: "off"': "initial: full",
        "listen: 127.0.0.1:9464": "listen: 127.0.0.1:0",
        "file: thermal_storage.shb": f"file: {file.resolve()}",
        "trusted_keys: keys": f"trusted_keys: {keys.resolve()}",
    }
    for old, new in changes.items():
        if old not in text:
            raise ConfigError(f"{shipped}: {old!r} is gone; virtual plants need it")
        text = text.replace(old, new, 1)
    config = folder / "steadyhand.yaml"
    config.write_text(text, encoding="utf-8")
    return config


def start_runtime(folder: Path, config: Path, *options: str) -> "subprocess.Popen[bytes]":
    """`steadyhand run`, as a service manager would start it; its output goes to runtime.log."""
    command = [sys.executable, "-m", "steadyhand.runtime", "run", str(config), *options]
    with (folder / "runtime.log").open("ab") as log:
        # a session of its own: Ctrl-C reaches the caller only, which then hands the plant back
        return subprocess.Popen(  # noqa: S603
            command, stdout=log, stderr=log, start_new_session=True
        )


def stop_runtime(runtime: "subprocess.Popen[bytes]") -> int:
    """SIGTERM: the runtime hands the plant back and closes its journal; its exit status."""
    if runtime.poll() is None:
        runtime.send_signal(signal.SIGTERM)
        try:
            runtime.wait(STOP_S)
        except subprocess.TimeoutExpired:
            runtime.kill()
    return runtime.wait()
