"""A journal that is signed by the service and asked about with the command, as an auditor would."""

import json
import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from steadyhand.adapters.input_file import CREDENTIALS
from steadyhand.runtime import chain
from steadyhand.runtime.bundle.signature import generate_key
from steadyhand.runtime.chain import Kind
from tests.support.command import steadyhand
from tests.support.dry_run import write_dry_run

TICKS = 40
TRIGGERS = "SELECT name FROM sqlite_schema WHERE type = 'trigger'"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder in which a run was recorded under a key; (folder, private, public)."""
    folder = tmp_path_factory.mktemp("signed")
    private, public = generate_key(folder, "north", ["journal"])
    write_dry_run(folder, "signed", signing_key=private.name)
    done = steadyhand("run", "plant.yaml", "--quiet", "--max-ticks", TICKS, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, private, public


def test_what_the_service_wrote_is_signed(site):
    folder, _, public = site
    found = steadyhand("journal", "verify", "var/journal", "--key", public, "--json", cwd=folder)
    assert found.returncode == 0, found.stdout + found.stderr
    told = json.loads(found.stdout)
    assert told["ok"] and told["ticks"] == TICKS
    assert told["unsigned"] == 1, "only that it was closed stands behind the last signature"
    assert told["signed"]["records"] == told["head"]["records"] - 2
    words = steadyhand("journal", "verify", "var/journal", "--key", public, cwd=folder).stdout
    assert f"signed up to 1:{told['signed']['records']}, last at 20" in words
    assert "1 records behind it are not signed yet" in words


def test_another_key_or_one_for_something_else_is_refused(site, tmp_path):
    folder, _, public = site
    _, other = generate_key(tmp_path, "other", ["journal"])
    _, release = generate_key(tmp_path, "release", ["controller"])
    refused = steadyhand("journal", "verify", "var/journal", "--key", other, cwd=folder)
    assert refused.returncode == 1
    assert "checkpoint is not signed by this key" in refused.stdout
    two = ("--key", other, "--key", public)
    both = steadyhand("journal", "verify", "var/journal", *two, cwd=folder)
    assert both.returncode == 0, both.stdout
    wrong = steadyhand("journal", "verify", "var/journal", "--key", release, cwd=folder)
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
    assert steadyhand("journal", "verify", forged, cwd=folder).returncode == 0
    found = steadyhand("journal", "verify", forged, "--key", public, cwd=folder)
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
    write_dry_run(tmp_path, "signed", signing_key=private.name)
    assert steadyhand("check", "plant.yaml", cwd=tmp_path).returncode == 0
    make(tmp_path / private.name)
    for command in ("check", "run"):
        done = steadyhand(command, "plant.yaml", cwd=tmp_path)
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
    write_dry_run(tmp_path, "signed", signing_key="${CREDENTIALS_DIRECTORY}/journal_key")
    given = {**os.environ, CREDENTIALS: str(credentials)}
    done = steadyhand("run", "plant.yaml", "--quiet", "--max-ticks", 5, env=given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = steadyhand("journal", "verify", "var/journal", "--key", public, cwd=tmp_path)
    assert found.returncode == 0, found.stdout
