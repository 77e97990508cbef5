"""A good bundle loads and says what is in it."""

import zipfile

import numpy as np

from steadyhand.controllers.frames import Observation, ProposalStatus
from tests.support.bundles import GATE_DATA, PLANT
from tests.support.models import TanhPolicy


def test_good_bundle_is_a_policy(kit, good):
    bundle = kit.load(good)
    assert bundle.label == "care v3"
    assert bundle.signer == "release"
    assert bundle.trust == GATE_DATA
    assert bundle.evidence == {"cost_saving": [0.1, 0.2]}
    assert bundle.warnings == ()
    assert bundle.examined["operators"] == ["Add", "Gemm", "Mul", "Sub", "Tanh"]
    assert bundle.outputs.names == PLANT.outputs.names
    policy = bundle.spec.build()
    values = np.array([1.0, -2.0, 30.0])
    proposal = policy.propose(
        Observation(1, 0.0, values, np.zeros(3), np.zeros(3, np.int8), np.zeros(1))
    )
    assert proposal.status is ProposalStatus.OK
    expected = TanhPolicy().answer(values[np.newaxis].astype(np.float32))["action"][0]
    np.testing.assert_allclose(proposal.action, expected, rtol=1e-5)


def test_any_zip_tool_opens_it(good):
    with zipfile.ZipFile(good) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "manifest.json",
            "manifest.sig",
            "policy.onnx",
            "trust.json",
            "golden.json",
            "evidence.json",
        ]
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())


def test_same_parts_give_the_same_bytes(kit, good):
    assert kit.pack("again.shb").read_bytes() == good.read_bytes()
