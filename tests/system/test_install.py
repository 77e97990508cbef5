"""`install.sh` ends well only where everything is there: else `make test` has to try again."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOOLS = ("bash", "dirname", "dpkg-query", "make", "touch", "sh")
"""No apt-get and no npm."""


@pytest.fixture
def folder(tmp_path):
    """A copy of the script that wants nothing, and a few tools alone on its path."""
    for name in TOOLS:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"no {name} here")
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(found)
    made = tmp_path / "tests" / "system"
    made.mkdir(parents=True)
    shutil.copy2(HERE / "install.sh", made)
    (made / "packages.txt").write_text("# none\n")
    return made


def run(*words, cwd, home):
    return subprocess.run(
        words, cwd=cwd, env=os.environ | {"PATH": str(home / "bin")}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_nothing_to_do_is_well_done(folder, tmp_path):
    done = run("bash", str(folder / "install.sh"), cwd=tmp_path, home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("packages.txt", "no-such-package\n", "so not installed: no-such-package"),
        ("package-lock.json", "{}", "no npm here"),
    ],
)
def test_what_is_missing_is_said_and_not_taken_for_done(folder, tmp_path, file, text, said):
    (folder / file).write_text(text)
    done = run("bash", str(folder / "install.sh"), cwd=tmp_path, home=tmp_path)
    assert done.returncode == 3
    assert said in done.stdout


@pytest.mark.parametrize("missing", [True, False])
def test_make_remembers_only_what_was_installed(folder, tmp_path, missing):
    if missing:
        (folder / "packages.txt").write_text("no-such-package\n")
    venv = tmp_path / ".venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").touch()
    shutil.copy2(HERE.parents[1] / "Makefile", tmp_path)
    shell = f"SHELL={tmp_path / 'bin' / 'bash'}"
    done = run("make", shell, ".venv/.system", cwd=tmp_path, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv" / ".system").exists() is not missing
    assert ("tried again by the next make test" in done.stdout) is missing
