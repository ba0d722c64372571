#!/usr/bin/env python3
"""Makes README's pictures of a run: the report's page as a headless Chromium shows it, and a frame of `deltawire top`.

    pictures.py DELTAWIRE SOURCE_ROOT FOLDER

The run is a replay of the small trace with caps that make its stages wait for each other. Writes report.png,
pipeline.png (parts of the page), page.png (all of it, to look at; not kept) and top.svg. Fails where the page puts a line
on the browser's console.
"""

import base64
import glob
import html
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time

WIDTH = 1000
CAPS = ["--set", "actors.flush_bucket.cap=6KiB", "--set", "actors.gather_queue.max_round=4KiB", "--set",
        "actors.differ.inflight=48KiB", "--set", "actors.differ.chunk=32KiB"]


class Browser:
    """Chromium without a window, driven by its own protocol over a pipe."""

    def __init__(self, profile):
        command = [shutil.which("chromium") or "chromium", "--headless", "--no-sandbox", "--disable-gpu",
                   "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        to_browser, self.out = os.pipe()
        self.inn, from_browser = os.pipe()
        # It reads descriptor 3 and writes descriptor 4.
        shell = f"exec 3<&{to_browser} 4>&{from_browser}; exec \"$@\""
        self.process = subprocess.Popen(["bash", "-c", shell, "bash", *command], pass_fds=(to_browser, from_browser),
                                        stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.events = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def next(self):
        while b"\0" not in self.buffer:
            more = os.read(self.inn, 1 << 20)
            if not more:
                raise EOFError("chromium has ended")
            self.buffer += more
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next()
            if answer.get("id") != self.number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def open(self, path):
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=f"file://{path}")
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.next())

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def console(self):
        spoken = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in spoken]

    def picture(self, path, top, bottom):
        clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.number += 1
        os.write(self.out, json.dumps({"id": self.number, "method": "Browser.close"}).encode() + b"\0")
        self.process.wait(30)


def steps(source, count):
    return [os.path.join(source, f"tests/data/trace/trainer/step-0{s}.safetensors") for s in [0, *([1, 2, 3] * count)]]


def page_of_a_run(command, source, folder):
    report, trace, page = (os.path.join(folder, name) for name in ("run.json", "trace.json", "run.html"))
    replay = [command, "replay", "tools/topologies/trace.toml", "--quiet", *CAPS, "--report", report]
    replay += ["--set", f"telemetry.trace={trace}", "--checkpoints", *steps(source, 1)]
    subprocess.run(replay, check=True, stdout=subprocess.DEVNULL, cwd=source)
    traces = [word for path in sorted(glob.glob(f"{folder}/trace*.json")) for word in ("--trace", path)]
    subprocess.run([command, "report", report, *traces, "-o", page], check=True, cwd=source)
    return page


def frame_of_top(command, source):
    """The second frame of top in a terminal of a running replay: its rates are of the time since the first."""
    replay = [command, "replay", "tools/topologies/trace.toml", "--quiet", *CAPS]
    replay += ["--set", "telemetry.prometheus=127.0.0.1:0", "--checkpoints", *steps(source, 200)]
    with subprocess.Popen(replay, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=source) as running:
        address = ""
        while not address:
            line = running.stderr.readline()
            if not line:
                raise RuntimeError("the replay serves no metrics")
            if found := re.search(r"metrics at http://([^/]+)/", line):
                address = found[1]
        time.sleep(1)
        screen, terminal = pty.openpty()
        top = subprocess.Popen([command, "top", address, "--interval", "1"], stdout=terminal, stderr=terminal)
        os.close(terminal)
        text = b""
        try:
            while text.count(b"\x1b[2J") < 3 and (more := os.read(screen, 1 << 16)):
                text += more
        except OSError:
            pass  # it has ended
        top.terminate()
        top.wait()
        running.terminate()
    frames = text.decode().replace("\r\n", "\n").split("\x1b[H\x1b[2J")
    return frames[2].rstrip("\n").split("\n")


def as_svg(lines):
    columns, size, line = max(map(len, lines)), 12, 17
    width, height = int(columns * size * 0.602) + 28, len(lines) * line + 28
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
           f'<rect width="{width}" height="{height}" rx="6" fill="#1c1d21"/>',
           f'<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{size}" fill="#e8e8ea">']
    for number, text in enumerate(lines):
        if text.strip():
            kept = html.escape(text).replace(" ", "\u00a0")
            y = 14 + size + number * line
            out.append(f'<text x="14" y="{y}" textLength="{len(text) * size * 0.602:.0f}">{kept}</text>')
    return "\n".join([*out, "</g></svg>", ""])


def main():
    command, source, out = (os.path.abspath(word) for word in sys.argv[1:])
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = page_of_a_run(command, source, folder)
        browser = Browser(os.path.join(folder, "profile"))
        try:
            browser.open(page)
            height = browser.evaluate("document.documentElement.scrollHeight")
            title = "[...document.querySelectorAll('h2')].find(h => h.textContent == '{}').closest('section')"
            bottom = "{}.getBoundingClientRect().bottom + 8"
            middle = browser.evaluate(bottom.format(title.format("Workers")))
            end = browser.evaluate(bottom.format(title.format("The pipeline")))
            browser.picture(os.path.join(out, "page.png"), 0, height)
            browser.picture(os.path.join(out, "report.png"), 0, middle)
            browser.picture(os.path.join(out, "pipeline.png"), middle, end)
            spoken = browser.console()
        finally:
            browser.close()
    for line in spoken:
        print(f"console: {line}", file=sys.stderr)
    with open(os.path.join(out, "top.svg"), "w", encoding="utf-8") as file:
        file.write(as_svg(frame_of_top(command, source)))
    for name in ("page.png", "report.png", "pipeline.png", "top.svg"):
        print(f"{os.path.join(out, name)}: {os.path.getsize(os.path.join(out, name)) / 1024:.0f} KiB")
    return 1 if spoken else 0


if __name__ == "__main__":
    sys.exit(main())
