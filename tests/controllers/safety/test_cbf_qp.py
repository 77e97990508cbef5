"""The library behind the same interface: same answers, same declared endings."""

import builtins
from collections.abc import Callable

import numpy as np
import pytest

from steadyhand.controllers.errors import SafetyError
from steadyhand.controllers.frames import FilterMode
from steadyhand.controllers.safety.active_set import ActiveSetSolver, Status
from steadyhand.controllers.safety.atacom import AtacomDC
from steadyhand.controllers.safety.cbf_qp import DaqpSolver, cbf_qp
from steadyhand.controllers.safety.constraint import Gains
from steadyhand.controllers.safety.limits import Limits


@pytest.mark.parametrize("softness", ["hard", "soft", "mixed"])
def test_same_answers_and_multipliers(softness: str, many: Callable[[int], int]) -> None:
    rng = np.random.default_rng(6)
    n, m = 3, 5
    ours, library = ActiveSetSolver(m, n), DaqpSolver(m, n)
    u, other = np.empty(n), np.empty(n)
    ended = set()
    for _ in range(many(200)):
        J, c, u_nom = rng.standard_normal((m, n)), -rng.uniform(-0.2, 1, m), rng.standard_normal(n)
        soft = {"hard": np.zeros(m), "soft": rng.uniform(0.1, 1, m)}.get(
            softness, np.array([0, 0, 0.5, 0.5, 0.5])
        )
        two_sided = np.zeros(m, bool)
        two_sided[0] = softness != "soft"
        arguments = (2 * u_nom, np.full(n, 0.5), J, c, soft, two_sided, -np.ones(n), np.ones(n))
        status, _ = ours.solve(*arguments, u)
        told, steps = library.solve(*arguments, other)
        ended.add(status)
        assert told == status
        if status == Status.SOLVED:
            assert steps >= 1
            assert np.abs(u - other).max() < 1e-8
            assert library.multiplier == pytest.approx(ours.multiplier, abs=1e-5)
    assert Status.SOLVED in ended


def test_declared_endings() -> None:
    solver, u = DaqpSolver(2, 1), np.array([99.0])
    rows = (np.array([[1.0], [-1.0]]), np.array([0.5, 0.5]), np.zeros(2), np.zeros(2, bool))
    status, _ = solver.solve(np.zeros(1), np.ones(1), *rows, -np.ones(1), np.ones(1), u)
    assert status == Status.INFEASIBLE
    assert u.tolist() == [99.0]

    class Stops:
        def solve(self, *args: object) -> tuple:
            return np.zeros(3), 0.0, -4, {"iterations": 12, "lam": np.zeros(3)}

    solver._library = Stops()
    status, steps = solver.solve(np.zeros(1), np.ones(1), *rows, -np.ones(1), np.ones(1), u)
    assert (status, steps) == (Status.STOPPED, 12)
    assert u.tolist() == [99.0]


def test_the_filter_of_a_plant(table_model, box, rows_of, image, command) -> None:
    model = table_model(box(1), ("row0",))
    rival = cbf_qp(model, rows_of(1), Limits(box(1), 0.1))
    assert rival.gains == Gains.cbf_limit(0.1, 1.0)
    assert rival.rows.solver.name == "daqp"
    model.J[:], model.k[:] = 2.0, -0.1
    certified = rival.certify(image([0.0]), np.array([1.0]), command([0.0]))
    # 2u <= 9*0.1
    assert certified.action == pytest.approx([0.45])
    assert certified.report.mode is FilterMode.SHAPED
    assert certified.report.multiplier == pytest.approx([0.55 / 4 / 2])
    ours = AtacomDC(model, rows_of(1), Limits(box(1), 0.1), rival.gains)
    assert ours.certify(image([0.0]), np.array([1.0]), command([0.0])).action == pytest.approx(
        certified.action, abs=1e-12
    )


def test_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name == "daqp":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SafetyError, match="pip install daqp"):
        DaqpSolver(1, 1)
