"""Bumpless transfer: who takes over starts from where the plant is.

After a change of driver the command is u = (1 - b) u_from + b u_wanted, where u_from is what the
plant applied at the change and b a raised cosine from 0 to 1 over the transfer time. Safe and
hands-off need no blend: the first must not wait, the second writes nothing. The blend goes through
the safety filter like every other command.
"""

from math import cos, isfinite, pi

import numpy as np

from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Source
from steadyhand.controllers.signals import SignalSet, Vector


class Transfer:
    """Blends after each change of driver. Times are plant seconds."""

    def __init__(self, outputs: SignalSet, duration_s: float) -> None:
        """Start as if the present driver had always driven.

        Args:
            outputs: the outputs that are blended.
            duration_s: time of a take-over, at least the plant's fastest closed-loop time.

        Raises:
            ConfigError: a duration that is negative or not finite.
        """
        if not (isfinite(duration_s) and duration_s >= 0.0):
            raise ConfigError(f"transfer: duration_s={duration_s}: must be finite and >= 0")
        self.duration_s = duration_s
        self._from: Vector = np.zeros(len(outputs))
        self._source = Source.HANDS_OFF
        self._since_s = 0.0
        self._blending = False

    def blend(self, source: Source, wanted: Vector, applied: Vector, now_s: float) -> Vector:
        """Command (n_u,) on the way from what is applied to what `source` wants.

        Args:
            source: who drives now.
            wanted: (n_u,) what the driver wants.
            applied: (n_u,) what the plant applies now.
            now_s: plant time.
        """
        if source is not self._source:
            self._source, self._since_s = source, now_s
            self._from = applied.copy()
            self._blending = source in (Source.POLICY, Source.FALLBACK)
        if not self._blending:
            return wanted
        share = (now_s - self._since_s) / self.duration_s if self.duration_s > 0.0 else 1.0
        if share >= 1.0 or not np.isfinite(self._from).all():
            self._blending = False
            return wanted
        b = 0.5 - 0.5 * cos(pi * max(share, 0.0))
        mixed: Vector = (1.0 - b) * self._from + b * wanted
        return mixed
