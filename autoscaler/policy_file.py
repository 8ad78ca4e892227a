"""Reading ScalingPolicy documents from a file, with all problems at once.

The one place that words problems: each is a line `FILE: document 1: spec.variants[0].capacity: -3 is not allowed: must
be greater than 0`. Knows files and YAML (JSON is YAML), nothing of scaling.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from autoscaler.errors import BadInput
from autoscaler.policy import ScalingPolicy

NOT_ACTED_ON = (
    "spec.priority",
    "spec.slo.attainment_percent",
    "spec.slo.ttft_seconds",
    "spec.signal.prometheus",
    "spec.variants.scale_target_ref",
    "spec.prediction.source",
    "spec.prediction.prometheus",
    "spec.warm_pool.sleeping",
    "spec.warm_pool.cached",
    "spec.schedules",
    "spec.budget.period",
    "spec.rollout",
)
"""Fields that this version accepts and nothing reads; the list shrinks as they are built."""

ROUTER_KEYS = {"source", "endpoints", "models"}
"""What a table of endpoints, the router's file, begins with."""

_RULES = {
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "must be {expected}",
    "tuple_type": "must be a list",
    "dict_type": "must be keys and values",
    "model_type": "must be keys and values",
    "model_attributes_type": "must be keys and values",
}


def read_policies(path: Path | str) -> tuple[ScalingPolicy, ...]:
    """All policies of a file with one or more YAML documents.

    Raises `BadInput` that lists every problem of every document, one a line: unreadable file, syntax, unknown keys
    (with the nearest known one), values out of bounds, and names or models that two documents claim.
    """
    path = Path(path)
    policies: list[ScalingPolicy] = []
    problems: list[str] = []
    documents = _documents(path)
    for position, document in enumerate(documents, start=1):
        place = f"{path}: document {position}: "
        if not isinstance(document, Mapping):
            problems.append(f"{place}must be a ScalingPolicy, is {type(document).__name__} {document!r}")
            continue
        if ROUTER_KEYS & document.keys() and not {"apiVersion", "kind"} & document.keys():
            problems.append(f"{place}this looks like a table of endpoints; use `tidegate router -f`")
            continue
        try:
            policies.append(ScalingPolicy.model_validate(document))
        except ValidationError as error:
            problems += [place + problem for problem in _in_words(error)]
    problems += [f"{path}: {conflict}" for conflict in _conflicts(policies)]
    if problems:
        raise BadInput("\n".join(problems))
    return tuple(policies)


def not_acted_on(policy: ScalingPolicy) -> tuple[str, ...]:
    """Paths, as written in the file, of fields that are set to something else than their default and that nothing
    reads yet."""
    found: list[str] = []
    for path in NOT_ACTED_ON:
        found += _set_fields(policy, path.split("."), "")
    if policy.spec.signal.type in ("tokenRate", "prometheus"):
        found.append("spec.signal.type")
    return tuple(found)


def _documents(path: Path) -> list[Any]:
    """The parsed documents that are not empty. Raises `BadInput` for a file that cannot be read or is not YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadInput(f"{path}: cannot be read: {reason}") from error
    try:
        documents = [document for document in yaml.load_all(text, Loader=_UniqueKeys) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise BadInput(f"{path}: {line}{error.problem or 'not YAML'}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"{path}: not YAML: {' '.join(str(error).split()) or 'nested too deep'}") from error
    if not documents:
        raise BadInput(f"{path}: holds no document; a ScalingPolicy is needed")
    return documents


class _UniqueKeys(yaml.SafeLoader):
    """YAML that refuses a key given twice: the first would be lost in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _in_words(error: ValidationError) -> Iterator[str]:
    for details in error.errors(include_url=False):
        path, known = _place(details["loc"])
        yield f"{path or 'document'}: {_problem(details, known)}"


def _problem(details: ErrorDetails, known: Sequence[str]) -> str:
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(details["loc"][-1]), known, n=1, cutoff=0.5)
        return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; known here: {', '.join(known)}"
    if kind == "missing":
        return "missing; it has no default"
    context: Mapping[str, Any] = details.get("ctx", {})
    rule = _RULES[kind].format(**context) if kind in _RULES else details["msg"].removeprefix("Value error, ")
    if isinstance(value, Mapping | list | tuple | BaseModel):
        return rule
    return f"{'null' if value is None else repr(value)} is not allowed: {rule}"


def _place(loc: Sequence[str | int]) -> tuple[str, tuple[str, ...]]:
    """(the path as written in the file, the keys known beside its last part).

    Defaults are reported by attribute name, given values by key; both are written as the key.
    """
    path, model = "", ScalingPolicy if loc else None
    known: tuple[str, ...] = ()
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        fields = model.model_fields if model else {}
        aliases = {name: info.alias or name for name, info in fields.items()}
        known = tuple(aliases.values())
        key = aliases.get(part, part)
        path += f".{key}" if path else key
        name = next((name for name, alias in aliases.items() if alias == key), None)
        model = _model_within(fields[name].annotation) if name else None
    return path, known


def _model_within(annotation: Any) -> type[ScalingPolicy] | None:
    """The part that a field's type holds, if any: itself, in a tuple, or beside None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation  # type: ignore[return-value]  # any part will do, all have model_fields
    return next((found for inner in get_args(annotation) if (found := _model_within(inner))), None)


def _conflicts(policies: Sequence[ScalingPolicy]) -> Iterator[str]:
    """Two documents that claim one name: routers could not tell whose the requests are."""
    owners: dict[str, str] = {}
    keys: set[str] = set()
    for policy in policies:
        if policy.key in keys:
            yield f"two documents are named {policy.key}; names must be unique"
        keys.add(policy.key)
        for name in dict.fromkeys((policy.spec.model, *policy.spec.aliases)):
            owner = owners.setdefault(name, policy.key)
            if owner != policy.key:
                yield f"model {name} is claimed by {owner} and {policy.key}; a model or alias belongs to one policy"


def _set_fields(part: Any, path: Sequence[str], written: str) -> list[str]:
    """The written paths under `part` at which `path` differs from its default."""
    name, rest = path[0], path[1:]
    info = type(part).model_fields[name]
    value = getattr(part, name)
    here = f"{written}.{info.alias or name}" if written else info.alias or name
    if not rest:
        return [] if value == info.get_default(call_default_factory=True, validated_data={}) else [here]
    if isinstance(value, tuple):
        return [found for index, item in enumerate(value) for found in _set_fields(item, rest, f"{here}[{index}]")]
    return _set_fields(value, rest, here)
