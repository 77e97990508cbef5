"""Which place in a read request is which node."""

import numpy as np

from steadyhand.adapters.opcua.tags import READ_ROLES, SERVER_STATE, TagMap


class Columns:
    """Places of the nodes in one read request: control nodes first, then the observations."""

    def __init__(self, tags: TagMap) -> None:
        shake = tags.handshake
        outputs = tags.output_signals.names
        names = [SERVER_STATE, *outputs]
        self.outputs = slice(1, 1 + len(outputs))
        self.feedback = np.arange(1, 1 + len(outputs))
        for i, (name, tag) in enumerate(zip(outputs, tags.outputs, strict=True)):
            if tag.feedback is not None:
                self.feedback[i] = len(names)
                names.append(f"{name} feedback")
        self.participation = np.full(len(outputs), -1)
        """(n_u,) place of each output's participation; -1 where it always takes part."""
        for i, (name, tag) in enumerate(zip(outputs, tags.outputs, strict=True)):
            if tag.participation is not None:
                self.participation[i] = len(names)
                names.append(f"{name} participation")
        self.granted = self.plant_heartbeat = self.plant_time = self.sequence = -1
        for role in READ_ROLES:
            if getattr(shake, role) is not None:
                setattr(self, role, len(names))
                names.append(role)
        self.control = tuple(names)
        self.observations = slice(len(names), len(names) + len(tags.observations))
        again = ("sequence",) if shake.sequence is not None else ()
        self.whole = (*names, *tags.observation_signals.names, *again)
