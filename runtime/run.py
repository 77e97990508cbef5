"""`steadyhand run` without anything that it does not need: a restart must not take long.

The process of the policy is started first of all; it imports the model's runtime meanwhile.
"""

import gc
import os
import resource
import sys
from pathlib import Path
from typing import NoReturn

from steadyhand.runtime.garbage import share_arenas
from steadyhand.runtime.spawn import Spawned


def main(words: list[str]) -> None:
    """Run the plant if `words` are a plain command; returns if they are for the full parser."""
    plain = _plain(words)
    if plain is not None:
        _run_and_exit(*plain)


def run(file: Path, max_ticks: int | None = None, quiet: bool = False) -> None:
    """Run the plant of configuration `file` until it is told to stop.

    Raises:
        ConfigError: the start is refused.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file with our keys in it
    share_arenas()
    gc.disable()  # importing makes a million objects that stay; the loop collects from then on
    # no package that happens to lie here takes part in reading a configuration, or is looked for
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    spawned: Spawned | None
    try:
        spawned = Spawned()
    except OSError:
        spawned = None  # it is tried again when the policy is wanted, and told then
    from steadyhand.controllers.errors import ConfigError, SteadyhandError
    from steadyhand.runtime.start import serve

    try:
        serve(file, max_ticks, quiet, spawned)
    except ConfigError:
        raise
    except SteadyhandError as error:  # whatever refuses a start, a restart will not mend it
        raise ConfigError(str(error)) from None


def _run_and_exit(file: Path, max_ticks: int | None, quiet: bool) -> NoReturn:
    try:
        from steadyhand.runtime.exits import guarded

        status = int(guarded(lambda: run(file, max_ticks, quiet)))
    except KeyboardInterrupt:  # in the imports, or a second one: one line is enough
        sys.stderr.write("steadyhand: interrupted\n")
        status = 130
    sys.exit(status)


def _plain(words: list[str]) -> tuple[Path, int | None, bool] | None:
    """File, --max-ticks and --quiet; None for everything else, mistakes and --help among it."""
    file, ticks, quiet = None, None, False
    rest = iter(words)
    for word in rest:
        if word in ("--quiet", "-q"):
            quiet = True
        elif word == "--max-ticks":
            number = next(rest, "")
            if not (number.isascii() and number.isdecimal() and int(number[:9]) > 0):
                return None
            ticks = int(number)
        elif word.startswith("-") or file is not None:
            return None
        else:
            file = Path(word)
    return None if file is None else (file, ticks, quiet)
