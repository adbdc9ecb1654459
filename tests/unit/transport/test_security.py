from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from dreamfleet.core.errors import SecurityError
from dreamfleet.transport.client import Client
from dreamfleet.transport.security import ADMITTED, create_keys, derive_secret, load_client, load_server
from dreamfleet.transport.server import Server


def test_keys_are_private_and_kept_when_asked_for_again(tmp_path: Path) -> None:
    public_keys = create_keys(tmp_path / "keys")
    first = load_server(tmp_path / "keys", "actor")
    assert create_keys(tmp_path / "keys") == public_keys
    assert load_server(tmp_path / "keys", "actor") == first
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    for path in (tmp_path / "keys").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_server_and_kind_of_client_has_a_pair_of_its_own(keys: Path) -> None:
    pairs = [json.loads(path.read_text()) for path in keys.iterdir()]
    assert {path.stem for path in keys.iterdir()} == {"actor", "replay", "logger", "clock", "owner", "worker"}
    for part in ("public", "secret"):
        assert len({pair[part] for pair in pairs}) == len(pairs)


def test_a_folder_of_an_earlier_version_gets_the_pairs_that_it_lacks(keys: Path) -> None:
    for name in ("server", "client"):
        (keys / "actor.json").rename(keys / f"{name}.json")
        create_keys(keys)
    old = json.loads((keys / "client.json").read_text())["public"]
    for server in ADMITTED:
        assert old not in load_server(keys, server).allowed


@pytest.mark.parametrize("server", ADMITTED)
def test_server_and_client_know_each_other(keys: Path, server: str) -> None:
    security, client = load_server(keys, server), load_client(keys, server)
    assert client.server_public == security.public
    assert security.allowed[client.public] is None


def test_a_worker_may_call_four_methods_of_the_actor_and_nothing_else(keys: Path) -> None:
    worker = load_client(keys, "actor", "worker").public
    allowed = {server: load_server(keys, server).allowed.get(worker, frozenset()) for server in ADMITTED}
    assert {server: methods for server, methods in allowed.items() if methods != frozenset()} == {
        "actor": {"join", "act", "act_eval", "add"}
    }


@pytest.mark.parametrize(("key", "server"), [("worker", "actor"), ("replay", "logger"), ("owner", "replay")])
def test_a_client_elsewhere_needs_only_the_file_of_its_pair(keys: Path, key: str, server: str) -> None:
    public_keys = create_keys(keys)
    keep_only(keys, key)
    assert load_client(keys, server, key, public_keys).server_public == public_keys[server]


@pytest.mark.parametrize("server", ADMITTED)
def test_a_server_elsewhere_needs_only_the_file_of_its_pair(keys: Path, server: str) -> None:
    here, public_keys = load_server(keys, server), create_keys(keys)
    keep_only(keys, server)
    assert load_server(keys, server, public_keys) == here


def keep_only(keys: Path, name: str) -> None:
    for path in keys.iterdir():
        if path.stem != name:
            path.unlink()


def test_a_public_key_that_was_not_passed_is_named(keys: Path) -> None:
    with pytest.raises(SecurityError, match=r"public key of 'actor' is not among args\.public_keys"):
        load_client(keys, "actor", "worker", {"replay": "x"})


def test_a_secret_does_not_show_up_in_logs(keys: Path) -> None:
    for loaded in (load_server(keys, "actor"), load_client(keys, "actor")):
        assert loaded.secret not in repr(loaded)


def test_a_derived_secret_differs_by_pair_and_purpose(keys: Path, tmp_path: Path) -> None:
    create_keys(tmp_path / "other")
    found = {derive_secret(keys, "worker", "one"), derive_secret(keys, "worker", "two")}
    found |= {derive_secret(keys, "replay", "one"), derive_secret(tmp_path / "other", "worker", "one")}
    assert len(found) == 4
    assert derive_secret(keys, "worker", "one") in found


def test_a_key_others_can_read_is_refused_with_the_remedy(keys: Path) -> None:
    (keys / "actor.json").chmod(0o640)
    with pytest.raises(SecurityError, match=r"chmod 600 .*actor\.json"):
        load_server(keys, "actor")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"public": "short", "secret": "short"}', '{"public": 1, "secret": 2}']
)
def test_a_damaged_key_is_refused(keys: Path, text: str) -> None:
    (keys / "worker.json").write_text(text)
    with pytest.raises(SecurityError, match="damaged"):
        load_client(keys, "actor", "worker")


def test_a_missing_key_is_refused_with_the_file_to_copy(keys: Path) -> None:
    (keys / "worker.json").unlink()
    with pytest.raises(SecurityError, match=r"cannot read key .*: copy keys/worker\.json of the run folder there$"):
        load_client(keys, "actor", "worker")
    (keys / "client.json").touch()
    with pytest.raises(SecurityError, match=r"there \(client\.json, of an earlier version, is not admitted\)$"):
        load_client(keys, "actor", "worker")


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SecurityError, match="cannot write keys"):
        create_keys(tmp_path / "file" / "keys")


def test_tcp_without_keys_is_refused_on_both_ends() -> None:
    with pytest.raises(SecurityError, match="needs keys"):
        Server("tcp://127.0.0.1:5555", name="server")
    with pytest.raises(SecurityError, match="needs keys"):
        Client("tcp://127.0.0.1:5555", name="client")
