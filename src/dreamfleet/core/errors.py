"""The exception tree. An error of this tree is expected: its message names what was wrong and what to do."""

from __future__ import annotations


class DreamfleetError(Exception):
    """Base of every error raised on purpose."""


class BadInput(DreamfleetError):
    """The user asked for something that cannot work; ends the start with exit code 2."""


class ConfigError(BadInput):
    """A configuration key or value is wrong."""


class AddressError(BadInput):
    """An address is malformed, in use or cannot be bound."""


class RunFolderError(BadInput):
    """The run folder cannot be used."""


class SecurityError(BadInput):
    """A key is missing, unreadable or readable by others, or may not do what it is used for."""


class Stopped(DreamfleetError):
    """A blocking wait ended because the role was asked to stop. Not a failure."""


class DeadlineExceeded(DreamfleetError):
    """A named wait took longer than it may."""


class TransportError(DreamfleetError):
    """A call between roles did not get its answer."""


class Disconnected(TransportError):
    """The peer went away while calls were in flight; the client reconnects by itself."""


class ProtocolError(TransportError):
    """A message does not follow the wire format."""


class UnknownMethod(TransportError):
    """The server has no method of that name."""


class UnknownStream(TransportError):
    """The actor does not know an environment's stream, for example because it was restarted: join again."""


class Refused(DreamfleetError):
    """A server takes no more requests of this client: too many of them did not fit the run."""


class RemoteError(TransportError):
    """The handler on the server raised an error this side has no type for."""


class EnvError(DreamfleetError):
    """An environment broke its contract."""


class EnvFailed(EnvError):
    """An environment's own code raised an error, which is the cause of this one. `passing`: another try may help."""

    def __init__(self, message: str, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class NotNow(EnvError):
    """The actor cannot take these environments at this moment. Not a failure of the worker: it joins again later."""


class SpaceMismatch(EnvError):
    """An observation or action does not match its declared space."""


class ReplayError(DreamfleetError):
    """Replay was given data it cannot store or asked for data it does not hold."""


class CheckpointError(DreamfleetError):
    """A checkpoint is missing, damaged or of another shape."""


class CheckpointMismatch(CheckpointError, BadInput):
    """A checkpoint is sound, but of another agent, of other spaces or of another version than the user asked for."""


class DamagedSnapshot(CheckpointError, BadInput):
    """No snapshot of a run can be used any more: the user has to choose what to do about it."""


class NonFinite(DreamfleetError):
    """A number that is to be learned from or saved is NaN or infinite: training has diverged, or data is damaged."""


class RoleFailed(DreamfleetError):
    """A role of the fleet ended with an error."""


def known_errors() -> dict[str, type[DreamfleetError]]:
    """Every class of the tree by name: what may cross a socket as a typed error."""
    found: dict[str, type[DreamfleetError]] = {}
    queue: list[type[DreamfleetError]] = [DreamfleetError]
    while queue:
        kind = queue.pop()
        found[kind.__name__] = kind
        queue.extend(kind.__subclasses__())
    return found
