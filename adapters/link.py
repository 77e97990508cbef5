"""A link is the connection to a plant. Reading never waits for the network; writing hands over."""

from typing import Protocol

from steadyhand.controllers.frames import Fault, LinkState, Observation, Sent, Source
from steadyhand.controllers.signals import SignalSet, Vector


class Link(Protocol):
    """One plant on the wire, real or simulated.

    A link owns its threads. `read` and `write` are called by the loop thread only; neither waits
    for the network: `read` snapshots the newest process image, `write` hands over one command with
    a sequence number and a time to live. A command older than its life is dropped and reported.
    """

    observations: SignalSet
    outputs: SignalSet

    def open(self) -> None:
        """Start connecting. Returns at once; `read().link` tells the state.

        Raises:
            LinkError: the link can never work (certificate missing, endpoint refused by policy).
        """
        ...

    def close(self) -> None:
        """Hand the plant back (`release`), stop the threads, free the sockets. Idempotent."""
        ...

    def read(self, now_s: float) -> Observation:
        """Newest process image; never blocks, never raises once open."""
        ...

    def write(self, action: Vector, source: Source) -> Sent:
        """Hand `action` (n_u,) to the wire; returns what was really sent (wire types applied).

        The heartbeat the plant watches goes out with every write. `source` tells the plant who
        drives: with `Source.HANDS_OFF` only the heartbeat goes out, the plant keeps its own
        control, and the result says `written=False`.
        """
        ...

    def release(self) -> None:
        """Stop the heartbeat and ask the plant to take its own mode back; waits <= 1 s."""
        ...

    def newest(self) -> tuple[int, float]:
        """Number and plant time (s) of the newest image; never waits, consumes nothing."""
        ...

    def condition(self) -> tuple[LinkState, bool, tuple[Fault, ...]]:
        """State of the link at this moment, does the plant grant control, and what is wrong; for
        any thread, never waits.

        What is wrong stays named while a new connection is being tried.
        """
        ...

    def stuck(self) -> str:
        """Why only a restart can help: the link's own thread is dead or hangs, or a command went
        out and was neither confirmed nor refused for longer than that can take. Empty: it works,
        also while it looks for a plant that is away.
        """
        ...

    def wait_fresh(self, after_sequence: int, timeout_s: float) -> bool:
        """Block until an image newer than `after_sequence` exists; False on time-out.

        Only used by loops that are triggered by the plant instead of by a clock.
        """
        ...
