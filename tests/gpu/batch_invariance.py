"""Speak one request alone and beside seven others in batch-invariant bfloat16; prints its codes of each run as JSON.

A program of its own, since vLLM takes the mode from the environment of its process.
"""

import json

import msgspec

from duotone.stages.messages import Speak
from duotone.stages.types import Sampling

from ..golden_outputs import GOLDEN
from ..vllm.talking import golden_cases, started, talk

SAMPLED = Sampling(seed=7, max_new_frames=40, min_new_frames=40)


def main() -> None:
    """Three runs of the same engine."""
    cases = golden_cases(GOLDEN / "custom_voice")
    runs = []
    with started(GOLDEN / "custom_voice", dtype="bfloat16", enforce_eager=False, batch_invariant=True) as engine:
        for others in (0, 7, 7):
            requests = {
                key: Speak(key, cases[key].plan, msgspec.structs.replace(SAMPLED, seed=key))
                for key in range(1 + others)
            }
            runs.append(talk(engine, requests, joins=lambda key: 3 * key).codes(0).tolist())
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
