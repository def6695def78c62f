"""Settings from a profile, the environment and flags."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from duotone.server.config import BUNDLED_VOICE, Settings, load_settings, parse_assignment
from duotone.stages.errors import ConfigurationError


@pytest.fixture
def profile(tmp_path):
    """Writes a profile and returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "profile.yaml"
        path.write_text(text)
        return str(path)

    return write


def refusal(profile: str | None = None, flags: dict | None = None, environment: dict | None = None) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(profile, flags or {}, environment or {})
    return str(refused.value)


def test_without_anything_the_bundled_voice_is_served_on_loopback():
    settings = load_settings(None, {}, {})
    assert Path(settings.model).parts[-2:] == ("voices", "lark")
    assert (settings.http.host, settings.http.port, settings.max_input_chars) == ("127.0.0.1", 8000, 4096)
    assert settings.model_aliases == ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")


def test_flags_stand_over_the_environment_and_that_over_the_profile(profile):
    path = profile("http: {host: a, port: 1, drain_s: 3}\npipeline: {talker: {slots: 2, threads: 2}}")
    environment = {"DUOTONE_HTTP__HOST": "b", "DUOTONE_HTTP__PORT": "2", "DUOTONE_PIPELINE__TALKER__SLOTS": "3"}
    settings = load_settings(path, {"http.port": 3}, environment)
    assert (settings.http.drain_s, settings.http.host, settings.http.port) == (3, "b", 3)
    assert (settings.pipeline.talker.threads, settings.pipeline.talker.slots) == (2, 3)


def test_lists_and_trees_in_the_environment_are_yaml():
    environment = {"DUOTONE_HTTP__CORS_ORIGINS": "[http://a, http://b]", "DUOTONE_VOICE_ALIASES": "{alloy: ryan}"}
    settings = load_settings(None, {}, environment)
    assert settings.http.cors_origins == ("http://a", "http://b")
    assert settings.voice_aliases == {"alloy": "ryan"}


@pytest.mark.parametrize(
    ("flags", "language", "normalise"),
    [
        ({}, "auto", "on"),
        ({}, "English", "on"),
        ({}, "chinese", "off"),
        ({"text.normalise": "off"}, "english", "off"),
        ({"model": "Qwen/Qwen3-TTS-12Hz-1.7B-Base"}, "english", "off"),
        ({"model": "some/lark"}, "auto", "off"),
        ({"model": "some/lark", "text.normalise": "on"}, "auto", "on"),
        ({"model": "some/lark", "text.normalise": "on"}, "german", "off"),
    ],
)
def test_english_is_normalised_for_the_bundled_voice_unless_it_is_set(flags, language, normalise):
    assert load_settings(None, flags, {}).text_front(language).normalise == normalise


def test_the_bundled_voice_is_known_by_any_of_its_paths(monkeypatch):
    monkeypatch.chdir(BUNDLED_VOICE.parent)
    assert Settings(model=f"{BUNDLED_VOICE.name}/").text_front("auto").normalise == "on"


def test_a_bare_on_in_a_profile_is_no_truth(profile):
    assert load_settings(profile("text: {normalise: on}"), {}, {}).text.normalise == "on"
    assert load_settings(profile("text: {normalise: off}"), {}, {}).text.normalise == "off"
    assert "text.normalise" in refusal(flags={"text.normalise": "maybe"})


def test_voice_aliases_of_every_layer_count(profile):
    settings = load_settings(profile("voice_aliases: {a: x}"), {}, {"DUOTONE_VOICE_ALIASES__B": "y"})
    assert settings.voice_aliases == {"a": "x", "b": "y"}


def test_the_environment_can_name_the_profile_and_a_flag_another(profile, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("max_input_chars: 7")
    environment = {"DUOTONE_CONFIG": profile("max_input_chars: 5")}
    assert load_settings(None, {}, environment).max_input_chars == 5
    assert load_settings(str(other), {}, environment).max_input_chars == 7


def test_an_empty_profile_and_empty_variables_set_nothing(profile):
    assert load_settings(profile("# nothing\n"), {}, {"DUOTONE_SERVED_MODEL_NAME": ""}) == Settings()


def test_an_unknown_key_of_a_profile_is_named_with_the_file(profile):
    path = profile("http: {prot: 1}")
    assert refusal(path) == f"{path}: http.prot: unknown key"


def test_an_unknown_variable_is_named():
    assert refusal(environment={"DUOTONE_HTTP__PROT": "1"}) == "environment: http.prot: unknown key"


def test_an_unknown_flag_is_named():
    assert refusal(flags={"htpt.port": 1}) == "command line: htpt: unknown key"


def test_every_problem_has_a_line_that_names_where_its_value_stands(profile):
    path = profile("http: {port: 99999}\nmax_input_chars: 0")
    lines = refusal(path, environment={"DUOTONE_MAX_INPUT_CHARS": "many"}).splitlines()
    assert set(lines) == {
        "environment: max_input_chars: Input should be a valid integer, unable to parse string as an integer",
        f"{path}: http.port: Input should be less than or equal to 65535",
    }


def test_a_value_where_a_tree_belongs_is_an_error(profile):
    path = profile("http: 5")
    assert refusal(path).startswith(f"{path}: http: Input should be a valid dictionary")


@pytest.mark.parametrize(
    ("text", "flags", "key"),
    [
        ("http: 5", {"http.port": 8199}, "http"),
        ("http: {port: 8199}", {"http": 5}, "http"),
        ("", {"http.port.x": 1, "http.port": 8199}, "http.port"),
    ],
)
def test_a_key_has_a_value_or_keys_below_it(profile, text, flags, key):
    expected = f"command line: {key}: a value in one place, keys below it in another"
    assert refusal(profile(text), flags) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a\n", "expected keys and values, found list"),
        ("a: [", "not YAML"),
        ("a: 1\n\tb: 2", "not YAML"),
        ("a: 2024-99-99", "not YAML"),
        ("[" * 3000, "not YAML"),
    ],
)
def test_a_profile_that_is_no_tree_is_an_error(profile, text, problem):
    path = profile(text)
    assert refusal(path).startswith(f"{path}: {problem}")


def test_a_missing_profile_is_an_error():
    assert "/none.yaml: cannot be read" in refusal("/none.yaml")


@pytest.mark.parametrize(
    ("switch", "orchestration"),
    [
        *((word, "event_driven") for word in ("1", "TRUE", "yes", "On")),
        *((word, "polling") for word in ("0", "False", "no", "OFF")),
    ],
)
def test_the_orchestration_switch_stands_over_every_layer(switch, orchestration):
    against = "polling" if orchestration == "event_driven" else "event_driven"
    environment = {"VLLM_OMNI_EVENT_DRIVEN_ORCH": switch}
    settings = load_settings(None, {"pipeline.orchestration": against}, environment)
    assert settings.pipeline.orchestration == orchestration


@pytest.mark.parametrize("switch", [" ", "2", "event"])
def test_an_orchestration_switch_that_is_no_clear_word_is_an_error(switch):
    assert "VLLM_OMNI_EVENT_DRIVEN_ORCH" in refusal(environment={"VLLM_OMNI_EVENT_DRIVEN_ORCH": switch})


def test_an_empty_orchestration_switch_is_none():
    settings = load_settings(None, {"pipeline.orchestration": "polling"}, {"VLLM_OMNI_EVENT_DRIVEN_ORCH": ""})
    assert settings.pipeline.orchestration == "polling"


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError):
        Settings().http.port = 5


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [("http.port=80", "http.port", "80"), ("a=b=c", "a", "b=c"), ("http.cors_origins=[x]", "http.cors_origins", ["x"])],
)
def test_an_assignment_is_a_key_and_a_value(text, key, value):
    assert parse_assignment(text) == (key, value)


@pytest.mark.parametrize("text", ["http.port", "=5", ""])
def test_anything_else_is_no_assignment(text):
    with pytest.raises(ConfigurationError, match="KEY=VALUE"):
        parse_assignment(text)
