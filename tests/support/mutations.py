"""Messages of an env worker with a valid key, mutated: what a hostile worker, or one of another release, may send."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import zmq

from dreamfleet.core.context import RoleContext
from dreamfleet.core.interfaces import Arrays
from dreamfleet.envs.builtin.dummy import Dummy
from dreamfleet.roles.admission import MIN_FRAME_BYTES
from dreamfleet.roles.env_worker.group import stored_keys
from dreamfleet.roles.env_worker.instance import EnvInstance
from dreamfleet.roles.remote_workers import ABOUT, this_worker
from dreamfleet.transport.codec import REPLY, REQUEST, Message, RemoteFailure, decode, encode
from dreamfleet.transport.security import ClientSecurity
from dreamfleet.transport.sockets import make_socket

ANSWER_MS = 30_000
LIVES = 12  # messages until a fresh connection, whose refusals are counted from zero
ROWS = 4
METHODS = ("join", "act", "act_eval", "add", "leave", "end", "sizes", "", "tran", "write")
DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64", "bfloat16")
NUMBERS = (np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45, 0.0, -1.0, 2.0**31, -(2.0**63), 2.0**63)
JUNK: tuple[Any, ...] = (
    None, True, "", "text", -1, 10**30, 1e999, [], {}, [[1], [2, 3]], {"a": {"b": [{}]}}, "\ud800\x00", [0, 0],
    [1e308, 1],
)  # fmt: skip


class Mutator:
    """Sends mutated messages, one after the other, and takes the answers. Deterministic for a seed."""

    def __init__(self, address: str, seed: int, security: ClientSecurity | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.sent: Counter[str] = Counter()  # by method
        self.answers: Counter[str] = Counter()  # by the type of error, "reply" and "known"
        self._address = address
        self._security = security
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._left = 0
        self._request_id = 0
        self._slots = np.zeros(ROWS, np.int32)
        self._streams = np.full(ROWS, -1, np.int64)
        self._instance = EnvInstance(Dummy(), 0)

    def __enter__(self) -> Mutator:
        return self

    def __exit__(self, *error: object) -> None:
        if self._socket is not None:
            self._socket.close(0)
        self._context.term()

    def run(self, count: int) -> None:
        for _ in range(count):
            self.send_one()

    def send_one(self) -> None:
        """Most are changed in one or two ways, some in none, and some several times in a row."""
        if self._left <= 0:
            self._connect()
        self._left -= 1
        method, arrays = self._valid()
        for _ in range(self.rng.choice([0, 1, 1, 1, 2, 3])):
            method, arrays = self._mutate(method, arrays)
        frames = self._encode(method, arrays)
        for _ in range(1 if self.rng.random() < 0.9 else int(self.rng.integers(2, 4))):
            if self._left >= 0:
                self.sent[method] += 1
                self._answered(self._call(frames))

    def refuse(self) -> None:
        """Wait until this connection is set aside."""
        while self.answers["Refused"] == 0:
            self._left = LIVES
            self._answered(self._call(self._encode("join", {"env": np.zeros(2)})))

    def _connect(self) -> None:
        if self._socket is not None:
            self._socket.close(0)
        self._socket = make_socket(self._context, zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = ANSWER_MS
        if self._security is not None:
            self._security.apply(self._socket)
        self._socket.connect(self._address)
        self._left = LIVES
        self._join()

    def _join(self) -> None:
        envs = np.full(ROWS, -1, np.int32) if self.rng.random() < 0.5 else np.arange(100, 100 + ROWS, dtype=np.int32)
        answer = self._call(self._encode("join", {"env": envs, "stream": self._streams}))
        if isinstance(answer, Message):
            reply = answer.arrays()
            self._slots, self._streams = np.array(reply["slot"]), np.array(reply["stream"])

    def _call(self, frames: list[Any]) -> Message | RemoteFailure | None:
        """The answer; None to a frame that costs the connection."""
        assert self._socket is not None
        self._socket.send_multipart(frames)
        if max(memoryview(frame).nbytes for frame in frames) > MIN_FRAME_BYTES:
            return None
        while True:
            received = self._socket.recv_multipart()
            answer = decode(received[0], received[1:])
            if isinstance(answer, Message | RemoteFailure) and answer.request_id == self._request_id:
                return answer

    def _answered(self, answer: Message | RemoteFailure | None) -> None:
        if answer is None:
            self.answers["closed"] += 1
            self._left = -1
            return
        if isinstance(answer, RemoteFailure):
            kind = type(answer.error).__name__
            self.answers[kind] += 1
            if kind == "Refused":
                self._left = 0
            return
        assert answer.kind == REPLY
        self.answers["reply"] += 1
        if "known" in (reply := answer.arrays()) and reply["known"].any():
            self.answers["known"] += 1

    def _valid(self) -> tuple[str, Arrays]:
        kind = self.rng.choice(["act"] * 6 + ["act_eval", "add", "add", "join", "leave"])
        if kind in ("act", "act_eval"):
            return str(kind), self._rows()
        if kind == "add":
            return "add", {"json": np.frombuffer(json.dumps(self._figures()).encode(), np.uint8)}
        if kind == "join":
            self._join()
        envs = np.arange(ROWS if kind == "join" else 0, dtype=np.int32)  # to leave is to join with none
        about = this_worker("mutated", RoleContext("env"), "train").message() if self.rng.random() < 0.5 else {}
        return "join", {"env": envs, "stream": self._streams.copy(), **about}

    def _rows(self) -> Arrays:
        rows = {"slot": self._slots, "stream": self._streams, "is_eval": self.rng.random(ROWS) < 0.2}
        obs = [self._instance.env.step({"action": 0, "reset": self.rng.random() < 0.1}) for _ in range(ROWS)]
        spaces = self._instance.obs_space
        return rows | {
            key: np.array([one[key] for one in obs], spaces[key].dtype) for key in stored_keys(self._instance)
        }

    def _figures(self) -> dict[str, Any]:
        numbers = {"steps": 10, "step_ms": 1.5, "slowest_ms": 0.5, "elapsed_s": 1.0, "restarts": 0}
        usage = {"cpu_percent": 1.0, "cpu_total_s": 2.0, "ram_gb": 0.1, "threads": 3}
        return {"worker": "mutated", "mode": "train", **numbers, "logs": {"log/height/avg": [1.0, 2]}, "usage": usage}

    def _mutate(self, method: str, arrays: Arrays) -> tuple[str, Arrays]:
        if not arrays or self.rng.random() < 0.08:
            return str(self.rng.choice(METHODS)), arrays
        packed = next((key for key in ("json", ABOUT) if key in arrays), "")
        if packed and self.rng.random() < 0.8:
            return method, {**arrays, packed: self._mutated_json(arrays[packed])}
        key = str(self.rng.choice(sorted(arrays)))
        changes: list[Callable[[Arrays, str], Arrays]] = [
            self._other_dtype,
            self._other_shape,
            self._other_values,
            self._other_values,
            self._other_keys,
            self._other_rows,
        ]
        with np.errstate(all="ignore"):
            return method, changes[self.rng.integers(len(changes))](dict(arrays), key)

    def _other_dtype(self, arrays: Arrays, key: str) -> Arrays:
        name = str(self.rng.choice(DTYPES))
        dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
        return {**arrays, key: arrays[key].astype(dtype)}

    def _other_shape(self, arrays: Arrays, key: str) -> Arrays:
        array = arrays[key]
        shapes = [
            array[..., None],
            array[None],
            array.reshape(-1),
            array.T,
            np.atleast_1d(array)[:0],
            array.sum(),
            np.atleast_1d(array).repeat(2, -1),
        ]
        return {**arrays, key: np.asarray(shapes[self.rng.integers(len(shapes))])}

    def _other_values(self, arrays: Arrays, key: str) -> Arrays:
        array = np.array(arrays[key])
        if array.size and self.rng.random() < 0.5:
            array.reshape(-1)[self.rng.integers(array.size)] = np.array(self.rng.choice(NUMBERS)).astype(array.dtype)
        elif array.dtype.kind in "iu" and self.rng.random() < 0.5:
            array = array + self.rng.integers(-3, 4, array.shape).astype(array.dtype)
        elif array.ndim:
            array = np.frombuffer(self.rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
        return {**arrays, key: array}

    def _other_keys(self, arrays: Arrays, key: str) -> Arrays:
        value = arrays.pop(key)
        name = str(
            self.rng.choice(["", "drop", "known", "run_step", "action", "step", "dyn/deter", key + "2", "stepid"])
        )
        if name == "":
            return {key: value, **arrays}  # the same in another order
        if name == "drop":
            return arrays
        return {**arrays, name: value} if self.rng.random() < 0.5 else {**arrays, key: value, name: value.copy()}

    def _other_rows(self, arrays: Arrays, key: str) -> Arrays:
        if key == "env" and self.rng.random() < 0.2:
            return {name: np.zeros(int(self.rng.choice([0, 5_000, 1_000_000])), a.dtype) for name, a in arrays.items()}
        rows = self.rng.integers(0, ROWS, int(self.rng.choice([0, 1, 2, 3, 8, 200])))
        return {name: array[rows] if array.ndim and len(array) == ROWS else array for name, array in arrays.items()}

    def _mutated_json(self, packed: np.ndarray) -> np.ndarray:
        text = packed.tobytes()
        how = self.rng.integers(8)
        if how == 0:
            text = text[: self.rng.integers(len(text) + 1)]
        elif how == 1:
            text = self.rng.bytes(int(self.rng.integers(0, 300)))
        elif how == 2:
            text = b"[" * 100_000
        elif how == 3:
            names = {f"log/{number}": [1.0, 1] for number in range(self.rng.integers(20_000))}
            text = json.dumps(self._figures() | {"logs": names}).encode()
        elif how == 4:
            text = json.dumps({"prefix": None, "metrics": {"step": 10**12, "time": 0, "x": self._junk()}}).encode()
        else:
            figures = self._figures()
            key = str(self.rng.choice([*figures, "step", "time", "metrics"]))
            part = figures[key] if isinstance(figures.get(key), dict) and how == 5 else figures
            part[str(self.rng.choice([key, *part, "step", "time", "log/\n", "x" * 1000]))] = self._junk()
            if self.rng.random() < 0.2:
                figures.pop(key, None)
            text = json.dumps(figures).encode()
        return np.frombuffer(text, np.uint8)

    def _junk(self) -> Any:
        return JUNK[self.rng.integers(len(JUNK))]

    def _encode(self, method: str, arrays: Arrays) -> list[Any]:
        self._request_id += 1
        try:
            return encode(REQUEST, self._request_id, method, arrays)
        except Exception:  # what cannot even be described; `join` of nothing instead
            return encode(REQUEST, self._request_id, method, {})
