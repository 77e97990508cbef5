"""The place a policy sits in, so that another can take it between two ticks."""

from typing import Protocol, runtime_checkable

from steadyhand.controllers.frames import Observation, Proposal, ProposalStatus
from steadyhand.controllers.protocols import Policy

_GONE = (ProposalStatus.ABSENT, ProposalStatus.CRASHED)


@runtime_checkable
class Closable(Protocol):
    """A policy that owns a process."""

    def close(self) -> None:
        """Free what it owns."""
        ...


class PolicySlot:
    """A policy that can be exchanged while it is being asked.

    The new policy is made and examined by whoever swaps, in that thread; if that fails the old
    one never noticed. A proposal comes wholly from one policy.
    """

    def __init__(self, policy: Policy, label: str) -> None:
        self._current = (policy, label)
        self.proposed_by = ""
        """Label of the policy that made the last proposal; read it in the loop's thread."""

    def propose(self, observation: Observation) -> Proposal:
        """Proposal of whichever policy sits here now."""
        current = self._current
        policy, self.proposed_by = current
        proposal = policy.propose(observation)
        if proposal.status in _GONE and self._current is not current:
            return self.propose(observation)  # it was exchanged and closed during the call
        return proposal

    @property
    def policy(self) -> Policy:
        """The policy that sits here now."""
        return self._current[0]

    @property
    def label(self) -> str:
        """Its name and version."""
        return self._current[1]

    def swap(self, policy: Policy, label: str) -> str:
        """Put `policy` here and close the one before; returns that one's label.

        The exchange is one assignment, so the loop never waits for it. A call that loses its
        policy under way asks the new one.
        """
        (old, old_label), self._current = self._current, (policy, label)
        if isinstance(old, Closable):
            old.close()
        return old_label

    def close(self) -> None:
        """Close the policy that sits here."""
        if isinstance(self.policy, Closable):
            self.policy.close()
