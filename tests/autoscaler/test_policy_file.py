"""Reading policy files: all problems at once, in words that name place, value and what is allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.errors import BadInput
from autoscaler.policy_file import not_acted_on, read_policies
from tests.builders import a_policy, policy_document, variant_document

ROOT = Path(__file__).resolve().parents[2]


def written(folder: Path, *documents: Any, name: str = "p.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(BadInput) as caught:
        read_policies(path)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{path}: ", "").splitlines()


def named(name: str, model: str, **spec: Any) -> dict[str, Any]:
    document = policy_document(**spec)
    document["metadata"]["name"] = name
    document["spec"]["model"] = model
    return document


def test_several_documents_and_json(tmp_path: Path) -> None:
    path = written(tmp_path, named("a", "x"), named("b", "y"))
    assert [policy.key for policy in read_policies(path)] == ["a", "b"]
    json_path = tmp_path / "p.json"
    json_path.write_text(json.dumps(named("c", "z")), encoding="utf-8")
    assert [policy.key for policy in read_policies(json_path)] == ["c"]


def test_every_problem_of_every_document_is_reported(tmp_path: Path) -> None:
    first = named("a", "x", variants=[variant_document(capacity=-3, maxReplica=4)], minReplica=1)
    second = named("b", "y", mode="auto", zzz=1)
    assert problems(written(tmp_path, first, second)) == [
        "document 1: spec.variants[0].capacity: -3 is not allowed: must be greater than 0",
        "document 1: spec.variants[0].maxReplica: unknown key; did you mean maxReplicas?",
        "document 1: spec.minReplica: unknown key; known here: " + known_in_spec(),
        "document 2: spec.mode: 'auto' is not allowed: must be 'Observe', 'Advise', 'Auto' or 'Paused'",
        "document 2: spec.zzz: unknown key; known here: " + known_in_spec(),
    ]


def known_in_spec() -> str:
    return (
        "model, aliases, mode, actuation, priority, slo, pollingIntervalSeconds, signal, variants, prediction, warmPool, scaleToZero, "
        "behavior, drain, schedules, budget, fallback, rollout, routing"
    )


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"slo": {"queueSeconds": "5"}}, "spec.slo.queueSeconds: '5' is not allowed: must be a number"),
        ({"slo": {"queueSeconds": None}}, "spec.slo.queueSeconds: null is not allowed: must be a number"),
        ({"slo": {"queueSecs": 5}}, "spec.slo.queueSecs: unknown key; did you mean queueSeconds?"),
        ({"slo": 5}, "spec.slo: 5 is not allowed: must be keys and values"),
        ({"aliases": "llama"}, "spec.aliases: 'llama' is not allowed: must be a list"),
        ({"aliases": [7]}, "spec.aliases[0]: 7 is not allowed: must be text; put it in quotes"),
        ({"priority": 1.5}, "spec.priority: 1.5 is not allowed: must be a whole number"),
        ({"prediction": {"enabled": "yes"}}, "spec.prediction.enabled: 'yes' is not allowed: must be true or false"),
        ({"prediction": {"quantile": 2}}, "spec.prediction.quantile: 2 is not allowed: must be less than 1"),
        ({"budget": {"maxGPU": 1}}, "spec.budget.maxGPU: unknown key; did you mean maxGPUs?"),
        ({"rollout": {"to": "v2"}}, "spec.rollout.from: missing; it has no default"),
        (
            {"prediction": {"minHistorySeconds": 9, "historyWindowSeconds": 3}},
            "spec.prediction.minHistorySeconds: 9 is not allowed: must be at most historyWindowSeconds (3)",
        ),
        ({"scaleToZero": {"enabled": True}}, "spec: scaleToZero.enabled needs minReplicas 0 on every variant"),
        (
            {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 1}]}}},
            "spec.behavior.scaleUp.policies[0].value: 0 is not allowed: must be at least 1",
        ),
        (
            {"variants": [variant_document(minReplicas=5, maxReplicas=5), {"name": "b", "minReplicas": 5}]},
            "spec.variants[1].maxReplicas: 4 is not allowed: must be at least minReplicas (5)",
        ),
    ],
)
def test_a_problem_names_its_place_its_value_and_what_is_allowed(
    tmp_path: Path, spec: dict[str, Any], problem: str
) -> None:
    document = policy_document()
    document["spec"].update(spec)
    assert problems(written(tmp_path, document)) == [f"document 1: {problem}"]


def test_names_and_models_belong_to_one_policy(tmp_path: Path) -> None:
    path = written(tmp_path, named("a", "x", aliases=["y"]), named("b", "y"), named("a", "z"))
    assert problems(path) == [
        "model y is claimed by a and b; a model or alias belongs to one policy",
        "two documents are named a; names must be unique",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no document; a ScalingPolicy is needed"),
        ("# nothing\n---\n", "holds no document; a ScalingPolicy is needed"),
        ("a: [1\nb: 2\n", "line 2, column 2: expected ',' or ']', but got ':'"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: key 'a' is given twice"),
        ("source: static\nendpoints: []\n", "this looks like a table of endpoints; use `tidegate router -f`"),
        ("models: []\n", "this looks like a table of endpoints; use `tidegate router -f`"),
        ("- 1\n", "document 1: must be a ScalingPolicy, is list [1]"),
        ("a: \x01\n", "not YAML: unacceptable character #x0001: special characters are not allowed"),
    ],
)
def test_what_is_not_a_policy_file_is_said_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8")
    (found,) = problems(path)
    assert problem in found


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == ["cannot be read: No such file or directory"]
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read: 'utf-8' codec" in problems(binary)[0]


def test_the_whole_document_that_the_design_promises() -> None:
    (policy,) = read_policies(ROOT / "deploy" / "examples" / "reference.yaml")
    spec = policy.spec
    assert policy.key == "serving/llama-8b"
    assert [(variant.name, variant.version, variant.max_replicas) for variant in spec.variants] == [
        ("h100", "v1", 8),
        ("mig-3g", "v1", 6),
        ("h100-v2", "v2", 8),
    ]
    assert [variant.name for variant in spec.serving] == ["h100", "mig-3g"]
    assert (spec.schedules[0].from_, spec.budget.max_gpus, spec.rollout and spec.rollout.to) == ("22:00", 16, "v2")
    assert spec.rollout is not None
    assert spec.rollout.analysis.max_ttft_ratio == 1.3
    assert not_acted_on(policy) == (
        "spec.priority",
        "spec.variants[0].scaleTargetRef",
        "spec.variants[1].scaleTargetRef",
        "spec.variants[2].scaleTargetRef",
        "spec.warmPool.sleeping",
        "spec.schedules",
        "spec.budget.period",
        "spec.rollout",
    )


@pytest.mark.parametrize("name", ["local.yaml", "vllm.yaml"])
def test_the_examples_are_acted_on_in_full(name: str) -> None:
    (policy,) = read_policies(ROOT / "deploy" / "examples" / name)
    assert not_acted_on(policy) == ()


def test_defaults_written_out_are_not_reported() -> None:
    assert not_acted_on(a_policy(priority=0, routing={"policy": "least-load"}, schedules=[])) == ()
    assert not_acted_on(a_policy(signal={"type": "tokenRate"}, routing={"policy": "session"})) == ("spec.signal.type",)
