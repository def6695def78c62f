"""What the tests in tests/vllm cannot show without a GPU: captured graphs, and bfloat16 in batch-invariant mode."""

import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from duotone.stages.messages import Speak
from duotone.stages.types import Sampling

from ..golden_outputs import GOLDEN
from ..vllm.talking import assert_golden, golden_cases, speak, started, talk

pytestmark = pytest.mark.filterwarnings("default")
CASES = golden_cases(GOLDEN / "custom_voice")
SAMPLED = Sampling(seed=7, max_new_frames=40, min_new_frames=40)


@pytest.fixture(scope="module")
def compiled():
    """Float32, compiled, every batch size captured."""
    with started(GOLDEN / "custom_voice", enforce_eager=False) as engine:
        yield engine


def test_golden_codes_from_captured_graphs(compiled):
    assert_golden(talk(compiled, {key: speak(key, case) for key, case in enumerate(CASES)}), CASES)


def test_golden_codes_when_every_step_has_another_batch_size(compiled):
    requests = {key: speak(key, case) for key, case in enumerate(CASES)}
    assert_golden(talk(compiled, requests, joins=lambda key: 2 * key), CASES)


def test_the_same_seeds_give_the_same_codes_in_two_runs(compiled):
    def codes():
        requests = {key: Speak(key, CASES[key].plan, msgspec.structs.replace(SAMPLED, seed=key)) for key in range(8)}
        result = talk(compiled, requests)
        return [result.codes(key) for key in requests]

    np.testing.assert_array_equal(codes(), codes())


def test_batch_invariant_bfloat16_gives_a_request_the_same_codes_alone_and_in_batches():
    run = subprocess.run(
        [sys.executable, "-m", "tests.gpu.batch_invariance"], capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    alone, beside_seven, beside_seven_again = json.loads(run.stdout.splitlines()[-1])
    assert len(alone) == SAMPLED.max_new_frames
    assert alone == beside_seven == beside_seven_again
