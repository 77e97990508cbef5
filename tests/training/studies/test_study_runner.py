"""The runner: what a result contains, where it goes, and the interval over seeds."""

import json
from math import sqrt
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from steadyhand.controllers.errors import RequestError
from steadyhand.training import commands
from steadyhand.training.studies import commands as study_commands
from steadyhand.training.studies import study as runner
from steadyhand.training.studies.study import Finding, Study, conduct, find, mean_interval

FIELDS = {
    *("study", "claim", "source", "metric", "measured", "baseline", "interval", "seeds"),
    *("holds", "seconds", "command"),
}


def flip(seeds, quick, progress) -> Finding:
    progress("flipping", 0.5)
    return Finding(
        measured=float(sum(seeds)),
        baseline=1.0 if quick else 2.0,
        interval=(0.25, 7.5),
        holds=len(seeds) > 2,
        table=[{"coin": "a", "pair": [1.0, 2.5], "share": 0.5}],
        remarks=["fair"],
    )


def draw(result, file: Path) -> None:
    file.write_text(str(result["measured"]))


COIN = Study(
    name="coin", claim="coins are fair", source="folklore", metric="heads", baseline="tails",
    seeds=4, quick_seeds=2, run=flip, figure=draw,
)  # fmt: skip


@pytest.fixture
def cli(monkeypatch, tmp_path):
    """Calls `steadyhand study …` with one study, COIN, and results in `tmp_path`."""
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    for module in (runner, study_commands):
        monkeypatch.setattr(module, "all_studies", lambda: {"coin": COIN})
    app = typer.Typer()
    app.callback()(lambda: None)
    commands.register(app)
    return lambda *words: CliRunner().invoke(app, ["study", *words])


def test_quick_result_has_every_field() -> None:
    told = []
    result = conduct(COIN, True, 3, lambda text, share: told.append((text, share)))
    assert result.keys() >= FIELDS
    assert result["seeds"] == [3, 4]
    assert (result["measured"], result["baseline"], result["holds"]) == (7.0, 1.0, False)
    assert result["interval"] == [0.25, 7.5]
    assert result["command"] == "steadyhand study run coin --quick --seed 3"
    assert result["seconds"] >= 0
    assert told == [("flipping", 0.5)]


def test_full_result_uses_all_seeds() -> None:
    result = conduct(COIN, False, 0, lambda _text, _share: None)
    assert (result["seeds"], result["baseline"], result["holds"]) == ([0, 1, 2, 3], 2.0, True)
    assert result["command"] == "steadyhand study run coin --seed 0"


def test_unknown_study_names_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"no study 'dice'; there are: .*atacom-dc"):
        find("dice")


def test_interval_by_hand() -> None:
    # Mean 3, s = sqrt(2.5), t(0.975, 4) = 2.776445.
    half = 2.776445 * sqrt(2.5) / sqrt(5)
    assert mean_interval([1, 2, 3, 4, 5]) == pytest.approx((3 - half, 3 + half), abs=1e-6)
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0)
    with pytest.raises(ValueError, match="at least two seeds"):
        mean_interval([1.0])


def test_only_a_full_run_from_seed_0_is_kept(cli, tmp_path) -> None:
    assert cli("run", "coin", "--quick").exit_code == 0
    assert cli("run", "coin", "--seed", "1").exit_code == 0
    assert list(tmp_path.iterdir()) == []
    assert cli("run", "coin").exit_code == 0
    kept = json.loads((tmp_path / "coin.json").read_text())
    assert kept.keys() >= FIELDS
    assert kept["measured"] == 6.0
    assert (tmp_path / "coin.png").read_text() == "6.0"


def test_run_prints_data(cli) -> None:
    answer = cli("run", "coin", "--quick", "--json")
    assert answer.exit_code == 0
    result = json.loads(answer.stdout)
    assert result.keys() >= FIELDS
    assert (result["study"], result["quick"]) == ("coin", True)


def test_run_prints_text(cli) -> None:
    text = cli("run", "coin", "--quick").stdout
    assert "1 / 2.5" in text
    assert "heads: 1 [0.25, 7.5] against 1 (tails); does not hold, 2 seeds" in " ".join(
        text.split()
    )
    assert "fair" in text


def test_unknown_study_is_refused_by_the_command(cli) -> None:
    answer = cli("run", "dice")
    assert answer.exit_code != 0
    assert isinstance(answer.exception, RequestError)


def test_list_shows_the_committed_run(cli) -> None:
    (first,) = json.loads(cli("list", "--json").stdout)
    assert (first["name"], first["committed"]) == ("coin", None)
    assert "not run yet" in cli("list").stdout
    cli("run", "coin")
    (second,) = json.loads(cli("list", "--json").stdout)
    assert second["committed"]["measured"] == 6.0
    assert second["committed"]["holds"] is True


def test_every_study_of_the_project_is_complete() -> None:
    studies = runner.all_studies()
    assert "atacom-dc" in studies
    for name, one in studies.items():
        assert name == one.name
        assert one.seeds >= one.quick_seeds >= 2
        for text in (one.claim, one.source, one.metric, one.baseline):
            assert text.strip()
