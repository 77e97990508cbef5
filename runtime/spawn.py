"""Start the process a policy will live in. Standard library only, so that it can come first.

The child imports the model's runtime while its parent still reads the configuration; which policy
it gets, and within which limits, it is told later (`child.py`). Until then it runs nobody's code
but ours.
"""

import os
import socket
import subprocess
import sys

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)

_OURS = frozenset(("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"))
"""What the service manager tells us, and is no business of a policy."""


class Spawned:
    """A child that waits for a policy. The kernel ends it with the thread that made this."""

    def __init__(self) -> None:
        """Start the process.

        Raises:
            OSError: no process can be started.
        """
        self.spec_fd = os.memfd_create("steadyhand-policy", os.MFD_CLOEXEC)
        """Where the child will look for the policy."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            numbers = (self.spec_fd, theirs.fileno(), os.getpid())
            self.process = subprocess.Popen(  # noqa: S603  (our own interpreter and module)
                # -P: nothing is imported from the folder we happen to stand in
                [sys.executable, "-P", "-m", "steadyhand.runtime.policy_child"]
                + [str(number) for number in numbers],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(self.spec_fd, theirs.fileno()),
                env={k: v for k, v in os.environ.items() if k not in _OURS} | _ONE_THREAD,
                start_new_session=True,
            )
        except OSError:
            os.close(self.spec_fd)
            self.socket.close()
            raise
        finally:
            theirs.close()

    def discard(self) -> None:
        """End a child that nobody took."""
        self.process.kill()
        self.process.wait()
        self.socket.close()
        os.close(self.spec_fd)
