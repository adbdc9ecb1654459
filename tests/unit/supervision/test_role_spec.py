"""Role specs."""

from __future__ import annotations

import pytest

from dreamfleet.core.errors import BadInput
from dreamfleet.supervision.role_spec import RoleSpec


@pytest.mark.parametrize("name", ["agent", "env_0", "eval-env.3"])
def test_a_name_that_can_be_a_file_name_is_accepted(name: str) -> None:
    assert RoleSpec(name, print).name == name


@pytest.mark.parametrize("name", ["", ".", "../agent", "a/b", "a b", "-a", "a\n"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="role name"):
        RoleSpec(name, print)
