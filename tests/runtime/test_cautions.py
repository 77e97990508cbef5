"""What works and is told all the same; and the words of a refusal, written into the file, work."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from steadyhand.runtime import pki
from steadyhand.runtime.assemble_opcua import opcua_settings
from steadyhand.runtime.cautions import cautions
from steadyhand.runtime.check import check
from steadyhand.runtime.cli import complete
from steadyhand.runtime.config import load_config, require
from steadyhand.runtime.exits import guarded
from tests.support.loop_rig import SHIPPED

OLD = {
    "trusted": "    trusted: [pki/server_cert.der]\n",
    "user": "    user: controller\n    password_file: pki/password\n",
}


@pytest.fixture(scope="module")
def works(tmp_path_factory):
    """A plant's folder whose server was certified by an authority."""
    folder = tmp_path_factory.mktemp("works")
    pki.make_authority(folder / "pki", "works", bits=2048)
    pki.issue(folder / "pki", "client", "urn:edge")
    pki.issue(folder / "pki", "server", "urn:plc", self_signed=True)
    (folder / "pki" / "password").write_text("a password\n")
    (folder / "pki" / "password").chmod(0o600)
    shutil.copytree(SHIPPED.parent / "keys", folder / "keys")
    return folder


def written(folder, trusted=OLD["trusted"], user=OLD["user"]):
    text = SHIPPED.read_text("utf-8")
    for name, new in (("trusted", trusted), ("user", user)):
        assert OLD[name] in text
        text = text.replace(OLD[name], new)
    (folder / "steadyhand.yaml").write_text(text, "utf-8")
    return folder / "steadyhand.yaml"


def told(file, now=None):
    return cautions(require(load_config(file), file), now)


def test_a_servers_own_certificate_needs_no_list(works):
    assert told(written(works)) == []


def test_an_authority_without_a_list_is_told(works, capsys):
    file = written(works, "    trusted: [pki/server_cert.der, pki/ca_cert.der]\n")
    (text,) = told(file)
    assert text.startswith("link.security.trusted: ca_cert.der is an authority without")
    assert "link.security.revoked" in text
    guarded(lambda: complete()(["check", str(file), "--json"], standalone_mode=False))
    assert json.loads(capsys.readouterr().out)["warnings"] == [text]


@pytest.mark.parametrize(
    ("rule", "words"), [("warn", "still believed"), ("refuse", "nothing is connected to")]
)
def test_an_overdue_list_is_told(works, rule, words):
    lists = f"    trusted: [pki/ca_cert.der]\n    revoked: [pki/ca.crl]\n    overdue_list: {rule}\n"
    file = written(works, lists)
    assert told(file) == []
    (text,) = told(file, datetime.now(UTC) + timedelta(days=366))
    assert text.startswith("link.security.revoked: ca.crl is overdue since")
    assert words in text
    loaded = require(load_config(file), file)
    assert opcua_settings(loaded, loaded.config.link).security.refuse_overdue is (rule == "refuse")


def test_what_a_refusal_says_to_write_reaches_the_link(works):
    more = "    check_host: false\n    allow_anonymous: true\n"
    file = written(works, user=more)
    loaded, problems = check(file, bundle=False)
    assert problems == []
    made = opcua_settings(loaded, loaded.config.link).security
    assert (made.check_host, made.allow_anonymous, made.user) == (False, True, "")
    loaded, _ = check(written(works), bundle=False)
    made = opcua_settings(loaded, loaded.config.link).security
    assert (made.check_host, made.allow_anonymous, made.user) == (True, False, "controller")


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("", "allow_anonymous: true where our certificate alone"),
        ("    user: controller\n", "go together"),
        ("    password_file: pki/password\n", "go together"),
        (OLD["user"] + "    allow_anonymous: true\n", "contradict each other"),
    ],
)
def test_half_a_user_is_refused(works, user, words):
    _, problems = check(written(works, user=user), bundle=False)
    assert [words in one.message for one in problems if one.code == "CFG_SECURITY"] == [True]
