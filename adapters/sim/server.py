"""A simulated plant behind a real OPC UA server, in a process of its own.

    steadyhand plant serve thermal_storage --directory /tmp/plant --lockstep

prints one JSON line when it is ready (endpoint, namespace, where the certificates lie, the side
channel) and runs until it is told to stop.
"""

import argparse
import asyncio
import errno
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from steadyhand.adapters.opcua.application_certificate import VALID_DAYS
from steadyhand.adapters.sim.address_space import HANDSHAKE, namespace_uri
from steadyhand.adapters.sim.certificates import make_pki
from steadyhand.adapters.sim.faults import faults_from_json
from steadyhand.adapters.sim.guard import GuardedServer
from steadyhand.adapters.sim.observer import WriteLog
from steadyhand.adapters.sim.plant_server import PlantServer
from steadyhand.adapters.sim.plants import PLANTS, RunSpec, make_runner
from steadyhand.adapters.sim.side_channel import SideChannelServer
from steadyhand.controllers.catalogue import parameters_with, plant_kind
from steadyhand.controllers.errors import ConfigError, SteadyhandError

EX_IOERR, EX_CONFIG = 74, 78
_REMEDIES = {
    errno.EADDRINUSE: "something else has that port; take another one, or 0 for a free one",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EACCES: "this user may not; take a port from 1024 on",
}
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
INSECURE = "--insecure-no-encryption-and-anonymous-users"


def _whole(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    """Type of an option: a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: a whole number from {low} to {high}")
        return number

    return parse


def _some(text: str) -> float:
    """Type of an option: a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 1e-6 <= number <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1e-6 to 1e9")
    return number


class _Parser(argparse.ArgumentParser):
    """Wrong words end in one line; the usage of two dozen options helps nobody to find a typo."""

    def error(self, message: str) -> NoReturn:
        wrong = message.removeprefix("unrecognized arguments: ").split()[0]
        like = get_close_matches(wrong, self._option_string_actions, 1)
        hint = f"; did you mean {like[0]}?" if like and wrong.startswith("--") else ""
        self.exit(2, f"steadyhand: plant serve: {message}{hint} (--help lists the options)\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(
        prog="steadyhand plant serve",
        usage="%(prog)s [PLANT] --directory DIRECTORY [options]",
        description="A simulated plant behind a real, encrypted OPC UA server.",
    )
    add = made.add_argument_group("most used").add_argument
    add("--plant", default="thermal_storage", choices=sorted(PLANTS), help="what to simulate")
    add("--directory", type=Path, required=True, help="private directory for certificates")
    add("--port", type=_whole(0, 65535), default=0, help="port; 0 picks a free one")
    add("--time-scale", type=_some, default=None, help="plant per wall seconds; 1 by default")
    add("--lockstep", action="store_true", help="one period per new heartbeat, instead")
    add("--state", type=Path, default=None, help="file to resume from and to keep up to date")
    add = made.add_argument_group("what happens to the plant").add_argument
    add("--seed", type=_whole(0), default=0, help="scenario and random faults")
    add("--days", type=_whole(1), default=5, help="length of the scenario; it repeats")
    add("--season", default=None, help="season of the scenario")
    add("--end-after", type=_whole(1), default=None, help="periods until the plant stands still")
    add("--faults", type=Path, default=None, help="JSON list of faults")
    add("--parameters", type=Path, default=None, help="JSON object of numbers of this plant")
    add("--shed-s", type=_some, default=None, help="plant seconds until the plant takes over")
    add("--substeps", type=_whole(1), default=3, help="parts of a period judged one by one")
    add = made.add_argument_group("server").add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--certificate-days", type=_some, default=VALID_DAYS, help="validity of new ones")
    add(INSECURE, dest="insecure", action="store_true", help="for experiments on one machine only")
    add("--side-channel", type=Path, default=None, help="socket; default DIRECTORY/side.sock")
    add = made.add_argument_group("for tests").add_argument
    add("--log", type=Path, default=None, help="JSON lines of every write that arrives")
    add("--fsync", action="store_true", help="wait for the disk after every logged write")
    add("--dummy-namespaces", type=_whole(0, 1000), default=0, help="more, with decoy nodes")
    add("--namespace-order", type=_whole(0), default=0, help="place of the plant's among them")
    add("--log-level", default="ERROR", choices=LOG_LEVELS, help="of the OPC UA library, to stderr")
    return made


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    made = parser()
    options = made.parse_args(arguments)
    if options.lockstep and options.time_scale is not None:
        made.error("argument --lockstep: not allowed with argument --time-scale")
    options.time_scale = options.time_scale or 1.0
    return options


async def serve(options: argparse.Namespace) -> None:
    """Run one plant server until SIGTERM, SIGINT or the side channel's `stop`.

    Raises:
        ConfigError: an option makes no sense; the message names it.
    """
    if not 0 <= options.namespace_order <= options.dummy_namespaces:
        raise ConfigError(
            f"--namespace-order {options.namespace_order}: 0 to --dummy-namespaces "
            f"({options.dummy_namespaces})"
        )
    days = options.certificate_days
    pki = make_pki(options.directory, options.plant, options.host, days)
    faults = faults_from_json(options.faults.read_text("utf-8")) if options.faults else ()
    runner = make_runner(
        RunSpec(
            options.plant,
            options.seed,
            options.days,
            options.season,
            options.substeps,
            options.shed_s,
            faults,
            _parameters(options.plant, options.parameters),
        )
    )
    if options.log is not None:
        outputs, period_s = runner.plant.outputs, runner.plant.period_s
        runner.log = WriteLog(outputs, period_s, options.log, fsync=options.fsync)
    server = GuardedServer(pki, insecure=options.insecure)
    port = options.port or _free_port(options.host)
    endpoint = f"opc.tcp://{options.host}:{port}/steadyhand/{options.plant}"
    server.set_endpoint(endpoint)
    scale = 0.0 if options.lockstep else options.time_scale
    plant = PlantServer(runner, options.plant, server, scale, options.state)
    plant.end_tick = options.end_after
    resumed = plant.load()
    await server.init()
    try:
        await plant.start(options.dummy_namespaces, options.namespace_order)
    except OSError as error:
        text = _REMEDIES.get(error.errno or 0, error.strerror or str(error))
        where = f"--host {options.host} --port {port}"
        raise OSError(f"{where}: cannot listen there: {text}") from None
    plant.save()
    path = options.side_channel or options.directory / "side.sock"
    side = SideChannelServer(plant, path)
    await side.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, plant.stopping.set)
    ready = {
        "endpoint": endpoint,
        "namespace": namespace_uri(options.plant),
        "server_uri": pki.server_uri,
        "client_uri": pki.client_uri,
        "directory": str(pki.directory),
        "side_channel": str(path),
        "handshake": list(HANDSHAKE),
        "resumed": resumed,
        "pid": os.getpid(),
    }
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    try:
        await plant.run()
    finally:
        plant.save()
        await side.stop()
        await server.stop()
        runner.log.close()


def _parameters(plant: str, file: Path | None) -> Any:  # noqa: ANN401
    """Numbers of the plant, in their own units; None: those of its type.

    Raises:
        ConfigError: the file holds no JSON object, or the plant has no such parameter.
    """
    if file is None:
        return None
    try:
        given = {str(name): float(value) for name, value in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"--parameters {file}: no JSON object of numbers: {error}") from None
    return parameters_with(plant_kind(plant), given)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = _parsed(arguments)
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(serve(options))
    except SteadyhandError as error:
        sys.stderr.write(f"{error}\n")
        return EX_CONFIG
    except OSError as error:
        sys.stderr.write(f"steadyhand: plant serve: {error}\n")
        return EX_IOERR
    return 0


if __name__ == "__main__":
    sys.exit(main())
