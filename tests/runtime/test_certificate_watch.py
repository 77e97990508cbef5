"""Thirty, seven, one days ahead: told once each, an alarm until renewed; nobody is stopped."""

import shutil
from datetime import UTC, datetime

import pytest

from steadyhand.controllers.frames import Source
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime import pki
from steadyhand.runtime.assemble_opcua import watched_certificates
from steadyhand.runtime.bundle.signature import TrustStore, generate_key
from steadyhand.runtime.certificate_watch import CertificateWatch, Watched
from steadyhand.runtime.certificates import DAY_S, facts
from steadyhand.runtime.config import parse_config, require
from steadyhand.runtime.events import EFFECTS, Severity, Situation
from tests.support.loop_rig import SHIPPED


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch")
    pki.make_authority(folder, "works", bits=2048)
    pki.issue(folder, "client", "urn:client", days=100.0)
    pki.issue(folder, "short", "urn:short", days=50.0)
    return folder


def end_of(path):
    return facts(path)[0].not_after.timestamp()


class Bench:
    def __init__(self, watched, server_s=0.0):
        self.now, self.server, self.events = [0.0], [server_s], []
        self.watch = CertificateWatch(
            watched, self.events.append, lambda: self.server[0], lambda: self.now[0]
        )

    def at(self, now_s):
        self.now[0] = now_s
        return [fault.code for fault in self.watch.look()]


def test_each_step_is_told_once(files):
    bench = Bench(Watched(own=files / "client_cert.der"))
    end_s = end_of(files / "client_cert.der")
    expiring, expired = ReasonCode.CERT_EXPIRING, ReasonCode.CERT_EXPIRED
    plan = [(31, None, 0), (29, expiring, 1), (8, expiring, 1), (6.9, expiring, 2),
            (1.1, expiring, 2), (0.9, expiring, 3), (0.1, expiring, 3), (-0.1, expired, 4),
            (-9, expired, 4)]  # fmt: skip
    for days, code, told in plan:
        for _ in range(3):
            assert bench.at(end_s - days * DAY_S) == ([] if code is None else [code])
        assert len(bench.events) == told, days
    assert [event["code"] for event in bench.events] == [expiring] * 3 + [expired]
    assert [event["event"] for event in bench.events] == ["Certificate"] * 4
    assert "own: ends on" in bench.events[0]["text"]
    assert bench.events[0]["days"] == 29.0


def test_a_renewed_one_ends_its_alarm_and_may_be_told_again(files, tmp_path):
    own = tmp_path / "client_cert.der"
    shutil.copy(files / "short_cert.der", own)
    bench = Bench(Watched(own=own))
    end_s = end_of(own)
    assert bench.at(end_s - 5 * DAY_S) == [ReasonCode.CERT_EXPIRING]
    shutil.copy(files / "client_cert.der", own)
    assert bench.at(end_s - 5 * DAY_S) == [ReasonCode.CERT_EXPIRING], "not read again yet"
    bench.watch.refresh()
    assert bench.at(end_s - 5 * DAY_S) == []
    assert bench.at(end_of(own) - 5 * DAY_S) == [ReasonCode.CERT_EXPIRING]
    assert len(bench.events) == 2


def test_every_kind_is_watched_by_its_name(files, tmp_path):
    crl = files / "ca.crl"
    watched = Watched(
        files / "client_cert.der",
        (files / "ca_cert.der", files / "short_cert.der"),
        (crl,),
        files / "short_cert.der",
    )
    bench = Bench(watched, server_s=5e9)
    assert bench.watch.ends == {
        "own": end_of(files / "client_cert.der"),
        "trusted": end_of(files / "short_cert.der"),
        "revocation_list": end_of(crl),
        "scada": end_of(files / "short_cert.der"),
        "server": 5e9,
    }
    bench.server[0] = 0.0
    assert "server" not in bench.watch.ends
    shown = {row["name"]: row["state"] for row in bench.watch.view()}
    assert set(shown) == {"own", "trusted", "revocation_list", "scada"}
    # a folder of trust counts as what lies in it, lists apart from certificates
    folder = tmp_path / "trust"
    folder.mkdir()
    shutil.copy(files / "short_cert.der", folder)
    shutil.copy(crl, folder / "ca.crl")
    assert Watched(trusted=(folder,), revoked=(folder,)).ends() == {
        "trusted": end_of(files / "short_cert.der"),
        "revocation_list": end_of(crl),
    }


def test_scada_clients_and_the_keys_of_bundles_are_watched_too(files, tmp_path):
    clients, keys = tmp_path / "clients", tmp_path / "keys"
    for folder in (clients, keys):
        folder.mkdir()
    for name in ("client", "short"):
        shutil.copy(files / f"{name}_cert.der", clients)
    late, soon = (datetime.fromtimestamp(s, UTC) for s in (4e9, 3e9))
    for name, expires in (("late", late), ("soon", soon), ("ever", None), ("gone", soon)):
        generate_key(keys, name, ["controller"], expires)
    watched = Watched(clients=clients, keys=keys)
    ends = {"scada_client": end_of(files / "short_cert.der"), "bundle_key": 3e9}
    assert watched.ends() == ends
    bench = Bench(watched)
    assert bench.at(3e9 - 6.5 * DAY_S)[-1] == ReasonCode.CERT_EXPIRING
    assert "bundle_key: ends on 2065-01-24" in bench.events[-1]["text"]
    # one that is not believed any more may end as it likes
    store = TrustStore.read(keys)
    taken_back = [key.key_id for key in store.keys.values() if key.expires == soon]
    (keys / "revoked.txt").write_text("\n".join(taken_back) + "\n")
    assert watched.ends() == ends | {"bundle_key": 4e9}
    (keys / "torn.pub.pem").write_text("torn")
    assert watched.ends() == {"scada_client": ends["scada_client"]}, "the start tells of the folder"


def test_the_configuration_says_where_they_lie(tmp_path):
    more = SHIPPED.read_text("utf-8") + (
        '\nscada: {listen: "127.0.0.1:4841", certificate: a, private_key: b, trusted: c,'
        " users_file: d}\n"
    )
    file = tmp_path / "steadyhand.yaml"
    made = watched_certificates(require(parse_config(more.encode(), file), file))
    assert (made.scada, made.clients) == (tmp_path / "a", tmp_path / "c")
    assert made.keys == tmp_path / "keys"
    assert made.own == tmp_path / "pki" / "client_cert.der"


def test_what_cannot_be_read_is_left_to_others(tmp_path):
    broken = tmp_path / "broken.der"
    broken.write_bytes(b"none")
    assert Watched(tmp_path / "absent", (broken, tmp_path / "no"), (broken,)).ends() == {}


@pytest.mark.parametrize("code", [ReasonCode.CERT_EXPIRING, ReasonCode.CERT_EXPIRED])
@pytest.mark.parametrize("situation", list(Situation))
def test_a_date_stops_nobody(code, situation):
    """S18: security that fails never upsets a healthy plant."""
    effect = EFFECTS[code, situation]
    assert effect.demand is Source.POLICY
    assert effect.latch_after == 0
    assert effect.severity >= Severity.WARNING
