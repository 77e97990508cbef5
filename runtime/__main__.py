"""`python -m steadyhand.runtime`: the same command line as `steadyhand`.

For `run`, the process of the policy is started before anything else is imported.
"""

import os
import sys


def main() -> None:
    """Entry point."""
    _open_streams()
    if sys.argv[1:2] == ["run"]:
        from steadyhand.runtime.run import main as run

        run(sys.argv[2:])
    from steadyhand.runtime.cli import main as command_line

    command_line()


def _open_streams() -> None:
    """Whoever closed a standard stream gets /dev/null: the next file that is opened would have its
    number, and what is written there would land in it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = os.fdopen(number, "r" if number == 0 else "w", closefd=False)
            setattr(sys, name, stream)


if __name__ == "__main__":
    main()
