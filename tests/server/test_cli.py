"""The command line: quick help, and one readable line for what is wrong."""

import json
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from duotone import __version__
from duotone.server.cli import app
from duotone.server.service import _write
from duotone.stages.errors import ConfigurationError


def run(*arguments: str):
    return CliRunner().invoke(app, arguments)


def test_the_version_is_told():
    assert run("--version").output == f"duotone {__version__}\n"


def test_help_names_the_commands():
    output = run("--help").output
    assert "serve" in output
    assert "say" in output


@pytest.mark.parametrize("page", ["README.md", "profiling/README.md"])
def test_every_command_that_is_written_down_can_be_read(page):
    text = (Path(__file__).parents[2] / page).read_text()
    commands = re.findall(r"`duotone (\w+ [^`]+)`|^duotone (\w+ [^#\n]+)", text, re.MULTILINE)
    assert commands
    for inline, line in commands:
        name, *arguments = shlex.split(inline or line)
        get_command(app).commands[name].make_context(name, arguments)


def test_the_command_line_loads_nothing_heavy():
    code = "import sys, duotone.server.cli; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "fastapi", "starlette", "uvicorn", "zmq", "tokenizers", "huggingface_hub"}


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["serve", "/nowhere/[red]"], ["error: /nowhere/[red]: there is no such directory"]),
        (["serve", "--port", "70000"], ["command line: http.port: Input should be less than or equal to 65535"]),
        (["serve", "--log-level", "loud"], ["command line: log_level: Input should be 'debug', 'info', "]),
        (["serve", "--set", "http.prot=1"], ["error: command line: http.prot: unknown key"]),
        (["serve", "--set", "port"], ["error: command line: --set port: expected KEY=VALUE"]),
        (["serve", "--config", "/none.yaml"], ["error: /none.yaml: cannot be read: "]),
        (["serve", "--set", "a=1", "--set", "b=1"], ["command line: a: unknown key", "command line: b: unknown key"]),
        (["serve", "--monitor", "no/such.json"], ["error: --monitor no/such.json: cannot be written: No such file"]),
        (["serve", "--monitor", "."], ["error: --monitor .: cannot be written: Is a directory"]),
        (["serve", "--set", "http.host=no.such.invalid"], ["error: http.host: no.such.invalid: "]),
        (["serve", "--host", "198.51.100.1"], ["error: http.host: cannot listen on 198.51.100.1:8000: Cannot assign"]),
        (["serve", "--host", ""], ["error: command line: http.host: String should have at least 1 character"]),
        (["serve", "--set", "http.cors_origins=[2024-99-99]"], ["command line: http.cors_origins: "]),
        (["serve", "--set", "http.cors_origins=" + "[" * 3000], ["command line: http.cors_origins: "]),
        (["serve", "--profiler-config", "[" * 30_000], ["command line: --profiler-config: not JSON: "]),
        (["serve", "--port", "8199", "--set", "http=5"], ["command line: http: a value in one place, keys"]),
        (["serve", "--port", "8199", "--set", "http.port.x=1"], ["command line: http.port: "]),
        (["say", "hi", "-o", "/proc/hi.wav"], ["error: /proc/hi.wav: cannot be written"]),
        (["say", "hi", "-o", "hi.doc"], ["error: hi.doc: cannot write this format"]),
        (["say", "hi", "-o", "hi.raw"], ["error: hi.raw: cannot write this format"]),
        (["say", "hi", "-o", "no/such/hi.wav"], ["error: no/such/hi.wav: there is no folder no/such"]),
        (["say", " ", "-o", "hi.wav"], ["error: input: there is no text to speak"]),
        (["say", "hi", "-o", "hi.wav", "--seed", "-1"], ["error: seed: Input should be greater than or equal to 0"]),
        (["say", "hi", "-o", "hi.wav", "--model", "/none"], ["error: /none: there is no such directory"]),
        (["say", "-", "-o", "hi.wav"], ["error: input: there is no text to speak"]),
        (["say", "hi", "-o", "hi.wav", "--ref-audio", "a.wav"], ["error: a.wav: cannot be read: No such file"]),
    ],
)
def test_what_is_wrong_is_told_in_a_line_each(arguments, lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == len(lines)
    assert all(line in result.stderr for line in lines)
    assert "Traceback" not in result.output


def test_the_monitor_is_written_at_the_end_and_a_full_disk_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr("duotone.server.service.Server.run", lambda _: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert run("serve", "--monitor", str(tmp_path / "seconds.json")).exit_code == 0
    assert [second["requests_in_flight"] for second in json.loads((tmp_path / "seconds.json").read_text())] == [0]
    full = run("serve", "--monitor", "/dev/full")
    assert full.stderr == "error: --monitor /dev/full: cannot be written: No space left on device\n"


def test_a_text_may_come_from_standard_input(tmp_path, monkeypatch):
    asked = []

    async def say(_, request, __) -> float:
        asked.append(request.input)
        return 1.0

    monkeypatch.setattr("duotone.server.service.say", say)
    result = CliRunner().invoke(app, ["say", "-", "-o", str(tmp_path / "hi.wav")], input="Grüße.\nUnd mehr.")
    assert result.exit_code == 0
    assert asked == ["Grüße.\nUnd mehr."]


def test_a_text_from_standard_input_is_utf_8(tmp_path):
    result = CliRunner().invoke(app, ["say", "-", "-o", str(tmp_path / "hi.wav")], input=b"Hello \xff\xfe there")
    assert result.exit_code == 1
    assert result.stderr == "error: standard input: not UTF-8 at byte 6\n"


def test_a_port_that_is_taken_is_told_by_its_setting():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--port", str(port))
    assert result.exit_code == 1
    assert result.stderr == f"error: http.port: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_flag_stands_over_an_assignment():
    assert run("serve", "/none", "--set", "http.port=70001", "--port", "8000").stderr == (
        "error: /none: there is no such directory\n"
    )


def test_saying_into_a_link_writes_what_it_leads_to(tmp_path):
    link, target = tmp_path / "link.wav", tmp_path / "target.wav"
    link.symlink_to(target)
    refused = run("say", "hi", "--voice", "nobody", "-o", str(link))
    assert refused.exit_code == 1
    assert link.is_symlink()
    assert not target.exists()


@pytest.mark.parametrize("was_there", [False, True])
def test_a_file_that_cannot_be_written_whole_is_not_left(tmp_path, monkeypatch, was_there):
    out = tmp_path / "hi.wav"
    if was_there:
        out.write_bytes(b"mine")

    def full(file, *_, **__):
        file.write_bytes(b"part")
        raise OSError("No space left on device")

    monkeypatch.setattr("soundfile.write", full)
    with pytest.raises(ConfigurationError, match=r"hi\.wav: cannot be written: No space left"):
        _write(out, np.zeros(10, np.int16), "WAV")
    assert out.exists() == was_there
