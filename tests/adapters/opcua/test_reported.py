"""Failures that users of other OPC UA clients have reported: none of them is ours."""

import asyncio
import time

import numpy as np
from asyncua import ua

from steadyhand.adapters.opcua import feed as feeding
from steadyhand.adapters.opcua import worker
from steadyhand.adapters.opcua.settings import OpcUaSettings
from steadyhand.controllers.frames import LinkState
from steadyhand.controllers.reasons import ReasonCode
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.controllers.trust.freshness import Freshness as ImageJudge
from steadyhand.controllers.trust.freshness import FreshnessSettings

SLOTS = 5


def test_nine_good_tags_beside_one_that_only_keeps_its_last_value(plant, opcua, drive) -> None:
    """Uncertain, with a number beside it that never changes and a stamp that does."""
    driver = drive(plant.endpoint).up()
    for number in range(5):
        plant.set("level", 7.0, status=ua.StatusCodes.UncertainLastUsableValue)
        plant.set("flow", float(number))
        opcua.until(lambda n=number: driver.read().values[1] == n)
    observation = driver.read()
    (fault,) = [f for f in observation.faults if f.code is ReasonCode.SAMPLE_UNCERTAIN]
    assert fault.signal == "level"
    assert "UncertainLastUsableValue" in fault.text
    judged = ImageJudge(opcua.tag_map().observation_signals).check(observation)
    assert [(f.code, f.signal) for f in judged] == [(ReasonCode.SAMPLE_UNCERTAIN, "level")]


def test_a_dead_source_behind_a_server_that_stamps_every_answer_is_found_out(
    plant, opcua, drive
) -> None:
    """Fresh by every stamp; only its standing still gives it away."""
    signals = SignalSet(
        (
            Signal("level", "m", -100.0, 100.0, frozen_after_s=0.6),
            *opcua.tag_map().observation_signals.signals[1:],
        )
    )
    judge = ImageJudge(signals, FreshnessSettings(max_repeats=1_000_000))
    driver = drive(plant.endpoint).up()
    told: list[object] = []

    def found() -> bool:
        plant.set("level", 4.0)
        told.extend(judge.check(driver.read()))
        return any(fault.code is ReasonCode.OBS_STUCK for fault in told)

    opcua.until(found)
    assert {fault.code for fault in told} == {ReasonCode.OBS_STUCK}
    assert driver.read().age_s[0] < 1.2


def test_declared_as_float_and_served_as_double_is_refused_by_name(opcua, drive) -> None:
    server = opcua.server()
    node = server.server.get_node(ua.NodeId("level", server.index))
    declared = ua.DataValue(ua.Variant(ua.NodeId(ua.ObjectIds.Float), ua.VariantType.NodeId))
    server.call(node.write_attribute(ua.AttributeIds.DataType, declared))
    for wire_type in ("auto", "Float"):
        tags = opcua.tag_map(level=opcua.tag("level", wire_type=wire_type))
        driver = drive(server.endpoint, tags)
        fault = driver.sees(ReasonCode.TAG_TYPE)
        assert fault.signal == "level"
        assert "served as Double, configured is Float" in fault.text
        assert driver.read().link is not LinkState.UP


def test_a_write_that_acts_although_it_is_answered_with_an_error(plant, opcua, drive) -> None:
    """The read-back decides what the plant does; the error is told all the same."""
    service = plant.server.iserver.attribute_service
    genuine = service.write
    answered = []

    async def acts_and_complains(params, *args, **kwargs):
        results = await genuine(params, *args, **kwargs)
        answered.extend(results)
        return [ua.StatusCode(ua.StatusCodes.BadInternalError) for _ in results]

    driver = drive(plant.endpoint).up()
    service.write = acts_and_complains
    try:
        driver.write(70.0, 3.0)
        assert "BadInternalError" in driver.sees(ReasonCode.WRITE_FAILED).text
        assert all(status.is_good() for status in answered)
        opcua.until(lambda: driver.read().applied[0] == 70.0)
        np.testing.assert_array_equal(driver.read().applied, [70.0, 3.0])
    finally:
        del service.write
    time.sleep(0.3)
    assert not driver.saw(ReasonCode.WRITE_CONTENTION)
    driver.write(71.0)
    driver.clears(ReasonCode.WRITE_FAILED)
    assert plant.get("valve") == 71.0


def test_a_subscription_that_fails_half_way_leaves_no_second_one(plant, opcua, drive) -> None:
    """The call fails, its items work: what was made is taken away before it is tried again."""
    service = plant.server.iserver.subscription_service
    genuine = service.create_monitored_items
    failures = [ua.uaerrors.BadInternalError]

    async def works_and_fails(params, *args, **kwargs):
        made = await genuine(params, *args, **kwargs)
        if failures:
            raise failures.pop()
        return made

    service.create_monitored_items = works_and_fails
    try:
        driver = drive(plant.endpoint, opcua.tag_map(opcua.full_handshake()), subscribe=True).up()
        opcua.until(lambda: not failures)
        numbers = []
        for number in range(2, 6):
            plant.image(number, level=float(number))
            opcua.until(lambda n=number: driver.read().values[0] == n)
            numbers.append(driver.read().sequence)
        time.sleep(1.2 * feeding.RESUBSCRIBE_S)
        plant.image(9, level=9.0)
        opcua.until(lambda: driver.read().values[0] == 9.0)
        numbers.append(driver.read().sequence)
        assert np.all(np.diff(numbers) == 1), "each image once"
        assert len(service.subscriptions) == 1
    finally:
        del service.create_monitored_items


def test_subscriptions_that_expire_again_and_again_leave_nothing_behind(
    plant, opcua, drive, monkeypatch
) -> None:
    monkeypatch.setattr(feeding, "RESUBSCRIBE_S", 0.1)
    driver = drive(plant.endpoint, subscribe=True).up()
    service = plant.server.iserver.subscription_service
    loop = driver.link._worker._loop
    connects = driver.link.connects

    async def expire() -> None:
        await service.delete_subscriptions(list(service.subscriptions))

    def renewed(value: float) -> None:
        opcua.until(lambda: len(service.subscriptions) == 1)
        plant.set("level", value)
        opcua.until(lambda: driver.read().values[0] == value)

    def tasks() -> int:
        return asyncio.run_coroutine_threadsafe(_count(), loop).result(5.0)

    async def _count() -> int:
        return len(asyncio.all_tasks())

    renewed(1.5)
    before = tasks()
    for number in range(6):
        plant.call(expire())
        driver.forget()
        driver.sees(ReasonCode.SUB_STALE)
        renewed(10.0 + number)
    opcua.until(lambda: tasks() <= before)
    assert driver.link.connects == connects, "reads went on: the session was never the matter"


def test_unclean_ends_do_not_keep_us_out(opcua, drive, monkeypatch) -> None:
    """A PLC with five sessions keeps those of the dead for as long as they asked for."""
    server = opcua.server()
    taken: list[float] = []
    """When each session that was never closed may be forgotten."""
    internals = server.server.iserver
    genuine = internals.create_session
    asked_ms: list[float] = []
    session_type = type(internals.isession)
    asked = session_type.create_session

    async def create_session(self, params, *args, **kwargs):
        asked_ms.append(params.RequestedSessionTimeout)
        taken.append(time.monotonic() + params.RequestedSessionTimeout / 1000.0)
        return await asked(self, params, *args, **kwargs)

    refused = 0

    def with_slots(*args, **kwargs):
        nonlocal refused
        taken[:] = [until_s for until_s in taken if until_s > time.monotonic()]
        if len(taken) >= SLOTS:
            refused += 1
            raise ua.uaerrors.BadTooManySessions
        return genuine(*args, **kwargs)

    usual = OpcUaSettings.__dataclass_fields__
    longest_s = usual["session_life_s"].default + worker.NO_SLOT_PAUSE_S
    assert longest_s + usual["connect_timeout_s"].default < 90.0, "at work again within 90 s"
    monkeypatch.setattr(worker, "NO_SLOT_PAUSE_S", 0.5)
    monkeypatch.setattr(session_type, "create_session", create_session)
    internals.create_session = with_slots
    try:
        for _ in range(12):
            proxy = opcua.proxy(server)
            driver = drive(proxy.endpoint, session_life_s=3.0)
            driver.up()
            proxy.cut()  # all that a server sees of a kill -9
            driver.link.close()
    finally:
        internals.create_session = genuine
    assert set(asked_ms) == {3000.0}
    assert refused > 0, "its slots were never full: nothing was tried"


def test_six_hundred_failures_in_a_row_do_not_make_it_give_up(opcua, drive, monkeypatch) -> None:
    """Ten minutes without a server, at one attempt a second."""
    tries = 0
    genuine = worker.open_session

    async def counted(*args):
        nonlocal tries
        tries += 1
        return await genuine(*args)

    monkeypatch.setattr(worker, "open_session", counted)
    server = opcua.server()
    driver = drive(server.endpoint, backoff_first_s=0.001, backoff_cap_s=0.002).up()
    server.stop()
    opcua.until(lambda: tries >= 600, 60.0, what="600 refused connections")
    assert driver.read().link is not LinkState.UP
    server.start()
    driver.up()
    driver.write(5.0)
    opcua.until(lambda: server.get("valve") == 5.0)
