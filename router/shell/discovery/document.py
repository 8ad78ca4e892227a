"""Intent tables that people write: every problem at once, each with its field, its value and what is allowed.

`router.model` reads the same document from a controller and stops at the first problem; there unknown fields are
ignored, so that an older router can live with a newer controller. In a file an unknown field is a typing error, so it
is refused with the nearest known name. How: the types of `router.model` are walked beside the document for unknown
keys, and each model and endpoint is converted by itself, so that one problem does not hide the next.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator

import msgspec
import yaml
from msgspec import inspect

from router.errors import BadTable
from router.model import IntentTable, table_from

DOCUMENT_BYTES_MAX = 16 << 20
"""About 50,000 endpoints; a larger one is a mistake, and would hold the loop for seconds."""

PROBLEMS_MAX = 20
"""More are counted, not printed."""

_TABLE = inspect.type_info(IntentTable)
_POLICY = re.compile(rb"""^[ \t{,]*["']?kind["']?[ \t]*:[ \t]*["']?ScalingPolicy\b""", re.MULTILINE)
_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]|\[\.\.\.\]")
_FIELD = re.compile(r"`\$\.?([^`]*)`((?:\.\w+)?)")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def parse_document(text: bytes, name: str) -> IntentTable:
    """Read YAML or JSON into a table; a missing `source` becomes `name`. Raises `BadTable`, each message starting with
    `name`."""
    if len(text) > DOCUMENT_BYTES_MAX:
        raise BadTable(f"{name}: {len(text)} bytes; allowed: at most {DOCUMENT_BYTES_MAX}")
    if _POLICY.search(text):
        raise BadTable(
            f"{name}: `kind`: ScalingPolicy: a policy says how many replicas there are to be, and is the controller's: "
            f"`tidegate controller --local -f {name}` beside a `tidegate router` without -f; "
            "allowed here: an intent table with `models` and `endpoints`"
        )
    document = _plain(text, name)
    if not isinstance(document, dict):
        kind = "nothing" if document is None else type(document).__name__
        raise BadTable(f"{name}: holds {kind}; allowed: a mapping with `models` and `endpoints`")
    document.setdefault("source", name)
    found = problems(document)
    if found:
        more = f"; and {len(found) - PROBLEMS_MAX} more" if len(found) > PROBLEMS_MAX else ""
        raise BadTable("; ".join(f"{name}: {problem}" for problem in found[:PROBLEMS_MAX]) + more)
    try:
        return table_from(document)
    except BadTable as error:
        raise BadTable(f"{name}: {same_form(str(error))}") from error


def same_form(message: str) -> str:
    """`router.model` writes a field as "`$.endpoints[0]`.url", people read "`endpoints[0].url`"."""
    return _FIELD.sub(r"`\1\2`", message)


def problems(document: object, *, unknown_fields: bool = True) -> list[str]:
    """Everything wrong with the shape of a plain document; rules across fields are `router.model.checked`'s. Empty =
    none found."""
    found = [*_unknown(document, _TABLE, "")] if unknown_fields else []
    found.extend(_not_finite(document, ()))
    for part, path in _parts(document):
        try:
            msgspec.convert(part, _kind_at(path))
        except msgspec.ValidationError as error:
            found.append(_explained(str(error), part, path))
    return found


def _plain(text: bytes, name: str) -> object:
    """YAML or JSON as dicts and lists."""
    if text.lstrip()[:1] == b"{":
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            flow_yaml = _yaml(text)
            if isinstance(flow_yaml, yaml.YAMLError):
                where = re.search(r"\(byte (\d+)\)", str(error))
                line = text[: int(where.group(1))].count(b"\n") + 1 if where else 1
                raise BadTable(f"{name}: line {line}: {error}") from error
            return flow_yaml
    document = _yaml(text)
    if isinstance(document, yaml.YAMLError):
        mark = getattr(document, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        what = getattr(document, "problem", None) or " ".join(str(document).split())
        raise BadTable(f"{name}: {place}not YAML: {what}") from document
    return document


def _yaml(text: bytes) -> object:
    """The document, or the error as a value."""
    try:
        return yaml.load(
            text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )  # both are the safe loader; C is 10x faster
    except yaml.YAMLError as error:
        return error
    except (ValueError, RecursionError) as error:  # a date such as 2024-13-45, or thousands of open brackets
        return yaml.YAMLError(str(error))


def _parts(document: object) -> Iterator[tuple[object, tuple[str | int, ...]]]:
    """The table without its lists, then each list element, so that each can fail by itself."""
    if not isinstance(document, dict):
        yield document, ()
        return
    lists = {key: value for key in ("models", "endpoints") if isinstance(value := document.get(key), list)}
    yield {key: value for key, value in document.items() if key not in lists}, ()
    for key, items in lists.items():
        for index, item in enumerate(items):
            yield item, (key, index)


def _kind_at(path: tuple[str | int, ...]) -> type:
    """The Python type that belongs to a part."""
    kind = _type_at(_TABLE, path)
    assert isinstance(kind, inspect.StructType), path
    return kind.cls


def _type_at(kind: inspect.Type | None, path: tuple[str | int, ...]) -> inspect.Type | None:
    """Follow a path through the described types; None where the type says nothing."""
    for step in path:
        if isinstance(kind, inspect.UnionType):
            kind = next((member for member in kind.types if not isinstance(member, inspect.NoneType)), None)
        if isinstance(kind, inspect.StructType):
            kind = next((field.type for field in kind.fields if field.encode_name == step), None)
        elif isinstance(kind, inspect.VarTupleType):
            kind = kind.item_type
        elif isinstance(kind, inspect.DictType):
            kind = kind.value_type
        else:
            return None
    return kind


def _unknown(value: object, kind: inspect.Type, path: str) -> Iterator[str]:
    """Keys that no field has, everywhere in the document."""
    if isinstance(kind, inspect.UnionType):
        kind = next((member for member in kind.types if isinstance(member, inspect.StructType)), kind)
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, item in value.items():
            if key in fields:
                yield from _unknown(item, fields[key], f"{path}.{key}" if path else str(key))
                continue
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"allowed: {', '.join(fields)}"
            yield f"`{path}.{key}`".replace("`.", "`") + f": {_shown(item)}: unknown field; {hint}"
    elif isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, kind.item_type, f"{path}[{index}]")


def _not_finite(value: object, path: tuple[str | int, ...]) -> Iterator[str]:
    """YAML's .inf and .nan, which JSON could not carry to a controller or to the state folder."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"`{_dotted(path)}`: {value}; expected a finite number"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _not_finite(item, (*path, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_finite(item, (*path, index))


def _explained(message: str, part: object, at: tuple[str | int, ...]) -> str:
    """A conversion error in our words: field, value, allowed."""
    found = _MESSAGE.fullmatch(message)
    assert found is not None, message
    inner: list[str | int] = []
    for name, index in _STEP.findall(found["path"] or ""):
        if name or index:
            inner.append(name or int(index))
    value = part
    for step in inner:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step]
    path = (*at, *inner)
    if missing := _MISSING.fullmatch(found["what"]):
        return f"`{_dotted((*path, missing[1]))}`: missing; it has no default"
    kind = _type_at(_TABLE, path)
    if isinstance(kind, inspect.LiteralType):
        return f"`{_dotted(path)}`: {_shown(value)}; allowed: {', '.join(map(str, kind.values))}"
    what = found["what"].replace("`", "")
    return f"`{_dotted(path)}`: {_shown(value)}; {what[:1].lower()}{what[1:]}"


def _dotted(path: tuple[str | int, ...]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.lstrip(".") or "the table"


def _shown(value: object) -> str:
    """A value as it was written, cut to one short line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
