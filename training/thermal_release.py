"""Train, judge, export and sign the thermal-storage controller; evaluate a bundle of it."""

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steadyhand.controllers.catalogue import PLANTS
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.frames import Observation
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.plants.thermal_storage_scenario import VALIDATION_SEEDS, generate_batch
from steadyhand.controllers.policies.golden import Golden
from steadyhand.controllers.policies.onnx import OnnxPolicy
from steadyhand.controllers.signals import Vector
from steadyhand.runtime.bundle.contract import PlantContract
from steadyhand.runtime.bundle.load import load_bundle
from steadyhand.runtime.bundle.signature import TrustStore
from steadyhand.training.evaluation.in_the_loop import Act
from steadyhand.training.export import export, golden_vectors, spread_rows
from steadyhand.training.release import Place, publish
from steadyhand.training.seeding import weights_sha256
from steadyhand.training.thermal_evidence import (
    SMALL,
    Size,
    compare,
    fit_trust,
    quick_gap,
    yardstick,
)
from steadyhand.training.thermal_recipe import QUICK, Recipe, new_decision, train

KIND = PLANTS["thermal_storage"]
NAME = "thermal_storage-care"
GOLDEN_VECTORS = 64
COMPARED = 1000


def contract(plant: ThermalStorage) -> PlantContract:
    """What a bundle for this plant must fit."""
    return PlantContract(KIND.id, plant.observations, plant.outputs, plant.period_s)


def train_and_save(weights: Path, seed: int, quick: bool) -> dict[str, float]:
    """Train, keep the weights, and return the gap to the optimum after each stage, in percent.

    The gaps are of validation episodes with the batched filter; the evidence has the held-out ones.
    """
    plant = ThermalStorage(KIND.parameters)
    recipe = QUICK if quick else Recipe()
    scenario = generate_batch(VALIDATION_SEEDS[: 1 if quick else 12])
    best = yardstick(plant, scenario)
    gaps = {}
    decision = None
    for name, decision in train(plant, recipe, seed):
        if name != "care":
            gaps[name] = quick_gap(decision, plant, scenario, best)
    if decision is None:
        raise ConfigError("the recipe has no stage")
    weights.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"seed": seed, "quick": quick, "state": decision.state_dict()}, weights)
    return gaps


def release(
    weights: Path, folder: Path, key: Path, stages: dict[str, float], quick: bool
) -> dict[str, Any]:
    """Judge, export, sign; the summary of what was made.

    Raises:
        ConfigError: there are no weights.
        ModelError: the policy is not fit to drive, or graph and torch differ.
        BundleError: the edge would refuse the bundle.
    """
    if not weights.is_file():
        raise ConfigError(f"{weights}: no trained weights; run `steadyhand train` first")
    stored = torch.load(weights, weights_only=True)
    quick = quick or bool(stored["quick"])
    recipe, size = (QUICK, SMALL) if quick else (Recipe(), Size())
    plant = ThermalStorage(KIND.parameters)
    decision = new_decision(plant, recipe)
    decision.load_state_dict(stored["state"])
    trust = fit_trust(decision, plant, recipe, size)
    exported = export(decision, spread_rows(trust.observations, COMPARED), plant.outputs)
    golden = golden_vectors(decision, spread_rows(trust.observations, GOLDEN_VECTORS))
    act = policy_act(exported.model, plant, golden)
    cost = compare(KIND, plant, act, size)
    test = trust.evidence["test"]
    summary = {
        "gap_percent": cost["policy"]["gap_percent"],
        "best_rule_gap_percent": cost["best_rule_gap_percent"],
        "violations": sum(cost["policy"]["violations"].values()),
        "held_out_days": cost["days"],
        "ece": test["ece"],
        "brier": test["brier"],
        "auroc": test["auroc"],
        "parity": exported.parity,
    }
    evidence = {
        "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cost": cost,
        "stages_gap_percent": stages,
        "confidence": trust.evidence,
        "parity": {"largest": exported.parity, "compared": exported.compared},
    }
    manifest = publish(
        Place(folder / "thermal_storage.shb", folder / "keys", key),
        contract(plant),
        name=NAME,
        model=exported.model,
        golden=golden,
        trust=trust.data,
        evidence=evidence,
        summary=summary,
        provenance={
            "seed": int(stored["seed"]),
            "quick": quick,
            "weights_sha256": weights_sha256(decision),
            "command": f"steadyhand train thermal_storage --seed {stored['seed']}",
            "torch": version("torch"),
            "steadyhand": version("steadyhand"),
        },
        seen=trust.observations,
    )
    return {
        "bundle": str(folder / "thermal_storage.shb"),
        "version": manifest.version,
        "policy_sha256": manifest.provenance["policy_sha256"],
        **summary,
    }


def policy_act(model: bytes, plant: ThermalStorage, golden: Golden) -> Act:
    """The graph as the edge runs it, as a function of the observation."""
    policy = OnnxPolicy(model, plant.observations, plant.outputs, golden)

    def act(observation: Observation) -> Vector:
        return np.array(policy.propose(observation).action)

    return act


def evaluate_bundle(path: Path, trusted: Path) -> dict[str, Any]:
    """Verify, load and run a bundle on the held-out days.

    Raises:
        BundleError: refused.
    """
    plant = ThermalStorage(KIND.parameters)
    bundle = load_bundle(path, TrustStore.read(trusted), contract(plant), accept_quick=True)
    return compare(KIND, plant, policy_act(bundle.spec.model, plant, bundle.spec.golden), Size())
