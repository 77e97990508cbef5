"""A small plant, its keys, and a good bundle to spoil."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from steadyhand.runtime.bundle.contract import PlantContract
from steadyhand.runtime.bundle.load import Bundle, load_bundle
from steadyhand.runtime.bundle.pack import pack_bundle
from steadyhand.runtime.bundle.signature import TrustStore, generate_key, read_private
from tests.support.models import TanhPolicy, observation_signals, output_signals

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
PLANT = PlantContract("tank_1", observation_signals(), output_signals(), 900.0)
GATE_DATA = {"threshold": 0.9, "knots": [[0.0, 0.1], [1.0, 0.8]]}


@dataclass
class BundleKit:
    """Keys in a directory of their own, and the last step of making a bundle."""

    home: Path

    def __post_init__(self) -> None:
        self.trust_dir = self.home / "trust"
        self.trust_dir.mkdir()
        self.private, _ = generate_key(self.trust_dir, "release", ["controller"])

    @property
    def key(self) -> Ed25519PrivateKey:
        return read_private(self.private)

    @property
    def trust(self) -> TrustStore:
        return TrustStore.read(self.trust_dir)

    def pack(self, name: str = "good.shb", maker: TanhPolicy | None = None, **changes: Any) -> Path:
        maker = maker or TanhPolicy()
        arguments: dict[str, Any] = {
            "name": "care",
            "version": 3,
            "model": maker.model(),
            "golden": maker.golden(),
            "trust": GATE_DATA,
            "evidence": {"cost_saving": [0.1, 0.2]},
            "evidence_summary": {"cost_saving": 0.15},
            "provenance": {"seed": 0, "code": "abc123"},
            "envelope": {"y0": (-90.0, 90.0)},
            "created": NOW - timedelta(days=10),
        }
        path = self.home / name
        pack_bundle(path, self.key, PLANT, **(arguments | changes))
        return path

    def load(self, path: Path, now: datetime = NOW, **changes: Any) -> Bundle:
        arguments: dict[str, Any] = {"trust": self.trust, "plant": PLANT, "now": lambda: now}
        return load_bundle(path, **(arguments | changes))
