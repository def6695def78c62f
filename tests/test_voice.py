"""The bundled voice: a checkpoint like any other, small, and what a plain `duotone say` speaks with."""

import subprocess
import sys

import numpy as np
import soundfile

from duotone.server.config import BUNDLED_VOICE, Settings
from duotone.stages.checkpoint import read_checkpoint

MAX_BYTES = 24_000_000


def test_it_is_the_default_and_passes_every_check():
    assert Settings().model == str(BUNDLED_VOICE)
    checkpoint = read_checkpoint(BUNDLED_VOICE)
    assert checkpoint.kind == "custom_voice"
    assert list(checkpoint.talker.spk_id) == ["lark"]


def test_it_is_small():
    published = [path for path in BUNDLED_VOICE.rglob("*") if path.is_file() and "training" not in path.parts]
    assert sum(path.stat().st_size for path in published) <= MAX_BYTES


def test_say_speaks_with_it(tmp_path):
    out = tmp_path / "hello.wav"
    command = [sys.executable, "-m", "duotone", "say", "Good morning. The kettle is on.", "-o", str(out), "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    samples, rate = soundfile.read(out)
    assert rate == 24_000
    # Two short sentences: about two seconds, spoken and not hummed through.
    assert 1.2 < len(samples) / rate < 5
    levels = np.sqrt(np.square(samples[: len(samples) // 480 * 480].reshape(-1, 480)).mean(1))
    assert levels.max() > 0.05
    assert np.percentile(levels, 5) < 0.2 * levels.max()
