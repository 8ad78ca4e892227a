"""The scalar types of a policy and the base of its parts.

For `policy*.py` only; knows nothing of what the values are for. Scalars are strict (text is not a number, true is not
1), numbers are finite, unknown keys are refused, and defaults are validated like given values, so that a rule between
two fields holds for both.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic.alias_generators import to_camel

_PERCENT = re.compile(r"\d+(\.\d+)?%")


class Part(BaseModel):
    """Base of every part: immutable, camelCase outside and snake_case inside, nothing unknown."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _standby(value: int | str) -> int | str:
    if _is_count(value) or value == "auto" or (isinstance(value, str) and _PERCENT.fullmatch(value)):
        return value
    raise ValueError('must be auto, a number of replicas of at least 0, or a percentage such as "25%"')


def _surge(value: int | str) -> int | str:
    if _is_count(value) or value == "auto":
        return value
    raise ValueError("must be auto or a number of replicas of at least 0")


def _devices(value: object) -> tuple[str, ...] | str:
    if value == "auto":
        return "auto"
    if isinstance(value, list | tuple) and all(
        isinstance(item, str | int) and not isinstance(item, bool) for item in value
    ):
        return tuple(str(item) for item in value)
    raise ValueError('must be auto or a list of device names such as ["0", "1"]')


Name = Annotated[str, Field(strict=True, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)]
"""Goes into replica ids, file names and URLs, so it is a DNS label as Kubernetes asks for."""
Text = Annotated[str, Field(strict=True, min_length=1, max_length=1024)]
Flag = Annotated[bool, Field(strict=True)]
Seconds = Annotated[float, Field(strict=True, gt=0)]
SecondsOrZero = Annotated[float, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(strict=True, gt=0)]
NotNegative = Annotated[float, Field(strict=True, ge=0)]
Percent = Annotated[float, Field(strict=True, ge=0, le=100)]
Fraction = Annotated[float, Field(strict=True, gt=0, lt=1)]
Count = Annotated[int, Field(strict=True, ge=0)]
CountFromOne = Annotated[int, Field(strict=True, ge=1)]
Whole = Annotated[int, Field(strict=True)]
Standby = Annotated[int | str, PlainValidator(_standby)]
Surge = Annotated[int | str, PlainValidator(_surge)]
Devices = Annotated[tuple[str, ...] | str, PlainValidator(_devices)]
