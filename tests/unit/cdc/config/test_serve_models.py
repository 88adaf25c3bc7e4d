"""The file of ``cdc serve``: tokens."""

from pathlib import Path

import pytest

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
