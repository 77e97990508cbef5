"""What became of the commands: set-points as sent, as the plant shows them, as it does them."""

from math import nan

import numpy as np
from asyncua import ua
from numpy.typing import NDArray

from steadyhand.adapters.opcua.tags import TagMap
from steadyhand.adapters.opcua.wire import BAD_STATUS, status_name
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Vector

Mask = NDArray[np.bool_]
NOT_WRITTEN = 0xFFFFFFFF
"""Stands for the status of an output that was left out of a write."""
_DENIED = {
    int(getattr(ua.StatusCodes, name))
    for name in ("BadUserAccessDenied", "BadNotWritable", "BadSecurityModeInsufficient")
}


class Outputs:
    """Compares and remembers; knows no network. One session, one thread."""

    def __init__(self, tags: TagMap, now_s: float) -> None:
        n_u = len(tags.outputs)
        self._names = tags.output_signals.names
        self._tags = tags.outputs
        self._scale = np.array([tag.scale for tag in tags.outputs])
        self._feedback_scale = np.array([(tag.feedback or tag).scale for tag in tags.outputs])
        self.applied: Vector = np.full(n_u, nan)
        """(n_u,) what the plant does, signal units."""
        self._shown: Vector = np.full(n_u, nan)
        """Set-points as the output nodes show them, wire units."""
        self._expected: Vector = np.full(n_u, nan)
        """Wire values the output nodes hold since our last write; NaN: not ours."""
        self._sent: Vector = np.full(n_u, nan)
        """What was sent and accepted, signal units; NaN: nothing."""
        self._following_s = np.full(n_u, now_s)
        self.out: Mask | None = None
        """(n_u,) outputs that the plant keeps to itself; None when there are none."""

    def take_part(self, participation: Vector) -> list[Fault]:
        """Take what the participation nodes show: one that is false, or not readable, is out."""
        out: Mask = ~(participation != 0.0) | np.isnan(participation)
        self.out = out if out.any() else None
        if self.out is None:
            return []
        self._expected[out] = nan  # the plant has it and may move it
        self._sent[out] = nan
        names = (self._names[i] for i in np.flatnonzero(out))
        text = "the plant keeps it to itself"
        return [Fault(ReasonCode.OUTPUT_OUT, name, text=f"{name}: {text}") for name in names]

    def forget(self) -> None:
        """The outputs are not ours (any more): whatever they show is right."""
        self._expected[:] = nan
        self._sent[:] = nan

    def absorb(self, shown: Vector, feedback: Vector) -> None:
        """Take what the output and feedback nodes show, wire units; NaN where not readable."""
        self._shown = shown
        self.applied = feedback * self._feedback_scale

    def contention(self) -> list[Fault]:
        """Somebody else changed an output that we drive."""
        shown = self._shown
        other = (shown != self._expected) & ~np.isnan(self._expected) & ~np.isnan(shown)
        names = self._names
        return [
            Fault(
                ReasonCode.WRITE_CONTENTION,
                names[i],
                float(shown[i]),
                float(self._expected[i]),
                f"{names[i]}: somebody else wrote {shown[i]:g}, ours was {self._expected[i]:g}",
            )
            for i in np.flatnonzero(other)
        ]

    def not_following(self, now_s: float) -> list[Fault]:
        """The plant accepts the set-point, but does it do it?"""
        faults = []
        for i, tag in enumerate(self._tags):
            error = abs(self.applied[i] - self._sent[i])
            if not error > tag.follow_tolerance:  # also while nothing was sent
                self._following_s[i] = now_s
            elif now_s - self._following_s[i] > tag.follow_time_s:
                name = self._names[i]
                text = f"{name}: sent {self._sent[i]:g}, the plant does {self.applied[i]:g}"
                faults.append(
                    Fault(ReasonCode.ACT_NOFOLLOW, name, error, tag.follow_tolerance, text)
                )
        return faults

    def judge(self, names: list[str], statuses: list[int]) -> list[Fault]:
        """Faults of a write, by node: a batch can half-succeed."""
        bad = [
            (name, code) for name, code in zip(names, statuses, strict=True) if code >= BAD_STATUS
        ]
        outputs = self._names
        faults = [
            Fault(
                ReasonCode.WRITE_DENIED if code in _DENIED else ReasonCode.WRITE_FAILED,
                name,
                float(code),
                text=f"{name}: the server refused the write: {status_name(code)}",
            )
            for name, code in bad
        ]
        refused = [name for name, _ in bad if name in outputs]
        written = [name for name in names if name in outputs and name not in refused]
        if refused and written:
            text = f"written: {', '.join(written)}; refused: {', '.join(refused)}"
            faults.append(Fault(ReasonCode.WRITE_PARTIAL, text=text))
        return faults

    def compare(self, sent: tuple[float, ...], codes: list[int]) -> list[Fault]:
        """Set-point as read back against set-point as sent; the read-back counts from now on."""
        shown, wire = self._shown, np.array(sent)
        accepted = np.array(codes) < BAD_STATUS
        names = self._names
        faults = [
            Fault(
                ReasonCode.WRITE_CLAMPED,
                names[i],
                float(shown[i]),
                float(wire[i]),
                f"{names[i]}: sent {wire[i]:g}, the plant made it {shown[i]:g} (wire units)",
            )
            for i in np.flatnonzero(accepted & ~np.isnan(shown) & (shown != wire))
        ]
        self._expected = np.where(accepted, shown, nan)
        self._sent = np.where(accepted, shown * self._scale, nan)
        return faults
