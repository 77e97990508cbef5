"""Alarms as OPC UA conditions (OPC 10000-9): one event for every change of an alarm.

The server's own object sends them, to whoever has subscribed to it. A client that comes later calls
ConditionRefresh and gets all that stand. Conditions have ids, and no nodes in the address space.

A warning that is not latched ends by itself: for a client it counts as acknowledged from the start.
Any other alarm is active or not, unacknowledged, and gone once its cause is gone and a person has
acknowledged it, in whichever order.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asyncua import ua
from asyncua.common.events import Event
from asyncua.server.server import Server

from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.operator_protocol import TEXT_LIMIT
from steadyhand.runtime.scada.methods import Wrong

SEVERITIES = {"warning": 300, "alarm": 700, "critical": 900}
"""Of an event, 1 to 1000, by our word."""
TYPE = ua.NodeId(ua.ObjectIds.AlarmConditionType)
ACKNOWLEDGE = ua.NodeId(ua.ObjectIds.AcknowledgeableConditionType_Acknowledge)
_CLASS = ua.NodeId(ua.ObjectIds.ProcessConditionClassType)
_KINDS = ua.VariantType
_GONE = {"active": False, "unacknowledged": False, "shelved": False}


@dataclass(frozen=True, slots=True)
class Known:
    """One condition as clients know it."""

    alarm: Mapping[str, Any]
    event_id: bytes
    """Of its newest event: what a client acknowledges."""
    since: datetime
    """When it last became active or inactive."""
    said: tuple[str, str] = ("", "")
    """Who acknowledged it last, and the comment."""


class Conditions:
    """The conditions of one server; used in its thread."""

    def __init__(self, server: Server, name: str) -> None:
        """Prepare.

        Args:
            server: sends the events.
            name: of the loop, for people.
        """
        self._server = server
        self._name = name
        self._source = ua.NodeId()
        self._codes: dict[ua.NodeId, ReasonCode] = {}
        self._ids: dict[ReasonCode, ua.NodeId] = {}
        self._known: dict[ReasonCode, Known] = {}
        self._said: dict[ReasonCode, tuple[str, str]] = {}
        """Who acknowledged, and the comment, until the loop has done it."""

    def place(self, namespace: int, source: ua.NodeId) -> None:
        """Give every reason code the id of its condition.

        Args:
            namespace: index of the loop's namespace in this server.
            source: the loop's object.
        """
        self._source = source
        for code in ReasonCode:
            made = ua.NodeId(f"Condition.{code}", namespace)
            self._ids[code], self._codes[made] = made, code

    def asked(self, request: Any) -> tuple[ReasonCode, str]:  # noqa: ANN401
        """Which alarm a call of Acknowledge is about, and the comment.

        Args:
            request: CallMethodRequest: on the condition, with the id of its newest event.

        Raises:
            Wrong: no such condition, an event that is not its newest, nothing to acknowledge, or
                arguments that do not fit.
        """
        code = self._codes.get(request.ObjectId)
        if code is None:
            text = "there is no such condition"
            raise Wrong(ua.StatusCodes.BadNodeIdUnknown, text, "UNKNOWN_CODE")
        given = [getattr(one, "Value", None) for one in request.InputArguments or ()]
        if len(given) != 2:
            text = "Acknowledge takes EventId (ByteString) and Comment (LocalizedText)"
            raise Wrong(ua.StatusCodes.BadArgumentsMissing, text)
        event_id, comment = given
        known = self._known.get(code)
        if known is None or event_id != known.event_id:
            text = f"{code}: this is not its newest event; refresh, and look again"
            raise Wrong(ua.StatusCodes.BadEventIdUnknown, text)
        if not known.alarm["unacknowledged"]:
            text = f"{code} waits for no acknowledgement: it ends with its cause"
            raise Wrong(ua.StatusCodes.BadConditionBranchAlreadyAcked, text, "ACK_DENIED")
        words = getattr(comment, "Text", None) or ""
        if len(words) > TEXT_LIMIT or not words.isprintable():
            text = f"Comment: printable text of at most {TEXT_LIMIT}"
            raise Wrong(ua.StatusCodes.BadInvalidArgument, text)
        return code, words

    def acknowledging(self, code: ReasonCode, actor: str, comment: str) -> None:
        """Somebody acknowledges; the event follows when the loop has done it."""
        self._said[code] = (actor, comment)

    async def update(
        self, alarms: Iterable[Mapping[str, Any]], at: Callable[[float], datetime], now: datetime
    ) -> None:
        """Send an event for whatever has changed.

        Args:
            alarms: the list of alarms, as the status holds it.
            at: from plant time (s) to the wall's.
            now: when the tick ended.
        """
        present = {ReasonCode(alarm["code"]): alarm for alarm in alarms}
        for code, alarm in present.items():
            known = self._known.get(code)
            if known is None:
                await self._send(code, alarm, None, at(alarm["since_s"]), now)
            elif _state(alarm) != _state(known.alarm):
                turned = alarm["active"] is not known.alarm["active"]
                await self._send(code, alarm, known, now if turned else known.since, now)
        for code in [code for code in self._known if code not in present]:
            known = self._known[code]
            since = now if known.alarm["active"] else known.since
            await self._send(code, {**known.alarm, **_GONE}, known, since, now)
            del self._known[code]
        self._said = {code: said for code, said in self._said.items() if code in self._known}

    async def _send(
        self,
        code: ReasonCode,
        alarm: Mapping[str, Any],
        before: Known | None,
        since: datetime,
        now: datetime,
    ) -> None:
        event_id = secrets.token_bytes(16)
        severity = SEVERITIES[alarm["severity"]]
        said = ("", "") if before is None else before.said
        if before is not None and before.alarm["unacknowledged"] and not alarm["unacknowledged"]:
            said = self._said.pop(code, ("", ""))
        actor, comment = said
        self._known[code] = Known(dict(alarm), event_id, since, said)
        active, acked = bool(alarm["active"]), not alarm["unacknowledged"]
        event = Event(ua.ObjectIds.Server)
        fields: tuple[tuple[str, Any, ua.VariantType], ...] = (
            ("EventId", event_id, _KINDS.ByteString),
            ("EventType", TYPE, _KINDS.NodeId),
            ("SourceNode", self._source, _KINDS.NodeId),
            ("SourceName", self._name, _KINDS.String),
            ("Time", since if before is None else now, _KINDS.DateTime),
            ("ReceiveTime", now, _KINDS.DateTime),
            ("Message", _text(_message(alarm)), _KINDS.LocalizedText),
            ("Severity", severity, _KINDS.UInt16),
            ("NodeId", self._ids[code], _KINDS.NodeId),
            ("ConditionClassId", _CLASS, _KINDS.NodeId),
            ("ConditionClassName", _text("ProcessConditionClassType"), _KINDS.LocalizedText),
            ("ConditionName", str(code), _KINDS.String),
            ("BranchId", ua.NodeId(), _KINDS.NodeId),
            ("Retain", active or not acked, _KINDS.Boolean),
            ("EnabledState", _text("Enabled"), _KINDS.LocalizedText),
            ("EnabledState/Id", True, _KINDS.Boolean),
            ("Quality", ua.StatusCode(), _KINDS.StatusCode),
            ("LastSeverity", _severity_of(before), _KINDS.UInt16),
            ("Comment", _text(comment), _KINDS.LocalizedText),
            ("ClientUserId", actor, _KINDS.String),
            ("ActiveState", _text("Active" if active else "Inactive"), _KINDS.LocalizedText),
            ("ActiveState/Id", active, _KINDS.Boolean),
            ("ActiveState/TransitionTime", since, _KINDS.DateTime),
            ("AckedState", _text("Acknowledged" if acked else "Unacknowledged"),
             _KINDS.LocalizedText),
            ("AckedState/Id", acked, _KINDS.Boolean),
            ("InputNode", ua.NodeId(), _KINDS.NodeId),
            ("SuppressedOrShelved", bool(alarm["shelved"]), _KINDS.Boolean),
        )  # fmt: skip
        for name, value, kind in fields:
            event.add_property(name, value, kind)
        await self._server.iserver.subscription_service.trigger_event(event)


def _state(alarm: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes another event when it changes; numbers in the text do not."""
    return tuple(alarm[name] for name in ("active", "unacknowledged", "shelved", "severity"))


def _severity_of(known: Known | None) -> int:
    return 0 if known is None else SEVERITIES[known.alarm["severity"]]


def _message(alarm: Mapping[str, Any]) -> str:
    if not alarm["active"]:
        waits = "gone, waits to be acknowledged" if alarm["unacknowledged"] else "over"
        return f"{waits}: {alarm['text']}"
    return f"{alarm['text']}; to do: {alarm['action']}"


def _text(words: str) -> ua.LocalizedText:
    return ua.LocalizedText(words)
