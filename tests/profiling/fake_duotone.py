"""What the A/B harness starts in its tests in the place of `duotone`: a server that is slow, idle or broken as told.

Settings, by `--set`: `delay_s` before the first chunk, `burn=1` to keep a core busy, `fail=1` to end at once,
`deaf=1` to never be healthy, `leave=N` requests counted as running, `status` of every answer. It writes a line of JSON
about itself to the standard output, and has a child that ignores SIGTERM, as a stuck worker would.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise

import uvicorn

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
FRAME = b"\1\0" * 1920


def settings(words):
    return dict(value.split("=", 1) for flag, value in pairwise(words) if flag == "--set")


def option(words, flag):
    return words[words.index(flag) + 1]


def burn():
    while True:
        pass


def app(told):
    async def respond(scope, receive, send):
        if scope["path"] == "/health":
            await answer(send, 503 if "deaf" in told else 200, [b"{}"])
        elif scope["path"] == "/metrics":
            await answer(send, 200, [b'duotone_requests_running{model="m"} %d\n' % int(told.get("leave", 0))])
        else:
            frames = json.loads((await receive())["body"])["max_new_frames"]
            await asyncio.sleep(float(told.get("delay_s", 0)))
            await answer(send, int(told.get("status", 200)), [FRAME] * frames)

    return respond


async def answer(send, status, chunks):
    await send({"type": "http.response.start", "status": status, "headers": []})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def main(words):
    told = settings(words)
    if "fail" in told:
        sys.exit("the weights are missing")
    child = subprocess.Popen([sys.executable, "-c", CHILD])
    about = {"words": words, "pids": [os.getpid(), child.pid], "side": os.environ.get("SIDE")}
    print(json.dumps(about | {"inherited": os.environ.get("OVERRIDES_ALL")}), flush=True)
    if "burn" in told:
        threading.Thread(target=burn, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config = uvicorn.Config(app(told), host=option(words, "--host"), port=int(option(words, "--port")), lifespan="off")
    uvicorn.Server(config).run()


main(sys.argv[1:])
