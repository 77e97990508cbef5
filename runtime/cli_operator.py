"""Commands to a running loop, by its Unix socket."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperCommand

from steadyhand.controllers.errors import BundleError, ConfigError, FileError, RequestError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.cli import AsJson, ConfigFile
from steadyhand.runtime.config import load_config, require
from steadyhand.runtime.events import detail
from steadyhand.runtime.exits import close_stdout
from steadyhand.runtime.handshake import Participation
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.operator_client import OperatorClient
from steadyhand.runtime.outlook import held, way_back
from steadyhand.runtime.quantity import MINUS, magnitude
from steadyhand.runtime.terminal import show

Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; goes into the journal.")]

_STATUS_S, _COMMAND_S = 4.0, 15.0
"""Longest wait: a status is at hand at once, a command waits for the loop to be between ticks."""
_NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]+")
_UNIT = re.compile(r"[A-Za-z%°µ/]{1,8}")
_NEGATIVE = re.compile(r"-\.?[0-9]")


class _WithQuantities(TyperCommand):
    """A command whose arguments may be negative: `-50 kW` is a number here, not an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (click's)
        """Negative numbers get a true minus sign, which no option begins with.

        Raises:
            RequestError: ARGUMENTS a number and its unit are two words.
        """
        for before, number, unit in zip(["", *args], args, args[1:], strict=False):
            alone = _NUMBER.fullmatch(number) and _UNIT.fullmatch(unit)
            if alone and before not in ("-r", "--reason"):
                raise RequestError(
                    "ARGUMENTS",
                    f"{number} {unit}: a number and its unit are one word; put it into quotes: "
                    f"'{number} {unit}'",
                )
        shown = [MINUS + word[1:] if _NEGATIVE.match(word) else word for word in args]
        parsed: list[str] = super().parse_args(ctx, shown)
        return parsed


def register(app: typer.Typer) -> None:
    """Add the operator's commands."""
    app.command("status")(status)
    app.command("mode")(mode)
    app.command("override", cls=_WithQuantities)(override)
    app.command("clear-override")(clear_override)
    app.command("ack")(ack)
    app.command("shelve")(shelve)
    app.command("unshelve")(unshelve)
    app.command("swap")(swap)
    app.command("stop")(stop)


def call(config: Path, command: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    """Give one command to the loop that runs `config`.

    Raises:
        ConfigError: the configuration has no operator socket.
        RequestError: refused, or nobody listens.
    """
    loaded = require(load_config(config), config)
    if loaded.config.operator is None:
        raise ConfigError(f"{config}: no operator section, so nobody listens for commands")
    socket = loaded.path(loaded.config.operator.socket)
    patience_s = _STATUS_S if command == "status" else _COMMAND_S
    with OperatorClient(socket, patience_s, _tell) as client:
        return client.call(command, **arguments)


def _tell(text: str) -> None:
    """A first word for whoever waits."""
    sys.stderr.write(f"steadyhand: {text}\n")
    sys.stderr.flush()


def _done(result: dict[str, Any], as_json: bool, text: str) -> None:
    """Say what was done.

    Raises:
        FileError: nobody can read it; what was done stays done, and the message says so.
    """
    try:
        show(result, as_json, text)
        sys.stdout.flush()
    except OSError as error:
        close_stdout()
        why = f"standard output cannot be written: {error.strerror}"
        raise FileError(f"it was done ({text}), but {why}") from None


def status(config: ConfigFile, as_json: AsJson = False) -> None:
    """Who drives, why, how near the limits."""
    now = call(config, "status")
    show(now, as_json, status_table(now))


def status_table(now: dict[str, Any]) -> Table:
    """One status as a table for a terminal."""
    table = Table(show_header=False, title=f"{now['name']}  tick {now['tick']}")
    cause = now["why"] or now["cause"]
    text = detail(cause["signal"], cause["text"])
    why = " ".join(part for part in (cause["code"], cause["signal"], text) if part)
    other = now["asked"] not in (None, now["mode"])
    asked = f" (before the restart: {now['asked']})" if other else ""
    for text in held(now):
        table.add_row("OVERRIDE", text)
    proof = " without go-live evidence" * now.get("unproven", False)
    table.add_row("mode", now["mode"] + proof + asked)
    table.add_row("drives", now["source"])
    table.add_row("because", why)
    for step in way_back(now):
        table.add_row("comes back", step)
    granted = "granted" if now["granted"] else "not granted"
    table.add_row("link", f"{now['link']}, control {granted}; handshake {now['handshake']}")
    table.add_row("trust", f"{now['gate']}, confidence {_number(now['confidence'])}")
    guard = now["filter"]
    if guard is not None:
        near = f"{guard['nearest']} {_number(guard['margin'])}" if guard["nearest"] else "-"
        table.add_row("filter", f"{guard['mode']} ({guard['outcome']}); nearest limit {near}")
    for name in now["sent"]:
        table.add_row(f"→ {name}", _output(now, name))
    for name, value in now["observations"].items():
        if "forecast" not in name:
            table.add_row(name, _number(value))
    _add_troubles(table, now)
    return table


def _output(now: dict[str, Any], name: str) -> str:
    """Whom one output follows, what was sent, what the plant makes of it."""
    follows = now["participation"][name]
    applied = f"applied {_number(now['applied'][name])}"
    if follows == Participation.PLANT:
        return f"the plant keeps it: nothing is sent, {applied}"
    sent = f"sent {_number(now['sent'][name]) if now['written'] else 'nothing'}"
    whom = "" if follows == Participation.NONE else f"; follows: {follows}"
    return f"{sent}, {applied}{whom}"


def _add_troubles(table: Table, now: dict[str, Any]) -> None:
    """The controller, and everything that is not as it should be."""
    table.add_row("controller", now.get("controller") or now.get("bundle") or "none")
    swap = now.get("swap")
    if swap:
        text = f"{swap['file']}: {swap['outcome']}, {swap['code']}: {swap['text']}"
        table.add_row("last swap", text)
    if now["alarm"]:
        table.add_row("bundle", now["alarm"])
    for item in now["alarms"]:
        if not item["shelved"]:
            gone = "" if item["active"] else "gone, waits to be acknowledged: "
            table.add_row(item["severity"], f"{item['code']}: {gone}{item['text']}")
    for item in now["shelved"]:
        table.add_row("shelved", f"{item['code']} by {item['owner']}: {item['reason']}")
    for item in now.get("certificates", ()):
        if item["state"] != "good":
            table.add_row("certificate", f"{item['name']} {item['state']}")
    if now["journal"]["fault"]:
        table.add_row("record", now["journal"]["fault"])
    if now["latched"]:
        table.add_row("latched", ", ".join(now["latched"]) + " (steadyhand ack)")


def _number(value: float | None) -> str:
    """A number for a table; what is not known has no number."""
    return "unknown" if value is None else f"{value:.5g}"


def mode(
    config: ConfigFile,
    wanted: Annotated[
        Mode, typer.Argument(metavar="MODE", help="off shadow advisory limited full")
    ],
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Ask for a mode. Less authority holds from the next tick; more has to be earned."""
    result = call(config, "mode", mode=wanted.value, reason=reason)
    _done(result, as_json, f"asked for {result['mode']}; `steadyhand status` tells who drives")


def override(
    config: ConfigFile,
    output: Annotated[str, typer.Argument(help="Name of the output.")],
    value: Annotated[str, typer.Argument(help="Value with its unit, such as '-120 kW'.")],
    reason: Reason,
    lasting: Annotated[str, typer.Option("--for", help="Plant time, such as '2 h'.")] = "1 h",
    as_json: AsJson = False,
) -> None:
    """Put one output at a value for a time. An override always wins; the limits still hold."""
    loaded = require(load_config(config), config)
    from steadyhand.runtime.assemble import make_plant

    outputs = make_plant(loaded).outputs
    if output not in outputs.names:
        raise RequestError(
            "UNKNOWN_OUTPUT", f"no output {output!r}; there are: {', '.join(outputs.names)}"
        )
    signal = outputs.signals[outputs.index(output)]
    number = _quantity("value", value, signal.unit)
    seconds = _quantity("--for", lasting, "s")
    result = call(config, "override", output=output, value=number, reason=reason, for_s=seconds)
    _done(result, as_json, f"{output} = {number:g} {signal.unit} for {lasting} of plant time")


def _quantity(name: str, text: str, unit: str) -> float:
    """A number in `unit` from the words of the command.

    Raises:
        RequestError: ARGUMENTS.
    """
    try:
        return magnitude(text, unit)
    except ValueError as error:
        raise RequestError("ARGUMENTS", f"{name}: {error}") from None


def clear_override(
    config: ConfigFile,
    output: Annotated[str, typer.Argument(help="Name of the output.")],
    as_json: AsJson = False,
) -> None:
    """Give one output back to whoever drives."""
    _done(call(config, "clear-override", output=output), as_json, f"{output} is given back")


def ack(
    config: ConfigFile,
    code: Annotated[
        str | None, typer.Argument(help="Reason code; all of them if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge alarms, there or gone; latched ones once their cause is gone."""
    if code is not None and code not in list(ReasonCode):
        raise RequestError(
            "UNKNOWN_CODE", f"no reason code {code!r}; `steadyhand status` shows the alarms"
        )
    result = call(config, "ack", **({} if code is None else {"code": code}))
    _done(result, as_json, f"acknowledged: {', '.join(result['acknowledged'])}")


def shelve(
    config: ConfigFile,
    code: Annotated[str, typer.Argument(help="Reason code of the alarm.")],
    reason: Reason,
    lasting: Annotated[str, typer.Option("--for", help="Plant time, such as '2 h'.")] = "1 h",
    as_json: AsJson = False,
) -> None:
    """Move an alarm out of the way for a time. Reaction, journal and metrics stay as they are."""
    seconds = _quantity("--for", lasting, "s")
    result = call(config, "shelve", code=code, reason=reason, for_s=seconds)
    _done(result, as_json, f"{result['alarm']} is shelved for {lasting} of plant time")


def unshelve(
    config: ConfigFile,
    code: Annotated[str, typer.Argument(help="Reason code of the alarm.")],
    as_json: AsJson = False,
) -> None:
    """Put a shelved alarm back."""
    result = call(config, "unshelve", code=code)
    _done(result, as_json, f"{result['alarm']} is shown again")


def swap(
    config: ConfigFile,
    bundle: Annotated[Path, typer.Argument(help="The new bundle.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Exchange the controller of a running loop; the old one stays if the new one is refused."""
    if not bundle.is_file():
        why = "is no regular file" if bundle.exists() else "no such file"
        raise BundleError("BUNDLE_FILE", f"{bundle}: {why}; name the new bundle")
    result = call(config, "swap", file=str(bundle.resolve()), reason=reason)
    _done(result, as_json, "verifying; `steadyhand status` and the journal tell the outcome")


def stop(config: ConfigFile, reason: Reason, as_json: AsJson = False) -> None:
    """Hand the plant back and end the loop."""
    _done(call(config, "stop", reason=reason), as_json, "stopping")
