"""`python -m steadyhand.runtime run`: the short way in says the same as the long one, sooner."""

import subprocess
import sys
from pathlib import Path

import pytest

from steadyhand.runtime.policy_spec import PolicySpec
from steadyhand.runtime.run import _plain
from steadyhand.runtime.worker import PolicyProcess
from tests.support.command import steadyhand
from tests.support.models import TanhPolicy, observation_signals, output_signals

SERVICE = (
    "import sys, asyncua; from pathlib import Path; from steadyhand.runtime import run, start;"
    "start._load_code(); import steadyhand.runtime.service, steadyhand.adapters.opcua.link;"
    "print(*sorted(name for name in sys.argv[1:] if name in sys.modules))"
)
NOT_FOR_A_SERVICE = ("typer", "rich", "pint", "scipy", "onnxruntime", "torch", "matplotlib")


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        (["a.yaml"], (Path("a.yaml"), None, False)),
        (["a.yaml", "--max-ticks", "3"], (Path("a.yaml"), 3, False)),
        (["--max-ticks", "3", "-q", "a.yaml"], (Path("a.yaml"), 3, True)),
        (["a.yaml", "--quiet"], (Path("a.yaml"), None, True)),
        ([], None),
        (["--help"], None),
        (["a.yaml", "--help"], None),
        (["a.yaml", "b.yaml"], None),
        (["a.yaml", "--max-ticks"], None),
        (["a.yaml", "--max-ticks", "0"], None),
        (["a.yaml", "--max-ticks", "-3"], None),
        (["a.yaml", "--max-ticks", "x"], None),
        (["a.yaml", "--max-ticks", "\N{SUPERSCRIPT TWO}"], None),
        (["a.yaml", "--max-ticks=3"], None),
        (["--", "a.yaml"], None),
    ],
)
def test_plain_words_are_understood_and_the_rest_left_to_the_full_parser(words, meaning):
    assert _plain(words) == meaning


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["run", "nothing.yaml"], 78, "nothing.yaml: cannot be read"),
        (["run", "--help"], 0, "Usage"),
        (["run"], 2, "Usage"),
        (["run", "a.yaml", "--max-ticks", "0"], 2, "max-ticks"),
        (["run", "a.yaml", "--wrong"], 2, "--wrong"),
    ],
)
def test_both_ways_end_as_the_table_of_exit_codes_says(tmp_path, words, status, said):
    done = steadyhand(*words, cwd=tmp_path)
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_service_does_not_import_what_it_does_not_need():
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, *NOT_FOR_A_SERVICE, "numba", "asyncua"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["asyncua", "numba"]


def test_the_process_of_the_policy_comes_from_a_module_without_libraries():
    code = (
        "import sys; import steadyhand.runtime.spawn, steadyhand.runtime.run;"
        "print('numpy' in sys.modules, 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_process_of_the_policy_loads_no_compiler_and_nothing_from_the_working_folder(
    tmp_path, monkeypatch
):
    (tmp_path / "numpy.py").write_text("raise SystemExit(66)")
    monkeypatch.chdir(tmp_path)
    maker = TanhPolicy()
    spec = PolicySpec(maker.model(), observation_signals(), output_signals(), maker.golden())
    policy = PolicyProcess(spec, deadline_s=2.0)
    loaded = Path(f"/proc/{policy.pid}/maps").read_text()
    policy.close()
    assert "onnxruntime" in loaded
    assert "numpy" in loaded
    assert "llvmlite" not in loaded


INTERRUPTED = {
    "in the start": "run.run = lambda *_: signal.raise_signal(signal.SIGINT)",
    "in an import": "sys.modules['steadyhand.runtime.exits'] = None\n"
    "class Slow:\n"
    "    def find_spec(self, name, *_):\n"
    "        if name == 'steadyhand.runtime.exits': signal.raise_signal(signal.SIGINT)\n"
    "del sys.modules['steadyhand.runtime.exits']\n"
    "sys.meta_path.insert(0, Slow())",
}


@pytest.mark.parametrize("where", INTERRUPTED)
def test_ctrl_c_before_anything_was_begun_is_one_line(where):
    # whoever started this run of the tests in the background had it ignore the signal
    code = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += f"from steadyhand.runtime import run\n{INTERRUPTED[where]}\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "run.main(['any.yaml'])"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("steadyhand: interrupted")
    assert len(done.stderr.splitlines()) == 1
