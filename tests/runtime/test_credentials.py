"""Secrets of the service: files of their own, or credentials that systemd hands over."""

import os
import shutil
from pathlib import Path

import pytest

from steadyhand.adapters.input_file import CREDENTIALS, exposed
from steadyhand.adapters.opcua.security import load_credentials
from steadyhand.adapters.sim.certificates import make_pki
from steadyhand.controllers.errors import LinkError
from steadyhand.runtime.assemble_opcua import opcua_settings
from steadyhand.runtime.check import check
from steadyhand.runtime.config import Loaded, load_config
from steadyhand.runtime.spawn import Spawned

REPOSITORY = Path(__file__).parents[2]
SHIPPED = REPOSITORY / "configs" / "thermal_storage"
KEY, WORD = "${CREDENTIALS_DIRECTORY}/private_key", "${CREDENTIALS_DIRECTORY}/password"


@pytest.fixture
def place(tmp_path):
    """A plant's folder, and one with the credentials as systemd leaves them: read-only."""
    shutil.copytree(SHIPPED, tmp_path / "north")
    pki = tmp_path / "north" / "pki"
    make_pki(pki, "thermal_storage", "127.0.0.1", 30)
    credentials = tmp_path / "credentials"
    credentials.mkdir(0o700)
    for name, source in (("private_key", "client_key.pem"), ("password", "password")):
        (pki / source).rename(credentials / name)
        (credentials / name).chmod(0o400)
    file = tmp_path / "north" / "steadyhand.yaml"
    text = file.read_text()
    for old, new in (("pki/client_key.pem", KEY), ("pki/password", WORD)):
        assert old in text
        text = text.replace(old, f'"{new}"')
    file.write_text(text)
    return file, credentials


def fields(problems):
    return {problem.field: problem.message for problem in problems}


def test_credentials_are_found_where_systemd_says(place, monkeypatch):
    file, credentials = place
    monkeypatch.setenv(CREDENTIALS, str(credentials))
    loaded, problems = check(file, bundle=False)
    assert problems == []
    settings = opcua_settings(loaded, loaded.config.link)
    assert settings.security.private_key == credentials / "private_key"
    read = load_credentials(settings.security)
    assert read.password == (credentials / "password").read_text().strip()


def test_the_folder_of_the_credentials_is_no_part_of_the_configuration(place, monkeypatch):
    file, credentials = place
    digests = set()
    for folder in (str(credentials), "/somewhere/else"):
        monkeypatch.setenv(CREDENTIALS, folder)
        digests.add(load_config(file).digest)
    assert len(digests) == 1


@pytest.mark.parametrize("value", [None, ""])
def test_outside_the_service_they_lie_beside_the_configuration(place, monkeypatch, value):
    file, credentials = place
    monkeypatch.delenv(CREDENTIALS, raising=False)
    if value is not None:
        monkeypatch.setenv(CREDENTIALS, value)
    _, problems = check(file, bundle=False)
    told = fields(problems)
    assert set(told) == {"link.security.private_key", "link.security.password_file"}
    assert all("credentials/ beside the configuration" in text for text in told.values())
    credentials.rename(file.parent / "credentials")
    _, problems = check(file, bundle=False)
    assert problems == []
    (file.parent / "credentials" / "password").chmod(0o444)
    _, problems = check(file, bundle=False)
    assert "chmod 600" in fields(problems)["link.security.password_file"]


def test_a_credential_that_is_missing_is_named(place, monkeypatch):
    file, credentials = place
    monkeypatch.setenv(CREDENTIALS, str(credentials))
    (credentials / "password").unlink()
    _, problems = check(file, bundle=False)
    assert "No such file" in fields(problems)["link.security.password_file"]


@pytest.mark.parametrize(
    "name",
    ["${HOME}/password", "${CREDENTIALS_DIRECTORY}/../password", "${CREDENTIALS_DIRECTORY}/a/b",
     "${CREDENTIALS_DIRECTORY}/..", "${CREDENTIALS_DIRECTORY}/${X}", "x${CREDENTIALS_DIRECTORY}/y",
     "${CREDENTIALS_DIRECTORY}"],
)  # fmt: skip
def test_no_other_variable_and_no_way_out_of_the_folder(place, monkeypatch, name):
    file, credentials = place
    monkeypatch.setenv(CREDENTIALS, str(credentials))
    file.write_text(file.read_text().replace(WORD, name))
    loaded, problems = check(file, bundle=False)
    assert loaded is None
    (problem,) = problems
    assert (problem.field, problem.code) == ("link.security.password_file", "CFG_FILE")
    assert "only ${CREDENTIALS_DIRECTORY}/NAME" in problem.message


MODES = [(0o400, False), (0o600, False), (0o440, True), (0o640, True), (0o604, True),
         (0o420, True), (0o410, True), (0o401, True)]  # fmt: skip


@pytest.mark.parametrize(("mode", "open_to_others"), MODES)
def test_a_secret_is_a_file_that_only_we_can_read(tmp_path, mode, open_to_others):
    file = tmp_path / "secret"
    file.write_text("x")
    file.chmod(mode)
    assert bool(exposed(file, file.stat())) is open_to_others


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files as systemd does")
@pytest.mark.parametrize(
    ("mode", "group", "inside", "open_to_others"),
    [(0o440, 0, True, False), (0o400, 0, True, False), (0o460, 0, True, True),
     (0o444, 0, True, True), (0o440, 1, True, True), (0o440, 0, False, True)],
)  # fmt: skip
def test_systemd_opens_a_credential_by_an_access_list(
    tmp_path, monkeypatch, mode, group, inside, open_to_others
):
    file = tmp_path / "secret"
    file.write_text("x")
    os.chown(file, 0, group)
    file.chmod(mode)
    monkeypatch.setenv(CREDENTIALS, str(tmp_path if inside else tmp_path / "elsewhere"))
    assert bool(exposed(file, file.stat())) is open_to_others


def test_the_link_refuses_what_the_check_refuses(place, monkeypatch):
    file, credentials = place
    monkeypatch.setenv(CREDENTIALS, str(credentials))
    (credentials / "private_key").chmod(0o644)
    loaded, problems = check(file, bundle=False)
    assert isinstance(loaded, Loaded)
    assert "chmod 600" in fields(problems)["link.security.private_key"]
    with pytest.raises(LinkError, match="chmod 600"):
        load_credentials(opcua_settings(loaded, loaded.config.link).security)


def test_what_systemd_hands_over_is_not_handed_on_to_the_policy(monkeypatch):
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x")
    monkeypatch.setenv("NOTIFY_SOCKET", "@nobody")
    child = Spawned()
    try:
        names = Path(f"/proc/{child.process.pid}/environ").read_bytes()
        assert b"CREDENTIALS_DIRECTORY" not in names
        assert b"NOTIFY_SOCKET" not in names
        assert b"PATH=" in names
    finally:
        child.discard()
