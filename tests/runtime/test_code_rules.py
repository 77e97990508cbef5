"""What the code never does (S20, S16): looked for in its syntax, so that nobody has to remember."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("controllers", "adapters", "runtime", "training")
FORBIDDEN_IMPORTS = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "joblib",
    "cloudpickle",
    "marshal",
    "shelve",
}
OUTBOUND = {
    "requests",
    "urllib.request",
    "http.client",
    "ftplib",
    "smtplib",
    "telnetlib",
    "aiohttp",
}
"""The runtime talks to its plant; nothing of it calls anybody else."""
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load",
    "yaml.unsafe_load", "pickle.load", "pickle.loads", "torch.load", "subprocess.getoutput",
    "tempfile.mktemp",
}  # fmt: skip
SOURCES = sorted(
    path
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if "__pycache__" not in path.parts
)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an expression; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def breaches(text: str, edge: bool) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        found += [
            f"imports {name}"
            for name in names
            if name.partition(".")[0] in FORBIDDEN_IMPORTS or (edge and name in OUTBOUND)
        ]
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            only_weights = called == "torch.load" and any(
                word.arg == "weights_only" and getattr(word.value, "value", None) is True
                for word in node.keywords
            )
            if called in FORBIDDEN_CALLS and not only_weights:
                found.append(f"calls {called}")
            for word in node.keywords:
                true = isinstance(word.value, ast.Constant) and word.value.value is True
                if word.arg in ("shell", "allow_pickle") and true:
                    found.append(f"{called}({word.arg}=True)")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_no_code_from_data_and_no_shell(room):
    found = {}
    for path in (ROOT / room).rglob("*.py"):
        wrong = breaches(path.read_text("utf-8"), edge=room != "training")
        if wrong:
            found[str(path.relative_to(ROOT))] = wrong
    assert found == {}
    assert len(SOURCES) > 150


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("import pickle", "imports pickle"),
        ("from joblib import load", "imports joblib"),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", "np.load(allow_pickle=True)"),
        ("import subprocess\nsubprocess.run(x, shell=True)", "subprocess.run(shell=True)"),
        ("eval('1')", "calls eval"),
        ("import os\nos.system('x')", "calls os.system"),
        ("from urllib.request import urlopen", "imports urllib.request"),
    ],
)
def test_the_search_finds_what_it_is_for(text, word):
    assert word in breaches(text, edge=True)
