"""The runtime's own OPC UA server, in a real runtime with a real plant: who, what, how much."""

import asyncio
import os
import random
import socket
import struct
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from asyncua import Client, ua
from asyncua.common.utils import ServiceError

from steadyhand.controllers.errors import RequestError
from steadyhand.runtime.operator_client import OperatorClient
from steadyhand.runtime.operator_people import user_name
from steadyhand.runtime.operator_protocol import Role
from steadyhand.runtime.reader import JournalReader
from steadyhand.runtime.scada.model import CONTROLS, SOURCES, TAKING_PART, TYPES, Method
from tests.support.loop_rig import OUTPUT, Rig, until
from tests.support.scada_rig import ScadaFiles, make_client, scada

REFUSED = (ua.UaError, ServiceError, ConnectionError, asyncio.TimeoutError, OSError)
METHODS = {
    "Mode.Request": ("mode", ("full", "test")),
    f"Outputs.{OUTPUT}.SetOverride": ("override", (10.0, 3600.0, "test")),
    f"Outputs.{OUTPUT}.ClearOverride": ("clear-override", ()),
    "Alarms.Acknowledge": ("ack", ("",)),
    "Alarms.Shelve": ("shelve", ("OBS_STALE", 60.0, "test")),
    "Alarms.Unshelve": ("unshelve", ("OBS_STALE",)),
    "Bundle.Swap": ("swap", ("none.shb", "test")),
    "Stop": ("stop", ("test",)),
}


class Running:
    """One runtime that serves SCADA, and its files."""

    def __init__(self, rig: Rig, files: ScadaFiles) -> None:
        self.rig, self.files = rig, files

    @property
    def url(self) -> str:
        line = next(
            text for text in self.rig.said.read_text().splitlines() if text.startswith("  scada")
        )
        return line.split()[1]

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("opc.tcp://").split("/")[0].split(":")
        return host, int(port)

    def client(self, user: str = "ann", **kinds: str):
        return scada(self.url, self.files, user, **kinds)

    def serves(self) -> bool:
        async def there():
            try:
                return bool(await Client(self.url, timeout=3).connect_and_get_server_endpoints())
            except Exception:  # noqa: BLE001  (not yet, whatever it says)
                return False

        return asyncio.run(there())

    def events(self, name: str) -> list[dict]:
        with JournalReader(self.rig.journal) as journal:
            return [event.data for event in journal.events() if event.event == name]


def start(folder: Path, bundles, bundle: Path, time_scale: float = 1800.0) -> Running:
    files = ScadaFiles(folder / "rig" / "scada")
    rig = Rig(
        folder / "rig",
        time_scale=time_scale,
        bundle=bundle,
        keys=bundles.keys,
        changes={"operator:\n": files.section() + "operator:\n"},
    )
    rig.start_plant()
    rig.write_config()
    rig.start_runtime()
    rig.wait_in_control()
    running = Running(rig, files)
    until(running.serves, what="the SCADA server", instead=rig.story)
    return running


@pytest.fixture(scope="module")
def running(bundles, first_bundle):
    with tempfile.TemporaryDirectory(prefix="scl") as name:
        made = start(Path(name), bundles, first_bundle)
        try:
            yield made
        finally:
            made.rig.close()


def refused_with(work) -> str:
    """Name of the StatusCode with which something was refused."""
    with pytest.raises(REFUSED) as caught:
        asyncio.run(work())
    code = getattr(caught.value, "code", None)
    return ua.StatusCode(code).name if code else type(caught.value).__name__


# -- who


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        ({"password": "a guess"}, "BadUserAccessDenied"),
        ({"user": "nobody", "password": "anything"}, "BadUserAccessDenied"),
        ({"user": "cat", "password": "who logs in by certificate"}, "BadUserAccessDenied"),
        ({"user": ""}, "BadIdentityTokenRejected"),
        ({"cert": "stranger"}, "BadConnectionClosed"),
        ({"cert": "expired"}, "BadConnectionClosed"),
    ],
)
def test_who_is_not_let_in(running, kinds, status):
    async def go():
        async with running.client(**kinds):
            pass

    name = refused_with(go)
    if kinds.get("user") == "":
        # the library logs in with the channel's certificate when it has no user
        assert name in ("BadUserAccessDenied", status)
    elif "cert" in kinds:
        assert name in (status, "ConnectionError", "TimeoutError", "UaError")
    else:
        assert name == status


def test_a_refused_client_is_kept_for_approval_and_told(running):
    async def go():
        async with running.client(cert="stranger"):
            pass

    refused_with(go)
    kept = list((running.files.folder / "rejected").glob("*.der"))
    assert [path.read_bytes() for path in kept] == [
        (running.files.folder / "stranger.der").read_bytes()
    ]
    told = running.rig.cli("scada", "clients", "CONFIG", "--json").stdout
    assert kept[0].stem in told and '"refused"' in told


def test_a_person_by_certificate(running):
    async def go():
        client = await make_client(running.url, running.files, user="")
        await client.load_client_certificate(str(running.files.folder / "person.der"))
        await client.load_private_key(str(running.files.folder / "person_key.pem"))
        async with client:
            node = client.get_node(ua.NodeId(ua.ObjectIds.Server_ServiceLevel))
            assert await node.read_value() > 0

    asyncio.run(go())

    def told():
        logins = [one["text"] for one in running.events("Scada") if one["what"] == "login"]
        return any(text.startswith("cat from 127.0.0.1") for text in logins)

    until(told, what="the record of the log-in")


@pytest.mark.parametrize(("user", "role"), [("vic", 0), ("ann", 1), ("eng", 2)])
def test_roles_by_methods(running, user, role):
    """Everything above one's role is refused with that reason; nothing else is."""

    async def go():
        seen = {}
        async with running.client(user) as client:
            for path, (command, arguments) in METHODS.items():
                if command != "stop" or role == 0:
                    seen[command] = await client.call(path, *arguments)
                    await asyncio.sleep(0.12)  # ten commands a second are one person's share
        return seen

    needed = {
        member.command: member.role
        for kind in TYPES.values()
        for member in kind.members
        if isinstance(member, Method)
    }
    assert set(needed) == {command for command, _ in METHODS.values()}
    for command, (status, code, text) in asyncio.run(go()).items():
        if role < needed[command]:
            assert (status, code) == ("BadUserAccessDenied", "ROLE"), command
            assert needed[command].name.lower() in text
        else:
            assert code != "ROLE", command


def test_a_role_that_is_changed_holds_at_once(running):
    async def go():
        async with running.client("ann") as client:
            running.files.change_role("ann", Role.VIEW)
            try:
                seen = await client.call("Mode.Request", "full", "test")
            finally:
                running.files.change_role("ann", Role.OPERATE)
            return seen, await client.call("Mode.Request", "full", "test")

    before, after = asyncio.run(go())
    assert before[:2] == ("BadUserAccessDenied", "ROLE")
    assert after[0] == "Good"


def test_whoever_is_taken_out_is_put_out(running):
    async def go():
        async with running.client("vic") as client:
            assert await client.value("Plant") == "thermal_storage"
            running.files.change_role("vic", None)
            with pytest.raises(REFUSED):
                async with asyncio.timeout(10):
                    while True:
                        await client.value("Plant")
                        await asyncio.sleep(0.1)

    people = running.files.users.read_bytes()
    try:
        with suppress(*REFUSED):  # logging out of a closed connection
            asyncio.run(go())
        asyncio.run(_refused(running, "vic"))
    finally:
        running.files.users.write_bytes(people)


async def _refused(running, user):
    with pytest.raises(REFUSED):
        async with running.client(user):
            pass


# -- what


def test_what_the_socket_says_and_what_the_nodes_say(running):
    async def go():
        async with running.client() as client:
            names = (
                "Tick", "Mode.InForce", "Mode.Source", "Handshake.Granted", "Bundle.Name",
                "Bundle.Hash", "Journal.Records", "Health.Level", "Decision.Explanation",
            )  # fmt: skip
            return {name: await client.value(name) for name in names}

    before, seen, after = running.rig.ask(), asyncio.run(go()), running.rig.ask()
    assert before["tick"] <= seen["Tick"] <= after["tick"]
    assert seen["Mode.InForce"] == 4 and after["mode"] == "full"
    assert f"{seen['Bundle.Name']} v1" == after["bundle"]
    assert len(seen["Bundle.Hash"]) == 64
    assert seen["Decision.Explanation"][0].startswith("tick ")


def test_a_command_is_journalled_with_the_name_of_the_person(running):
    async def go():
        async with running.client("eng") as client:
            assert (await client.call("Mode.Request", "full", "seen by an auditor"))[0] == "Good"
            names = ("Actor", "Command", "Code")
            return {name: await client.value(f"LastCommand.{name}") for name in names}

    last = asyncio.run(go())
    assert last == {"Actor": "scada:eng", "Command": "Mode.Request", "Code": "OK"}

    def kept():
        return any(
            one.get("actor") == "scada:eng" and "seen by an auditor" in str(one.get("text"))
            for one in running.events("Event")
        )

    until(kept, what="the record of the command")


def test_override_alarm_and_shelf_from_begin_to_end(running):
    async def go():
        async with running.client() as client:
            output = f"Outputs.{OUTPUT}"
            assert (await client.call(f"{output}.SetOverride", 25.0, 5400.0, "test"))[0] == "Good"
            await client.until(f"{output}.Participation", 5)  # override
            await client.until(f"{output}.OverrideValue", 25.0)
            until_when = await client.value(f"{output}.OverrideUntil")
            other = await client.call(f"{output}.SetOverride", 900.0, 60.0, "test")
            assert other[:2] == ("BadOutOfRange", "OUT_OF_RANGE")
            assert (await client.call(f"{output}.ClearOverride"))[0] == "Good"
            await client.until(f"{output}.OverrideActive", False)
            return until_when

    until_when = asyncio.run(go())
    left_s = until_when.timestamp() - time.time()
    assert -2.0 < left_s < 5400.0 / 1800.0  # plant seconds became the wall's


def test_a_dead_plant_is_an_alarm_that_can_be_shelved(running):
    plant = running.rig.plant

    async def go():
        async with running.client() as client:
            plant.kill()
            try:
                async with asyncio.timeout(30):
                    while not await client.value("Alarms.Flags.LINK_DOWN"):
                        await asyncio.sleep(0.1)
                level = await client.client.get_node(
                    ua.NodeId(ua.ObjectIds.Server_ServiceLevel)
                ).read_value()
                feedback = await client.data(f"Outputs.{OUTPUT}.Feedback")
                gauge = await client.data("Observations.storage_energy_kwh")
                shelved = await client.call(
                    "Alarms.Shelve", "LINK_DOWN", 86_000.0, "the plant is being changed"
                )
                await client.until("Alarms.ShelvedCodes", ["LINK_DOWN"])
                names = ("Alarms.Shown", "Alarms.Codes", "Alarms.States")
                nodes = [client.client.get_node(client.id(name)) for name in names]
                image = await client.client.read_values(nodes)  # one request: one image
                back = await client.call("Alarms.Unshelve", "LINK_DOWN")
                return level, feedback, gauge, shelved, image, back
            finally:
                running.rig.start_plant()

    level, feedback, gauge, shelved, (shown, still, states), back = asyncio.run(go())
    assert level == 50  # alive, but no plant
    assert not feedback.StatusCode.is_good() and not gauge.StatusCode.is_good()
    assert shelved[0] == "Good" and back[0] == "Good"
    assert "LINK_DOWN" in still and "active and unacknowledged and shelved" in states
    assert shown == len(still) - 1
    running.rig.wait_in_control()
    names = Counter(name for name in ("Shelved", "Unshelved") for _ in running.events(name))
    assert names["Shelved"] and names["Unshelved"]


def test_a_bundle_is_swapped_by_name_by_an_engineer_only(running, bundles):
    bundles.pack("second", 2)

    async def go():
        async with running.client("eng") as client:
            for name in ("../keys/second.shb", "/etc/passwd", ".hidden", "a/b", ""):
                status, code, _ = await client.call("Bundle.Swap", name, "test")
                assert (status, code) == ("BadInvalidArgument", "ARGUMENTS"), name
            status, _, text = await client.call("Bundle.Swap", "second.shb", "better")
            assert status == "Good", text
            await client.until("Bundle.Number", 2)
            return await client.value("Bundle.Name")

    assert asyncio.run(go()) == "second"


def refused_as(running, command, **arguments):
    with pytest.raises(RequestError) as caught:
        running.rig.ask(command, **arguments)
    return caught.value.code


def test_every_refusal_is_in_the_journal_with_its_person_and_its_own_code(running, bundles):
    async def go():
        async with running.client("vic") as client:
            return await client.call("Mode.Request", "full", "may I?")

    assert asyncio.run(go())[1] == "ROLE"
    assert refused_as(running, "mode", mode="warp", reason="test") == "UNKNOWN_MODE"
    assert refused_as(running, "ack", code="NOT_A_CODE") == "UNKNOWN_CODE"
    file = str(bundles.pack("third", 3))
    with OperatorClient(running.rig.folder / "var" / "operator.sock", 15.0) as client:
        client.call("swap", file=file, reason="the first")
        with pytest.raises(RequestError) as caught:
            client.call("swap", file=file, reason="the second, at once")
    assert caught.value.code == "SWAP_UNDER_WAY"
    wanted = {
        ("scada:vic", "mode", "ROLE"),
        (user_name(os.geteuid()), "mode", "UNKNOWN_MODE"),
        (user_name(os.geteuid()), "ack", "UNKNOWN_CODE"),
        (user_name(os.geteuid()), "swap", "SWAP_UNDER_WAY"),
    }

    def told():
        seen = running.events("CommandRefused")
        return wanted <= {(one["actor"], one["command"], one["code"]) for one in seen}

    until(told, what="the refusals", instead=lambda: running.events("CommandRefused"))
    until(lambda: running.rig.status().get("bundle") == "third v3", what="the first swap")


# -- what the plant keeps


def test_an_output_that_the_plant_keeps_is_shown_as_its_own(running):
    """The virtual plant has one output: without it nothing is left to drive, in every place."""
    running.rig.wait_in_control()
    side = running.rig.plant.side

    async def go():
        async with running.client() as client:
            output = f"Outputs.{OUTPUT}"
            await client.until(f"{output}.Participation", TAKING_PART.index("policy"))
            side.keep(OUTPUT, True)
            await client.until(f"{output}.Participation", TAKING_PART.index("plant"))
            await client.until("Handshake.State", CONTROLS.index("fallback"))
            call = await client.call(f"{output}.SetOverride", 25.0, 5400.0, "while it is out")
            await client.until(f"{output}.OverrideActive", True)
            follows = await client.value(f"{output}.Participation")
            await client.call(f"{output}.ClearOverride")
            return call[0], TAKING_PART[follows], await client.value("Mode.Source")

    try:
        called, follows, source = asyncio.run(go())
        assert (called, follows) == ("Good", "plant"), "a person does not get it either"
        assert SOURCES[source] == "hands_off"
        now = running.rig.ask()
        assert now["taken_out"] == [OUTPUT] and now["participation"] == {OUTPUT: "plant"}
        assert "OUTPUT_OUT" in {fault["code"] for fault in now["faults"]}
        assert "the plant keeps it" in running.rig.cli("status", "CONFIG").stdout
        assert running.rig.truth()["controlled"] is False
        before = len(running.rig.writes())
        until(lambda: running.rig.ask()["tick"] > now["tick"] + 3, what="further ticks")
        assert len(running.rig.writes()) == before, "nothing of ours arrives"
    finally:
        side.keep(OUTPUT, False)
    running.rig.wait_in_control()


# -- what is latched


def test_a_latch_is_acknowledged_from_the_event_that_told_of_it(running):
    """Refused writes latch; whoever heard of it acknowledges, and the policy drives again."""
    running.rig.wait_in_control()
    side, code = running.rig.plant.side, "WRITE_DENIED"

    async def go():
        heard = []

        class Handler:
            def event_notification(self, event):
                heard.append(event)

        async def wait_for(active, acked):
            """The newest event of our alarm, once it says so."""
            names, deadline_s = ("ActiveState/Id", "AckedState/Id"), time.monotonic() + 60.0
            while True:
                ours = [event for event in heard if event.ConditionName == code]
                states = [[getattr(event, name) for name in names] for event in ours]
                if states[-1:] == [[active, acked]]:
                    return ours[-1]
                assert time.monotonic() < deadline_s, (states, running.rig.story())
                await asyncio.sleep(0.05)

        async with running.client() as client:
            subscription = await client.client.create_subscription(100, Handler())
            await subscription.subscribe_alarms_and_conditions(
                evtypes=ua.ObjectIds.AlarmConditionType
            )
            side.call("refuse", signal=OUTPUT, status="BadUserAccessDenied")
            await client.until(f"Alarms.Flags.{code}", True, 60.0)
            side.call("refuse", signal=OUTPUT, status=None)
            told = await wait_for(active=False, acked=False)
            request = ua.CallMethodRequest()
            request.ObjectId = client.id(f"Condition.{code}")
            request.MethodId = ua.NodeId(ua.ObjectIds.AcknowledgeableConditionType_Acknowledge)
            request.InputArguments = [
                ua.Variant(told.EventId, ua.VariantType.ByteString),
                ua.Variant(ua.LocalizedText("rights are given again")),
            ]
            (answer,) = await client.client.uaclient.call([request])
            last = await wait_for(active=False, acked=True)
            await client.until(f"Alarms.Flags.{code}", False)
            return told, answer.StatusCode.name, last

    try:
        told, answer, last = asyncio.run(go())
    finally:
        side.call("refuse", signal=OUTPUT, status=None)
    assert (told.Severity, told.Retain, told.SourceName) == (700, True, "north-building")
    assert answer == "Good"
    assert (last.ClientUserId, last.Comment.Text) == ("scada:ann", "rights are given again")
    assert last.Retain is False
    assert running.rig.ask()["latched"] == []
    running.rig.wait_in_control()
    acked = [one for one in running.events("Event") if one.get("code") == "ACK"]
    assert acked[-1]["actor"] == "scada:ann" and code in acked[-1]["text"]


async def state_of(client, code):
    """State of an alarm in the list, read in one image."""
    nodes = [client.client.get_node(client.id(f"Alarms.{name}")) for name in ("Codes", "States")]
    codes, states = await client.client.read_values(nodes)
    return dict(zip(codes, states, strict=True)).get(code)


def test_a_latch_is_acknowledged_by_the_method_of_the_list(running):
    running.rig.wait_in_control()
    side = running.rig.plant.side

    async def go():
        async with running.client() as client:
            side.call("refuse", signal=OUTPUT, status="BadUserAccessDenied")
            await client.until("Alarms.Flags.WRITE_DENIED", True, 60.0)
            side.call("refuse", signal=OUTPUT, status=None)
            async with asyncio.timeout(60):
                while await state_of(client, "WRITE_DENIED") != "latched and unacknowledged":
                    await asyncio.sleep(0.05)
            other = await client.call("Alarms.Acknowledge", "SERVER_ID")
            taken = await client.call("Alarms.Acknowledge", "WRITE_DENIED")
            async with asyncio.timeout(60):
                while await state_of(client, "WRITE_DENIED") is not None:
                    await asyncio.sleep(0.05)
            return other, taken

    try:
        other, taken = asyncio.run(go())
    finally:
        side.call("refuse", signal=OUTPUT, status=None)
    assert other[:2] == ("BadInvalidState", "ACK_DENIED")
    assert taken == ("Good", "OK", "acknowledged WRITE_DENIED")
    running.rig.wait_in_control()


# -- how much


def variants(rng: random.Random) -> list[ua.Variant]:
    """Arguments that somebody may send, and nobody should."""
    kinds = [
        lambda: ua.Variant(rng.choice(["full", "off", "", "\0", "x" * 300, "a\nb", "\u2028"])),
        lambda: ua.Variant(
            rng.choice([0.0, -1.0, 1e308, float("nan"), float("inf"), -0.0]), ua.VariantType.Double
        ),
        lambda: ua.Variant(None, ua.VariantType.Null),
        lambda: ua.Variant(rng.choice([True, False]), ua.VariantType.Boolean),
        lambda: ua.Variant(rng.randrange(2**32), ua.VariantType.UInt32),
        lambda: ua.Variant([1.0, 2.0], ua.VariantType.Double, is_array=True),
        lambda: ua.Variant(["a"] * 5, ua.VariantType.String, is_array=True),
        lambda: ua.Variant(rng.randbytes(rng.randrange(64)), ua.VariantType.ByteString),
        lambda: ua.Variant(ua.NodeId(1, 2), ua.VariantType.NodeId),
        lambda: ua.Variant(ua.LocalizedText("full"), ua.VariantType.LocalizedText),
        lambda: ua.Variant(ua.Range(0.0, 1.0), ua.VariantType.ExtensionObject),
    ]
    return [rng.choice(kinds)() for _ in range(rng.randrange(5))]


def test_arguments_that_nobody_should_send(running):
    """Each call gets a typed answer; none takes anything down, stops the loop or is obeyed."""
    rng = random.Random(7)

    async def go():
        answers: Counter[str] = Counter()
        async with running.client("vic") as client:  # nothing a viewer sends is obeyed
            for _ in range(60):
                path = rng.choice(list(METHODS))
                sent = variants(rng)
                (result,) = await client.call_raw((path, sent))
                answers[result.StatusCode.name] += 1
                assert result.StatusCode.is_bad(), (path, sent)
                assert len(result.OutputArguments) == 2
                assert len(result.InputArgumentResults) >= len(sent)
            assert await client.value("Plant") == "thermal_storage"
        return answers

    answers = asyncio.run(go())
    assert len(answers) >= 3
    assert "BadInternalError" not in answers and "BadUnexpectedError" not in answers


def test_objects_and_methods_that_do_not_exist(running):
    async def go():
        async with running.client() as client:
            request = ua.CallMethodRequest()
            request.ObjectId, request.MethodId = client.id("Nowhere"), client.id("Mode.Request")
            other = ua.CallMethodRequest()
            other.ObjectId, other.MethodId = client.id("Alarms"), client.id("Mode.Request")
            results = await client.client.uaclient.call([request, other])
            return [result.StatusCode.name for result in results]

    assert asyncio.run(go()) == ["BadNodeIdUnknown", "BadMethodInvalid"]


def test_too_much_in_one_request(running):
    async def go():
        async with running.client() as client:
            node = client.client.get_node(client.id("Plant"))
            browse = ua.BrowseParameters()
            browse.NodesToBrowse = [ua.BrowseDescription() for _ in range(1001)]
            codes = []
            for work in (
                client.client.read_values([node] * 1001),
                client.call_raw(*[("Alarms.Unshelve", ("OBS_STALE",))] * 11),
                client.client.uaclient.browse(browse),
            ):
                with pytest.raises(REFUSED) as caught:
                    await work
                codes.append(ua.StatusCode(caught.value.code).name)
            return codes

    assert set(asyncio.run(go())) == {"BadTooManyOperations"}


def test_one_client_cannot_touch_anothers_subscription(running):
    class Nothing:
        def datachange_notification(self, node, value, data):
            pass

    async def go():
        async with running.client() as one, running.client("vic") as other:
            subscription = await one.client.create_subscription(200, Nothing())
            await subscription.subscribe_data_change(one.client.get_node(one.id("Tick")))
            number = subscription.subscription_id
            results = await other.client.uaclient.delete_subscriptions([number])
            codes = {result.name for result in results}
            params = ua.TransferSubscriptionsParameters()
            params.SubscriptionIds = [number]
            with suppress(AttributeError):
                moved = await other.client.uaclient.transfer_subscriptions(params)
                codes |= {result.StatusCode.name for result in moved}
            await subscription.delete()  # still its owner's
            return codes

    assert asyncio.run(go()) == {"BadSubscriptionIdInvalid"}


def test_intervals_queues_and_numbers_of_subscriptions_are_bounded(running):
    async def go():
        async with running.client() as client:
            params = ua.CreateSubscriptionParameters()
            params.RequestedPublishingInterval = 0.0
            params.RequestedLifetimeCount = 2**31
            params.RequestedMaxKeepAliveCount = 2**31
            params.PublishingEnabled = True
            made = [await client.client.create_subscription(params, None) for _ in range(8)]
            assert made[0].parameters is params
            with pytest.raises(REFUSED) as caught:
                await client.client.create_subscription(params, None)
            return ua.StatusCode(caught.value.code).name

    assert asyncio.run(go()) == "BadTooManySubscriptions"


# -- the wire


def hello(size: int = 65_535) -> bytes:
    url = b"opc.tcp://127.0.0.1/"
    body = struct.pack("<IIIII", 0, size, size, 0, 0) + struct.pack("<I", len(url)) + url
    return b"HELF" + struct.pack("<I", len(body) + 8) + body


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 4096,
        b"HELF" + struct.pack("<I", 0),
        b"HELF" + struct.pack("<I", 2**31) + b"x" * 1000,
        b"MSGF" + struct.pack("<I", 2**32 - 1) + b"x" * 100_000,
        b"OPNF" + struct.pack("<I", 100) + b"\xff" * 92,
        hello(1),
        hello() + b"MSGF" + struct.pack("<II", 40, 7) + b"\x41" * 28,
        hello() + b"OPNF" + struct.pack("<II", 70_000, 0) + b"\x00" * 70_000,
        b"".join(hello() for _ in range(2000)),
    ],
    ids=range(10),
)
def test_bytes_that_are_no_request(running, sent):
    """Whatever is sent before a log-in: the connection ends in time, and nobody else notices."""
    with socket.create_connection(running.address, timeout=5.0) as end:
        with suppress(OSError):
            end.sendall(sent)
        end.settimeout(14.0)
        with suppress(ConnectionError):
            while end.recv(65_536):
                pass
    assert running.serves()


def test_connections_without_a_log_in_do_not_lock_others_out(running):
    parked = []
    try:
        for _ in range(40):
            with suppress(OSError):
                parked.append(socket.create_connection(running.address, timeout=2.0))
        until(lambda: _gets_in(running), 20.0, "a place for a person who logs in")
    finally:
        for end in parked:
            end.close()
    assert _gets_in(running)


def _gets_in(running) -> bool:
    async def go():
        async with running.client() as client:
            return await client.value("Plant") == "thermal_storage"

    try:
        return asyncio.run(go())
    except REFUSED:
        return False


def test_a_client_that_never_reads_is_cut_off_and_the_loop_does_not_notice(running):
    """Requests without end, no answer read: the connection goes, the ticks go on."""

    async def go():
        client = await make_client(running.url, running.files)
        async with client:
            transport = client.uaclient.protocol.transport
            transport.pause_reading()
            index = 3
            nodes = [ua.NodeId("Decision.Explanation", index)] * 900
            params = ua.ReadParameters()
            params.NodesToRead = [ua.ReadValueId(node, ua.AttributeIds.Value) for node in nodes]
            request = ua.ReadRequest()
            request.Parameters = params
            pending = []
            deadline = time.monotonic() + 20.0
            while time.monotonic() < deadline and not transport.is_closing():
                pending.append(
                    asyncio.ensure_future(
                        client.uaclient.protocol.send_request(request, timeout=30)
                    )
                )
                await asyncio.sleep(0.05)
                with suppress(RuntimeError):
                    transport.pause_reading()
                if transport.get_write_buffer_size() > 1 << 20:
                    break
            for one in pending:
                one.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    first = running.rig.ask()["tick"]
    began_s = time.monotonic()
    with suppress(*REFUSED, asyncio.CancelledError):
        asyncio.run(go())
    gone_s = time.monotonic() - began_s
    ticks = running.rig.ask()["tick"] - first
    assert ticks >= 0.8 * gone_s / running.rig.period_s - 2
    assert running.serves()


def test_stop_hands_the_plant_back(running):
    """Last: nobody is left to ask."""

    answers, states = [], []

    async def go():
        async with running.client() as client:
            answers.append(await client.call("Stop", "end of the test"))
            state = client.client.get_node(ua.NodeId(ua.ObjectIds.Server_ServerStatus_State))
            while states[-1:] != [ua.ServerState.Shutdown]:
                states.append(await state.read_value())
                await asyncio.sleep(0.05)

    with suppress(*REFUSED):  # logging out may be overtaken by the end
        asyncio.run(go())
    assert answers[0][:2] == ("Good", "OK")
    assert states[-1] == ua.ServerState.Shutdown, "told before it hangs up"
    assert running.rig.runtime.wait(30.0) == 0
    assert not running.rig.truth()["controlled"]
    asked = running.events("StopAsked")
    assert asked[-1]["actor"] == "scada:ann" and asked[-1]["reason"] == "end of the test"
