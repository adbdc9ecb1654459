from __future__ import annotations

import inspect
import pickle

import pytest

from dreamfleet.core import errors

DEFINED = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}


def test_every_error_is_known_by_name():
    known = errors.known_errors()
    assert DEFINED.items() <= known.items()


@pytest.mark.parametrize("kind", DEFINED.values(), ids=DEFINED.keys())
def test_an_error_is_made_from_its_message_alone(kind):
    # What arrives from another process is only the name and the message.
    assert str(kind("what was wrong")) == "what was wrong"
    assert str(pickle.loads(pickle.dumps(kind("what was wrong")))) == "what was wrong"


@pytest.mark.parametrize("name", ["ConfigError", "AddressError", "RunFolderError", "SecurityError"])
def test_errors_of_the_user_are_bad_input(name):
    assert issubclass(DEFINED[name], errors.BadInput)


def test_being_stopped_is_not_a_transport_error():
    assert not issubclass(errors.Stopped, errors.TransportError)
