"""What a service keeps an eye on beside its loop: dates, the clock on the wall, libraries, the
provider. Each is told once when it changes, and stands as an alarm; nobody drives otherwise for it.
"""

from collections.abc import Iterator

from steadyhand.adapters.link import Link
from steadyhand.controllers.frames import Fault
from steadyhand.controllers.protocols import Policy
from steadyhand.runtime.announcer import Announcer
from steadyhand.runtime.assemble_opcua import watched_certificates
from steadyhand.runtime.certificate_watch import CertificateWatch
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.provider import ProviderWatch
from steadyhand.runtime.recorder import Recorder
from steadyhand.runtime.tested_versions import untested
from steadyhand.runtime.wall_watch import WallWatch


class Watches:
    """Those of one service. Used by the loop's thread."""

    def __init__(
        self, loaded: Loaded, link: Link, recorder: Recorder, announcer: Announcer
    ) -> None:
        """Look for the first time.

        Args:
            loaded: names the certificates.
            link: knows the certificate of the plant's server.
            recorder: takes the events.
            announcer: tells the loud ones.
        """
        self.certificates = CertificateWatch(
            watched_certificates(loaded),
            recorder.event,
            lambda: getattr(link, "server_ends_s", 0.0),
        )
        """When a certificate of the link or of SCADA runs out, or a key of bundles."""
        self.wall = WallWatch(announcer.event)
        self._untested = untested()
        for fault in self._untested:
            announcer.event({"event": "Version", "code": str(fault.code), "text": fault.text})
        self._provider = ProviderWatch(recorder.event)

    def start(self) -> None:
        """Go on looking at what takes a disk, in another thread."""
        self.certificates.start()

    def close(self) -> None:
        """Stop looking. Idempotent."""
        self.certificates.close()

    def faults(self, policy: Policy) -> Iterator[Fault]:
        """What is wrong now; never waits.

        Args:
            policy: that proposes now.
        """
        yield from self.certificates.look()
        yield from self._provider.look(policy)
        yield from self.wall.look()
        yield from self._untested
