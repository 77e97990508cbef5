"""Where the policy really runs: a GPU that was asked for and is not there is told as long as it is
not there.
"""

from collections.abc import Callable
from typing import Any

from steadyhand.controllers.frames import Fault
from steadyhand.controllers.protocols import Policy
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.worker import PolicyProcess

Event = Callable[[dict[str, Any]], None]


def served_by(policy: Policy) -> tuple[str, str]:
    """What runs the graph (`cpu`, `cuda`; empty: nothing now), and why not what was asked for."""
    if isinstance(policy, PolicyProcess):
        report = policy.report
        return str(report.get("provider", "")), str(report.get("notice", ""))
    return str(getattr(policy, "provider", "")), str(getattr(policy, "notice", ""))


class ProviderWatch:
    """Tells each change once, and what stands. Asked by the loop's thread."""

    def __init__(self, on_event: Event) -> None:
        """`on_event` takes the events."""
        self._on_event = on_event
        self._told = ""

    def look(self, policy: Policy) -> tuple[Fault, ...]:
        """What is wrong now with where `policy` runs."""
        provider, notice = served_by(policy)
        if provider and notice != self._told:  # between two processes nothing is known
            self._told = notice
            code = ReasonCode.PROVIDER_FALLBACK if notice else ReasonCode.RECOVERED
            text = notice or f"the policy runs on {provider}, as asked for"
            self._on_event({"event": "Provider", "code": str(code), "text": text})
        return (Fault(ReasonCode.PROVIDER_FALLBACK, text=self._told),) if self._told else ()
