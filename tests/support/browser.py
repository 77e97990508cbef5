"""A real Chromium without a window, driven over the W3C WebDriver protocol by its own driver."""

import base64
import http.client
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = ", ".join(
    name
    for name, found in (("chromium", CHROMIUM), ("chromedriver (chromium-driver)", DRIVER))
    if not found
)
"""What is not on this machine; empty: everything is."""
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Shift": "\ue008", "Left": "\ue012"}
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--hide-scrollbars", "--force-color-profile=srgb",
    "--disable-features=Translate,MediaRouter,OptimizationHints",
)  # fmt: skip


class Browser:
    """One tab. Use as a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chromium")
        self._driver = subprocess.Popen(
            [str(DRIVER), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._driver.stdout is not None
        self._port = 0
        for line in self._driver.stdout:
            if "started successfully on port" in line:
                self._port = int(line.rstrip(".\n").rpartition(" ")[2])
                break
        options = {
            "binary": str(CHROMIUM),
            "args": [*_OPTIONS, f"--user-data-dir={self._folder.name}"],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/{made['sessionId']}"
        self.console: list[dict[str, Any]] = []
        """Everything the console ever said."""

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("DELETE", self._session)
        self._driver.terminate()
        self._driver.wait(10.0)
        assert self._driver.stdout is not None
        self._driver.stdout.close()
        self._folder.cleanup()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60.0)
        connection.request(method, f"/session{path}", None if body is None else json.dumps(body))
        answer = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{answer['error']}: {answer['message']}")
        return answer

    def do(self, method: str, path: str, **body: Any) -> Any:
        """One command of the protocol."""
        return self._ask(method, f"{self._session}{path}", body if method == "POST" else None)

    def go(self, url: str) -> None:
        self.do("POST", "/url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a piece of JavaScript in the page returns; promises are waited for."""
        return self.do("POST", "/execute/sync", script=script, args=list(arguments))

    def cdp(self, command: str, **parameters: Any) -> Any:
        """One command of Chromium's own protocol."""
        return self.do("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def text(self, css: str) -> str:
        """What a person reads in an element; empty where there is none."""
        return str(
            self.run("return document.querySelector(arguments[0])?.innerText.trim() ?? ''", css)
        )

    def texts(self, css: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText.trim())"
        return list(self.run(script, css))

    def until(self, condition: Callable[[], Any], what: str, patience_s: float = 30.0) -> Any:
        """Wait until true; returns what it became."""
        end = time.monotonic() + patience_s
        while not (found := condition()):
            if time.monotonic() > end:
                shown = self.run("return document.body.innerText.slice(0, 600)")
                raise AssertionError(f"{what}: not within {patience_s} s; the page says: {shown}")
            time.sleep(0.05)
        return found

    def press(self, *keys: str) -> None:
        """Press and let go of keys by name (Tab, ShiftTab), one after the other; text is typed."""
        steps: list[dict[str, str]] = []
        for key in keys:
            shift = key.startswith("Shift") and key != "Shift"
            plain = key.removeprefix("Shift") if shift else key
            steps += [{"type": "keyDown", "value": KEYS["Shift"]}] if shift else []
            for char in (KEYS[plain],) if plain in KEYS else plain:
                steps += [{"type": "keyDown", "value": char}, {"type": "keyUp", "value": char}]
            steps += [{"type": "keyUp", "value": KEYS["Shift"]}] if shift else []
        self.do("POST", "/actions", actions=[{"type": "key", "id": "keys", "actions": steps}])

    def click(self, css: str) -> None:
        """Click it; where the page makes it anew at that moment, click the new one."""
        for last in (False, False, False, True):
            element = self.do("POST", "/element", using="css selector", value=css)[_ELEMENT]
            try:
                self.do("POST", f"/element/{element}/click")
            except AssertionError as error:
                if last or "stale element" not in str(error):
                    raise
            else:
                return

    def size(self, width: int, height: int, scale: float = 1.0) -> None:
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=False,
        )  # fmt: skip

    def prefer(self, **features: str) -> None:
        """What the person prefers, such as prefers_color_scheme="dark"."""
        wanted = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.cdp("Emulation.setEmulatedMedia", media="screen", features=wanted)

    def picture(self, file: Path, whole: bool = False) -> Path:
        """A PNG of what is shown, or of the whole page."""
        shot = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(shot["data"]))
        return file

    def complaints(self) -> list[str]:
        """Warnings and errors of the console since the last call."""
        new = self.do("POST", "/se/log", type="browser")
        self.console += new
        return [e["message"] for e in new if e["level"] in ("WARNING", "SEVERE")]
