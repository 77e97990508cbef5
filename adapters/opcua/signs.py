"""What the plant and its server say about themselves: state, life, grant, time, image number."""

from math import inf, isnan, nan

from steadyhand.adapters.opcua.columns import Columns
from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.adapters.opcua.tags import TagMap
from steadyhand.adapters.opcua.wire import EPOCH_1601_S, TICKS_PER_S, WireType
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector

SERVER_STATES = (
    "Running",
    "Failed",
    "NoConfiguration",
    "Suspended",
    "Shutdown",
    "Test",
    "CommunicationFault",
    "Unknown",
)
_NO_NUMBER = "the plant's image number cannot be read: no new image counts"


class Signs:
    """Judges the control nodes of each reading; knows no network.

    Args:
        tags: which handshake nodes there are.
        columns: where they stand in a reading.
        kinds: their wire types.
        settings: times.
        now_s: monotonic time of the session's start.
    """

    def __init__(
        self,
        tags: TagMap,
        columns: Columns,
        kinds: dict[str, WireType],
        settings: OpcUaSettings,
        now_s: float,
    ) -> None:
        self._columns = columns
        self._settings = settings
        self._opened_s = self._beat_s = now_s
        plant_time = tags.handshake.plant_time
        self._time_scale = 1.0 if plant_time is None else plant_time.scale
        self._time_is_date = plant_time is not None and kinds["plant_time"].name == "DateTime"
        self.server_alive_s = -inf
        """When the server's clock was last seen to advance."""
        self.alive_s = -inf
        """When plant and server last showed life."""
        self.beat = nan
        """The plant's heartbeat."""
        self.sequence = nan
        """Number of the plant's newest image, where it gives one."""
        self.time_s = nan
        """Plant time."""
        self.runs = False
        """Does the server say it is running?"""
        self.grants = False
        """Does the plant say that we may drive?"""
        self.granted = False
        """May we drive: granted, by a plant that lives, through a server that runs?"""

    def absorb(self, values: Vector, now_s: float) -> list[Fault]:
        """Take a reading; `values` are NaN where a node is not Good. Returns what is wrong."""
        columns = self._columns
        faults: list[Fault] = []
        self.runs = bool(values[0] == 0.0)
        if not self.runs:
            faults.append(_state_fault(float(values[0])))
        stall = self._stall(values, now_s)
        faults += stall
        self.alive_s = min(self.server_alive_s, self._beat_s) if stall else self.server_alive_s
        granted = 1.0 if columns.granted < 0 else values[columns.granted]
        self.grants = bool(granted != 0.0 and not isnan(granted))
        self.granted = self.grants and self.runs and not stall
        if columns.plant_time >= 0:
            self.time_s = self._plant_time(float(values[columns.plant_time]))
        else:
            self.time_s = (now_s - self._opened_s) * self._settings.time_scale
        if columns.sequence >= 0:
            self.sequence = float(values[columns.sequence])
            if isnan(self.sequence):
                faults.append(Fault(ReasonCode.SAMPLE_BAD, "sequence", text=_NO_NUMBER))
        return faults

    def _stall(self, values: Vector, now_s: float) -> list[Fault]:
        """The server answers, but does the plant's own program run?"""
        column = self._columns.plant_heartbeat
        if column < 0:
            return []
        if values[column] != self.beat and not isnan(values[column]):
            self.beat, self._beat_s = float(values[column]), now_s
        silent_s, limit_s = now_s - self._beat_s, self._settings.heartbeat_timeout_s
        if silent_s <= limit_s:
            return []
        text = "the plant's heartbeat stands still: its program does not run"
        return [Fault(ReasonCode.OBS_STALE, "plant_heartbeat", silent_s, limit_s, text)]

    def _plant_time(self, value: float) -> float:
        if self._time_is_date:
            return value / TICKS_PER_S - EPOCH_1601_S
        return value * self._time_scale


def _state_fault(value: float) -> Fault:
    known = 0 <= value < len(SERVER_STATES)
    state = SERVER_STATES[int(value)] if known else "not readable"
    return Fault(ReasonCode.SERVER_STATE, "", value, 0.0, f"the server's state is {state}")
