"""A default of the reference is what a user may write: the model reads it as the default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from cdc.config.models import Config
from cdc.config.serve_models import ServeConfig
from tests.support.job_file_reference import default, models_of


def defaults(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        path = f"{prefix}.{field.alias or name}"
        if default(field) not in ("", "required"):
            yield f"{model.__name__}{path}", field
        for inner in models_of(field.annotation):
            yield from defaults(inner, path)


FIELDS = dict([*defaults(Config), *defaults(ServeConfig)])


def written(text: str, expected: Any) -> Any:
    """Return the default as YAML reads it."""
    if isinstance(expected, tuple):
        return text.split(", ")
    return text if text == "," else yaml.safe_load(text)


@pytest.mark.parametrize("path", FIELDS)
def test_default_of_the_reference_is_accepted_as_a_value(path: str) -> None:
    field = FIELDS[path]
    expected = field.get_default(call_default_factory=True, validated_data={})
    kind = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation  # type: ignore[name-defined]
    found = TypeAdapter(kind).validate_python(written(default(field).strip("`"), expected))
    assert found == expected if not isinstance(expected, BaseModel) else found.model_dump() == expected.model_dump()
