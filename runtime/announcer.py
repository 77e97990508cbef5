"""What a running service tells out loud: on standard error for whoever watches, and in the record.

Nothing here waits: `notices.py` writes the lines, `recorder.py` keeps the events.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from steadyhand.controllers.frames import LinkState
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.flood import Flood
from steadyhand.runtime.guard import Death
from steadyhand.runtime.loop import Tick
from steadyhand.runtime.notices import Notices
from steadyhand.runtime.priority import Priority
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.status import loudness, remedy, words

if TYPE_CHECKING:
    from steadyhand.runtime.service import Service


class Announcer:
    """Tells one service's news. Any thread, but `change`."""

    def __init__(self, notices: Notices, recorder: Recorder) -> None:
        self._notices, self._recorder = notices, recorder
        self._flood, self._told = Flood(), object()

    def say(self, text: str, priority: Priority = Priority.WARNING) -> None:
        """One line that is not recorded."""
        self._notices.say(f"steadyhand: {text}", priority)

    def event(self, event: Mapping[str, object]) -> None:
        """Its text as a line; all of it in the record."""
        self.say(str(event["text"]))
        self._recorder.event(event)

    def reload(self, event: Mapping[str, object]) -> None:
        """What became of a reload."""
        self.say(f"reload: {event['text']}", Priority.NOTICE)
        self._recorder.event(event)

    def death(self, death: Death) -> None:
        """A thread of ours died; called in that thread."""
        code = str(ReasonCode.TASK_DIED)
        self._recorder.event({"event": "TaskDied", "code": code, "text": death.text})
        self.say(f"{code}: {death.text}\n{death.trace}", Priority.ERROR)

    def change(self, service: "Service", tick: Tick) -> None:
        """Who drives now and why, with what to do about it, where that has changed."""
        modes, observation = service.modes, tick.observation
        cause = modes.why(False)[0]
        # without a plant the words say why; elsewhere they hold numbers that change every tick
        why = cause.text if observation.link is not LinkState.UP else ""
        label = service.serving.label
        about = (tick.source, modes.mode, cause.code, cause.signal, why, label)
        if about == self._told:
            return
        left_out = self._flood.admit(str(cause.code), about)
        if left_out is None:
            return  # told as soon as it may be, unless something newer is by then
        self._told = about
        more = f" (and {left_out} like it before)" * bool(left_out)
        self._notices.tell(
            about,
            lambda: words(service, tick) + remedy(service, tick, cause) + more,
            loudness(service, tick, cause),
        )
