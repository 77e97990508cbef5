"""Another bundle on its way into a running service: verified and tried beside the loop."""

import threading
from pathlib import Path

from steadyhand.controllers.errors import BundleError, SteadyhandError
from steadyhand.runtime.admission import admit
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.bundle.signature import TrustStore
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.guard import Guarded
from steadyhand.runtime.slot import Closable
from steadyhand.runtime.trial import First, Trial


class Swap:
    """Prepares one bundle in a thread of its own; the loop only looks whether it is done.

    Until `take`, the new policy belongs to the swap and ends with its `close`.
    """

    def __init__(
        self, loaded: Loaded, parts: PlantParts, file: Path, known: TrustStore | None = None
    ) -> None:
        """Begin.

        Args:
            loaded: the configuration.
            parts: the plant.
            file: the bundle.
            known: keys that were trusted at the start; None: those of now.
        """
        self._known = known
        self._loaded, self._parts, self._file = loaded, parts, file
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._trial: Trial | None = None
        self._made: First | None = None
        self._error: SteadyhandError | None = None
        self._thread = Guarded(self._prepare, "swap")
        self._thread.start()

    @property
    def done(self) -> bool:
        """Is it ready or refused?"""
        return not self._thread.is_alive()

    def take(self) -> First:
        """What was made, once done; its policy is the caller's from now on.

        Raises:
            SteadyhandError: refused.
        """
        with self._lock:
            made, self._made = self._made, None
        if self._error is not None:
            raise self._error
        if made is None:
            raise BundleError("BUNDLE_LOAD", "its preparation failed: see the service's log")
        return made

    def close(self) -> None:
        """Give up, and end whatever was not taken. Idempotent."""
        with self._lock:
            self._closed.set()
            trial, made, self._made = self._trial, self._made, None
        if made is not None and isinstance(made.policy, Closable):
            made.policy.close()
        elif trial is not None and self._thread.is_alive():
            trial.close()

    def _prepare(self) -> None:
        try:
            bundle = admit(self._loaded, self._parts, self._file, self._known)
            with self._lock:
                if self._closed.is_set():
                    return
                trial = self._trial = Trial(self._loaded, self._parts, bundle)
            made = trial.result()
            with self._lock:
                if not self._closed.is_set():
                    self._made = made
                    return
            trial.close()
        except SteadyhandError as error:
            self._error = error
        except OSError as error:
            self._error = BundleError("BUNDLE_LIMIT", f"no process for the new policy: {error}")
