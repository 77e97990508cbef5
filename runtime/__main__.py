"""`python -m steadyhand.runtime`: the same command line as `steadyhand`.

For `run`, the process of the policy is started before anything else is imported.
"""

import sys


def main() -> None:
    """Entry point."""
    if sys.argv[1:2] == ["run"]:
        from steadyhand.runtime.run import main as run

        run(sys.argv[2:])
    from steadyhand.runtime.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
