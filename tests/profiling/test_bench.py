"""The load generator against real servers on loopback: what came when, what was asked, and what went wrong."""

import json
import socket
import time

import pytest

from duotone.profiling.bench import TEXTS, Load, Target, run_level, write_results
from duotone.profiling.measures import Record, summarise

from .http_server import Script, answering, serving

FRAME = b"\1\0" * 1920
ENVELOPE = {"error": {"message": "m", "type": "server_error", "param": None, "code": "pipeline_failed"}}


async def level(url, streams=1, **load):
    return await run_level(Target(url), Load(**{"requests": 1, "warmup_rounds": 0, **load}), streams)


async def failures(url, **load):
    return (await level(url, **load)).summary.failures


async def test_chunks_are_noted_as_the_server_wrote_them_and_when():
    script = Script([(0.0, FRAME), (0.1, 20 * FRAME), (0.05, b"\0\0")])
    with serving(script) as url:
        before_s = time.monotonic()
        (record,) = (await level(url)).records
    assert record.chunk_bytes == [3840, 76_800, 2]
    assert (record.status, record.failure, record.samples) == (200, None, 21 * 1920 + 1)
    first, second, third = record.arrivals_s
    assert before_s <= record.sent_s <= first <= record.ended_s
    assert 0.09 < second - first < 2
    assert 0.04 < third - second < 2


async def test_every_request_is_asked_for_once_with_its_own_text_and_seed():
    script = Script([(0.0, FRAME)])
    with serving(script) as url:
        await level(url, streams=3, requests=14, frames=1, seed=100, voice="ash", model="m")
    assert sorted(body["seed"] for body in script.bodies) == list(range(100, 114))
    body = next(body for body in script.bodies if body["seed"] == 113)
    expected = {"model": "m", "input": TEXTS[1], "voice": "ash", "response_format": "pcm"}
    assert body == {**expected, "min_new_frames": 1, "max_new_frames": 1, "seed": 113}


async def test_what_is_not_asked_for_is_not_in_the_body():
    script = Script([(0.0, FRAME)])
    with serving(script) as url:
        await level(url)
    assert script.bodies == [{"model": "tts-1", "input": TEXTS[0], "voice": "alloy", "response_format": "pcm"}]


async def test_warm_up_comes_first_is_not_measured_and_repeats_no_seed():
    script = Script([(0.0, FRAME)])
    with serving(script) as url:
        result = await level(url, streams=2, requests=4, warmup_rounds=3, seed=0)
    seeds = [body["seed"] for body in script.bodies]
    assert set(seeds[:6]) == set(range(4, 10))
    assert set(seeds[6:]) == set(range(4))
    assert [record.index for record in result.records] == [0, 1, 2, 3]


async def test_as_many_requests_run_at_once_as_there_are_streams_and_each_keeps_its_connection():
    script = Script([(0.03, FRAME)])
    with serving(script) as url:
        result = await level(url, streams=5, requests=20)
    assert script.most_at_once == 5
    assert len(script.clients) == 5
    assert result.summary.completed == 20


def test_a_load_has_four_requests_for_each_stream_and_at_least_eight():
    assert [Load().requests_at(streams) for streams in (1, 2, 64)] == [8, 16, 512]
    assert Load(requests=512).requests_at(64) == 512


async def test_those_who_ask_are_told_of_each_measured_request():
    ended = []
    with serving(Script([(0.0, FRAME)])) as url:
        result = await run_level(Target(url), Load(requests=3, warmup_rounds=2), 1, ended.append)
    assert ended == result.records


async def test_a_key_is_sent_as_a_bearer_token_and_written_nowhere(tmp_path):
    script = Script([(0.0, FRAME)])
    with serving(script) as url:
        target, load = Target(url + "/v1/", "secret-key"), Load(requests=1, warmup_rounds=0)
        result = await run_level(target, load, 1)
    (request,) = script.requests
    assert dict(request["headers"])[b"authorization"] == b"Bearer secret-key"
    assert request["path"] == "/v1/audio/speech"
    write_results(tmp_path / "new" / "results.json", target, load, [result])
    assert "secret-key" not in (tmp_path / "new" / "results.json").read_text()


async def test_what_is_written_holds_all_that_the_figures_need(tmp_path):
    with serving(Script([(0.0, FRAME), (0.01, FRAME)])) as url:
        load = Load(requests=6, warmup_rounds=0, frames=2)
        result = await run_level(Target(url), load, 2)
    write_results(tmp_path / "results.json", Target(url), load, [result])
    (written,) = json.loads((tmp_path / "results.json").read_text())["levels"]
    records = [Record(**record) for record in written["records"]]
    cpu_s = result.summary.client_cores * result.summary.wall_s
    assert summarise(records, [], 2, 2, cpu_s) == result.summary


async def test_answers_of_another_length_than_asked_for_are_counted():
    with serving(Script([(0.0, FRAME), (0.0, FRAME)])) as url:
        assert (await level(url, frames=2)).summary.inexact == 0
        result = await level(url, frames=3, requests=4)
    assert (result.summary.completed, result.summary.inexact) == (4, 4)


async def test_an_error_counts_with_its_status_and_code():
    with serving(Script([(0.0, json.dumps(ENVELOPE).encode())], status=503)) as url:
        assert await failures(url, requests=2) == {"HTTP 503 pipeline_failed": 2}
    for body in (b"Bad gateway", b"[]", b'{"error": {"x": 1}}', b'{"error": {"code": null}}'):
        with serving(Script([(0.0, body)], status=502)) as url:
            assert await failures(url) == {"HTTP 502": 1}


async def test_a_redirect_is_no_answer():
    with serving(Script([], status=307, headers=[(b"location", b"/elsewhere")])) as url:
        assert await failures(url) == {"HTTP 307": 1}


async def test_an_answer_that_breaks_off_has_failed_and_keeps_what_came():
    with serving(Script([(0.0, FRAME), (0.0, FRAME)], cut=True)) as url:
        result = await level(url, requests=3)
    assert result.summary.failures == {"the answer was cut off": 3}
    assert result.summary.completed == 0
    assert [record.chunk_bytes for record in result.records] == [[3840, 3840]] * 3


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n1234", "the answer was cut off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n1234", "the answer was cut off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n1234", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-", "the connection was closed before the answer"),
        (b"", "the connection was closed before the answer"),
        (b"SSH-2.0-server\r\n\r\n", "the answer is not HTTP"),
        (b"220 mail.example ready\r\n\r\n", "the answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "no audio"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\n123", "half a sample"),
    ],
)
async def test_a_broken_answer_counts_with_its_reason(response, reason):
    with answering(response) as url:
        assert await failures(url, requests=2) == {reason: 2}


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: Close\r\n\r\n1234",
        b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n1234",
        b"HTTP/1.0 200 OK\r\n\r\n1234",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\ntransfer-encoding: Chunked\r\n\r\n4\r\n1234\r\n0\r\nT: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\n1234\r\n0\r\n\r\n",
    ],
)
async def test_every_way_to_frame_a_body_is_understood_and_closed_connections_are_opened_again(response):
    with answering(response) as url:
        result = await level(url, requests=3)
    assert result.summary.failures == {}
    assert [record.chunk_bytes for record in result.records] == [[4]] * 3


async def test_a_refused_connection_is_a_failure():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        reasons = await failures(f"http://127.0.0.1:{taken.getsockname()[1]}", requests=2)
    ((reason, count),) = reasons.items()
    assert (reason.split(":")[0], count) == ("no connection", 2)


async def test_an_answer_without_end_fails_at_its_deadline_and_the_next_is_asked_for():
    with serving(Script([(0.0, FRAME), (1.0, FRAME)])) as url:
        result = await level(url, requests=2, timeout_s=0.2)
    assert result.summary.failures == {"no end within 0.2 s": 2}
    assert [record.chunk_bytes for record in result.records] == [[3840], [3840]]


async def test_failures_while_warming_up_are_counted_apart():
    with answering(b"") as url:
        result = await level(url, warmup_rounds=2)
    assert result.summary.warmup_failures == {"the connection was closed before the answer": 2}


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "/v1"])
def test_what_is_no_url_is_refused_at_once(url):
    with pytest.raises(ValueError, match="expected http://host:port"):
        Target(url)


async def test_the_clients_own_cpu_time_is_in_the_summary():
    with serving(Script([(0.0, FRAME)] * 50)) as url:
        summary = (await level(url, streams=4, requests=40)).summary
    # The server runs in the same process here, so that this is more than the client's own part.
    assert 0 < summary.client_cores < 2.5


def steps(stage: str, replica: int, steps: int, seconds: float, requests: int) -> str:
    labels = f'{{model="m",stage="{stage}",replica="{replica}"}}'
    return (
        f"duotone_step_seconds_count{labels} {steps}\nduotone_step_seconds_sum{labels} {seconds}\n"
        f"duotone_batch_size_sum{labels} {requests}\n"
    )


async def test_what_the_servers_workers_did_meanwhile_is_told_by_worker():
    before = steps("talker", 0, 10, 5.0, 20) + steps("talker", 1, 7, 1.0, 7)
    after = steps("talker", 0, 30, 5.04, 100) + steps("talker", 1, 7, 1.0, 7) + steps("code2wav", 0, 4, 0.02, 4)
    with serving(Script([(0.1, FRAME)], metrics=(before.encode(), after.encode()))) as url:
        result = await level(url)
    talker, idle, code2wav = result.stages
    assert [load.replica for load in result.stages] == ["talker-0", "talker-1", "code2wav-0"]
    assert (idle.busy_share, idle.step_ms, idle.batch) == (0, None, None)
    assert (talker.step_ms, talker.batch) == pytest.approx((2.0, 4.0))
    assert talker.busy_share == pytest.approx(0.04 / result.summary.wall_s, rel=0.05)
    assert code2wav.step_ms == pytest.approx(5.0)


async def test_a_server_without_such_metrics_is_measured_all_the_same():
    with serving(Script([(0.0, FRAME)], metrics=(b"<html>", b"nothing {{"))) as url:
        result = await level(url)
    assert (result.stages, result.summary.completed) == ([], 1)
