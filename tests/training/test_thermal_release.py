"""The whole road at toy size: train, judge, export, sign, load, evaluate."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from steadyhand.training.commands import register

pytestmark = pytest.mark.slow


def test_train_makes_a_bundle_and_the_same_seed_the_same_policy(tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    hashes = []
    for run in ("a", "b"):
        folder = tmp_path / run
        done = CliRunner().invoke(
            app,
            ["train", "thermal_storage", "--seed", "3", "--quick", "--json",
             "--weights", str(folder / "w.pt"), "--folder", str(folder / "configs"),
             "--key", str(folder / "private" / "local.key.pem")],
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        data = json.loads(done.stdout)
        assert data["violations"] == 0
        assert data["parity"] <= 1e-5
        hashes.append(data["policy_sha256"])
    assert hashes[0] == hashes[1]
