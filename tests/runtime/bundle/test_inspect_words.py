"""`bundle inspect` for people: it fits 80 columns, and a quick controller says so on top."""

from pathlib import Path

from steadyhand.runtime.bundle.pack import inspect_bundle
from steadyhand.runtime.bundle.words import WIDTH, sections
from tests.support.bundles import BundleKit

SHIPPED = Path(__file__).parents[3] / "configs" / "thermal_storage" / "thermal_storage.shb"


def test_the_shipped_bundle_fits_a_terminal():
    found = inspect_bundle(SHIPPED)
    text = sections(found)
    assert max(map(len, text.splitlines())) <= WIDTH
    together = "".join(text.split())
    for said in (found["manifest_sha256"], found["signed_with"], "gap_percent", "storage_flow_kw"):
        assert said in together
    assert "!!" not in text
    assert "{" not in text


def test_a_quick_one_says_so_first(tmp_path):
    kit = BundleKit(tmp_path)
    text = sections(inspect_bundle(kit.pack(provenance={"quick": True})))
    assert text.splitlines()[0].startswith("!! TRAINED WITH --quick")
    assert "cost_saving                 0.15" in text
