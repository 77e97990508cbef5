"""Certificates of strangers: whatever is in one, it hides no other and ends nothing in a trace."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from steadyhand.adapters.opcua.security import (
    Credentials,
    ServerIdentityError,
    check_server,
    split_chain,
)
from steadyhand.controllers.errors import FileError
from steadyhand.runtime import check, cli_scada
from steadyhand.runtime.certificate_watch import Watched
from steadyhand.runtime.certificates import facts
from steadyhand.runtime.cli import complete
from steadyhand.runtime.exits import Exit, guarded
from steadyhand.runtime.scada.people import TrustFolder, valid_now
from tests.support.odd_certificates import ODD, SOUND, odd_certificate


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with `trusted` and `rejected`, where the command line looks for them."""
    for name in ("trusted", "rejected"):
        (tmp_path / name).mkdir()
    section = SimpleNamespace(trusted="trusted")
    loaded = SimpleNamespace(path=lambda name: tmp_path / name)
    monkeypatch.setattr(cli_scada, "_section", lambda config: (loaded, section))
    (tmp_path / "rejected" / "zz.der").write_bytes(odd_certificate(SOUND))
    return tmp_path


def asked(*words: object) -> int:
    """Exit code of the command line, by the way every error of it takes."""
    return guarded(lambda: complete()([str(word) for word in words], standalone_mode=False))


@pytest.mark.parametrize("kind", ODD)
def test_one_odd_file_hides_no_client(place, kind, capsys):
    (place / "rejected" / "aa.der").write_bytes(odd_certificate(kind))
    assert asked("scada", "clients", "x.yaml", "--json") == Exit.DONE
    rows = json.loads(capsys.readouterr().out)
    assert [Path(row["file"]).name for row in rows] == ["aa.der", "zz.der"]
    assert rows[1]["uri"] == "urn:stranger"
    assert asked("scada", "clients", "x.yaml") == Exit.DONE


@pytest.mark.parametrize("kind", ODD)
def test_trusting_an_odd_file_is_no_trace(place, kind, capsys):
    file = place / "rejected" / f"{'a' * 64}.der"
    file.write_bytes(odd_certificate(kind))
    assert asked("scada", "trust", "x.yaml", "a" * 64) in (Exit.DONE, Exit.REFUSED)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ODD)
def test_pki_shows_the_others_and_says_why(place, kind, capsys):
    odd = place / "rejected" / "aa.der"
    odd.write_bytes(odd_certificate(kind))
    assert asked("pki", "show", place, "--json") == Exit.DONE
    bad, good = json.loads(capsys.readouterr().out)
    assert bad["state"].startswith("unreadable: ")
    assert good["uris"] == ["urn:stranger"]
    with pytest.raises(FileError, match=r"aa\.der: "):
        facts(odd)
    assert list(Watched(trusted=(place / "rejected",)).ends()) == ["trusted"]


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_client_is_refused_and_kept_or_not(place, kind):
    told: list[str] = []
    trust = TrustFolder(place / "trusted", told.append)
    assert not trust.trusts(odd_certificate(kind))
    assert "is not trusted" in told[0]
    assert valid_now(odd_certificate(kind)) == (kind not in {"unknown version", "year of letters"})


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_server_is_refused_in_words(kind):
    credentials = Credentials(None, None, "urn:us", (), frozenset(), "", "")
    with pytest.raises(ServerIdentityError):
        check_server(split_chain(odd_certificate(kind)), credentials, "urn:stranger", None)


@pytest.mark.parametrize("kind", ODD)
def test_check_names_the_odd_file(place, kind):
    file = place / "trusted" / "aa.der"
    file.write_bytes(odd_certificate(kind))
    fault = check._trusted_fault(place / "trusted")
    assert fault is None or fault.startswith("in it, aa.der is no X.509")
    assert (fault is None) == (kind == "unknown curve")
