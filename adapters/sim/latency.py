"""How long a simulated server makes its clients wait."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds a client waits longer than it has to."""

    read_s: float = 0.0
    write_s: float = 0.0
    """Before a write acts."""
    reply_s: float = 0.0
    """After a write has acted, before its reply."""
