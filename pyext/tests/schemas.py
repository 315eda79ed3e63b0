# SPDX-License-Identifier: MIT
"""The schemas of the JSON that commands write, docs/reference/json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "json"


def missing() -> str:
    """Why outputs can't be compared with their schemas; "" if they can."""
    if not SCHEMAS.exists():
        return "the tests are not in the tree"
    try:
        import jsonschema  # noqa: F401
        import referencing  # noqa: F401
    except ImportError:
        return "jsonschema is not installed, or older than 4.18"
    return ""


@cache
def validator(name: str) -> Any:
    """Of the schema in NAME.json, which must be one itself."""
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    found = {path.name: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    registry: Any = Registry().with_resources(
        (file, Resource.from_contents(schema)) for file, schema in found.items()
    )
    schema = found[f"{name}.json"]
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator({"$id": f"{name}.json", **schema}, registry=registry)


def check(name: str, value: Any) -> Any:
    """The value, which must be as the schema says if there is jsonschema here.

    An assertion fails with the places that differ.
    """
    if not missing():
        wrong = [
            f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
            for error in validator(name).iter_errors(value)
        ]
        assert not wrong, (name, wrong)
    return value


def read(name: str, text: str) -> Any:
    """The JSON in a text, likewise; NaN and infinity are no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return check(name, json.loads(text, parse_constant=refuse))
