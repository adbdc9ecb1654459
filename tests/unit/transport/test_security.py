from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dreamfleet.core.errors import SecurityError
from dreamfleet.transport.client import Client
from dreamfleet.transport.security import create_keys, load_client, load_server
from dreamfleet.transport.server import Server


def test_keys_are_private_and_kept_when_asked_for_again(tmp_path: Path) -> None:
    create_keys(tmp_path / "keys")
    first = load_server(tmp_path / "keys")
    create_keys(tmp_path / "keys")
    assert load_server(tmp_path / "keys") == first
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    for path in (tmp_path / "keys").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_server_and_client_know_each_other(keys: Path) -> None:
    server, client = load_server(keys), load_client(keys)
    assert client.server_public == server.public
    assert server.allowed == {client.public}


def test_a_client_elsewhere_needs_only_its_own_file(keys: Path) -> None:
    public = load_server(keys).public
    (keys / "server.json").unlink()
    assert load_client(keys, server_public=public).server_public == public


def test_a_secret_does_not_show_up_in_logs(keys: Path) -> None:
    assert load_server(keys).secret not in repr(load_server(keys))
    assert load_client(keys).secret not in repr(load_client(keys))


def test_a_key_others_can_read_is_refused_with_the_remedy(keys: Path) -> None:
    (keys / "server.json").chmod(0o640)
    with pytest.raises(SecurityError, match=r"chmod 600 .*server\.json"):
        load_server(keys)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"public": "short", "secret": "short"}', '{"public": 1, "secret": 2}']
)
def test_a_damaged_key_is_refused(keys: Path, text: str) -> None:
    (keys / "client.json").write_text(text)
    with pytest.raises(SecurityError, match="damaged"):
        load_client(keys)


def test_a_missing_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="cannot read key"):
        load_client(tmp_path)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SecurityError, match="cannot write keys"):
        create_keys(tmp_path / "file" / "keys")


def test_tcp_without_keys_is_refused_on_both_ends() -> None:
    with pytest.raises(SecurityError, match="needs keys"):
        Server("tcp://127.0.0.1:5555", name="server")
    with pytest.raises(SecurityError, match="needs keys"):
        Client("tcp://127.0.0.1:5555", name="client")
