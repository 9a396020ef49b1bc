"""A headless Chromium, driven over its debugging pipe: real keys, colour schemes, paper, the accessibility tree."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["CHROMIUM", "Browser", "NoBrowserError"]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads commands from file 3 and writes answers to file 4.
_START = """import os, sys
found = [os.dup(os.dup(os.dup(int(number)))) for number in sys.argv[1:3]]
os.dup2(found[0], 3), os.dup2(found[1], 4)
os.execv(sys.argv[3], sys.argv[3:])"""
_SECONDS = 300
_KEYS = {
    "Enter": (13, "\r"), "Tab": (9, ""), " ": (32, " "), "+": (187, "+"), "-": (189, "-"),
    "Home": (36, ""), "ArrowRight": (39, ""), "ArrowLeft": (37, ""), "ArrowDown": (40, ""),
}  # fmt: skip


class NoBrowserError(Exception):
    """The browser has ended, or does not answer."""


class Browser:
    """One page of a browser that nobody sees."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _START, str(theirs_in), str(theirs_out), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []  # addresses that the page asked for
        self.errors: list[str] = []  # what its scripts threw
        made = self._call("Target.createTarget", url="about:blank")
        self._session = self._call("Target.attachToTarget", targetId=made["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Accessibility"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def open(self, page: Path, width: int = 1280, height: int = 900) -> None:
        """Load a file on a screen of this size; returns once it has been drawn."""
        self.screen(width, height)
        self.requests.clear()
        self.errors.clear()
        self._call("Page.navigate", url=page.as_uri())
        ends = time.monotonic() + _SECONDS
        while self.evaluate("document.readyState + location.href") != f"complete{page.as_uri()}":
            assert time.monotonic() < ends, f"{page} was not loaded"
            time.sleep(0.02)

    def screen(self, width: int, height: int = 900) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def media(self, kind: str = "", scheme: str = "light") -> None:
        """Paper (`print`) or a screen, with dark or light colours preferred."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=kind, features=features)

    def evaluate(self, code: str) -> Any:
        """The value of an expression on the page."""
        found = self._call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            code, text = _KEYS[key]
            known = {"key": key, "windowsVirtualKeyCode": code}
            self._call("Input.dispatchKeyEvent", type="keyDown", **known, **({"text": text} if text else {}))
            self._call("Input.dispatchKeyEvent", type="keyUp", **known)

    def write(self, text: str) -> None:
        """Enter text where the focus is."""
        self._call("Input.insertText", text=text)

    def accessible(self) -> list[dict[str, Any]]:
        """What a screen reader is told: role, name, description and properties of every node that it reads."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [_told(node) for node in nodes if not node["ignored"]]

    def picture(self, path: Path, clip: Mapping[str, float] | None = None, kind: str = "png") -> None:
        """A picture of the screen, or of a part of the page."""
        more: dict[str, Any] = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        data = self._call("Page.captureScreenshot", format=kind, **more)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=False)["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._out, json.dumps(message).encode() + b"\0")
        except BrokenPipeError as error:
            raise NoBrowserError("the browser has ended") from error
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found
            self._note(answer)

    def _note(self, event: Mapping[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], _SECONDS)
            more = os.read(self._in, 1 << 20) if ready else b""
            if not more:
                raise NoBrowserError("the browser has ended" if ready else "the browser does not answer")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found


def _told(node: Mapping[str, Any]) -> dict[str, Any]:
    told = {key: node.get(key, {}).get("value", "") for key in ("role", "name", "description")}
    return told | {p["name"]: p["value"].get("value") for p in node.get("properties", ())}
