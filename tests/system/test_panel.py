"""The panel in a real Chromium, of a real runtime that drives a plant over encrypted OPC UA.

One plant, one runtime and one browser for the whole module; the tests follow each other as a night
shift would: look, use the keyboard, meet a fault, sign in, lose the connection. Pictures go to
out/panel.
"""

import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from steadyhand.adapters.sim.faults import FaultKind, SignalFault
from steadyhand.controllers.errors import RequestError
from steadyhand.controllers.frames import Source
from tests.support.browser import MISSING, Browser
from tests.support.loop_rig import PERIOD_S, Rig, until
from tests.support.panels import ANN, Stand, alarm

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: {MISSING}")

REPOSITORY = Path(__file__).parents[2]
SHIPPED = REPOSITORY / "configs" / "thermal_storage"
OUT = REPOSITORY / "out" / "panel"
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
PANEL = "panel:\n  listen: 127.0.0.1:0\n  token_file: panel.tokens\n\nmetrics:\n"
WATCH = """
window.broken = [];
document.addEventListener(
  "securitypolicyviolation", (event) => window.broken.push(event.violatedDirective));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        made.size(1440, 900)
        made.prefer(prefers_color_scheme="light")
        yield made


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="rig") as name:
        made = Rig(
            Path(name), 2250.0, SHIPPED / "thermal_storage.shb", SHIPPED / "keys",
            changes={"metrics:\n": PANEL, "clean_ticks: 4": "clean_ticks: 2\n  max_raises: 1000"},
        )  # fmt: skip
        with made:
            tokens = made.folder / "panel.tokens"
            tokens.write_text(f"# night shift\nann {ANN}\n", "utf-8")
            tokens.chmod(0o600)
            made.start_plant()
            made.write_config()
            made.start_runtime()
            until(lambda: url(made), what="the panel's address", instead=made.said.read_text)
            yield made


def url(rig: Rig) -> str:
    """The address that `steadyhand run` printed."""
    found = re.search(r"panel +(http://127\.0\.0\.1:[0-9]+/)", rig.said.read_text("utf-8"))
    return found.group(1) if found else ""


@pytest.fixture(scope="module")
def page(rig: Rig, browser: Browser) -> Browser:
    """The panel, once the policy drives."""
    browser.go(url(rig))
    browser.run(WATCH)
    browser.until(lambda: browser.text("#answer") == "Yes", "in control", 90.0)
    return browser


def picture(page: Browser, name: str, whole: bool = False) -> None:
    page.run("window.scrollTo(0, 0)")
    page.picture(OUT / f"{name}.png", whole)


def answer(page: Browser) -> str:
    return page.text("#answer")


def violations(page: Browser) -> list[dict[str, Any]]:
    """What axe-core finds, with the places."""
    page.run(AXE.read_text("utf-8"))
    found = page.run(
        "return axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map("
        "(v) => ({id: v.id, help: v.help, where: v.nodes.map((n) => n.target.join(' ') "
        "+ ' ' + (n.any[0]?.message ?? ''))})))"
    )
    return list(found)


# -- a quiet night ---------------------------------------------------------------------------------


def test_one_glance_says_that_it_is_in_control(page: Browser, rig: Rig) -> None:
    assert page.text("#drives") == "The policy drives."
    assert page.text("#name") == "north-building"
    assert page.run("return document.title") == "✓ north-building: in control"
    assert page.run("return document.body.dataset.connection") == "ok"
    facts = page.text("#control-facts")
    assert re.search(r"Since\s+[0-9:]{8}, for .* \(plant time ", facts)
    assert "link up, control granted" in facts
    assert page.text("#why") == ""
    codes = [item["code"] for item in rig.status()["alarms"]]  # a certificate may end soon
    assert page.texts("#alarms li code") == codes
    assert ("None." in page.text("#alarms")) is not bool(codes)
    assert "first cause" not in page.text("#alarms")
    since = rig.status()["tick"]
    page.until(lambda: rig.status()["tick"] > since + 3, "ticks")
    assert re.fullmatch(r"[0-9.]+ s old", page.text("#seen-age"))


def test_limits_outputs_trust_have_names_units_and_numbers(page: Browser) -> None:
    names = page.texts("#limits .name")
    assert names == ["Tank full", "Tank empty"]
    assert all(re.fullmatch(r"[0-9.]+ kWh left", text) for text in page.texts("#limits .value"))
    assert re.fullmatch(r"sent −?[0-9.]+ kW", page.text("#outputs .value"))
    assert page.texts("#trust .name") == ["Confidence", "Monitor: confidence", "Monitor: novelty"]
    meters = page.run(
        "return [...document.querySelectorAll('[role=meter]')].map((m) => "
        "[m.getAttribute('aria-label'), m.getAttribute('aria-valuetext'), "
        "Number(m.getAttribute('aria-valuenow')), Number(m.getAttribute('aria-valuemin')), "
        "Number(m.getAttribute('aria-valuemax'))])"
    )
    assert len(meters) == 6
    assert all(label and text and low <= now <= high for label, text, now, low, high in meters)


def test_trends_are_drawn_and_stand_in_a_table_too(page: Browser) -> None:
    drawn = "return [...document.querySelectorAll('.trend .curve')].map((c) => c.getAttribute('d'))"
    page.until(lambda: all(len(d or "") > 20 for d in page.run(drawn)), "curves")
    labels = page.run(
        "return [...document.querySelectorAll('.trend svg[role=img]')]"
        ".map((s) => s.getAttribute('aria-label'))"
    )
    assert len(labels) == 11  # who drove, one output, confidence, eight measurements
    assert labels[0].startswith("Who drove: ") and "policy" in labels[0]
    assert any(re.match(r"Storage energy: now [0-9.]+ kWh, between", label) for label in labels)
    page.click("#trends summary")
    page.until(lambda: len(page.texts("#trends tbody tr")) > 5, "rows of the table")
    assert "Cooling load [kW]" in page.texts("#trends thead th")
    page.click("#trends summary")


def test_looking_back_with_the_keyboard(page: Browser) -> None:
    page.run("document.querySelector('#trends input[type=range]').focus()")
    for _ in range(5):
        page.press("Left")
    assert re.match(r"at [0-9:]{8}, plant time ", page.text(".readout"))
    assert page.run("return document.querySelector('.trend .cursor').getAttribute('visibility')")
    value = page.run(
        "return document.querySelector('#trends input[type=range]').getAttribute('aria-valuetext')"
    )
    assert "plant time" in value and value.endswith(("policy", "heuristic", "plant's own control"))
    page.run(
        "const s = document.querySelector('#trends input[type=range]'); s.value = 1000;"
        "s.dispatchEvent(new Event('input')); s.blur()"
    )
    assert page.text(".readout") == ""


def test_decisions_tell_why(page: Browser) -> None:
    page.until(lambda: len(page.texts("#decisions summary")) >= 9, "decisions")
    page.click("#decisions summary")
    stages = page.texts("#decisions details[open] dt")
    assert {"plant", "policy", "trust", "driver", "filter", "sent"} <= set(stages)
    kept = page.text("#decisions details[open] summary")
    time.sleep(2.5)
    assert page.text("#decisions details[open] summary") == kept, "it stays while it is read"
    page.click("#decisions details[open] summary")


def test_controller_link_and_record(page: Browser) -> None:
    text = page.text("#system")
    assert "thermal_storage-care v1" in text
    assert re.search(r"Valid until\s+20[0-9]{2}-[0-9]{2}-[0-9]{2}; [0-9]+ d", text)
    assert re.search(r"Record\s+sound; [0-9]+ records", text)
    assert "opc.tcp://127.0.0.1" in text


def test_measurements_have_units_and_quality(page: Browser) -> None:
    rows = page.run(
        "return [...document.querySelectorAll('#signals tbody tr')].map((r) => "
        "[...r.cells].map((c) => c.textContent))"
    )
    assert len(rows) == 24
    assert [row[0] for row in rows[:2]] == ["Storage energy", "Cooling load"]
    assert rows[2][2] == "°C"
    assert all(row[3] == "good" for row in rows)


@pytest.mark.parametrize(
    ("name", "width", "height", "scheme"),
    [
        ("light", 1440, 900, "light"), ("dark", 1440, 900, "dark"),
        ("phone", 360, 740, "light"), ("tablet", 820, 1180, "dark"),
        ("wall", 3840, 2160, "dark"),
    ],
)  # fmt: skip
def test_it_fits_every_screen(
    page: Browser, name: str, width: int, height: int, scheme: str
) -> None:
    page.prefer(prefers_color_scheme=scheme)
    page.size(width, height)
    time.sleep(1.2)  # the charts are drawn for the new size
    picture(page, name)
    picture(page, f"{name}-whole", whole=True)
    shown, wide = page.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert shown <= wide, "nothing has to be scrolled sideways"
    small = page.run(
        "return [...document.querySelectorAll('body *')].filter((e) => e.childNodes.length && "
        "[...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && "
        "e.getClientRects().length && !e.closest('.unseen') && "
        "parseFloat(getComputedStyle(e).fontSize) < 10.5).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert small == []
    page.size(1440, 900)
    page.prefer(prefers_color_scheme="light")


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Browser) -> None:
    first = "return document.querySelector('a, button, input, select, summary, [tabindex=\"0\"]')"
    assert page.run(first + ".className") == "skip"
    page.run("document.querySelector('.skip').focus()")
    page.press("Tab", "ShiftTab")
    seen: list[list[str]] = []
    for _ in range(60):
        if seen:
            page.press("Tab")
        at = page.run(
            "const e = document.activeElement; if (e === document.body) return null;"
            "const s = getComputedStyle(e);"
            "return [e.tagName, e.innerText?.slice(0, 30) ?? '', s.outlineStyle, s.outlineWidth]"
        )
        if at is None or (seen and at[:2] == seen[0][:2]):
            break
        seen.append(at)
    assert seen[0][:2] == ["A", "Skip to who drives"]
    tags = [tag for tag, *_ in seen]
    assert {"BUTTON", "SELECT", "INPUT", "SUMMARY"} <= set(tags)
    assert tags.count("SUMMARY") >= 10  # decisions, forecasts, the table of trends
    assert all(style != "none" and width != "0px" for _, _, style, width in seen)
    assert len(seen) < 60, "there is a way out again"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility_of_a_quiet_night(page: Browser, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci in tests/system")
    page.prefer(prefers_color_scheme=scheme)
    assert violations(page) == []
    page.prefer(prefers_color_scheme="light")


def test_nothing_moves_for_whoever_wants_it_so(page: Browser) -> None:
    moves = "return getComputedStyle(document.querySelector('.fill')).transitionDuration"
    page.prefer(prefers_reduced_motion="no-preference")
    assert page.run(moves) != "0s"
    page.prefer(prefers_reduced_motion="reduce")
    assert page.run(moves) == "0s"
    page.prefer(prefers_color_scheme="light")


def test_no_console_complaint_and_no_policy_broken_so_far(page: Browser) -> None:
    assert page.complaints() == []
    assert page.run("return window.broken") == []


# -- a fault ---------------------------------------------------------------------------------------


def test_a_fault_is_told_in_words(page: Browser, rig: Rig) -> None:
    fault = SignalFault("cooling_load_kw", FaultKind.OFF, rig.truth()["time_s"], 400 * PERIOD_S)
    rig.plant.side.inject(fault)  # type: ignore[union-attr]
    page.until(lambda: answer(page) == "No", "the answer")
    assert page.text("#drives") == "The heuristic drives."
    page.until(lambda: "SAMPLE_BAD ends" in page.text("#why"), "the way back")
    why = page.text("#why")
    assert "A measurement has bad quality (cooling_load_kw)" in why
    assert "Check the sensor and its wiring" in why
    assert re.search(r"Then 2 ticks in a row without any of this; 0 so far\.", why)
    assert page.run("return document.title") == "! north-building: not in control"
    first = page.text("#alarms li")
    assert "first cause" in first and "cooling_load_kw" in first and "SAMPLE_BAD" in first
    assert page.run("return document.querySelector('#why').getAttribute('aria-live')") == "polite"
    page.until(lambda: "▲ bad" in page.text("#signals"), "the quality of the measurement")
    page.until(lambda: "→ heuristic" in page.text("#decisions"), "the change among the decisions")
    page.until(lambda: "Policy → heuristic: " in page.text("#events"), "the change in the events")
    for scheme in ("light", "dark"):
        page.prefer(prefers_color_scheme=scheme)
        time.sleep(0.3)
        picture(page, f"fault-{scheme}")
    page.prefer(prefers_color_scheme="light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility_of_a_fault(page: Browser, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci in tests/system")
    page.prefer(prefers_color_scheme=scheme)
    assert violations(page) == []
    page.prefer(prefers_color_scheme="light")


# -- commands --------------------------------------------------------------------------------------


def sign_in(page: Browser, token: str) -> None:
    page.click("#session button")
    page.press(token)
    page.press("Enter")


def fill(page: Browser, **values: str) -> None:
    for name, value in values.items():
        page.run(
            "const i = document.querySelector(`dialog [name=${arguments[0]}]`);"
            "i.value = arguments[1];",
            name, value,
        )  # fmt: skip


def button(page: Browser, words: str) -> None:
    find = "[...document.querySelectorAll('button')].find((b) => b.innerText === arguments[0])"
    page.until(lambda: page.run(f"return Boolean({find})", words), f"a button {words}")
    page.run(f"{find}.click()", words)


def test_a_wrong_token_is_refused_in_words(page: Browser) -> None:
    sign_in(page, "z" * 40)
    page.until(lambda: "(DENIED)" in page.text("dialog .said"), "the refusal")
    page.press("Escape")
    page.until(lambda: not page.run("return document.querySelector('dialog')"), "it is closed")
    assert page.text("#session") == "Sign in…"
    assert all("401" in line for line in page.complaints())


def test_what_the_loop_refuses_is_told(page: Browser, rig: Rig) -> None:
    sign_in(page, ANN)
    page.until(lambda: "signed in: ann" in page.text("#session"), "signed in")
    with suppress(RequestError):  # what a busy machine has left on the list
        rig.ask("ack")
    button(page, "Acknowledge all")
    page.press("Enter")
    page.until(lambda: "(ACK_DENIED)" in page.text("dialog .said"), "the refusal")
    if AXE.exists():
        assert violations(page) == []
    page.press("Escape")
    page.complaints()


def test_an_override_reaches_the_plant_in_the_persons_name(page: Browser, rig: Rig) -> None:
    button(page, "Override…")
    page.until(lambda: page.text("dialog h2") == "Override an output", "the dialog")
    fill(page, value="-12.5", for_h="2", reason=HOSTILE)
    button(page, "Do it")
    made = page.until(lambda: rig.status().get("overrides"), "the override")
    assert made[0]["owner"] == "panel:ann" and made[0]["value"] == -12.5
    page.until(lambda: "Overridden at −12.5 kW by panel:ann" in page.text("#outputs"), "the words")
    assert HOSTILE in page.text("#outputs"), "text stays text"
    assert page.run("return document.querySelectorAll('img, main script').length") == 0
    assert "owned" not in page.run("return document.title")
    button(page, "Give back…")
    button(page, "Do it")
    page.until(lambda: not rig.status().get("overrides"), "given back")
    page.until(lambda: "panel:ann" in page.text("#events"), "who did it")


def test_an_alarm_is_shelved_and_comes_back(page: Browser, rig: Rig) -> None:
    page.run("document.querySelector('[aria-label=\"Shelve SAMPLE_BAD\"]').click()")
    fill(page, reason="being changed", for_h="100")
    page.press("Enter")  # longer than allowed
    page.until(lambda: "(DURATION)" in page.text("dialog .said"), "the refusal")
    fill(page, for_h="24")
    page.press("Enter")
    page.until(lambda: "Shelved (1)" in page.text("#alarms"), "the shelf")
    assert "panel:ann: being changed" in page.text("#alarms")
    assert [item["owner"] for item in rig.status()["shelved"]] == ["panel:ann"]
    button(page, "Take off the shelf")
    page.press("Enter")
    page.until(lambda: "Shelved" not in page.text("#alarms"), "it is back")
    page.complaints()


def test_off_is_no_and_as_asked(page: Browser, rig: Rig) -> None:
    button(page, "Mode…")
    fill(page, mode="off", reason="end of the shift")
    button(page, "Do it")
    page.until(lambda: answer(page) == "No, as asked", "the answer")
    assert "A person asks for mode limited or full; it is off now." in page.text("#why")
    until(lambda: not rig.truth()["controlled"], what="the plant's own control")
    picture(page, "off")
    button(page, "Mode…")
    fill(page, mode="full", reason="back")
    button(page, "Do it")
    page.until(lambda: answer(page) == "No", "it should drive again")
    button(page, "Sign out")
    assert page.text("#session") == "Sign in…"


def test_after_the_fault_it_comes_back_by_itself(page: Browser, rig: Rig) -> None:
    rig.plant.side.clear()  # type: ignore[union-attr]
    page.until(lambda: answer(page) == "Yes", "in control", 60.0)
    assert page.text("#why") == ""


# -- no connection ---------------------------------------------------------------------------------


def test_a_runtime_that_hangs_looks_old_at_once(page: Browser, rig: Rig) -> None:
    assert rig.runtime is not None
    rig.runtime.send_signal(signal.SIGSTOP)
    try:
        page.until(lambda: answer(page) == "Unknown", "the answer", 15.0)
        page.until(lambda: page.text("#lost").startswith("No connection to the runtime."), "words")
        assert page.text("#drives").startswith("No news from the loop. Last known: ")
        assert page.run("return document.title").startswith("? ")
        last = page.text("#seen-time")
        sizes = "return [...document.querySelectorAll('#seen-time, h1')].map((e) => parseFloat(" \
            "getComputedStyle(e).fontSize))"  # fmt: skip
        name, seen = page.run(sizes)
        assert seen > 1.5 * name, "the time of the last data is large"
        greyed = page.run("return getComputedStyle(document.querySelector('main')).filter")
        assert greyed == "grayscale(1)"
        age = page.text("#seen-age")
        time.sleep(1.5)
        assert page.text("#seen-time") == last, "it does not go on"
        assert page.text("#seen-age") != age, "but grows older"
        for scheme in ("light", "dark"):
            page.prefer(prefers_color_scheme=scheme)
            time.sleep(0.3)
            picture(page, f"lost-{scheme}")
            if AXE.exists():
                assert violations(page) == []
        page.prefer(prefers_color_scheme="light")
    finally:
        rig.runtime.send_signal(signal.SIGCONT)
    page.until(lambda: answer(page) != "Unknown", "it is back", 30.0)
    assert page.text("#lost") == ""


def test_a_runtime_that_dies_and_comes_back_is_a_new_one(page: Browser, rig: Rig) -> None:
    run = "return fetch('/api/plant.json').then((r) => r.json()).then((p) => p.run)"
    before = page.run(run)
    address = url(rig)
    assert rig.runtime is not None
    rig.runtime.kill()
    rig.runtime.wait()
    page.until(lambda: answer(page) == "Unknown", "the answer", 15.0)
    text = rig.config.read_text("utf-8")
    rig.config.write_text(
        text.replace("panel:\n  listen: 127.0.0.1:0", f"panel:\n  listen: {address[7:-1]}"), "utf-8"
    )
    rig.start_runtime()
    page.until(lambda: answer(page) in ("Yes", "No"), "it is back", 60.0)
    assert page.run(run) != before


def test_the_policy_of_the_page_holds(page: Browser) -> None:
    """Whatever got into the page could neither run nor send."""
    page.run("window.broken = []; window.ran = false;" + WATCH.replace("window.broken = [];", ""))
    page.run(
        "const s = document.createElement('script');"
        "try { s.textContent = 'window.ran = true'; document.body.append(s); } catch (e) {}"
        "try { document.body.innerHTML += '<b>x</b>'; } catch (e) { window.broken.push('types'); }"
        "const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x';"
        "document.body.append(i);"
        "const p = document.createElement('p'); p.setAttribute('style', 'color: red');"
        "document.body.append(p);"
        "fetch('http://127.0.0.1:9/').catch(() => {});"
    )
    page.until(
        lambda: {"types", "img-src", "connect-src"} <= set(page.run("return window.broken")),
        "the policy's refusals",
    )
    assert page.run("return window.ran") is False
    assert any(word.startswith("style-src") for word in page.run("return window.broken"))


# -- a loop that is silent behind a page that is connected -----------------------------------------


def test_a_silent_loop_behind_a_living_page_looks_old_too(browser: Browser) -> None:
    with Stand({"ann": ANN}, period_s=900.0, time_scale=9000.0) as stand:
        browser.go(stand.panel.url)
        assert browser.text("#answer") == "Unknown"
        browser.until(
            lambda: browser.run("return document.body.dataset.connection") == "waiting", "waits"
        )
        assert "waiting for the first data" in browser.text("#seen-age")
        for _ in range(60):  # 0.1 s of real time is the period here
            stand.tick(alarms=[alarm("OBS_STALE", text=HOSTILE)])
            if browser.text("#answer") == "Yes":
                break
            time.sleep(0.05)
        assert browser.text("#answer") == "Yes"
        assert HOSTILE in browser.text("#alarms")
        assert browser.run("return document.querySelectorAll('img').length") == 0
        browser.until(lambda: browser.text("#answer") == "Unknown", "old")
        assert browser.text("#lost").startswith("The loop says nothing.")
        stand.tick(Source.SAFE, why={
            "code": "FILTER_STOPPED", "severity": "alarm", "signal": "", "text": "x", "action": "y",
        })  # fmt: skip
        browser.until(lambda: browser.text("#answer") == "No", "news")
        assert browser.text("#lost") == ""
