"""Start a simulated plant's server as a process of its own, and talk to it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from steadyhand.adapters.sim.certificates import Pki
from steadyhand.adapters.sim.side_client import SideChannel
from steadyhand.controllers.errors import LinkError

MODULE = "steadyhand.adapters.sim.server"
STOP_S = 10.0


class PlantProcess:
    """A running server process; a context manager that stops it.

    Args:
        directory: private directory for certificates; made when missing.
        options: further command line options, such as "--lockstep".
        errors: file for the server's complaints, default DIRECTORY/errors.txt.

    Raises:
        LinkError: the server did not start; the message is its own.
    """

    def __init__(self, directory: Path, *options: str, errors: Path | None = None) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.errors = errors or directory / "errors.txt"
        command = [sys.executable, "-m", MODULE, "--directory", str(directory), *options]
        with self.errors.open("w") as stream:  # a pipe nobody reads would stop the server
            self.child = subprocess.Popen(  # noqa: S603  (our own module)
                command,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                start_new_session=True,  # Ctrl-C is for the caller, who stops the plant in order
            )
        line = self.child.stdout.readline() if self.child.stdout is not None else ""
        if not line:
            self.child.wait()
            raise LinkError(f"plant server did not start: {self.errors.read_text().strip()}")
        self.ready: dict[str, Any] = json.loads(line)
        """What the server printed: endpoint, namespace, uris, directory, side_channel, pid."""
        self.pki = Pki(directory, self.ready["server_uri"], self.ready["client_uri"])
        self._side: SideChannel | None = None

    @property
    def side(self) -> SideChannel:
        """The side channel, connected at first use."""
        if self._side is None:
            self._side = SideChannel(Path(self.ready["side_channel"]))
        return self._side

    def stop(self) -> int:
        """Stop in order (state saved, clients told), or kill after a while; the exit status."""
        self._hang_up()
        self.child.terminate()
        try:
            self.child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
        return self._reap()

    def kill(self) -> int:
        """Stop at once, as a power cut would."""
        self._hang_up()
        self.child.kill()
        return self._reap()

    def _hang_up(self) -> None:
        if self._side is not None:
            self._side.close()
            self._side = None

    def _reap(self) -> int:
        status = self.child.wait()
        if self.child.stdout is not None:
            self.child.stdout.close()
        return status

    def __enter__(self) -> "PlantProcess":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()
