"""A virtual twin of a plant's own configuration: the same loop, another plant behind the wire."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from steadyhand.adapters.sim.address_space import namespace_uri
from steadyhand.adapters.sim.process import PlantProcess
from steadyhand.controllers.plants.parameters import parameter_table
from steadyhand.runtime.assemble import PlantParts
from steadyhand.runtime.config import Loaded
from steadyhand.runtime.config_schema import UNPROVEN_WORD

HANDSHAKE = {
    "granted": "control_granted",
    "request": "control_request",
    "heartbeat": "controller_heartbeat",
    "source": "controller_source",
    "plant_heartbeat": "plant_heartbeat",
    "plant_time": "plant_time_s",
    "sequence": "sequence",
}
JUDGED = ("sentinels", "forced")
"""What a configuration says of a measurement besides where it is."""
FOLLOWED = ("follow_tolerance", "follow_time")
"""What it says of an output."""
PATIENT = 100_000
"""Hand-overs a day; a plant's own number would end a test of all its faults within minutes."""
SLOWEST_ANSWER_S = 1.0


def plant_options(parts: PlantParts, folder: Path, wall_period_s: float) -> tuple[str, ...]:
    """Command line of the twin's server: state and log of arrivals outlive the process."""
    own = {
        item.name: getattr(parts.parameters, item.name)
        for item in parameter_table(parts.kind.parameters)
    }
    numbers = folder / "parameters.json"
    numbers.write_text(json.dumps(own), encoding="utf-8")
    return (
        *("--plant", parts.kind.id, "--seed", "1", "--days", "5"),
        *("--time-scale", str(parts.plant.period_s / wall_period_s)),
        *("--parameters", str(numbers), "--dummy-namespaces", "1"),
        *("--state", str(folder / "state.json"), "--log", str(folder / "writes.jsonl")),
    )


def write_config(
    loaded: Loaded,
    parts: PlantParts,
    folder: Path,
    plant: PlantProcess,
    port: int,
    wall_period_s: float,
    bundle: tuple[Path, Path] | None = None,
) -> Path:
    """The configuration with the twin behind its link; everything it decides with stays as it is.

    Changed are: addresses and certificates of the link, pace, folders, ports, the mode asked for,
    and how often control may change hands.

    Args:
        loaded: the plant's own.
        parts: made from it.
        folder: where the twin's files go.
        plant: the twin.
        port: of the wire to it.
        wall_period_s: real time of one period.
        bundle: another bundle and the folder of its keys, instead of the configured one.
    """
    data: dict[str, Any] = deepcopy(loaded.source.data)
    data["clock"] = {
        "source": "plant",
        "time_scale": parts.plant.period_s / wall_period_s,
    }
    own, outputs = (data["link"].get(key, {}) for key in ("signals", "outputs"))
    data["link"] = _link(parts, folder, plant, port, wall_period_s)
    for name, tag in data["link"]["signals"].items():
        tag |= {key: own[name][key] for key in JUDGED if key in own.get(name, {})}
    for name, tag in data["link"]["outputs"].items():
        tag |= {key: outputs[name][key] for key in FOLLOWED if key in outputs.get(name, {})}
    section = loaded.config.bundle
    if bundle is not None:
        data["bundle"] = {"file": str(bundle[0]), "trusted_keys": str(bundle[1])}
    elif section is not None:
        data["bundle"] = {
            "file": str(loaded.path(section.file)),
            "trusted_keys": str(loaded.path(section.trusted_keys)),
        }
    deadline_s = min(loaded.config.inference.deadline, 0.5 * wall_period_s)
    data["inference"] = data.get("inference", {}) | {"deadline": f"{deadline_s} s"}
    data["modes"] = data.get("modes", {}) | {"initial": "full", "max_raises": PATIENT}
    data["go_live"] = {"without_evidence": UNPROVEN_WORD}  # the twin is no plant
    data["journal"] = data["journal"] | {"directory": "var/journal"}
    data["operator"] = {"socket": "var/operator.sock"}
    if "metrics" in data:
        data["metrics"] = {"listen": "127.0.0.1:0"}
    for section_name in ("panel", "scada"):
        data.pop(section_name, None)
    data.get("safety", {}).pop("process_safety_time", None)  # the pace is another one
    config = folder / "steadyhand.yaml"
    config.write_text(json.dumps(data, indent=1), encoding="utf-8")  # JSON is YAML
    return config


def _link(
    parts: PlantParts, folder: Path, plant: PlantProcess, port: int, wall_period_s: float
) -> dict[str, Any]:
    uri = namespace_uri(parts.kind.id)

    def node(name: str) -> str:
        return f"nsu={uri};s={name}"

    pki, path = folder / "pki", plant.ready["endpoint"].split("/", 3)[3]
    return {
        "kind": "opcua",
        "endpoint": f"opc.tcp://127.0.0.1:{port}/{path}",
        "request_timeout": f"{min(SLOWEST_ANSWER_S, 5.0 * wall_period_s)} s",
        "security": {
            "server_uri": plant.ready["server_uri"],
            "certificate": str(pki / "client_cert.der"),
            "private_key": str(pki / "client_key.pem"),
            "trusted": [str(pki / "server_cert.der")],
            "user": "controller",
            "password_file": str(pki / "password"),
        },
        "signals": {
            signal.name: {"node": node(signal.name), "unit": signal.unit}
            for signal in parts.plant.observations
        },
        "outputs": {
            signal.name: {
                "node": node(signal.name),
                "unit": signal.unit,
                "feedback": node(f"{signal.name}_applied"),
                "participation": node(f"{signal.name}_participates"),
            }
            for signal in parts.outputs
        },
        "handshake": {role: node(name) for role, name in HANDSHAKE.items()},
    }
