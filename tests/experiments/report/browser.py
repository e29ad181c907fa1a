"""Browser: a headless Chromium driven over its debugging pipe; a page's own words, errors and requests."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)
END = b"\0"
# Chromium reads commands from the file descriptor 3 and writes answers to 4.
COMMANDS, ANSWERS = 3, 4
HEIGHT = 900
KEYS = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Escape": 27}


def executable() -> str | None:
    """Where Chromium is; None without one."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Browser:
    """One tab. ``complaints`` are errors and warnings of the console, ``requests`` all addresses that it asked for."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session = ""
        self._events: list[Mapping[str, Any]] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + END)
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, page: Path, *, width: int, scheme: str) -> None:
        """Load a file at a width of the window and in a colour scheme, ``light`` or ``dark``."""
        metrics = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self._events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def ask(self, script: str) -> Any:
        """The value of an expression of the page's language."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key of KEYS."""
        for kind in ("keyDown", "keyUp"):
            code = KEYS[key]
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def point(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def _receive(self) -> dict[str, Any]:
        while END not in self._buffer:
            read = os.read(self._read, 1 << 20)
            assert read, "the browser ended"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(END)
        content = json.loads(message)
        if "method" in content:
            self._note(content)
        return content

    def _note(self, event: Mapping[str, Any]) -> None:
        self._events.append(event)
        name, told = event["method"], event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif name == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])
        elif name == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(told["args"]))
        elif name == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, ended when it is left."""
    commands_in, commands_out = os.pipe()
    answers_in, answers_out = os.pipe()
    # The shell gives the two pipes the numbers that Chromium wants.
    shell = f'exec "$@" {COMMANDS}<&{commands_in} {ANSWERS}>&{answers_out}'
    arguments = ["bash", "-c", shell, "bash", program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        arguments, pass_fds=(commands_in, answers_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(commands_in)
    os.close(answers_out)
    try:
        opened = Browser(commands_out, answers_in)
        yield opened
        opened.call("Browser.close")
    finally:
        os.close(commands_out)
        os.close(answers_in)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
