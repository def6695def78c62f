"""`python -m tests.load.worker`: the product's worker process with an engine of engines.py."""

from duotone.stages import worker
from duotone.stages.engine import Engine
from duotone.stages.pipeline import WorkerSpec

from .engines import TimedCode2Wav, TimedTalker


def build_engine(spec: WorkerSpec) -> Engine:
    if spec.code2wav is not None:
        return TimedCode2Wav(spec.code2wav.slots, spec.code2wav.max_batch_frames)
    assert spec.talker is not None
    return TimedTalker(spec.talker.slots)


if __name__ == "__main__":
    worker.build_engine = build_engine
    worker.main()
