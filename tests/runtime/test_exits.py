"""Exit codes: every error, every command. One line for people, no trace but for a defect."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from steadyhand.controllers import errors
from steadyhand.controllers.errors import BundleError, RequestError
from steadyhand.runtime import cli
from steadyhand.runtime.exits import EPILOG, MEANINGS, Exit, exit_of, guarded, words_of
from steadyhand.runtime.journal import Journal
from steadyhand.runtime.recorder import Recorder
from tests.support.command import COMMAND, steadyhand
from tests.support.records import LAYOUT, tick_arguments

REPOSITORY = Path(__file__).parents[2]
SHIPPED = REPOSITORY / "configs" / "thermal_storage" / "steadyhand.yaml"


def request_codes() -> set[str]:
    """Every code a request is refused with anywhere in the source."""
    files = (REPOSITORY / "runtime").glob("*.py")
    texts = [file.read_text("utf-8") for file in files]
    return {code for text in texts for code in re.findall(r'RequestError\(\s*"([A-Z_]+)"', text)}


# -- errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.SteadyhandError, 1),
        (errors.ConfigError, 78),
        (errors.SignalError, 78),
        (errors.ModelError, 1),
        (errors.LinkError, 69),
        (errors.SafetyError, 1),
        (errors.JournalError, 1),
        (errors.FileError, 74),
        (OSError, 74),
        (PermissionError, 74),
        (ValueError, 70),
        (KeyError, 70),
        (MemoryError, 70),
    ],
)
def test_every_kind_of_error_has_its_code(kind, code):
    assert exit_of(kind("x")) == code
    assert exit_of(BundleError("BUNDLE_SIG", "x")) == 78


def test_no_kind_of_error_is_forgotten():
    kinds = {k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)}
    made = [k("x", "y") if k in (BundleError, RequestError) else k("x") for k in kinds]
    assert all(exit_of(error) is not Exit.BUG for error in made)


EXPECTED = {
    "NOT_RUNNING": 69, "GONE": 69,
    "STARTING": 75, "STOPPING": 75, "TIMEOUT": 75, "HUNG": 75, "BUSY": 75,
    "QUEUE_FULL": 75, "RATE": 75,
    "DENIED": 77, "ROLE": 77,
    "ARGUMENTS": 2, "UNKNOWN_COMMAND": 2, "UNKNOWN_OUTPUT": 2, "UNKNOWN_CODE": 2,
    "UNKNOWN_MODE": 2, "SWAP_UNDER_WAY": 75,
    "OUT_OF_RANGE": 1, "REASON_MISSING": 1, "DURATION": 1, "CONFLICT": 1, "NO_OVERRIDE": 1,
    "REFUSED": 1, "INTERNAL": 1, "UNKNOWN": 1, "REPLAY": 1, "MALFORMED": 1, "TOO_LONG": 1,
    "TOO_SLOW": 1, "NO_ALARM": 1, "CRITICAL": 1, "NOT_SHELVED": 1,
}  # fmt: skip


def test_every_refusal_in_the_source_has_its_code():
    assert request_codes() == set(EXPECTED)
    for code, status in EXPECTED.items():
        assert exit_of(RequestError(code, "x")) == status, code


def test_the_table_is_whole_and_told():
    assert set(MEANINGS) == set(Exit)
    page = (REPOSITORY / "docs" / "quick-start.md").read_text("utf-8")
    for code, text in MEANINGS.items():
        assert f"{int(code)} {text}" in EPILOG
        assert f"| {int(code)} | {text} |" in page, "docs/quick-start.md: the table of exit codes"


# -- the last net


def raises(error):
    def command():
        raise error

    return command


def test_ctrl_c_is_one_line(capsys):
    assert guarded(raises(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "steadyhand: interrupted; nothing was begun\n"


def test_a_defect_keeps_its_trace_and_says_that_it_is_one(capsys):
    assert guarded(raises(KeyError("surprise"))) == 70
    told = capsys.readouterr().err
    assert "Traceback" in told and "surprise" in told
    assert "this is a bug (KeyError): please report" in told.splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "a/b"), "a/b: No such file"),
        (OSError(18, "Invalid cross-device link", "a", None, "b"), "a -> b: Invalid"),
        (OSError("odd"), "odd"),
        (errors.JournalError("no journal at x"), "no journal at x"),
        (ModuleNotFoundError("No module named 'asyncua'", name="asyncua.ua"), "steadyhand[opcua]"),
    ],
)
def test_what_is_no_defect_is_one_line(capsys, error, words):
    status = guarded(raises(error))
    told = capsys.readouterr().err
    assert status == exit_of(error) not in (0, 70)
    assert told.startswith("steadyhand: ") and words in told
    assert len(told.splitlines()) == 1
    assert words_of(error) in told


def test_a_missing_package_of_nobody_is_a_defect():
    assert exit_of(ModuleNotFoundError("No module named 'steadyhand.x'", name="steadyhand.x")) == 70


@pytest.mark.parametrize(("ended", "status"), [(None, 0), (0, 0), (3, 3), ("text", 1)])
def test_a_command_that_ends_by_itself_keeps_its_code(ended, status):
    assert guarded(raises(SystemExit(ended))) == status
    assert guarded(lambda: None) == 0


def shell(line: str) -> "subprocess.CompletedProcess[str]":
    command = " ".join(COMMAND)
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("steadyhand ", f"{command} ", 1)],
        capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY,
    )  # fmt: skip


def test_a_full_disk_behind_the_output_is_told():
    done = shell("steadyhand plant list > /dev/full")
    assert done.returncode == 74
    assert done.stderr == "steadyhand: standard output: No space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_caller_closed_is_no_trace(tmp_path, closed):
    """Some daemons and cron scripts do."""
    told = tmp_path / "told"
    done = shell(f"steadyhand plant list {closed} && echo good > {told}")
    assert done.returncode == 0, done.stderr
    assert told.exists()
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_trace():
    done = shell("steadyhand schema | head -c 1 > /dev/null")
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


# -- every command


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A sound configuration that nobody runs, a journal, and things that are not what they say."""
    from steadyhand.adapters.sim.certificates import make_pki

    folder = tmp_path_factory.mktemp("p")
    shutil.copytree(SHIPPED.parent, folder, dirs_exist_ok=True)
    make_pki(folder / "pki", "thermal_storage")
    recorder = Recorder(LAYOUT)
    with Journal(folder / "journal", recorder):
        recorder.tick(**tick_arguments())
    (folder / "file").write_text("not what you want")
    (folder / "key.pem").write_text("no key")
    (folder / "key.pem").chmod(0o600)
    return folder


CFG = "P/steadyhand.yaml"
OUT = "storage_discharge_kw"
GOOD_KEY = "P/made/me.key.pem"
# command line: (exit code, words that must be told). P is the folder of `place`.
TABLE: dict[str, tuple[int, str]] = {
    f"check {CFG}": (0, "nothing wrong"),
    "check P/none.yaml": (78, "none.yaml: cannot be read"),
    "check P": (78, "is no regular file"),
    "run P/none.yaml": (78, "none.yaml: cannot be read"),
    "run P": (78, "is no regular file"),
    f"run {CFG} --max-ticks -3": (2, "--max-ticks"),
    f"run {CFG} --max-ticks 0": (2, "--max-ticks"),
    "schema": (0, "steadyhand configuration"),
    "demo nuclear": (2, "thermal_storage"),
    "demo --out P/file/x": (74, "P/file/x: cannot be written: Not a directory"),
    f"status {CFG}": (69, "is the loop running"),
    "status P/none.yaml": (78, "none.yaml"),
    f"mode {CFG} full": (69, "is the loop running"),
    f"mode {CFG} fast": (2, "fast"),
    "mode P/none.yaml full": (78, "none.yaml"),
    f"override {CFG} {OUT} 50kW --reason x": (69, "is the loop running"),
    f"override {CFG} {OUT} -50kW --reason x": (69, "is the loop running"),
    f"override {CFG} {OUT} -50_kW -r x --for 2h": (69, "is the loop running"),
    f"override {CFG} -r x {OUT} -.5_MW": (69, "is the loop running"),
    f"override {CFG} valve 50kW --reason x": (2, f"there are: {OUT}"),
    f"override {CFG} {OUT} 50 --reason x": (2, "value: '50' has no unit; write '50 kW'"),
    f"override {CFG} {OUT} 50s --reason x": (2, "another dimension"),
    f"override {CFG} {OUT} 50kW --for 2 --reason x": (2, "--for: '2' has no unit"),
    f"override {CFG} {OUT} 50kW": (2, "--reason"),
    f"override P/none.yaml {OUT} 50kW --reason x": (78, "none.yaml"),
    f"clear-override {CFG} {OUT}": (69, "is the loop running"),
    "clear-override P/none.yaml x": (78, "none.yaml"),
    f"ack {CFG}": (69, "is the loop running"),
    f"ack {CFG} NO_SUCH_CODE": (2, "NO_SUCH_CODE"),
    f"shelve {CFG} OBS_STALE --reason x": (69, "is the loop running"),
    f"shelve {CFG} OBS_STALE": (2, "--reason"),
    f"shelve {CFG} OBS_STALE --reason x --for 2": (2, "--for: '2' has no unit"),
    f"unshelve {CFG} OBS_STALE": (69, "is the loop running"),
    f"swap {CFG} P/none.shb --reason x": (78, "none.shb: no such file"),
    f"swap {CFG} P/thermal_storage.shb --reason x": (69, "is the loop running"),
    f"stop {CFG} --reason x": (69, "is the loop running"),
    "journal show P/none": (1, "no journal at P/none"),
    "journal show P/journal": (0, ""),
    "journal show P/journal --last 0": (2, "--last"),
    "journal purge P/nothing.yaml": (78, "nothing.yaml"),
    "reasons OBS_STUCK": (0, "a measurement does not move"),
    "reasons NO_SUCH": (2, "no reason code 'NO_SUCH'"),
    "journal verify P/journal --key P/none.pub.pem": (78, "none.pub.pem"),
    "journal verify P/none": (1, "no journal at P/none"),
    "journal verify P/journal": (0, "intact"),
    "journal verify P/journal --head 9:9:xyz": (2, "SEGMENT:RECORDS:HASH"),
    "journal export P/none P/out.jsonl": (1, "no journal at P/none"),
    "journal export P/journal P/none/out.jsonl": (74, "make its folder first"),
    "journal export P/journal P": (74, "name a file in it"),
    "journal export P/journal P/file/x": (74, "one of its folders is a file"),
    "journal export P/journal /dev/full": (74, "/dev/full: cannot be written: No space left"),
    "journal export P/journal P/out.jsonl": (0, "lines in P/out.jsonl"),
    "explain P/none": (1, "no journal at P/none"),
    "explain P/journal -5": (2, "-5"),
    "explain P/journal 77": (1, "no tick 77"),
    f"replay {CFG}": (1, "no journal at P/var/journal"),
    f"replay {CFG} --journal P/none": (1, "no journal at P/none"),
    "shadow report P/none": (1, "no journal at P/none"),
    "shadow report P/journal": (1, "no tick in mode shadow"),
    f"evidence make {CFG} --key P/key.pem --by x --out P/none/x": (74, "make it first"),
    f"evidence make {CFG} --key P/key.pem --by x --out P/go": (1, "no journal at P/var/journal"),
    f"evidence make {CFG} --key P/key.pem --by x --out P/go --valid 0": (2, "--valid"),
    "evidence show P/nothing --keys P/keys": (78, "P/nothing: cannot be read"),
    "evidence show P/file --keys P/keys": (78, "is no go-live evidence"),
    f"commission response-test {CFG} --yes --step 0.9": (2, "--step"),
    f"commission response-test {CFG} --yes --output valve --out P/none/x": (74, "make it first"),
    "commission proof-test P/nothing.yaml --yes --by anna": (78, "nothing.yaml"),
    f"commission proof-test {CFG} --yes": (2, "--by"),
    f"commission proof-test {CFG} --yes --by anna --out P/none/x": (74, "make it first"),
    "commission response-test P/nothing.yaml --yes": (78, "nothing.yaml"),
    "plant list": (0, "thermal_storage"),
    "plant show nuclear": (2, "thermal_storage"),
    "plant serve --port 70000 --directory P/x": (2, "a whole number from 0 to 65535"),
    "plant serve nuclear --directory P/x": (2, "steadyhand: plant serve: argument --plant"),
    "plant serve --directory P/file/x": (74, "Not a directory"),
    "bundle keygen P/made --name me": (0, "key_id"),
    "bundle keygen P/file/x --name me": (74, "P/file/x: cannot be written"),
    "bundle keygen P/made --name me --days 0": (2, "--days"),
    "bundle keygen P/made --name me --days 99999999": (2, "--days"),
    f"bundle pack P/none P/b.shb --key {GOOD_KEY} --plant thermal_storage --name x --version 1": (
        78, "P/none"),
    "bundle pack P P/b.shb --key P/key.pem --plant nuclear --name x --version 1": (2, "nuclear"),
    f"bundle sign P/none.shb P/b.shb --key {GOOD_KEY}": (78, "none.shb"),
    f"bundle sign P/thermal_storage.shb P/none/b.shb --key {GOOD_KEY}": (74, "P/none/b.shb"),
    "bundle sign P/thermal_storage.shb P/b.shb --key P/key.pem": (78, "key.pem"),
    "bundle sign P/thermal_storage.shb P/b.shb --key P/none.pem": (78, "none.pem"),
    "bundle verify P/none.shb --keys P/keys": (78, "none.shb"),
    "bundle verify P/thermal_storage.shb --keys P/none": (78, "no such directory"),
    "bundle verify P/thermal_storage.shb --keys P/keys": (0, "signer"),
    "bundle inspect P/none.shb": (78, "none.shb"),
    "bundle inspect P/file": (78, "cut short"),
    f"bundle permit-rollback P/none.shb P/t --key {GOOD_KEY}": (78, "none.shb"),
    f"bundle permit-rollback P/thermal_storage.shb P/none/t --key {GOOD_KEY}": (74, "P/none/t"),
    "evaluate P/none.shb --trusted P/keys": (78, "none.shb"),
    "train nuclear": (2, "nuclear"),
    "train --seed -1": (2, "--seed"),
    "export nuclear": (2, "nuclear"),
    "evaluate P/none.shb": (78, "no such directory"),
    "pki init P/site --bits 2048": (0, "next: steadyhand pki issue"),
    "pki init P/site2 --days 0": (2, "--days"),
    "pki init P/site2 --bits 1024": (2, "--bits"),
    "pki init P/file/x": (74, "P/file/x: cannot be written: Not a directory"),
    "pki issue P/none client --uri urn:x": (78, "make one with `steadyhand pki init"),
    "pki issue P/none client --uri nothing": (78, "urn:HOST:steadyhand:PLANT"),
    "pki issue P/none client --uri urn:x --self-signed": (0, "whoever shall trust it"),
    "pki revoke P/none": (78, "make one with `steadyhand pki init"),
    "pki show P/none.der": (74, "is not there"),
    f"scada certificate {CFG}": (78, "no scada section"),
    f"scada certificate {CFG} --days 0": (2, "--days"),
    f"scada user {CFG} ann --role king": (2, "--role"),
    f"scada user {CFG} ann": (78, "no scada section"),
    f"scada clients {CFG}": (78, "no scada section"),
    f"scada trust {CFG} P/none.der": (78, "no scada section"),
    "selftest P/nothing.yaml": (78, "nothing.yaml"),
    "bench nothing": (2, "nothing"),
    "bench --rounds 1": (2, "--rounds"),
    "bench pacing --out P/nowhere/x": (74, "make it first"),
    "train --weights P": (2, "is a directory"),
    "train --weights P/file/x": (74, "P/file: cannot be written"),
    "study list": (0, ""),
    "study run nothing": (2, "nothing"),
    "study run nothing --seed -1": (2, "--seed"),
}  # fmt: skip


def told_by(line: str, place: Path, capfd, monkeypatch) -> tuple[int, str, str]:
    """Run one command line of the table; exit status, stdout, stderr."""
    monkeypatch.chdir(place.parent)
    link = place.parent / "P"
    if not link.exists():
        link.symlink_to(place)
    words = [word.replace("_kW", " kW").replace("_MW", " MW") for word in line.split()]
    if words[:2] == ["plant", "serve"]:  # becomes another program
        done = steadyhand(*words)
        return done.returncode, done.stdout, done.stderr
    monkeypatch.setattr(sys, "argv", ["steadyhand", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capfd.readouterr()
    return ended.value.code, out, err


@pytest.mark.parametrize("line", TABLE)
def test_every_command_ends_with_its_code_and_one_clear_line(line, place, capfd, monkeypatch):
    status, words = TABLE[line]
    got, out, err = told_by(line, place, capfd, monkeypatch)
    told = (out + err).replace(str(place), "P")
    plain = re.sub(r"[\s│]+", " ", told)
    assert got == status, told
    assert words in plain, told
    assert "Traceback" not in told
    if status in (1, 69, 74, 75, 77):
        assert err.startswith("steadyhand: ") or line.startswith("plant serve"), err


def leaves(command: Any, name: str = "") -> dict[str, Any]:
    """Every command that does something, by its words."""
    if not hasattr(command, "commands"):
        return {name: command}
    found: dict[str, Any] = {}
    for word, child in command.commands.items():
        found |= leaves(child, f"{name} {word}".strip())
    return found


COMMANDS = leaves(typer.main.get_command(cli.complete()))


def test_no_command_is_left_out():
    told = {name for name in COMMANDS if any(f"{line} ".startswith(f"{name} ") for line in TABLE)}
    assert len(COMMANDS) > 20
    assert told == set(COMMANDS)


def test_every_number_on_the_command_line_has_its_least_value():
    found = {
        f"{name} {parameter.name}": parameter.min
        for name, command in COMMANDS.items()
        for parameter in command.params
        if re.search(r"\b(int|float)", repr(parameter.type_descriptor), re.IGNORECASE)
    }
    assert {"run max_ticks", "explain tick", "bench rounds"} <= set(found)
    assert [name for name, low in found.items() if low is None] == []


@pytest.mark.parametrize("line", ["check P/none.yaml", "journal show P/journal", "plant list"])
def test_a_pipe_gets_whole_lines(line, place, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    _, out, _ = told_by(line, place, capfd, monkeypatch)
    assert max(len(text) for text in out.splitlines()) > 60
    assert "…" not in out


def test_the_journal_is_exported_whole(place, capfd, monkeypatch):
    assert told_by("journal export P/journal P/o.jsonl", place, capfd, monkeypatch)[0] == 0
    lines = [json.loads(text) for text in (place / "o.jsonl").read_text().splitlines()]
    assert [item["kind"] for item in lines].count("tick") == 1
    status, out, _ = told_by("journal export P/journal -", place, capfd, monkeypatch)
    assert (status, [json.loads(text) for text in out.splitlines()]) == (0, lines)
