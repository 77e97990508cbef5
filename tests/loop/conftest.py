"""Processes that a test can kill, in folders with names short enough for sockets."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.loop_rig import Bundles, Rig


@pytest.fixture(scope="session")
def bundles() -> Iterator[Bundles]:
    """Keys and a maker of small bundles for the thermal storage."""
    with tempfile.TemporaryDirectory(prefix="shb") as name:
        yield Bundles(Path(name))


@pytest.fixture(scope="session")
def first_bundle(bundles: Bundles) -> Path:
    """One good bundle."""
    return bundles.pack("first", 1)


@pytest.fixture
def rig(bundles: Bundles, first_bundle: Path) -> Iterator[Callable[..., Rig]]:
    """Makes a plant and a runtime; both are ended with the test."""
    made: list[Rig] = []
    with tempfile.TemporaryDirectory(prefix="rig") as name:

        def make(**settings: Any) -> Rig:
            settings = {"bundle": first_bundle, "keys": bundles.keys} | settings
            made.append(Rig(Path(name) / str(len(made)), **settings))
            made[-1].start_plant()
            made[-1].write_config()
            return made[-1]

        yield make
        for one in made:
            one.close()
