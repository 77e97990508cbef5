"""`python -m steadyhand.runtime`: the same command line as `steadyhand`."""

from steadyhand.runtime.cli import main

if __name__ == "__main__":
    main()
