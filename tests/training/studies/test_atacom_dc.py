"""The safety study: the order of the filters on two seeds, its gains, and what is committed."""

from math import sqrt

import numpy as np
import pytest

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.safety.row_filter import CBF_QP, DC
from steadyhand.training.studies import atacom_dc
from steadyhand.training.studies.study import stored
from steadyhand.training.worlds import point


@pytest.fixture(scope="module")
def quick():
    """(finding, table by filter) of a quick run on two seeds."""
    finding = atacom_dc.run([0, 1], True, lambda _text, _share: None)
    return finding, {row["filter"]: row for row in finding.table}


def test_every_filter_is_in_the_table(quick) -> None:
    finding, table = quick
    assert list(table) == [case.name for case in atacom_dc.CASES]
    assert finding.measured == pytest.approx(table[atacom_dc.MAIN]["goals"], abs=1e-3)
    assert finding.baseline == pytest.approx(table[atacom_dc.PLAIN]["goals"], abs=1e-3)


def test_directional_rows_keep_every_limit(quick) -> None:
    _, table = quick
    for name in atacom_dc.SAFE_DC:
        assert table[name]["violating_%"] == [0.0, 0.0]
        assert max(table[name]["deepest_mm"]) < 0
        assert table[name]["unsolved"] == 0


def test_order_of_the_filters(quick) -> None:
    _, table = quick
    goals = {name: row["goals"] for name, row in table.items()}
    assert goals["none"] > goals[atacom_dc.MAIN] > goals[atacom_dc.PLAIN]
    assert goals[atacom_dc.PLAIN] > goals[atacom_dc.PROJECTION]
    assert goals[atacom_dc.MAIN] >= 0.9 * max(goals[name] for name in atacom_dc.HARD)
    corrections = {name: row["correction"][0] for name, row in table.items()}
    assert corrections["none"] == 0
    assert corrections[atacom_dc.MAIN] < corrections[atacom_dc.PLAIN]


def test_the_world_can_be_violated(quick) -> None:
    _, table = quick
    assert min(table["none"]["violating_%"]) > 10
    for name in (atacom_dc.PLAIN, "CBF-QP gamma=15, no margin"):
        assert table[name]["violating_%"][1] > 1
        assert 0 < table[name]["deepest_mm"][1] < 2


def test_unknown_drift_is_bounded_by_the_recovery(quick) -> None:
    # k + nu settles within w / lambda.
    _, table = quick
    bound_mm = 1e3 * atacom_dc.DRIFT_BOUND / atacom_dc.RECOVERY
    assert bound_mm == pytest.approx(35.36, abs=0.01)
    for name in ("DC, drift unknown", "CBF-QP, drift unknown"):
        assert 0 < max(table[name]["deepest_mm"]) < bound_mm - 4
    for name in ("DC, drift unknown, wide", "CBF-QP, drift unknown, wide"):
        assert 0 < max(table[name]["deepest_mm"]) < bound_mm - 20


def test_a_declared_bound_makes_up_for_an_unknown_drift(quick) -> None:
    _, table = quick
    assert table["DC, drift unknown but bounded"]["violating_%"] == [0.0, 0.0]


def test_gains_stay_inside_the_bound_of_the_period() -> None:
    # (13 + 1.5 * 2 sqrt(2)) * 0.05 s = 0.862; the CBF-QP's 18 * 0.05 s uses all of 0.9.
    assert pytest.approx(2 * sqrt(2)) == atacom_dc.DIAMETER
    assert pytest.approx(0.862, abs=1e-3) == (13 + 1.5 * atacom_dc.DIAMETER) * point.PERIOD_S
    atacom_dc.Rule(DC, 13.0, 1.5, 0.004)
    atacom_dc.Rule(CBF_QP, 18.0, 0.0, 0.004)
    with pytest.raises(SafetyError, match="crossed within one period"):
        atacom_dc.Rule(DC, 13.0, 1.8, 0.004)


def test_the_margin_covers_the_world() -> None:
    # A disc curves away from a straight path, so only the drift's change can bring it nearer.
    rng, h, fastest = np.random.default_rng(0), 1e-5, 0.0
    for x, y, t in rng.uniform((-0.95, -0.95, 0.0), (0.95, 0.95, 20.0), (3000, 3)):
        f = np.array(point.drift(x, y, t))
        v = rng.choice([-1.0, 1.0], 2) + f
        later = np.array(point.drift(x + h * v[0], y + h * v[1], t + h))
        fastest = max(fastest, float(np.hypot(*(later - f))) / h)
    assert 0.5 < fastest < 0.66
    hold = 0.66 * point.PERIOD_S**2 / 2
    assert hold / (atacom_dc.RECOVERY * point.PERIOD_S) == pytest.approx(0.00165)
    assert atacom_dc.MARGIN_M > 0.00165


@pytest.mark.parametrize("depth", [0.005, 0.5])
def test_contradicting_rows_favour_neither(depth) -> None:
    # Beyond the right and, absurdly, as far beyond the left wall: both ask for the same way back.
    rule = atacom_dc.Rule(DC, 13.0, 1.5, 0.0)
    k, J = np.full(point.ROWS, -1.0), np.zeros((point.ROWS, 2))
    k[:2], J[0, 0], J[1, 0] = depth, 1.0, -1.0
    out = np.full(2, np.nan)
    rule.apply(np.array([0.8, 0.3]), k, J, np.zeros(point.ROWS), out)
    assert rule.unsolved == 1
    assert out[0] == pytest.approx(0.0, abs=1e-6)
    assert -1 <= out[1] <= 1


def test_what_is_counted_by_hand() -> None:
    # Against the current, at rest for 40 ticks of 0.05 s: nothing moves, nothing is corrected.
    class Still:
        reached = 3

        def act(self, tick, q):
            return -np.array(point.drift(q[0], q[1], tick * point.PERIOD_S))

    drawn = point.episode(np.random.default_rng(0), 40)
    counted = atacom_dc.drive(Still(), atacom_dc.NoFilter(), drawn, atacom_dc.CASES[0])
    assert counted[atacom_dc.VIOLATING] == 0
    assert counted[atacom_dc.REACHED] == 3
    assert counted[atacom_dc.CORRECTION] == 0
    # The drift turns by at most 0.25 (0.4^2 + 0.3^2)^0.5 m/s^2 in place.
    assert 0 < counted[atacom_dc.CHANGE] < 0.125 * point.PERIOD_S
    assert counted[atacom_dc.DEEPEST] == pytest.approx(point.worst(*drawn.start), abs=0.02)
    assert counted[atacom_dc.STANDING] == 100


def test_published_atacom_by_hand() -> None:
    # One row, J = 1, alpha = a: the tangent of [1, a] scales by a / sqrt(1 + a^2), and the
    # pseudo-inverse answers a drift d with -d / (1 + a^2).
    slack = 0.1
    k, J = np.full(point.ROWS, -2.0), np.zeros((point.ROWS, 2))
    k[0], J[0, 0] = -slack, 1.0
    psi = np.zeros(point.ROWS)
    psi[0] = -0.2
    a, out = np.expm1(3.0 * slack), np.zeros(2)
    wanted = np.array([0.5, 0.25])
    atacom_dc.PublishedAtacom(3.0, exponential=True).apply(wanted, k, J, psi, out)
    assert out == pytest.approx([0.5 * a / sqrt(1 + a**2) + 0.2 / (1 + a**2), 0.25])
    atacom_dc.PublishedAtacom(3.0, exponential=True, clipped=True).apply(wanted, k, J, psi, out)
    assert out == pytest.approx([0.5 * a / sqrt(1 + a**2), 0.25])


def test_committed_result_is_of_this_study(tmp_path) -> None:
    result = stored("atacom-dc")
    assert result is not None
    assert result["seeds"] == list(range(10))
    assert not result["quick"]
    table = {row["filter"]: row for row in result["table"]}
    assert list(table) == [case.name for case in atacom_dc.CASES]
    assert all(table[name]["violating_%"] == [0, 0] for name in atacom_dc.SAFE_DC)
    picture = tmp_path / "figure.png"
    atacom_dc.figure(result, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
