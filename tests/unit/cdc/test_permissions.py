"""The umask of a process, and the folders from which it loads code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.errors import ConfigError
from cdc.paths import cache_folder
from cdc.permissions import current_umask, owned_by_others, refuse_untrusted, restrict_umask
from tests.conftest import unavailable

OTHER_USER = 65534


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDC_CACHE", str(tmp_path / "above" / "cache"))
    return tmp_path / "above" / "cache"


def change_owner(path: Path) -> None:
    if os.geteuid():
        unavailable("only root can change the owner of a file")
    os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)


@pytest.mark.parametrize(("before", "after"), [(0o000, 0o027), (0o022, 0o027), (0o002, 0o027), (0o077, 0o077)])
def test_umask_without_setting_is_at_least_027(before: int, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDC_UMASK", raising=False)
    os.umask(before)
    restrict_umask()
    assert current_umask() == after


def test_umask_with_setting_is_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_UMASK", "007")
    restrict_umask()
    assert current_umask() == 0o007


@pytest.mark.parametrize("text", ["8", "0777", "-1", "0o27", "٢"])
def test_umask_invalid_setting_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_UMASK", text)
    with pytest.raises(ConfigError, match="CDC_UMASK"):
        restrict_umask()


def test_cache_folder_is_created_private(folder: Path) -> None:
    os.umask(0)
    assert cache_folder() == folder
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_cache_folder_writable_by_others_is_refused(folder: Path, mode: int) -> None:
    cache_folder()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=r"other users can write it.*CDC_CACHE.*chmod go-w"):
        cache_folder()


def test_cache_folder_below_writable_parent_is_refused(folder: Path) -> None:
    cache_folder()
    folder.parent.chmod(0o1777)
    assert cache_folder() == folder, "in a sticky folder other users cannot replace it"
    folder.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="other users can write it"):
        cache_folder()


@pytest.mark.parametrize("which", ["cache", "above"])
def test_cache_folder_of_another_user_is_refused(folder: Path, which: str) -> None:
    change_owner(cache_folder() if which == "cache" else cache_folder().parent)
    with pytest.raises(ConfigError, match=r"another user owns it.*CDC_CACHE"):
        cache_folder()


def test_cache_folder_through_link_of_another_user_is_refused(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir(mode=0o700)
    link.symlink_to("real")
    refuse_untrusted(link / "cache", "CDC_CACHE")
    real.chmod(0o777)
    with pytest.raises(ConfigError, match="real: other users can write it"):
        refuse_untrusted(link / "cache", "CDC_CACHE")
    real.chmod(0o700)
    change_owner(link)
    with pytest.raises(ConfigError, match="link: another user owns it"):
        refuse_untrusted(link / "cache", "CDC_CACHE")


def test_owned_by_others_ignores_files_that_vanish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, renamed = tmp_path / "kernel.nbi", tmp_path / "kernel.nbi.tmp"
    kept.touch()
    monkeypatch.setattr(Path, "rglob", lambda folder, pattern: iter([renamed, kept]))
    assert not owned_by_others(tmp_path)
    change_owner(kept)
    assert owned_by_others(tmp_path)
