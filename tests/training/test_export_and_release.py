"""The exported graph against torch, weights from a seed, and a bundle the edge accepts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from steadyhand.controllers.errors import ModelError
from steadyhand.controllers.frames import ProposalStatus
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_scenario import generate_batch
from steadyhand.controllers.policies.graph import inspect_graph
from steadyhand.controllers.policies.onnx import OnnxPolicy
from steadyhand.runtime.bundle.load import load_bundle
from steadyhand.runtime.bundle.signature import TrustStore
from steadyhand.training.export import OPSET, PARITY, export, golden_vectors, spread_rows
from steadyhand.training.methods.clone import CloneSettings, regret_at
from steadyhand.training.nets import Decision, Normaliser
from steadyhand.training.release import Place, envelope, next_version, publish, signing_key
from steadyhand.training.rollout import collect
from steadyhand.training.seeding import generator, make_deterministic, weights_sha256
from steadyhand.training.thermal_recipe import QUICK, clone, new_decision, training_pools
from steadyhand.training.thermal_release import contract
from steadyhand.training.worlds.thermal_storage import environment

TINY = replace(QUICK, episodes=2, clone=CloneSettings(rounds=2, epochs=1, commands=21))


@pytest.fixture(scope="module")
def plant() -> ThermalStorage:
    return ThermalStorage()


@pytest.fixture(scope="module")
def decision(plant: ThermalStorage) -> Decision:
    """Random weights that do something: the last layers are not near zero."""
    torch.manual_seed(5)
    made = new_decision(plant, QUICK)
    with torch.no_grad():
        for parameter in made.actor.parameters():
            parameter.mul_(3.0)
    return made


@pytest.fixture(scope="module")
def seen(plant: ThermalStorage, decision: Decision) -> np.ndarray:
    rollout = collect(decision, environment(plant, generate_batch(range(11), days=1)))
    rows = rollout.observations.reshape(-1, rollout.observations.shape[-1])
    with torch.no_grad():
        decision.normaliser.fit(decision.features(torch.from_numpy(rows).float()))
    return rows


def test_graph_answers_like_torch_on_a_thousand_observations(
    plant: ThermalStorage, decision: Decision, seen: np.ndarray
) -> None:
    exported = export(decision, spread_rows(seen, 1000), plant.outputs)
    assert exported.compared == 1000
    assert exported.parity <= PARITY
    summary = inspect_graph(exported.model)
    assert summary.opset == OPSET


def test_the_edge_gives_torchs_answer(
    plant: ThermalStorage, decision: Decision, seen: np.ndarray
) -> None:
    exported = export(decision, spread_rows(seen, 20), plant.outputs)
    golden = golden_vectors(decision, spread_rows(seen, 16))
    policy = OnnxPolicy(exported.model, plant.observations, plant.outputs, golden)
    assert policy.golden_error < 5e-5


def test_export_refuses_a_graph_that_differs(
    plant: ThermalStorage, decision: Decision, seen: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steadyhand.training.export.PARITY", 0.0)
    with pytest.raises(ModelError, match="torch and the exported graph differ"):
        export(decision, spread_rows(seen, 50), plant.outputs)


def test_same_seed_same_weights(plant: ThermalStorage) -> None:
    def run(seed: int) -> str:
        make_deterministic(seed)
        made = new_decision(plant, TINY)
        clone(made, plant, TINY, seed, training_pools(plant, TINY, seed))
        return weights_sha256(made)

    first = run(0)
    assert run(0) == first
    assert run(1) != first


def test_streams_of_one_seed_are_independent_and_repeatable() -> None:
    a, again, b = generator(3, "a"), generator(3, "a"), generator(3, "b")
    drawn = a.random(4)
    np.testing.assert_array_equal(drawn, again.random(4))
    assert not np.array_equal(drawn, b.random(4))


def test_weights_hash_sees_one_bit(decision: Decision) -> None:
    before = weights_sha256(decision)
    weight = decision.actor.body[0].weight
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    changed = weights_sha256(decision)
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(-9.0))
    assert changed != before
    assert weights_sha256(decision) == before


def test_normaliser_by_hand() -> None:
    normaliser = Normaliser(2, clip=1.5)
    normaliser.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    # mean 2 and 5; deviation 1 and the floor 1e-3; (6 - 2)/1 = 4 is clipped
    torch.testing.assert_close(
        normaliser(torch.tensor([[2.5, 5.0], [6.0, 4.999]])),
        torch.tensor([[0.5, 0.0], [1.5, -1.0]]),
        atol=1e-3, rtol=0.0,
    )  # fmt: skip


def test_regret_is_linear_between_knots() -> None:
    # knots at -1, 0, 1
    regret = torch.tensor([[4.0, 0.0, 2.0]]).repeat(5, 1)
    at = torch.tensor([-1.0, -0.5, 0.0, 0.25, 1.0], requires_grad=True)
    values = regret_at(regret, at)
    torch.testing.assert_close(values.detach(), torch.tensor([4.0, 2.0, 0.0, 0.5, 2.0]))
    values.sum().backward()
    assert at.grad is not None
    torch.testing.assert_close(at.grad[1], torch.tensor(-4.0))
    torch.testing.assert_close(at.grad[3], torch.tensor(2.0))


def test_a_bundle_that_the_edge_accepts(
    plant: ThermalStorage, decision: Decision, seen: np.ndarray, tmp_path: Path
) -> None:
    exported = export(decision, spread_rows(seen, 20), plant.outputs)
    place = Place(tmp_path / "a.shb", tmp_path / "keys", tmp_path / "private" / "mine.key.pem")
    args = {
        "name": "test", "model": exported.model,
        "golden": golden_vectors(decision, spread_rows(seen, 16)),
        "trust": {}, "evidence": {}, "summary": {"gap_percent": 1.0}, "provenance": {"seed": 0},
        "seen": seen,
    }  # fmt: skip
    manifest = publish(place, contract(plant), **args)
    assert manifest.version == 1
    bundle = load_bundle(place.bundle, TrustStore.read(place.trusted), contract(plant))
    proposal = bundle.spec.build()
    assert proposal.golden_error < 5e-5
    load = manifest.envelope["cooling_load_kw"]
    column = plant.observations.index("cooling_load_kw")
    assert (load.low, load.high) == (seen[:, column].min(), seen[:, column].max())
    # the private key stays where it was made, only its public half is trusted
    assert [path.name for path in place.trusted.iterdir()] == ["mine.pub.pem"]
    assert (place.private_key.stat().st_mode & 0o777) == 0o600
    again = publish(place, contract(plant), **args)
    assert again.version == 2
    assert again.key_id == manifest.key_id


def test_version_of_the_first_bundle_is_one(tmp_path: Path) -> None:
    assert next_version(tmp_path / "none.shb") == 1


def test_signing_key_is_made_once(tmp_path: Path) -> None:
    place = Place(tmp_path / "a.shb", tmp_path / "keys", tmp_path / "k.key.pem")
    first = signing_key(place).read_bytes()
    assert signing_key(place).read_bytes() == first


def test_envelope_leaves_out_what_never_moved(plant: ThermalStorage) -> None:
    rows = np.tile(0.5 * (plant.observations.low + plant.observations.high), (3, 1))
    rows[:, 1] = [10.0, 20.0, 1e9]  # beyond what the plant declares: cut
    found = envelope(rows, plant.observations)
    assert found == {"cooling_load_kw": (10.0, plant.observations.high[1])}


def test_a_golden_proposal_is_sound(
    plant: ThermalStorage, decision: Decision, seen: np.ndarray
) -> None:
    exported = export(decision, spread_rows(seen, 20), plant.outputs)
    golden = golden_vectors(decision, spread_rows(seen, 16))
    policy = OnnxPolicy(exported.model, plant.observations, plant.outputs, golden)
    from steadyhand.controllers.frames import Observation

    n = len(plant.observations)
    image = Observation(1, 0.0, seen[40], np.zeros(n), np.zeros(n, dtype=np.int8), np.zeros(1))
    proposal = policy.propose(image)
    assert proposal.status is ProposalStatus.OK
    assert plant.outputs.low[0] <= proposal.action[0] <= plant.outputs.high[0]
    assert proposal.error >= 0.0
