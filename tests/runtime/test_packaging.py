"""What is installed is what is on disk, and the edge stays free of what only training needs."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOMS = ("controllers", "adapters", "runtime", "training")
# scipy is not among them: numba takes it where it finds it, and does without
HEAVY = ("torch", "onnx", "stable_baselines3", "matplotlib", "daqp")


def packages_on_disk() -> set[str]:
    found = set()
    for room in ROOMS:
        for init in (REPOSITORY / room).rglob("__init__.py"):
            found.add(".".join(("steadyhand", *init.parent.relative_to(REPOSITORY).parts)))
    return found


def test_every_package_on_disk_is_listed_and_none_besides() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert set(project["tool"]["setuptools"]["packages"]) == packages_on_disk()


def test_every_pinned_version_is_exact() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert all(line.count("==") == 1 for line in pins)
    assert "torch==2.13.0" in pins


def test_the_wheel_holds_every_module_and_runs_by_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(tmp_path), str(REPOSITORY)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    for room in ROOMS:
        assert f"steadyhand/{room}/py.typed" in names
        for module in (REPOSITORY / room).rglob("*.py"):
            assert f"steadyhand/{module.relative_to(REPOSITORY)}" in names
    page = list((REPOSITORY / "runtime" / "panel" / "page").iterdir())
    for file in page:
        assert f"steadyhand/runtime/panel/page/{file.name}" in names
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import steadyhand.runtime.cli as c;"
        "assert c.__file__.startswith(sys.argv[1]), c.__file__; print(c.app.info.name);"
        "from steadyhand.runtime.panel.pages import read_pages; print(len(read_pages()))"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {sys.path!r}; {program}",
         str(tmp_path / "installed")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ran.stdout.split() == ["steadyhand", str(len(page) + 1)], ran.stderr


@pytest.mark.parametrize(
    "module",
    ["runtime.service", "runtime.check", "runtime.demo", "adapters.sim.server", "runtime.cli"],
)
def test_the_edge_imports_nothing_that_only_training_needs(module: str) -> None:
    program = (
        f"import sys, steadyhand.{module};"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_command_line_does_not_load_torch_before_it_is_needed() -> None:
    program = (
        "import sys; sys.argv = ['steadyhand', '--version']\n"
        "from steadyhand.runtime.cli import main\n"
        "try: main()\n"
        f"finally: print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
