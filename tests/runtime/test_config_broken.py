"""One table of broken configurations: each names the line, the field, the value and the remedy."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steadyhand.adapters.opcua.settings import INSECURE_WORD
from steadyhand.adapters.opcua.tags import RESERVED_NAMES
from steadyhand.controllers.catalogue import PLANTS, plant_kind
from steadyhand.controllers.errors import ConfigError
from steadyhand.controllers.plants.thermal_storage import ThermalStorage
from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.check import check
from steadyhand.runtime.config import parse_config
from steadyhand.runtime.config_schema import json_schema
from steadyhand.runtime.crash_loop import Moment
from steadyhand.runtime.exits import exit_of
from steadyhand.runtime.kept import KEPT_FILE, Kept, save_kept
from steadyhand.runtime.modes import Mode
from steadyhand.runtime.operator_protocol import Role
from steadyhand.runtime.pki import make_authority
from steadyhand.runtime.quantity import magnitude
from steadyhand.runtime.scada.people import Person, password_proof, write_people
from steadyhand.runtime.start import serve
from steadyhand.runtime.yaml_source import Source, read_yaml
from tests.support.command import steadyhand

REPOSITORY = Path(__file__).parents[2]
SHIPPED = REPOSITORY / "configs" / "thermal_storage" / "steadyhand.yaml"

WITHOUT_BUNDLE = re.sub(r"(?m)^bundle:\n(?:  .*\n)+", "", SHIPPED.read_text())

SCADA = """\
scada:
  listen: 127.0.0.1:4841
  certificate: pki/server_cert.der
  private_key: pki/server_key.pem
  trusted: pki/trusted_clients
  users_file: pki/users
  sessions: 8
metrics:
"""

# name: (text in the shipped file, what it is replaced by, field, code, words of the message)
BROKEN: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
    "misspelt key": (
        "period: 15 min", "peroid: 15 min", "peroid", "CFG_UNKNOWN", ("peroid", "period")),
    "missing key": ("period: 15 min\n", "", "period", "CFG_MISSING", ("add it",)),
    "doubled key": (
        "period: 15 min", "period: 15 min\nperiod: 1 min", "", "CFG_DUP", ("period", "remove")),
    "no unit": ("period: 15 min", "period: 900", "period", "CFG_UNIT", ("900", "15 min")),
    "no unit in text": ("period: 15 min", 'period: "15"', "period", "CFG_UNIT", ("15 s",)),
    "unknown unit": ("period: 15 min", "period: 15 mins2", "period", "CFG_UNIT", ("mins2",)),
    "wrong dimension": ("period: 15 min", "period: 15 kW", "period", "CFG_UNIT", ("kW", "s")),
    "not a number": ("period: 15 min", "period: x min", "period", "CFG_UNIT", ("'x min'",)),
    "nan quantity": ("period: 15 min", "period: nan s", "period", "CFG_UNIT", ("finite",)),
    "infinite quantity": ("period: 15 min", "period: inf s", "period", "CFG_UNIT", ("finite",)),
    "negative quantity": (
        "transfer: 30 min", "transfer: -30 min", "fallback.transfer", "CFG_BOUNDS",
        ("-30 min", "from 0.001 to")),
    "zero quantity": (
        "transfer: 30 min", "transfer: 0 s", "fallback.transfer", "CFG_BOUNDS",
        ("0 s", "from 0.001 to")),
    "bool where a number belongs": (
        "clean_ticks: 4", "clean_ticks: true", "modes.clean_ticks", "CFG_TYPE", ("True",)),
    "text where a number belongs": (
        "clean_ticks: 4", 'clean_ticks: "4"', "modes.clean_ticks", "CFG_TYPE", ("'4'",)),
    "fraction where a count belongs": (
        "clean_ticks: 4", "clean_ticks: 4.5", "modes.clean_ticks", "CFG_TYPE", ("4.5",)),
    "count out of bounds": (
        "clean_ticks: 4", "clean_ticks: 0", "modes.clean_ticks", "CFG_BOUNDS", (">= 1",)),
    "yaml 1.1 switch": ('initial: "off"', "initial: no", "modes.initial", "CFG_TYPE", ("'no'",)),
    "true is no mode": (
        'initial: "off"', "initial: true", "modes.initial", "CFG_TYPE", ("'off'", "True")),
    "unknown mode": ('initial: "off"', "initial: auto", "modes.initial", "CFG_TYPE", ("'full'",)),
    "time of day": ("period: 15 min", "period: 12:30", "period", "CFG_UNIT", ("12:30",)),
    "date": ("name: north-building", "name: 2026-01-01", "name", "CFG_TYPE", ("2026",)),
    "capital in name": (
        "name: north-building", "name: North Building", "name", "CFG_TYPE", ("North",)),
    "null": ("name: north-building", "name:", "name", "CFG_TYPE", ("None",)),
    "other schema version": (
        "schema_version: 1", "schema_version: 2", "schema_version", "CFG_VERSION", ("2", "1")),
    "unknown plant": (
        "id: thermal_storage", "id: nuclear", "plant.id", "CFG_PLANT", ("thermal_storage",)),
    "unknown parameter": (
        "parameters: {}", "parameters: {power_cap: 150 kW}",
        "plant.parameters.power_cap", "CFG_PARAMETER", ("power_cap_kw",)),
    "parameter out of bounds": (
        "parameters: {}", "parameters: {power_cap_kw: -5 kW}",
        "plant.parameters.power_cap_kw", "CFG_PARAMETER", ("-5",)),
    "parameter without unit": (
        "parameters: {}", "parameters: {power_cap_kw: 150}",
        "plant.parameters.power_cap_kw", "CFG_TYPE", ("150",)),
    "parameter in another dimension": (
        "parameters: {}", "parameters: {power_cap_kw: 150 s}",
        "plant.parameters.power_cap_kw", "CFG_PARAMETER", ("kW",)),
    "parameters that contradict each other": (
        "parameters: {}", "parameters: {energy_low_kwh: 1000 kWh, energy_high_kwh: 500 kWh}",
        "plant.parameters", "CFG_PARAMETER", ("1000", "500")),
    "unknown link": ("kind: opcua", "kind: modbus", "link", "CFG_TYPE", ("opcua", "sim")),
    "no link kind": ("  kind: opcua\n", "", "link", "CFG_TYPE", ("opcua",)),
    "wrong scheme": (
        "opc.tcp://127.0.0.1:4840/steadyhand/", "http://127.0.0.1:4840/",
        "link", "CFG_ENDPOINT", ("opc.tcp://",)),
    "endpoint without port": (
        "opc.tcp://127.0.0.1:4840/steadyhand/", "opc.tcp://127.0.0.1",
        "link", "CFG_ENDPOINT", ("opc.tcp://",)),
    "password in the endpoint": (
        "opc.tcp://127.0.0.1:4840/steadyhand/", "opc.tcp://me:secret@127.0.0.1:4840/",
        "link", "CFG_SECRET", ("password_file",)),
    "deprecated security policy": (
        "policy: Basic256Sha256", "policy: Basic128Rsa15",
        "link.security.policy", "CFG_TYPE", ("Basic256Sha256",)),
    "no certificate": (
        "    certificate: pki/client_cert.der\n", "", "link.security", "CFG_SECURITY",
        ("certificate",)),
    "a list of a stranger": (
        "    trusted: [pki/server_cert.der]\n",
        "    trusted: [pki/server_cert.der]\n    revoked: [stranger/ca.crl]\n",
        "link.security.revoked.0", "CFG_FILE", ("not signed by an authority in trusted",)),
    "a certificate for a list": (
        "    trusted: [pki/server_cert.der]\n",
        "    trusted: [pki/server_cert.der]\n    revoked: [pki/server_cert.der]\n",
        "link.security.revoked.0", "CFG_FILE", ("no revocation list",)),
    "an empty folder of trust": (
        "[pki/server_cert.der]", "[pki/trusted_nobody]", "link.security.trusted.0", "CFG_FILE",
        ("folder without certificates",)),
    "nobody trusted": (
        "    trusted: [pki/server_cert.der]\n", "", "link.security", "CFG_SECURITY", ("trusted",)),
    "user without password": (
        "    password_file: pki/password\n", "", "link.security", "CFG_SECURITY", ("both",)),
    "short word for insecure": (
        "    policy: Basic256Sha256\n", "    insecure_no_encryption: yes\n",
        "link.security", "CFG_SECURITY", ("i_accept_that_anyone",)),
    "password in the clear": (
        "    policy: Basic256Sha256\n",
        "    insecure_no_encryption: i_accept_that_anyone_on_the_network_can_drive_the_plant\n",
        "link.security", "CFG_SECURITY", ("password_file",)),
    "inline password": (
        "password_file: pki/password", "password: hunter2",
        "link.security.password", "CFG_UNKNOWN", ("password_file",)),
    "missing certificate file": (
        "pki/client_cert.der", "pki/nowhere.der",
        "link.security.certificate", "CFG_FILE", ("nowhere.der", "No such file")),
    "certificate that is none": (
        "pki/server_cert.der", "pki/password", "link.security.trusted.0", "CFG_FILE", ("X.509",)),
    "missing signal": (
        '    cooling_load_kw: {node: "nsu=urn:steadyhand:plant:thermal_storage;s=cooling_load_kw", '
        'unit: "kW"}\n', "", "link.signals.cooling_load_kw", "CFG_MISSING", ("cooling_load_kw",)),
    "unknown signal": (
        "    cooling_load_kw: {", "    cooling_laod_kw: {",
        "link.signals.cooling_laod_kw", "CFG_UNKNOWN", ("cooling_load_kw",)),
    "unknown output": (
        "    storage_discharge_kw:\n", "    storageadischarge_kw:\n",
        "link.outputs.storageadischarge_kw", "CFG_UNKNOWN", ("storage_discharge_kw",)),
    "two signals on one node": (
        "s=cooling_load_kw", "s=storage_energy_kwh", "link", "CFG_DUPTAG", ("storage_energy_kwh",)),
    "output on a measured node": (
        's=storage_discharge_kw"\n', 's=storage_energy_kwh"\n',
        "link", "CFG_DUPTAG", ("storage_discharge_kw",)),
    "heartbeat on an output": (
        "s=controller_heartbeat", "s=storage_discharge_kw", "link", "CFG_DUPTAG", ("heartbeat",)),
    "scale that does not fit its unit": (
        's=cooling_load_kw", unit: "kW"', 's=cooling_load_kw", unit: "W", scale: 0.01',
        "link.signals.cooling_load_kw.unit", "CFG_UNIT", ("scale has to be 0.001",)),
    "unit that no scale makes fit": (
        's=outdoor_temperature_degc", unit: "degC"',
        's=outdoor_temperature_degc", unit: "degF", scale: 0.5',
        "link.signals.outdoor_temperature_degc.unit", "CFG_UNIT", ("deliver degC",)),
    "scale of nothing": (
        's=cooling_load_kw", unit: "kW"', 's=cooling_load_kw", unit: "kW", scale: 0.0',
        "link.signals.cooling_load_kw.scale", "CFG_BOUNDS", ("0",)),
    "unknown freshness": (
        's=cooling_load_kw", unit: "kW"', 's=cooling_load_kw", unit: "kW", freshness: never',
        "link.signals.cooling_load_kw.freshness", "CFG_TYPE", ("arrival",)),
    "unknown type of a measurement": (
        's=cooling_load_kw", unit: "kW"', 's=cooling_load_kw", unit: "kW", wire: Real',
        "link.signals.cooling_load_kw.wire", "CFG_TYPE", ("Float",)),
    "unit of another scale": (
        's=cooling_load_kw", unit: "kW"', 's=cooling_load_kw", unit: "W"',
        "link.signals.cooling_load_kw.unit", "CFG_UNIT", ("W", "kW")),
    "unit of another dimension": (
        's=cooling_load_kw", unit: "kW"', 's=cooling_load_kw", unit: "kWh"',
        "link.signals.cooling_load_kw.unit", "CFG_UNIT", ("dimension",)),
    "wire type that does not exist": (
        "      unit: kW\n", "      wire: Int12\n",
        "link.outputs.storage_discharge_kw.wire", "CFG_TYPE", ("Double",)),
    "period of another plant": (
        "period: 15 min", "period: 10 min", "period", "CFG_TIMING", ("600", "900")),
    "time-out longer than the period": (
        "source: paced", "source: paced\n  time_scale: 9000",
        "", "CFG_TIMING", ("request_timeout", "0.1")),
    "too slow for the process": (
        "modes:\n", "safety: {process_safety_time: 20 min}\n\nmodes:\n",
        "", "CFG_TIMING", ("process_safety_time", "900")),
    "unknown heuristic": (
        "heuristic: demand_limiting", "heuristic: hope",
        "fallback.heuristic", "CFG_HEURISTIC", ("demand_limiting",)),
    "limit that is widened": (
        "modes:\n", "safety: {limits: {storage_discharge_kw: {high: 900 kW}}}\n\nmodes:\n",
        "safety.limits.storage_discharge_kw", "CFG_BOUNDS", ("900", "tighten")),
    "limits turned round": (
        "modes:\n",
        "safety: {limits: {storage_discharge_kw: {low: 10 kW, high: 5 kW}}}\n\nmodes:\n",
        "safety.limits.storage_discharge_kw", "CFG_BOUNDS", ("order",)),
    "limit of an unknown output": (
        "modes:\n", "safety: {limits: {pump_kw: {high: 9 kW}}}\n\nmodes:\n",
        "safety.limits.pump_kw", "CFG_BOUNDS", ("storage_discharge_kw",)),
    "metrics open to everyone": (
        "listen: 127.0.0.1:9464", "listen: 0.0.0.0:9464",
        "metrics", "CFG_LISTEN", ("0.0.0.0", "token_file")),
    "metrics on no address": (
        "listen: 127.0.0.1:9464", "listen: localhost", "metrics", "CFG_LISTEN",
        ("127.0.0.1:9464",)),
    "metrics on no port": (
        "listen: 127.0.0.1:9464", "listen: 127.0.0.1:99999", "metrics", "CFG_LISTEN", ("99999",)),
    "panel open to everyone": (
        "metrics:\n", "panel:\n  listen: 0.0.0.0:9465\nmetrics:\n",
        "panel", "CFG_LISTEN", ("0.0.0.0", "ssh -L")),
    "panel on no address": (
        "metrics:\n", "panel:\n  listen: localhost:9465\nmetrics:\n",
        "panel", "CFG_LISTEN", ("127.0.0.1:9465",)),
    "panel on the metrics' port": (
        "metrics:\n", "panel:\n  listen: 127.0.0.1:9464\nmetrics:\n",
        "", "CFG_LISTEN", ("127.0.0.1:9464", "another port")),
    "panel by a name that is an address bar": (
        "metrics:\n", "panel:\n  hosts: ['http://panel']\nmetrics:\n",
        "panel.hosts.0", "CFG_TYPE", ("http://panel",)),
    "panel with a signal there is not": (
        "metrics:\n", "panel:\n  signals: [cooling_laod_kw]\nmetrics:\n",
        "panel.signals.0", "CFG_UNKNOWN", ("cooling_laod_kw", "cooling_load_kw")),
    "panel with a signal twice": (
        "metrics:\n", "panel:\n  signals: [cooling_load_kw, cooling_load_kw]\nmetrics:\n",
        "panel.signals.1", "CFG_DUP", ("twice",)),
    "scada open to everyone": (
        "metrics:\n", SCADA.replace("127.0.0.1:4841", "0.0.0.0:4841"),
        "scada", "CFG_LISTEN", ("0.0.0.0", "allow_remote")),
    "scada on no address": (
        "metrics:\n", SCADA.replace("127.0.0.1:4841", "localhost"),
        "scada", "CFG_LISTEN", ("127.0.0.1:4841",)),
    "scada without users": (
        "metrics:\n", SCADA.replace("  users_file: pki/users\n", ""),
        "scada", "CFG_SECURITY", ("users_file",)),
    "scada without anything": (
        "metrics:\n", "scada: {}\nmetrics:\n",
        "scada", "CFG_SECURITY", ("certificate, private_key, trusted, users_file",)),
    "scada with half a word": (
        "metrics:\n", "scada:\n  insecure_no_encryption: i_accept\nmetrics:\n",
        "scada", "CFG_SECURITY", ("i_accept_that_anyone",)),
    "scada with passwords in the clear": (
        "metrics:\n", SCADA.replace("  sessions", f"  insecure_no_encryption: {INSECURE_WORD}\n"
                                    "  sessions"),
        "scada", "CFG_SECURITY", ("remove users_file",)),
    "scada's files that are not there": (
        "metrics:\n", SCADA.replace("pki/users", "pki/nobody"), "scada.users_file", "CFG_FILE",
        ("pki/nobody", "No such file")),
    "scada's users in a file of another kind": (
        "metrics:\n", SCADA.replace("pki/users", "pki/password"), "scada.users_file", "CFG_FILE",
        ("pki/password", "is no name:role:proof")),
    "scada's folder of trust that is not there": (
        "metrics:\n", SCADA.replace("trusted_clients", "nowhere"), "scada.trusted", "CFG_FILE",
        ("pki/nowhere", "no folder")),
    "scada with a key that does not fit": (
        "metrics:\n", SCADA.replace("server_key", "user_key"),
        "scada.private_key", "CFG_FILE", ("user_key.pem",)),
    "scada for nobody at all": (
        "metrics:\n", SCADA.replace("sessions: 8", "sessions: 0"),
        "scada.sessions", "CFG_BOUNDS", ("0",)),
    "panel's tokens that are not there": (
        "metrics:\n", "panel:\n  token_file: pki/nowhere\nmetrics:\n",
        "panel.token_file", "CFG_FILE", ("No such file",)),
    "panel's tokens without names": (
        "metrics:\n", "panel:\n  token_file: pki/password\nmetrics:\n",
        "panel.token_file", "CFG_FILE", ("line 1", "openssl rand")),
    "no such group": (
        "  socket: var/operator.sock", "  socket: var/operator.sock\n  group: nosuchgroup",
        "operator.group", "CFG_USER", ("nosuchgroup", "groupadd")),
    "no such user": (
        "  socket: var/operator.sock", "  socket: var/operator.sock\n  operators: [nosuchuser]",
        "operator.operators.0", "CFG_USER", ("nosuchuser",)),
    "socket name too long": (
        "socket: var/operator.sock", f"socket: var/{'x' * 120}.sock",
        "operator.socket", "CFG_FILE", ("107",)),
    "journal inside a file": (
        "directory: var/journal", "directory: steadyhand.yaml/journal",
        "journal.directory", "CFG_FILE", ("no folder",)),
    "no bundle there": (
        "file: thermal_storage.shb", "file: nothing.shb",
        "bundle.file", "BUNDLE_", ("nothing.shb",)),
    "no trusted keys": (
        "trusted_keys: keys", "trusted_keys: nokeys", "bundle.trusted_keys", "CFG_FILE",
        ("nokeys",)),
    "deadline longer than the period": (
        "source: paced", "source: paced\n  time_scale: 1800",
        "", "CFG_TIMING", ("0.5",)),
    "negative time scale": (
        "source: paced", "source: paced\n  time_scale: -1.0",
        "clock.time_scale", "CFG_BOUNDS", (">= 0.001",)),
    "time that hardly passes": (
        "source: paced", "source: paced\n  time_scale: 1.0e-300",
        "clock.time_scale", "CFG_BOUNDS", (">= 0.001",)),
    "period no network keeps": (
        "source: paced", "source: plant\n  time_scale: 1000000.0",
        "", "CFG_TIMING", ("0.0009 s", "lower time_scale")),
    "deadline longer than the plant's beat": (
        "source: paced", "source: plant\n  time_scale: 1800",
        "", "CFG_TIMING", ("inference.deadline", "0.5")),
    "images looked for too seldom": (
        "request_timeout: 1 s", "request_timeout: 1 s\n  publishing: 8 min",
        "", "CFG_TIMING", ("link.publishing 480", "half")),
    "command that outlives its time": (
        "request_timeout: 1 s", "request_timeout: 1 s\n  command_life: 31 min",
        "", "CFG_TIMING", ("link.command_life 1860", "two")),
    "memory that nothing fits into": (
        "deadline: 500 ms", "deadline: 500 ms\n  memory: 1 MiB",
        "inference.memory", "CFG_BOUNDS", ("1 MiB", "2.68435e+08")),
    "user without a name": (
        "user: controller", 'user: ""', "link.security.user", "CFG_TYPE", ("at least 1",)),
    "key of another certificate": (
        "pki/client_key.pem", "pki/server_key.pem",
        "link.security.private_key", "CFG_FILE", ("server_key.pem", "client_cert.der")),
    "key that is none": (
        "pki/client_key.pem", "pki/password",
        "link.security.private_key", "CFG_FILE", ("private key",)),
    "empty password": (
        "pki/password", "pki/empty", "link.security.password_file", "CFG_FILE", ("only line",)),
    "token that is empty": (
        "listen: 127.0.0.1:9464", "listen: 127.0.0.1:9464\n  token_file: pki/empty",
        "metrics.token_file", "CFG_FILE", ("only line",)),
    "token that is no text": (
        "listen: 127.0.0.1:9464", "listen: 127.0.0.1:9464\n  token_file: pki/bytes",
        "metrics.token_file", "CFG_FILE", ("UTF-8",)),
    "token that is not there": (
        "listen: 127.0.0.1:9464", "listen: 127.0.0.1:9464\n  token_file: pki/nowhere",
        "metrics.token_file", "CFG_FILE", ("No such file",)),
    "socket where a file is": (
        "socket: var/operator.sock", "socket: steadyhand.yaml",
        "operator.socket", "CFG_FILE", ("something else is there",)),
    "socket where nothing can be": (
        "socket: var/operator.sock", "socket: /proc/operator.sock",
        "operator.socket", "CFG_FILE", ("/proc", "nothing can be written")),
    "journal in a device": (
        "directory: var/journal", "directory: /dev/null/journal",
        "journal.directory", "CFG_FILE", ("/dev/null is no folder",)),
    "journal where nothing can be": (
        "directory: var/journal", "directory: /proc/journal",
        "journal.directory", "CFG_FILE", ("/proc", "nothing can be written")),
    "journal that is a file": (
        "directory: var/journal", "directory: steadyhand.yaml",
        "journal.directory", "CFG_FILE", ("no folder",)),
    "journal among the certificates": (
        "directory: var/journal", "directory: pki",
        "journal.directory", "CFG_FILE", ("holds the link's certificate", "of its own")),
    "journal beside the configuration": (
        "directory: var/journal", "directory: .",
        "journal.directory", "CFG_FILE", ("holds this configuration", "of its own")),
    "socket where the journal is": (
        "socket: var/operator.sock", "socket: var/journal",
        "operator.socket", "CFG_FILE", ("journal's directory", "of its own")),
    "a number of 5000 hexadecimal digits": (
        "clean_ticks: 4", f"clean_ticks: 0x{5000 * 'f'}",
        "", "CFG_LIMIT", ("a number of 5002 characters",)),
    "grant on a measurement": (
        "s=control_granted", "s=cooling_load_kw", "link", "CFG_DUPTAG", ("handshake.granted",)),
    "time of the plant on a measurement": (
        "s=plant_time_s", "s=storage_energy_kwh", "link", "CFG_DUPTAG", ("handshake.plant_time",)),
    "request and heartbeat on one node": (
        "s=control_request", "s=controller_heartbeat", "link", "CFG_DUPTAG",
        ("handshake.request", "handshake.heartbeat")),
    "journal whose lock is a link": (
        "directory: var/journal", "directory: locked",
        "journal.directory", "CFG_FILE", ("lock", "no regular file")),
    "not a number at all": (
        "source: paced", "source: paced\n  time_scale: .nan",
        "clock.time_scale", "CFG_TYPE", ("finite",)),
    "alias": (
        "name: north-building", "name: &n north-building\nother: *n", "", "CFG_LIMIT", ("&n",)),
    "python tag": (
        "name: north-building", "name: !!python/object:os.system x", "", "CFG_TYPE", ("tag",)),
    "second document": ("period: 15 min", "period: 15 min\n---\na: 1", "", "CFG_YAML", ("second",)),
    "broken yaml": ("parameters: {}", "parameters: {", "", "CFG_YAML", ("not YAML",)),
    "tab": ("  id: thermal_storage", "\tid: thermal_storage", "", "CFG_YAML", ("not YAML",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def plant_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped configuration with the certificates it names, sound as it stands."""
    from steadyhand.adapters.sim.certificates import make_pki

    folder = tmp_path_factory.mktemp("plant")
    shutil.copytree(SHIPPED.parent, folder, dirs_exist_ok=True)
    make_pki(folder / "pki", "thermal_storage")
    for name, content in (("empty", b"\n"), ("bytes", b"\xff\xfe")):
        (folder / "pki" / name).write_bytes(content)
        (folder / "pki" / name).chmod(0o600)
    make_authority(folder / "stranger", "stranger", bits=2048)
    (folder / "pki" / "trusted_nobody").mkdir()
    people = {"ann": Person("ann", Role.OPERATE, password_proof("password of ann"))}
    write_people(folder / "pki" / "users", people)
    (folder / "locked").mkdir()
    (folder / "locked" / "lock").symlink_to(folder / "pki" / "empty")
    return folder


def write(folder: Path, text: str) -> Path:
    file = folder / "steadyhand.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_shipped_configuration_is_sound(plant_folder: Path) -> None:
    loaded, problems = check(write(plant_folder, SHIPPED.read_text()))
    assert problems == []
    assert loaded is not None
    assert loaded.config.period == 900.0


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_configuration_is_refused_with_place_value_and_remedy(
    name: str, plant_folder: Path
) -> None:
    old, new, field, code, words = BROKEN[name]
    text = SHIPPED.read_text()
    if not field.startswith("bundle"):
        text = WITHOUT_BUNDLE  # trying a bundle takes a second, and these are many
    assert text.count(old) >= 1, f"the shipped file no longer holds {old!r}"
    broken = text.replace(old, new, 1)
    file = write(plant_folder, broken)

    _, problems = check(file)

    matching = [p for p in problems if p.field == field and p.code.startswith(code)]
    assert matching, [problem.text("file") for problem in problems]
    problem = matching[0]
    assert 0 < problem.line <= len(broken.splitlines())
    for word in words:
        assert word in problem.message
    first = f"{file}:{problem.line}: "
    assert problem.text(str(file)).startswith(first)


@pytest.mark.parametrize("name", BROKEN)
def test_what_check_refuses_run_refuses_likewise(name: str, plant_folder: Path) -> None:
    """Same exit code, same words; and nothing was started or written."""
    old, new, field, _, _ = BROKEN[name]
    text = SHIPPED.read_text() if field.startswith("bundle") else WITHOUT_BUNDLE
    file = write(plant_folder, text.replace(old, new, 1))
    before = sorted(plant_folder.rglob("*"))
    _, problems = check(file)
    with pytest.raises(ConfigError) as refused:
        serve(file, max_ticks=1, quiet=True)
    assert exit_of(refused.value) == 78
    assert set(str(refused.value).splitlines()) == {
        line for problem in problems for line in problem.text(str(file)).splitlines()
    }
    if field == "bundle.file":  # what runs after crashes is decided, and remembered, before that
        shutil.rmtree(plant_folder / "var", ignore_errors=True)
    assert sorted(plant_folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("directory", "code", "words"),
    [
        ("/dev/null/x", "CFG_FILE", "/dev/null is no folder"),
        ("open/journal", "BUNDLE_STATE", "others may write to it"),
    ],
)
def test_a_place_for_the_state_that_will_not_do_is_no_fault_of_the_bundle(
    directory: str, code: str, words: str, plant_folder: Path
) -> None:
    (plant_folder / "open").mkdir(exist_ok=True)
    (plant_folder / "open").chmod(0o777)
    text = SHIPPED.read_text().replace("directory: var/journal", f"directory: {directory}")
    _, problems = check(write(plant_folder, text))
    (plant_folder / "open").rmdir()
    assert [(one.field, one.code) for one in problems] == [("journal.directory", code)]
    assert words in problems[0].message
    assert "directory:" in text.splitlines()[problems[0].line - 1]


def test_two_plants_do_not_share_a_folder_of_state(plant_folder: Path) -> None:
    """Another journal below the same folder: overrides, crashes and bundles would be each other's.

    Nothing of either is touched: the one that was there first goes on.
    """
    file = write(plant_folder, WITHOUT_BUNDLE.replace("var/journal", "site/south"))
    (plant_folder / "site").mkdir(mode=0o700)
    state = plant_folder / "site" / KEPT_FILE
    save_kept(state, "north-building", Kept(Mode.FULL), 0.0, Moment.now())
    before = {path: path.read_bytes() for path in state.parent.iterdir()}
    assert check(file)[1] == []
    text = file.read_text().replace("name: north-building", "name: south-building")
    file.write_text(text)
    _, (problem,) = check(file)
    assert (problem.field, problem.code) == ("journal.directory", "CFG_STATE")
    assert "directory:" in text.splitlines()[problem.line - 1]
    for word in (str(state), "'north-building'", "'south-building'", "a folder of its own"):
        assert word in problem.message
    with pytest.raises(ConfigError) as refused:
        serve(file, max_ticks=1, quiet=True)
    assert str(refused.value) == problem.text(str(file))
    assert {path: path.read_bytes() for path in state.parent.iterdir()} == before
    shutil.rmtree(state.parent)


@pytest.mark.parametrize("label", ["observation", "output"])
@pytest.mark.parametrize("name", RESERVED_NAMES)
def test_a_plant_whose_signal_is_called_like_a_node_of_the_handshake(
    name: str, label: str, plant_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be read from that node, with status Good."""
    kind, of = plant_kind("thermal_storage"), f"{label}s"
    first, *others = getattr(ThermalStorage(kind.parameters), of).signals

    class Called(ThermalStorage):
        """The shipped plant, whose first signal has another name."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            setattr(self, of, SignalSet((replace(first, name=name), *others)))

    monkeypatch.setitem(PLANTS, kind.id, replace(kind, plant=Called))
    text = WITHOUT_BUNDLE.replace(f"    {first.name}: {{", f"    {name}: {{")
    text = text.replace(f"    {first.name}:\n", f"    {name}:\n")
    line = 1 + next(i for i, row in enumerate(text.splitlines()) if row.startswith(f"    {name}:"))
    _, problems = check(write(plant_folder, text))
    field = f"link.{'signals' if label == 'observation' else 'outputs'}.{name}"
    (found,) = [one for one in problems if one.field == field]
    assert (found.line, found.code) == (line, "CFG_DUPTAG")
    assert f"{label} {name!r} is called like the" in found.message
    assert "rename the signal" in found.message


def quantities() -> Iterator[tuple[str, ...]]:
    """Where in the file the quantities stand, from the schema itself."""
    schema = json_schema()
    sections = {"": schema} | {
        name: schema["$defs"][of]
        for name, of in (
            ("clock", "Clock"), ("link", "OpcUaLink"), ("inference", "Inference"),
            ("fallback", "Fallback"), ("modes", "Modes"), ("safety", "Safety"),
            ("journal", "JournalSection"), ("trust", "Trust"),
        )
    }  # fmt: skip
    for section, of in sections.items():
        for key, field in of["properties"].items():
            kinds = [field, *field.get("anyOf", ())]
            if any("examples" in kind for kind in kinds):
                yield (section, key) if section else (key,)


def altered(place: tuple[str, ...], value: object) -> bytes:
    """The shipped configuration with one value replaced; JSON is YAML."""
    data = read_yaml(WITHOUT_BUNDLE.encode())
    assert isinstance(data, Source)
    node = data.data
    for part in place[:-1]:
        node = node.setdefault(part, {})
    node[place[-1]] = value
    return json.dumps(data.data).encode()


def test_the_schema_tells_all_quantities() -> None:
    assert len(list(quantities())) == 14


@pytest.mark.parametrize("place", list(quantities()), ids=".".join)
@pytest.mark.parametrize("number", ["0", "-0", "-1", "5e-324", "1e-12", "1e300"])
def test_no_quantity_can_be_beyond_all_sense(place: tuple[str, ...], number: str) -> None:
    unit = "byte" if place[-1] in ("memory", "recycle", "segment", "keep") else "s"
    problems = parse_config(altered(place, f"{number} {unit}"), Path("file"))
    assert isinstance(problems, list)
    assert [(p.field, p.code) for p in problems] == [(".".join(place), "CFG_BOUNDS")]
    assert f"'{number} {unit}' is out of bounds: must be from " in problems[0].message


@pytest.mark.parametrize(
    "place",
    [
        ("clock", "time_scale"),
        ("clock", "realtime_priority"),
        ("modes", "clean_ticks"),
        ("modes", "max_raises"),
        ("modes", "limited_share"),
        ("trust", "minimum_confidence"),
    ],
    ids=".".join,
)
@pytest.mark.parametrize("number", [-1, 10**30, -1e-300])
def test_no_number_can_be_beyond_all_sense(place: tuple[str, ...], number: float) -> None:
    problems = parse_config(altered(place, number), Path("file"))
    assert isinstance(problems, list)
    assert [problem.field for problem in problems] == [".".join(place)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15 min", 900.0),
        ("15min", 900.0),
        ("1.5e1  min", 900.0),
        ("+.25 h", 900.0),
        ("1e3s", 1000.0),
    ],
)
def test_a_quantity_may_be_written_closely(text: str, seconds: float) -> None:
    assert magnitude(text, "s") == seconds


@pytest.mark.parametrize("text", ["-50 kW", "-50kW", "\N{MINUS SIGN}50 kW", "-5e1kW", "-0.05 MW"])
def test_a_quantity_may_be_negative(text: str) -> None:
    assert magnitude(text, "kW") == pytest.approx(-50.0)


@pytest.mark.parametrize(
    "text", ["--5 s", "5", "", " ", "s", "5 s s", "5 5 s", "0x5 s", "1_0 s", "\u0665 s"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unit|finite"):
        magnitude(text, "s")


def test_the_line_is_the_line_of_the_fault(plant_folder: Path) -> None:
    text = WITHOUT_BUNDLE.replace("clean_ticks: 4", "clean_ticks: true")
    _, problems = check(write(plant_folder, text))
    expected = next(i for i, line in enumerate(text.splitlines(), 1) if "clean_ticks" in line)
    assert [problem.line for problem in problems] == [expected]


def test_every_problem_is_named_at_once(plant_folder: Path) -> None:
    text = WITHOUT_BUNDLE.replace("period: 15 min", "period: 15")
    text = text.replace("clean_ticks: 4", "clean_ticks: 0")
    text = text.replace("isolation: process", "isolation: prozess")
    text = text.replace("listen: 127.0.0.1:9464", "listen: 0.0.0.0:9464")
    _, problems = check(write(plant_folder, text))
    assert [problem.field for problem in problems] == [
        "period", "inference.isolation", "modes.clean_ticks", "metrics",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "endless", "sparse", "folder"])
@pytest.mark.parametrize("place", ["certificate", "trusted", "private_key", "password_file"])
def test_no_file_is_waited_for_or_read_without_end(plant_folder: Path, kind: str, place: str):
    """`check` and `run` ask the same question, so neither hangs nor fills the memory."""
    odd = plant_folder / "pki" / "odd"
    try:
        if kind == "pipe":
            os.mkfifo(odd, 0o600)
        elif kind == "endless":
            odd.symlink_to("/dev/zero")
        elif kind == "sparse":
            odd.touch(0o600)
            os.truncate(odd, 1 << 40)
        else:
            odd.mkdir()
        names = {
            "certificate": "pki/client_cert.der", "trusted": "pki/server_cert.der",
            "private_key": "pki/client_key.pem", "password_file": "pki/password",
        }  # fmt: skip
        text = SHIPPED.read_text().replace(f": {names[place]}", ": pki/odd")
        text = text.replace(f"[{names[place]}]", "[pki/odd]")
        _, problems = check(write(plant_folder, text))
    finally:
        odd.rmdir() if odd.is_dir() and not odd.is_symlink() else odd.unlink()
    where = f"link.security.{place}" + ".0" * (place == "trusted")
    (message,) = [problem.message for problem in problems if problem.field == where]
    assert message.startswith("pki/odd: ")
    assert "regular file" in message or "longer than" in message or "folder" in message


def test_a_secret_that_others_can_read_is_refused(plant_folder: Path) -> None:
    file = write(plant_folder, SHIPPED.read_text())
    for name, field in (("client_key.pem", "private_key"), ("password", "password_file")):
        secret = plant_folder / "pki" / name
        secret.chmod(0o644)
        try:
            _, problems = check(file)
        finally:
            secret.chmod(0o600)
        assert [problem.field for problem in problems] == [f"link.security.{field}"]
        assert "0644" in problems[0].message
        assert "chmod 600" in problems[0].message


def alias_bomb() -> bytes:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (alias_bomb(), "anchor"),
        (b"a: 1\n" * (1 << 21), "bytes"),
        (b"[" * 10_000, "nested deeper"),
        (b"\xff\xfe", "UTF-8"),
        (b"", "empty"),
        (b"- a\n- b\n", "mapping"),
        (b"\x00", "not YAML"),
        (b"? [a]\n: b\n", ""),
        (b"? a: {b: c}\n", "no plain word"),
        (b"a:  # why\n  b\n\nc: d\n", "without a colon"),
    ],
    ids=[
        "alias bomb",
        "10 MB",
        "depth",
        "not UTF-8",
        "empty",
        "list",
        "NUL",
        "list as key",
        "mapping as key",
        "comment of a word",
    ],
)
def test_hostile_files_are_refused_in_one_line_each(tmp_path: Path, text: bytes, word: str) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_bytes(text)
    loaded, problems = check(file)
    assert loaded is None
    assert problems
    assert word in problems[0].message
    assert "\n" not in problems[0].text("file")


def test_a_file_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    _, problems = check(tmp_path / "none.yaml")
    assert [problem.code for problem in problems] == ["CFG_FILE"]


def test_the_command_prints_every_problem_and_exits_78(plant_folder: Path) -> None:
    text = SHIPPED.read_text().replace("period: 15 min", "peroid: 15 min")
    file = write(plant_folder, text)
    done = steadyhand("check", file)
    assert done.returncode == 78
    assert "did you mean 'period'?" in done.stdout.replace("\n", " ")
    assert "nothing was started" in done.stdout
    assert not (plant_folder / "var").exists()


def test_the_schema_for_editors_is_the_one_of_the_code() -> None:
    stored = json.loads((REPOSITORY / "configs" / "schema.json").read_text())
    assert stored == json_schema(), "run: steadyhand schema > configs/schema.json"


def test_a_pipe_is_no_configuration_and_nobody_waits_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    _, problems = check(pipe)
    assert [problem.message for problem in problems] == ["is no regular file"]
