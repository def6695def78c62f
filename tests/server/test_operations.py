"""Probes and metrics."""

from prometheus_client.parser import text_string_to_metric_families


async def test_health_is_ok_when_the_pipeline_is_ready(client):
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_health_is_503_when_it_is_not_and_live_still_200(client, pipeline, caplog):
    pipeline.ready = False
    caplog.set_level("INFO", "duotone")
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
    assert answer.headers["retry-after"] == "5"
    assert not [record for record in caplog.records if record.name.startswith("duotone")]
    assert (await client.get("/live")).status_code == 200


async def test_metrics_are_those_of_the_application_s_registry(client, metrics):
    metrics.finished["stop"].inc(3)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    finished = {
        sample.labels["reason"]: sample.value for sample in samples if sample.name == "duotone_requests_finished_total"
    }
    assert finished["stop"] == 3
