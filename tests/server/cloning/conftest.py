"""The application with a model that clones voices and has none of its own."""

from dataclasses import replace

import pytest

from duotone.server.app import create_app
from duotone.server.catalog import Catalog
from duotone.stages.cloning.config import CloningOptions

from ..fake_pipeline import plan_of
from .fake_listener import FakeListener


@pytest.fixture
def model(model):
    return replace(model, voices=(), takes_instructions=False)


@pytest.fixture
def listener() -> FakeListener:
    return FakeListener()


@pytest.fixture
def cloning_options() -> CloningOptions:
    return CloningOptions(allowed_hosts=("recordings.example",), max_audio_bytes=2000, max_voices=3)


@pytest.fixture
def settings(settings, cloning_options):
    return settings.model_copy(update={"cloning": cloning_options})


@pytest.fixture
def app(settings, model, pipeline, metrics, start_failures, listener):
    catalog = Catalog(settings, model)
    return create_app(settings, catalog, plan_of, pipeline, metrics, start_failures.append, listener)
