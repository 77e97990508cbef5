"""One good bundle for all tests of this folder; each spoils its own copy."""

from pathlib import Path

import pytest

from tests.support.bundles import BundleKit


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> BundleKit:
    return BundleKit(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def good(kit: BundleKit) -> Path:
    return kit.pack()
