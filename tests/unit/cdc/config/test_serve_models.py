"""The file of ``cdc serve``: tokens."""

from pathlib import Path

import pytest

from cdc.config.loader import FILE_BYTES_MOST
from cdc.config.serve_models import load_serve_config
from cdc.errors import ConfigError
from cdc.manager.serve import check_listen

OPEN = "listen: {host: 0.0.0.0, insecure: true}\n"


@pytest.mark.parametrize(
    ("tokens", "key"), [("admin: ''", "admin"), ("admin: '', viewer: word", "admin"), ("viewer: ''", "viewer")]
)
def test_token_of_an_empty_variable_is_refused(tmp_path: Path, tokens: str, key: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(OPEN + f"tokens: {{{tokens}}}\n")
    with pytest.raises(ConfigError, match=f"tokens.{key}.* is empty"):
        load_serve_config(file)


def test_viewer_may_be_empty_beside_an_admin(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(OPEN + "tokens: {admin: word, viewer: ''}\n")
    check_listen(load_serve_config(file))


@pytest.mark.parametrize("tokens", ["", "tokens: {viewer: word}\n"])
def test_address_for_other_machines_needs_an_admin(tmp_path: Path, tokens: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(OPEN + tokens)
    with pytest.raises(ConfigError, match="without a token"):
        check_listen(load_serve_config(file))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "The file of `cdc serve` cannot be read: No such file or directory."),
        ("#" * (FILE_BYTES_MOST + 1), "The file of `cdc serve` is larger than 1 MiB."),
        ("- a", "serve.yaml:1 must be a mapping (key: value) with keys such as store, listen and jobs"),
        ("# no keys", "serve.yaml:1 is empty; run `cdc serve` without it, or see docs/reference/serve-file.md"),
    ],
)
def test_error_of_the_whole_file_names_the_serve_file(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "serve.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_serve_config(file)
    assert says in refused.value.message
    assert "job file" not in str(refused.value) and refused.value.hint
