"""`python -m tests.vllm.interpreted_worker`: the product's worker process, its kernels run by Triton's interpreter."""

import warnings

from duotone.stages import worker

from .interpreted import install

if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        install()
    worker.main()
