"""`python -m tests.load.server serve …`: the command line `duotone`, whose workers run the engines of engines.py."""

from duotone.server.cli import app
from duotone.stages import workers

if __name__ == "__main__":
    workers.WORKER_MODULE = "tests.load.worker"
    app()
