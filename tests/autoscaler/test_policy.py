"""The ScalingPolicy document: what its fields mean and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from autoscaler.policy import ScalingPolicy
from tests.builders import a_policy, policy_document, variant_document


def refusal(variants: list[dict[str, Any]] | None = None, **spec: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        a_policy(variants, **spec)
    return str(caught.value)


def test_the_least_document_has_safe_defaults() -> None:
    policy = ScalingPolicy.model_validate(
        {
            "metadata": {"name": "a"},
            "spec": {"model": "m", "variants": [{"name": "gpu", "scaleTargetRef": {"name": "d"}}]},
        }
    )
    (variant,) = policy.spec.variants
    assert (variant.min_replicas, variant.max_replicas, variant.capacity, variant.gpu_share) == (1, 4, 8, 1.0)
    assert (policy.spec.mode, policy.spec.warm_pool.standby, policy.spec.scale_to_zero.enabled) == ("Auto", 0, False)
    assert (policy.spec.prediction.quantile, policy.spec.prediction.step_seconds) == (0.95, 15)
    assert (policy.key, policy.tick_s) == ("a", 5.0)


def test_a_namespace_is_part_of_the_key_and_processes_tick_faster() -> None:
    document = policy_document(pollingIntervalSeconds=None)
    document["metadata"]["namespace"] = "serving"
    policy = ScalingPolicy.model_validate(document)
    assert (policy.key, policy.tick_s) == ("serving/chat", 2.0)


@pytest.mark.parametrize(
    ("resource", "share"),
    [
        (None, 1.0),
        ({"name": "nvidia.com/gpu", "count": 2}, 2.0),
        ({"name": "nvidia.com/mig-3g.40gb"}, 3 / 7),
        ({"name": "nvidia.com/mig-1g.10gb", "count": 2}, 2 / 7),
    ],
)
def test_a_mig_slice_counts_its_sevenths_of_a_gpu(resource: dict[str, Any] | None, share: float) -> None:
    policy = a_policy([variant_document(resource=resource)])
    assert policy.spec.variants[0].gpu_share == pytest.approx(share)


def test_the_price_is_the_share_of_a_gpu_unless_given() -> None:
    assert a_policy([variant_document(resource={"count": 2})]).variant("gpu").price == 2.0
    assert a_policy([variant_document(costPerHour=4.1)]).variant("gpu").price == 4.1


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ({"capacity": 0}, "greater than 0"),
        ({"capacity": True}, "valid number"),
        ({"capacity": "10"}, "valid number"),
        ({"capacity": float("nan")}, "finite"),
        ({"minReplicas": -1}, "greater than or equal to 0"),
        ({"minReplicas": 11}, "must be at least minReplicas (11)"),
        ({"minReplicas": 1.5}, "valid integer"),
        ({"startTime": {"p50Seconds": 0}}, "greater than 0"),
        ({"startTime": {"p50Seconds": 90, "p90Seconds": 60}}, "must be at least p50Seconds (90)"),
        ({"startTime": {"timeoutSeconds": 60}}, "must be more than p90Seconds (120)"),
        ({"process": None}, "scaleTargetRef or process"),
        ({"process": {"command": ["a"]}}, "must contain {port} in"),
        ({"process": {"command": ["a", "{port}", "{device}"]}}, "must list devices, because {device} is"),
        ({"process": {"command": []}}, "must name a program"),
        ({"process": {"command": ["a", "{port}"], "devices": [True]}}, "list of device names"),
        ({"process": {"command": ["a", "{port}"], "readiness": {"path": "health"}}}, "must start with /"),
        ({"name": "Not_A_Label"}, "pattern"),
        ({"engine": "unknown"}, "'vllm'"),
        ({"capcity": 3}, "Extra inputs"),
    ],
)
def test_a_variant_that_cannot_be_meant_is_refused(variant: dict[str, Any], words: str) -> None:
    assert words in refusal([variant_document(**variant)])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"warmPool": {"standby": -1}}, "must be auto, a number"),
        ({"warmPool": {"standby": "some"}}, "must be auto, a number"),
        ({"warmPool": {"standby": True}}, "must be auto, a number"),
        ({"prediction": {"quantile": 1}}, "less than 1"),
        ({"prediction": {"stepSeconds": 0}}, "greater than 0"),
        ({"prediction": {"historyWindowSeconds": 60}}, "must be at most historyWindowSeconds (60)"),
        ({"prediction": {"source": "prometheus"}}, "must have prometheus {url, query}"),
        ({"signal": {"type": "prometheus"}}, "must have prometheus {query, target}"),
        ({"behavior": {"panic": {"windowSeconds": 90}}}, "must be at least windowSeconds (90)"),
        ({"behavior": {"panic": {"thresholdPercent": 0}}}, "greater than 0"),
        ({"scaleToZero": {"enabled": True}}, "needs minReplicas 0 on every variant"),
        ({"budget": {"maxGPUs": 0.5}}, "must hold all minReplicas"),
        ({"budget": {"maxCostPerHour": 0.5}}, "must pay for all minReplicas"),
        ({"rollout": {"from": "v0", "to": "v1"}}, "leave at least one variant"),
        ({"rollout": {"from": "v1", "to": "v2", "steps": [50, 10]}}, "must ascend and end with 100"),
        ({"rollout": {"from": "v1", "to": "v2", "surge": "many"}}, "must be auto or a number"),
        ({"schedules": [{"name": "a", "from": 1320, "to": "02:00", "minReplicas": 1}]}, "valid string"),
        ({"fallback": {"behavior": "static"}}, "'currentReplicas'"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(spec: dict[str, Any], words: str) -> None:
    """A14: a threshold that is missing or 0 elsewhere meant a runaway; here it is refused or has a default."""
    assert words in refusal(**spec)


def test_variants_need_unique_names_and_one_way_of_pricing() -> None:
    assert "used more than once: gpu" in refusal([variant_document(), variant_document()])
    assert "missing on: b" in refusal([variant_document("a", costPerHour=1), variant_document("b")])
    assert "at least one variant" in refusal([])


@pytest.mark.parametrize("standby", [0, 3, "auto", "25%", "12.5%"])
def test_standby_is_a_number_a_percentage_or_auto(standby: int | str) -> None:
    assert a_policy(warmPool={"standby": standby}).spec.warm_pool.standby == standby


def test_devices_may_be_written_as_numbers() -> None:
    process = {"command": ["a", "{port}"], "devices": [0, 1]}
    policy = a_policy([variant_document(process=process)])
    assert policy.spec.variants[0].process is not None
    assert policy.spec.variants[0].process.devices == ("0", "1")


def test_variants_of_the_version_that_a_rollout_brings_in_do_not_serve() -> None:
    variants = [variant_document("old"), variant_document("new", version="v2")]
    policy = a_policy(variants, rollout={"from": "v1", "to": "v2"})
    assert [variant.name for variant in policy.spec.serving] == ["old"]


def test_an_unknown_variant_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="h100"):
        a_policy().variant("h100")


@pytest.mark.parametrize(("signal", "units"), [("concurrency", 12.0), ("requestRate", 3.0), ("tokenRate", None)])
def test_a_rate_in_signal_units(signal: str, units: float | None) -> None:
    policy = a_policy(signal={"type": signal})
    assert policy.spec.signal.units(3.0, 4.0) == units
    assert policy.spec.signal.units(None, 4.0) is None
