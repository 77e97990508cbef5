"""A journal that is signed by the service and asked about with the command, as an auditor would."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from steadyhand.adapters.input_file import CREDENTIALS
from steadyhand.runtime import chain
from steadyhand.runtime.bundle.signature import generate_key
from steadyhand.runtime.chain import Kind

CONFIG = """
schema_version: 1
name: signed
plant: {id: thermal_storage, parameters: {}}
period: 15 min
clock: {source: plant}
link: {kind: sim, days: 1}
modes: {initial: "off"}
fallback: {heuristic: storage_priority}
journal: {directory: var/journal, signing_key: %s}
"""
TICKS = 40
TRIGGERS = "SELECT name FROM sqlite_schema WHERE type = 'trigger'"


def steadyhand(folder, *words, **more):
    return subprocess.run(
        [sys.executable, "-m", "steadyhand.runtime", *map(str, words)],
        cwd=folder, capture_output=True, text=True, timeout=120.0, check=False, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder in which a run was recorded under a key; (folder, private, public)."""
    folder = tmp_path_factory.mktemp("signed")
    private, public = generate_key(folder, "north", ["journal"])
    (folder / "plant.yaml").write_text(CONFIG % private.name)
    done = steadyhand(folder, "run", "plant.yaml", "--quiet", "--max-ticks", TICKS)
    assert done.returncode == 0, done.stderr
    return folder, private, public


def test_what_the_service_wrote_is_signed(site):
    folder, _, public = site
    found = steadyhand(folder, "journal", "verify", "var/journal", "--key", public, "--json")
    assert found.returncode == 0, found.stdout + found.stderr
    told = json.loads(found.stdout)
    assert told["ok"] and told["ticks"] == TICKS
    assert told["unsigned"] == 1, "only that it was closed stands behind the last signature"
    assert told["signed"]["records"] == told["head"]["records"] - 2
    words = steadyhand(folder, "journal", "verify", "var/journal", "--key", public).stdout
    assert f"signed up to 1:{told['signed']['records']}, last at 20" in words
    assert "1 records behind it are not signed yet" in words


def test_another_key_or_one_for_something_else_is_refused(site, tmp_path):
    folder, _, public = site
    _, other = generate_key(tmp_path, "other", ["journal"])
    _, release = generate_key(tmp_path, "release", ["controller"])
    refused = steadyhand(folder, "journal", "verify", "var/journal", "--key", other)
    assert refused.returncode == 1
    assert "checkpoint is not signed by this key" in refused.stdout
    both = steadyhand(
        folder, "journal", "verify", "var/journal", "--key", other, "--key", public
    )  # fmt: skip
    assert both.returncode == 0, both.stdout
    wrong = steadyhand(folder, "journal", "verify", "var/journal", "--key", release)
    assert wrong.returncode == 78
    assert "is for controller, not for journal" in wrong.stderr


def test_a_chain_computed_anew_is_sound_but_not_signed(site, tmp_path):
    """Who can write the files changes what an event says and hashes everything behind it again."""
    folder, _, public = site
    forged = tmp_path / "journal"
    shutil.copytree(folder / "var" / "journal", forged)
    ((index, file),) = chain.segment_paths(forged)
    with closing(sqlite3.connect(file)) as connection, connection:
        rows = connection.execute("SELECT n, kind, body, hash FROM record ORDER BY n").fetchall()
        for (name,) in connection.execute(TRIGGERS).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        digest, changed = chain.ZERO, 0
        for n, kind, recorded, _ in rows:
            body = recorded
            if kind == Kind.EVENT and b'"event":"Start"' in recorded:
                body, changed = recorded.replace(b"signed", b"forged"), changed + 1
            digest = chain.link(digest, index, n, kind, body)
            connection.execute(
                "UPDATE record SET body = ?, hash = ? WHERE n = ?", (body, digest, n)
            )
    assert changed == 1
    assert steadyhand(folder, "journal", "verify", forged).returncode == 0
    found = steadyhand(folder, "journal", "verify", forged, "--key", public)
    assert found.returncode == 1
    assert "checkpoint is not signed by this key" in found.stdout


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: file.unlink(), "cannot be read"),
        (lambda file: file.chmod(0o640), "others could read it"),
        (lambda file: file.write_text("no key"), "not an unencrypted PEM private key"),
    ],
)
def test_a_key_that_is_none_is_told_before_anything_starts(site, tmp_path, make, said):
    _, private, _ = site
    shutil.copy(private, tmp_path / private.name)
    (tmp_path / "plant.yaml").write_text(CONFIG % private.name)
    assert steadyhand(tmp_path, "check", "plant.yaml").returncode == 0
    make(tmp_path / private.name)
    for command in ("check", "run"):
        done = steadyhand(tmp_path, command, "plant.yaml")
        assert done.returncode == 78
        assert "journal.signing_key" in done.stdout + done.stderr
        assert said in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_the_key_may_be_a_credential_of_the_service(site, tmp_path):
    """As systemd hands it over: in a folder of its own, and not writable."""
    _, private, public = site
    credentials = tmp_path / "handed-over"
    credentials.mkdir(0o700)
    shutil.copy(private, credentials / "journal_key")
    (credentials / "journal_key").chmod(0o400)
    (tmp_path / "plant.yaml").write_text(CONFIG % '"${CREDENTIALS_DIRECTORY}/journal_key"')
    given = {**os.environ, CREDENTIALS: str(credentials)}
    done = steadyhand(tmp_path, "run", "plant.yaml", "--quiet", "--max-ticks", 5, env=given)
    assert done.returncode == 0, done.stderr
    found = steadyhand(tmp_path, "journal", "verify", "var/journal", "--key", public)
    assert found.returncode == 0, found.stdout
