"""What the runtime does for each command of a person; `commands.py` brings them to the loop.

desk ─► handler ─► mode machine, gate, alarms, bundle ─► answer
└► recorded first, so that a replay can give the same command again
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.alarms import Alarms, shelf_event
from steadyhand.runtime.commands import Command, Handler
from steadyhand.runtime.keepsakes import Keepsakes
from steadyhand.runtime.loop import Loop
from steadyhand.runtime.modes import Mode, ModeMachine
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.replay import COMMAND
from steadyhand.runtime.serving_bundle import ServingBundle


class Handlers:
    """Those of one service. Used by the loop's thread, between ticks."""

    def __init__(
        self,
        loop: Loop,
        serving: ServingBundle,
        alarms: Alarms,
        keepsakes: Keepsakes,
        stop: Callable[[], None],
    ) -> None:
        """Name what the commands are about.

        Args:
            loop: whose modes, gate and record they are.
            serving: the bundle that serves.
            alarms: may be shelved.
            keepsakes: has the notes of the run before.
            stop: ends the run.
        """
        self._loop, self._serving, self._alarms = loop, serving, alarms
        self._keepsakes, self._stop = keepsakes, stop
        self._modes: ModeMachine = loop.parts.modes
        self._recorder: Recorder = loop.parts.recorder
        self.by_name: Mapping[str, Handler] = {
            "mode": self._mode,
            "override": self._override,
            "clear-override": self._clear_override,
            "ack": self._ack,
            "shelve": self._shelve,
            "unshelve": self._unshelve,
            "swap": self._swap,
            "stop": self._stop_command,
        }

    def give(self, method: str, **arguments: Any) -> Any:  # noqa: ANN401
        """Give the mode machine one command, recorded first."""
        self._recorder.event({"event": COMMAND, "method": method, "arguments": arguments})
        return getattr(self._modes, method)(**arguments)

    def _mode(self, command: Command) -> Mapping[str, Any]:
        try:
            mode = Mode(command.arguments["mode"])
        except ValueError:
            choices = ", ".join(Mode)
            raise RequestError(
                "UNKNOWN_MODE", f"no mode {command.arguments['mode']!r}; there are: {choices}"
            ) from None
        if mode is Mode.FULL and (why := self._serving.refused_full(command.actor)):
            raise RequestError(ReasonCode.NO_EVIDENCE, why)
        reason = command.arguments.get("reason", "")
        self.give("request", mode=mode, actor=command.actor, reason=reason)
        return {"mode": mode}

    def _override(self, command: Command) -> Mapping[str, Any]:
        given = command.arguments
        made = self.give(
            "set_override",
            output=given["output"],
            value=given["value"],
            owner=command.actor,
            reason=given["reason"],
            for_s=given["for_s"],
        )
        return {"output": made.output, "value": made.value, "expires_s": made.expires_s}

    def _clear_override(self, command: Command) -> Mapping[str, Any]:
        output = command.arguments["output"]
        self.give("clear_override", output=output, actor=command.actor)
        return {"output": output}

    def _ack(self, command: Command) -> Mapping[str, Any]:
        """Acknowledge what waits for it: latches in modes, gate and policy's process; alarms."""
        given = command.arguments.get("code")
        if given is not None and given not in list(ReasonCode):
            raise RequestError(
                "UNKNOWN_CODE",
                f"no reason code {given!r}; `steadyhand status` shows the alarms",
            )
        code = None if given is None else ReasonCode(given)
        cleared: list[str] = []
        if self._modes.latches and (code is None or code in self._modes.latches):
            # may refuse; then nothing else is cleared either
            cleared += self.give("acknowledge", actor=command.actor, code=code)
        others = [one for one in self._ack_parts(code) if one not in cleared]
        if others:
            told = {"event": "Acknowledged", "code": str(ReasonCode.ACK), "actor": command.actor}
            self._recorder.event({**told, "text": f"acknowledged: {', '.join(others)}"})
        cleared += others
        if not cleared:
            names = ", ".join(alarm.code for alarm in self._alarms if alarm.unacknowledged)
            raise RequestError(
                ReasonCode.ACK_DENIED, f"nothing to acknowledge; waiting now: {names or 'nothing'}"
            )
        return {"acknowledged": [str(code) for code in dict.fromkeys(cleared)]}

    def _ack_parts(self, code: ReasonCode | None) -> list[str]:
        """What waits for a person elsewhere than in the modes: all of it, or what has `code`."""
        cleared = self._keepsakes.acknowledge(code)
        if code in (None, ReasonCode.MODE_FLAP):
            self._recorder.event({"event": COMMAND, "method": "acknowledge_gate", "arguments": {}})
            if self._loop.parts.gate.acknowledge():
                cleared.append("MODE_FLAP")
        if code in (None, ReasonCode.CRASH_LOOP):
            cleared += self._serving.acknowledge()
        cleared += map(str, self._alarms.acknowledge(code))
        return list(dict.fromkeys(cleared))

    def _shelve(self, command: Command) -> Mapping[str, Any]:
        given, last = command.arguments, self._loop.last
        shelf = self._alarms.shelve(
            given["code"],
            command.actor,
            given["reason"],
            last.now_s if last is not None else 0.0,
            given["for_s"],
        )
        self._recorder.event(shelf_event("Shelved", shelf, command.actor))
        return {"alarm": str(shelf.code), "expires_s": shelf.expires_s}

    def _unshelve(self, command: Command) -> Mapping[str, Any]:
        shelf = self._alarms.unshelve(command.arguments["code"])
        self._recorder.event(shelf_event("Unshelved", shelf, command.actor))
        return {"alarm": str(shelf.code)}

    def _swap(self, command: Command) -> Mapping[str, Any]:
        given = command.arguments
        self._serving.begin_swap(Path(given["file"]), command.actor, given["reason"])
        return {"swap": "verifying"}

    def _stop_command(self, command: Command) -> Mapping[str, Any]:
        self._recorder.event(
            {"event": "StopAsked", "actor": command.actor, "reason": command.arguments["reason"]}
        )
        self._stop()
        return {"stopping": True}
