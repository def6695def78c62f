"""The server's metrics: every worker under its own labels, also those that its engine keeps itself."""

from prometheus_client.parser import text_string_to_metric_families

from duotone.profiling.metrics import Metrics, merged

ENGINE = """\
# HELP vllm:steps_total Steps.
# TYPE vllm:steps_total counter
vllm:steps_total{engine="0"} %d
"""


def test_workers_of_one_stage_are_told_apart():
    metrics = Metrics("lark")
    for replica, frames in (("talker-0", 3), ("talker-1", 4), ("talker-0", 5)):
        metrics.replica(replica).stepped(batch=2, step_s=0.01, frames=frames)
    value = metrics.registry.get_sample_value
    made = [value("duotone_frames_total", {"model": "lark", "stage": "talker", "replica": replica}) for replica in "01"]
    assert made == [8, 4]


def test_what_engines_expose_is_one_family_with_a_series_of_each():
    text = merged({"talker-0": ENGINE % 3, "talker-1": ENGINE % 4, "code2wav-0": ""})
    assert text.count("# TYPE vllm:steps_total") == 1
    (family,) = text_string_to_metric_families(text)
    assert {sample.labels["replica"]: sample.value for sample in family.samples} == {"0": 3, "1": 4}
    assert family.samples[0].labels == {"engine": "0", "stage": "talker", "replica": "0"}
