"""The server's thread over its whole life, with a loop played by the test."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import nan

import numpy as np
import pytest
from asyncua import Client, ua

from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import Quality
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.runtime.commands import Desk
from steadyhand.runtime.scada import model, serving
from steadyhand.runtime.scada import server as scada_server
from steadyhand.runtime.scada.server import ScadaServer, ScadaSettings
from steadyhand.runtime.scada.snapshot import Site
from tests.support.loop_rig import until
from tests.support.records import LAYOUT, fresh_recorder, observation, tick_arguments
from tests.support.scada_rig import ScadaFiles, make_client

PERIOD_S = 900.0
SITE = Site("north", "plant_a", "1.2.3", PERIOD_S, 1e5, LAYOUT, None)
INSECURE = ScadaSettings("127.0.0.1", 0, insecure=True)


def status(tick: int, **change):
    """What the loop would say after tick `tick`."""
    return {
        "tick": tick, "time_s": 900.0 * tick, "now_s": 900.0 * tick, "mode": "full",
        "asked": "full", "source": "policy", "why": None,
        "cause": {"code": "OK", "signal": "", "text": ""},
        "link": "up", "granted": True, "handshake": "on", "go_live": "by a word",
        "trusted": True, "gate": "trust", "confidence": 0.93,
        "alarms": [], "shelved": [], "overrides": [], "participation": {"discharge_kw": "policy"},
        "observations": {"energy_kwh": 507.0, "load_kw": 250.0, "flow_kw": 100.0},
        "applied": {"discharge_kw": 100.0}, "proposed": {"discharge_kw": 120.0},
        "wanted": {"discharge_kw": 120.0}, "sent": {"discharge_kw": 100.0}, "written": True,
        "filter": {"mode": "shaped", "outcome": "solved", "margin": 0.02, "nearest": "energy_low",
                   "active": ["energy_low"], "correction_share": 0.02},
        "alarm": "", "journal": {"fault": "", "records": 3, "head": "ab"},
        **change,
    }  # fmt: skip


class Played:
    """A server, and a loop that ticks when the test says so."""

    def __init__(self, settings: ScadaSettings = INSECURE, site: Site = SITE) -> None:
        self.recorder = fresh_recorder()
        self.desk = Desk(record=self.recorder.event)
        self.done: list[tuple] = []
        self.server = ScadaServer(
            settings, site, self.desk, self.recorder, lambda: None, lambda: (41, -1)
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop)

    def _loop(self) -> None:
        def handler(command):
            self.done.append((command.name, dict(command.arguments), command.actor))
            if command.name == "swap":
                raise RequestError("CONFLICT", "a swap is under way")
            return {"did": command.name}

        names = ("mode", "override", "clear-override", "ack", "shelve", "unshelve", "swap", "stop")
        while not self._stop.wait(0.002):
            self.desk.drain(dict.fromkeys(names, handler))

    def tick(self, change=None, **arguments) -> int:
        """One tick, recorded and told."""
        number = self.recorder.sequence
        self.recorder.tick(**tick_arguments(number, **arguments))
        told = status(number, **(change or {}))
        self.desk.publish(told)
        self.server.publish(told)
        return number

    def ask(self, work, **kinds):
        """Do something with a client that is logged in."""

        async def go():
            client = Client(self.server.url, timeout=10, **kinds)
            async with client:
                index = await client.get_namespace_index("urn:steadyhand:loop:north")
                return await work(client, lambda path: ua.NodeId(path, index))

        return asyncio.run(go())

    def read(self, *paths: str) -> list[ua.DataValue]:
        """Values as they come, bad ones too."""

        async def work(client, at):
            nodes = [client.get_node(at(path)) for path in paths]
            return await client.read_attributes(nodes)

        return self.ask(work)

    def there(self) -> bool:
        try:
            self.read("Health.Text")
        except Exception:  # noqa: BLE001  (not yet)
            return False
        return True

    def events(self) -> list[dict]:
        found, _, _ = self.recorder.events.peek(0, 1000)
        return [event.data for event in found]


@contextmanager
def playing(settings: ScadaSettings = INSECURE, site: Site = SITE):
    played = Played(settings, site)
    played._thread.start()
    played.server.open()
    try:
        yield played
    finally:
        played.server.close()
        played._stop.set()
        played._thread.join()


def names_of(values: list[ua.DataValue]) -> list[str]:
    return [value.StatusCode.name for value in values]


def test_a_life():
    """Before the first tick, ticks, silence, the end: what a client sees of each."""
    with playing() as played:
        until(played.there, what="the server without a tick")
        health, tick, level = played.read("Health.Text", "Tick", "Health.Level")
        assert "not ticked yet" in health.Value.Value and level.Value.Value == 1
        assert tick.StatusCode.name == "BadWaitingForInitialData"

        number = played.tick()
        until(lambda: played.read("Tick")[0].Value.Value == number, what="the tick")
        paths = ("Observations.energy_kwh", "Outputs.discharge_kw.Request", "Safety.NearestLimit",
                 "Handshake.ControllerHeartbeat", "Mode.Source", "Decision.Tick")  # fmt: skip
        values = played.read(*paths)
        assert [v.Value.Value for v in values] == [507.0, 100.0, "energy_low", 41, 0, number]
        assert len({v.SourceTimestamp for v in values}) == 1
        (beat, text) = played.read("Handshake.PlantHeartbeat", "Decision.Explanation")
        assert beat.StatusCode.name == "BadNoData"
        assert any(line.startswith("filter:") for line in text.Value.Value)

        # three periods of 900 s at 1e5 times the pace, and a second: silence
        until(lambda: "no tick for" in played.read("Health.Text")[0].Value.Value, what="silence")
        assert (
            names_of(played.read("Tick", "Observations.energy_kwh", "Mode.Source"))
            == ["UncertainLastUsableValue"] * 3
        )
        assert played.read("Health.Level")[0].Value.Value == 10

        played.tick()
        until(lambda: names_of(played.read("Tick")) == ["Good"], what="the next tick")
        assert played.read("Health.Level")[0].Value.Value == 255
    assert not played.there()


def test_what_is_not_known_has_no_number():
    with playing() as played:
        bad = np.array([Quality.GOOD, Quality.BAD, Quality.UNCERTAIN], np.int8)
        played.tick(
            {
                "observations": {"energy_kwh": nan, "load_kw": 250.0, "flow_kw": 100.0},
                "proposed": {"discharge_kw": nan},
                "confidence": nan,
                "filter": None,
            },
            observation=observation(7, quality=bad),
        )
        until(played.there, what="the server")
        until(lambda: played.read("Tick")[0].Value.Value == 0, what="the tick")
        paths = ("Observations.energy_kwh", "Observations.load_kw", "Observations.flow_kw",
                 "Outputs.discharge_kw.Proposed", "Trust.Confidence", "Safety.Margin")  # fmt: skip
        values = played.read(*paths)
        assert names_of(values) == [
            "BadNoData", "BadSensorFailure", "UncertainLastUsableValue", "BadNoData", "BadNoData",
            "BadNoData",
        ]  # fmt: skip
        assert [v.Value.Value for v in values if v.StatusCode.is_bad()] == [None] * 5


def test_whom_an_output_follows_is_what_the_loop_says():
    with playing() as played:
        words = model.TAKING_PART
        for word in words:
            number = played.tick({"participation": {"discharge_kw": word}})
            until(played.there, what="the server")
            until(lambda n=number: played.read("Tick")[0].Value.Value == n, what="the tick")
            (seen,) = played.read("Outputs.discharge_kw.Participation")
            assert words[seen.Value.Value] == word


def test_without_certificates_everybody_is_an_operator_and_an_alarm_says_so():
    with playing() as played:
        assert [fault.code for fault in played.server.faults] == [ReasonCode.SCADA_INSECURE]
        played.tick()
        until(played.there, what="the server")

        async def work(client, at):
            found = []
            for path, arguments in (
                ("Mode.Request", ("shadow", "test")),
                ("Outputs.discharge_kw.SetOverride", (10.0, 60.0, "test")),
                ("Bundle.Swap", ("x.shb", "test")),
            ):
                request = ua.CallMethodRequest()
                request.ObjectId = at(path.rpartition(".")[0])
                request.MethodId = at(path)
                request.InputArguments = [ua.Variant(one) for one in arguments]
                (result,) = await client.uaclient.call([request])
                found.append((result.StatusCode.name, result.OutputArguments[0].Value))
            return found

        assert played.ask(work) == [
            ("Good", "OK"), ("Good", "OK"), ("BadInvalidArgument", "ARGUMENTS"),
        ]  # fmt: skip
        assert played.done == [
            ("mode", {"mode": "shadow", "reason": "test"}, "scada:anonymous"),
            ("override", {"output": "discharge_kw", "value": 10.0, "for_s": 60.0,
                          "reason": "test"}, "scada:anonymous"),
        ]  # fmt: skip


def test_a_refusal_of_the_loop_reaches_the_client_and_the_last_command(tmp_path):
    files = ScadaFiles(tmp_path / "scada")
    settings = ScadaSettings(
        "127.0.0.1", 0, files.server, files.folder / "server_key.pem", files.trusted, files.users,
        tmp_path,
    )  # fmt: skip
    with playing(settings) as played:
        played.tick()

        async def go():
            client = await make_client(played.server.url, files, "eng")
            async with client:
                index = await client.get_namespace_index("urn:steadyhand:loop:north")
                request = ua.CallMethodRequest()
                request.ObjectId = ua.NodeId("Bundle", index)
                request.MethodId = ua.NodeId("Bundle.Swap", index)
                request.InputArguments = [ua.Variant("new.shb"), ua.Variant("better")]
                (result,) = await client.uaclient.call([request])
                paths = ("Actor", "Command", "Code", "Text")
                nodes = [client.get_node(ua.NodeId(f"LastCommand.{p}", index)) for p in paths]
                return result, await client.read_values(nodes)

        def serves():
            try:
                return bool(asyncio.run(_endpoints(played.server.url)))
            except Exception:  # noqa: BLE001  (not yet)
                return False

        until(serves, what="the server")
        result, last = asyncio.run(go())
        assert result.StatusCode.name == "BadInvalidState"
        assert last == ["scada:eng", "Bundle.Swap", "CONFLICT", "a swap is under way"]
        assert played.done == [
            ("swap", {"file": str(tmp_path / "new.shb"), "reason": "better"}, "scada:eng")
        ]
        told = [one for one in played.events() if one.get("what") == "login"]
        assert told[0]["text"] == "eng from 127.0.0.1"


# -- alarms as conditions


def alarm(code="OBS_STALE", **changes):
    return {
        "code": code, "severity": "warning", "text": f"text of {code}", "action": "look at it",
        "since_s": 0.0, "signals": [], "active": True, "latched": False, "shelved": False,
        "unacknowledged": changes.get("latched", False), **changes,
    }  # fmt: skip


class Heard:
    """Events as a client gets them."""

    def __init__(self):
        self.events = []

    def event_notification(self, event):
        self.events.append(event)

    def of(self, code):
        return [one for one in self.events if getattr(one, "ConditionName", None) == code]

    async def until(self, count, code="OBS_STALE"):
        async with asyncio.timeout(20):
            while len(self.of(code)) < count:
                await asyncio.sleep(0.02)
        return self.of(code)[count - 1]


FIELDS = (
    "EventId", "EventType", "SourceName", "Time", "Message", "Severity", "ConditionName", "Retain",
    "LastSeverity", "Comment", "ClientUserId", "SuppressedOrShelved", "ActiveState/Id",
    "AckedState/Id", "ActiveState", "EnabledState/Id",
)  # fmt: skip


def conditions_filter(kind=ua.ObjectIds.ConditionType):
    """As other clients make it: by type, and the condition's id by an empty path."""
    made = ua.EventFilter()
    clauses = [(name.split("/"), ua.AttributeIds.Value) for name in FIELDS]
    for path, attribute in (*clauses, ([], ua.AttributeIds.NodeId)):
        clause = ua.SimpleAttributeOperand()
        clause.TypeDefinitionId = ua.NodeId(ua.ObjectIds.ConditionType)
        clause.BrowsePath = [ua.QualifiedName(name) for name in path]
        clause.AttributeId = attribute
        made.SelectClauses.append(clause)
    wanted = ua.LiteralOperand(ua.Variant(ua.NodeId(kind)))
    element = ua.ContentFilterElement()
    element.FilterOperator, element.FilterOperands = ua.FilterOperator.OfType, [wanted]
    made.WhereClause.Elements = [element]
    return made


async def listen(client, heard, kind=ua.ObjectIds.ConditionType):
    subscription = await client.create_subscription(100, heard)
    await subscription.subscribe_events(ua.ObjectIds.Server, evfilter=conditions_filter(kind))
    return subscription


async def acknowledge(client, condition, event_id, comment="seen"):
    request = ua.CallMethodRequest()
    request.ObjectId = condition
    request.MethodId = ua.NodeId(ua.ObjectIds.AcknowledgeableConditionType_Acknowledge)
    request.InputArguments = [
        ua.Variant(event_id, ua.VariantType.ByteString), ua.Variant(ua.LocalizedText(comment)),
    ]  # fmt: skip
    (result,) = await client.uaclient.call([request])
    return result.StatusCode.name, result.OutputArguments


def state_of(event):
    return getattr(event, "ActiveState/Id"), getattr(event, "AckedState/Id"), event.Retain


def test_each_change_of_an_alarm_is_one_event():
    with playing() as played:
        played.tick()
        until(played.there, what="the server")

        async def work(client, at):
            heard, others = Heard(), Heard()
            await listen(client, heard)
            await listen(client, others, ua.ObjectIds.AuditEventType)
            played.tick({"alarms": [alarm(since_s=0.0)]})
            first = await heard.until(1)
            assert first.NodeId == at("Condition.OBS_STALE")
            assert first.EventType == ua.NodeId(ua.ObjectIds.AlarmConditionType)
            assert state_of(first) == (True, True, True)
            assert (first.Severity, first.LastSeverity, first.SourceName) == (300, 0, "north")
            assert first.Message.Text == "text of OBS_STALE; to do: look at it"
            assert getattr(first, "EnabledState/Id") is True
            played.tick({"alarms": [alarm(text="other numbers")]})
            played.tick({"alarms": [alarm(latched=True, severity="alarm")]})
            second = await heard.until(2)
            assert state_of(second) == (True, False, True)
            assert (second.Severity, second.LastSeverity) == (700, 300)
            played.tick({"alarms": [alarm(latched=True, severity="alarm", shelved=True)]})
            assert (await heard.until(3)).SuppressedOrShelved is True
            played.tick({"alarms": [alarm(latched=True, severity="critical", active=False)]})
            fourth = await heard.until(4)
            assert state_of(fourth) == (False, False, True) and fourth.Severity == 900
            assert fourth.Message.Text.startswith("gone, waits to be acknowledged: ")
            played.tick({"alarms": []})
            fifth = await heard.until(5)
            assert state_of(fifth) == (False, True, False)
            assert len({one.EventId for one in heard.events}) == 5
            played.tick({"alarms": [alarm()]})
            await heard.until(6)
            assert len(heard.events) == 6 and others.events == [], "and nothing else"

        played.ask(work)


def test_an_alarm_is_retained_until_it_is_over_and_acknowledged():
    """Over first, or acknowledged first: as ISA-18.2 has it."""
    there = alarm("LINK_DOWN", severity="alarm", unacknowledged=True)
    gone = {**there, "active": False}
    seen = {**there, "unacknowledged": False}
    with playing() as played:
        played.tick()
        until(played.there, what="the server")

        async def work(client, at):
            heard = Heard()
            await listen(client, heard)
            stories = {(True, False, True): there, (False, False, True): gone}, {
                (True, False, True): there, (True, True, True): seen
            }  # fmt: skip
            count = 0
            for story in stories:
                for expected, told in story.items():
                    played.tick({"alarms": [told]})
                    count += 1
                    assert state_of(await heard.until(count, "LINK_DOWN")) == expected
                event = await heard.until(count, "LINK_DOWN")
                answer = await acknowledge(client, at("Condition.LINK_DOWN"), event.EventId)
                assert answer[0] == ("Good" if told is gone else "BadConditionBranchAlreadyAcked")
                played.tick({"alarms": []})
                count += 1
                assert state_of(await heard.until(count, "LINK_DOWN")) == (False, True, False)

        played.ask(work)


def test_whoever_comes_later_asks_for_a_refresh():
    with playing() as played:
        standing = [alarm("LINK_DOWN", severity="alarm"), alarm("OBS_STALE")]
        played.tick({"alarms": standing})
        until(played.there, what="the server")
        until(lambda: played.read("Alarms.Highest")[0].Value.Value == 2, what="the tick")

        async def work(client, at):
            heard = Heard()
            subscription = await listen(client, heard, ua.ObjectIds.BaseEventType)
            refresh = ua.CallMethodRequest()
            refresh.ObjectId = ua.NodeId(ua.ObjectIds.ConditionType)
            refresh.MethodId = ua.NodeId(ua.ObjectIds.ConditionType_ConditionRefresh)
            answers = []
            mine = subscription.subscription_id
            for number in (mine, mine, mine + 1):
                refresh.InputArguments = [ua.Variant(number, ua.VariantType.UInt32)]
                answers += await client.uaclient.call([refresh])
            await heard.until(1)
            await heard.until(1, "LINK_DOWN")
            async with asyncio.timeout(20):
                while len(heard.events) < 4:
                    await asyncio.sleep(0.02)
            names = {ua.ObjectIdNames[one.EventType.Identifier] for one in heard.events}
            return [one.StatusCode.name for one in answers], names, len(heard.events)

        answers, names, count = played.ask(work)
        assert answers[:2] == ["Good", "BadRefreshInProgress"], "not again and again"
        assert answers[2] == "BadSubscriptionIdInvalid", "not somebody else's"
        assert names == {"RefreshStartEventType", "AlarmConditionType", "RefreshEndEventType"}
        assert count == 4


def test_a_condition_is_acknowledged_by_its_own_method():
    with playing() as played:
        played.tick()
        until(played.there, what="the server")

        async def work(client, at):
            heard, here = Heard(), at("Condition.CRASH_LOOP")
            await listen(client, heard)
            plain = alarm()
            latched = alarm("CRASH_LOOP", severity="critical", latched=True, active=False)
            played.tick({"alarms": [plain, latched]})
            event, other = await heard.until(1, "CRASH_LOOP"), await heard.until(1)
            refused = [
                await acknowledge(client, here, b"\0" * 16),
                await acknowledge(client, at("Condition.OBS_STALE"), other.EventId),
                await acknowledge(client, at("Condition.NOTHING"), event.EventId),
                await acknowledge(client, here, event.EventId, "a\nb"),
            ]
            assert played.done == []
            taken = await acknowledge(client, here, event.EventId, "the valve was stuck")
            played.tick(
                {
                    "alarms": [
                        plain,
                        {**latched, "latched": False, "unacknowledged": False, "active": True},
                    ]
                }
            )
            still = await heard.until(2, "CRASH_LOOP")
            played.tick({"alarms": [plain]})
            last = await heard.until(3, "CRASH_LOOP")
            assert state_of(still) == (True, True, True)
            assert still.ClientUserId == last.ClientUserId, "who did it last stays told"
            return refused, taken, last

        refused, taken, last = played.ask(work)
        assert [name for name, _ in refused] == [
            "BadEventIdUnknown", "BadConditionBranchAlreadyAcked", "BadNodeIdUnknown",
            "BadInvalidArgument",
        ]  # fmt: skip
        assert taken == ("Good", [])
        assert played.done == [("ack", {"code": "CRASH_LOOP"}, "scada:anonymous")]
        assert state_of(last) == (False, True, False)
        assert (last.ClientUserId, last.Comment.Text) == ("scada:anonymous", "the valve was stuck")
        told = [one["code"] for one in played.events() if "door" in one]
        assert told == ["ARGUMENTS", "ACK_DENIED", "UNKNOWN_CODE", "ARGUMENTS"]


def test_an_event_filter_that_costs_too_much_is_refused():
    with playing() as played:
        played.tick()
        until(played.there, what="the server")

        async def work(client, at):
            names = []
            wide = conditions_filter()
            wide.SelectClauses *= 30
            deep = conditions_filter()
            deep.WhereClause.Elements *= 9
            for made in (wide, deep):
                subscription = await client.create_subscription(100, Heard())
                with pytest.raises(ua.UaError) as caught:
                    await subscription.subscribe_events(ua.ObjectIds.Server, evfilter=made)
                names.append(ua.StatusCode(caught.value.code).name)
            return names

        assert played.ask(work) == ["BadEventFilterInvalid"] * 2


def test_a_lamp_per_alarm_is_lit_while_it_is_there_and_not_shelved():
    with playing() as played:
        paths = ("Alarms.Flags.OBS_STALE", "Alarms.Flags.LINK_DOWN", "Alarms.Highest")
        for alarms, wanted in (
            ([], [False, False, 0]),
            ([alarm()], [True, False, 1]),
            ([alarm(), alarm("LINK_DOWN", severity="alarm")], [True, True, 2]),
            ([alarm(), alarm("LINK_DOWN", severity="alarm", shelved=True)], [True, False, 1]),
            ([alarm(active=False, latched=True, severity="critical")], [True, False, 3]),
            ([alarm(active=False, unacknowledged=True, severity="alarm")], [False, False, 0]),
        ):
            number = played.tick({"alarms": alarms})
            until(played.there, what="the server")
            until(lambda n=number: played.read("Tick")[0].Value.Value == n, what="the tick")
            assert [value.Value.Value for value in played.read(*paths)] == wanted


async def _endpoints(url: str):
    return await Client(url, timeout=2).connect_and_get_server_endpoints()


def test_an_address_that_is_taken_is_told_at_once_and_had_later(monkeypatch):
    monkeypatch.setattr(scada_server, "RESTART_FIRST_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        played = Played(replace(INSECURE, port=port))
        played.server.open()
        played.tick()
        (fault,) = [f for f in played.server.faults if f.code is ReasonCode.SCADA_DOWN]
        assert fault.text == f"listen=127.0.0.1:{port}: Address already in use"
        (told,) = [one for one in played.events() if one.get("what") == "failed"]
        assert told["text"].startswith("SCADA_BIND: ")

    def serves():
        try:
            return bool(asyncio.run(_endpoints(played.server.url)))
        except Exception:  # noqa: BLE001  (not yet)
            return False

    until(serves, what="the server")
    until(lambda: not played.server.failed, what="the end of the alarm")
    played.server.close()


def test_a_defect_ends_one_life_and_not_the_next(monkeypatch):
    """Told as an alarm while it lasts; clients get in again without anybody's help."""
    look, lives = serving.Serving.look, []

    async def broken(self):
        lives.append(self)
        if len(set(map(id, lives))) == 1 and len(lives) > 3:
            raise RuntimeError("a defect")
        await look(self)

    monkeypatch.setattr(serving.Serving, "look", broken)
    with playing() as played:
        played.tick()
        until(lambda: played.server.failed, what="the failure")
        codes = {fault.code for fault in played.server.faults}
        assert ReasonCode.SCADA_DOWN in codes
        assert any(one.get("what") == "failed" for one in played.events())
        until(lambda: not played.server.failed and played.there(), what="another life")
        assert len(set(map(id, lives))) == 2


def test_closing_leaves_no_thread_at_whatever_moment():
    for wait_s in (0.0, 0.5, 2.0):
        played = Played()
        played.server.open()
        played.tick()
        time.sleep(wait_s)
        played.server.close()
        played.server.close()
        assert "scada" not in {thread.name for thread in threading.enumerate()}


def test_clients_hear_of_an_orderly_end_before_it_comes():
    ids = ua.ObjectIds
    watched = (
        ids.Server_ServerStatus_State, ids.Server_ServerStatus_SecondsTillShutdown,
        ids.Server_ServerStatus_ShutdownReason, ids.Server_ServiceLevel,
    )  # fmt: skip
    seen, whole = {number: [] for number in watched}, []

    class Watcher:
        def datachange_notification(self, node, value, data):
            seen[node.nodeid.Identifier].append(value)

    with playing() as played:
        played.tick()
        until(played.there, what="the server")

        async def work(client, at):
            subscription = await client.create_subscription(100, Watcher())
            await subscription.subscribe_data_change(
                [client.get_node(ua.NodeId(number)) for number in watched]
            )
            async with asyncio.timeout(10):
                while not all(seen.values()):
                    await asyncio.sleep(0.02)
            threading.Thread(target=played.server.close).start()
            async with asyncio.timeout(10):
                while seen[ids.Server_ServerStatus_State][-1] != ua.ServerState.Shutdown:
                    await asyncio.sleep(0.02)
            whole.append(await client.get_node(ua.NodeId(ids.Server_ServerStatus)).read_value())

        with suppress(ConnectionError, asyncio.TimeoutError, ua.UaError):
            played.ask(work)  # the end may come while we log out
    assert (whole[0].State, whole[0].SecondsTillShutdown) == (
        ua.ServerState.Shutdown,
        serving.LEAVE_S,
    )
    assert seen[ids.Server_ServerStatus_State] == [ua.ServerState.Running, ua.ServerState.Shutdown]
    assert seen[ids.Server_ServerStatus_SecondsTillShutdown][-1] == serving.LEAVE_S
    assert seen[ids.Server_ServerStatus_ShutdownReason][-1].Text.startswith("the runtime stops")
    assert seen[ids.Server_ServiceLevel][-1] == 0


def test_publishing_costs_the_loop_next_to_nothing():
    """One reference and two clocks, whatever the clients do."""
    played = Played()
    told = status(1)
    rounds = 20_000
    empty, full = [], []
    for _ in range(5):
        began_s = time.perf_counter()
        for _ in range(rounds):
            dict(told)
        empty.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        for _ in range(rounds):
            played.server.publish(told)
        full.append(time.perf_counter() - began_s)
    assert min(full) < 20.0 * min(empty)  # as a ratio to copying one small dictionary
