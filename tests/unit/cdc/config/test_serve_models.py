"""The file of ``cdc serve``: tokens, names of hosts, errors of the whole file."""

import json
from pathlib import Path

import pytest

from cdc.config.loader import FILE_BYTES_MOST
from cdc.config.serve_models import ServeConfig, load_serve_config
from cdc.errors import ConfigError
from cdc.manager.serve import check_listen, run_host

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


@pytest.mark.parametrize("name", ["a/b", "a b", "..", ".a", "-a", "a?b", "é", "x" * 191, "a\n"])
def test_host_name_that_no_address_can_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(f"host: {{name: {json.dumps(name)}}}\n")
    with pytest.raises(ConfigError, match=r"serve\.yaml:1 host\.name: must consist of 1 to 190 characters"):
        load_serve_config(file)
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    monkeypatch.delenv("CDC_STORE", raising=False)
    monkeypatch.setenv("CDC_HOST", name)
    with pytest.raises(ConfigError, match="cannot address a host with the name") as refused:
        run_host(ServeConfig())
    assert "CDC_HOST" in refused.value.hint


@pytest.mark.parametrize("name", ["a", "_a", "db-1.example", "x" * 190])
def test_host_name_of_an_address_is_accepted(tmp_path: Path, name: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(f"host: {{name: {name}}}\n")
    assert load_serve_config(file).host.name == name
