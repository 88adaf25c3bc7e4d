"""``parse_json`` and ``json_query`` of StarRocks.

Source: ``json_value.cpp``, ``json_functions.cpp``, ``jsonpath.cpp``, ``json_flattener.cpp``; issue 63764.
"""

from __future__ import annotations

import json

_SPACE = " \t\n\v\f\r"
_MOST_UINT, _LEAST_INT = (1 << 64) - 1, -(1 << 63)


def stored_document(text: str | None, limit: int, *, first_element: bool) -> str | None:
    """Return the text of the document that is stored for ``parse_json(text)``; None: NULL, without an error.

    ``first_element``: for ``json_query(parse_json(text), '$[0]')``. Only a text that begins with ``{``, ``[`` or ``"``
    is parsed; any other text becomes a JSON string, and the text null becomes NULL. The element null becomes NULL too,
    because columns with flat JSON, which is the default from 4.0 on, do not keep it.
    """
    if text is None or len(text.encode()) > limit or text.strip(_SPACE) == "null":
        return None
    if not text.lstrip(_SPACE).startswith(("{", "[", '"')):
        return None if first_element else json.dumps(text, ensure_ascii=False)
    try:
        value = json.loads(text.strip(_SPACE), parse_int=_integer, parse_constant=_refuse)
        if first_element:
            value = value[0] if isinstance(value, list) and value else None
        document = None if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)
        (document or "").encode()
    except ValueError:
        return None
    return document


def _integer(text: str) -> int | float:
    """Return an integer of 64 bits, else a double, as for every number with a fraction."""
    value = int(text)
    return value if _LEAST_INT <= value <= _MOST_UINT else float(text)


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")
