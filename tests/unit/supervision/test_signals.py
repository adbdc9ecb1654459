"""Signals as bytes, and handlers that are put back."""

from __future__ import annotations

import os
import signal
import threading

from dreamfleet.supervision.signals import SignalPipe


def test_signals_are_noted_and_handlers_put_back() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with SignalPipe([signal.SIGUSR2]) as signals:
        assert signals.read() == []
        for _ in range(2):
            signal.raise_signal(signal.SIGUSR2)
        assert signals.read() == [signal.SIGUSR2] * 2
        assert signals.read() == []
    assert signal.getsignal(signal.SIGUSR2) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_wakeup_descriptor_that_was_set_is_put_back() -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd)
    try:
        with SignalPipe([signal.SIGUSR2]):
            pass
        assert signal.set_wakeup_fd(-1) == write_fd
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read_fd)
        os.close(write_fd)


def test_other_signals_are_left_out() -> None:
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        with SignalPipe([signal.SIGUSR2]) as signals:
            signal.raise_signal(signal.SIGUSR1)
            assert signals.read() == []
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_outside_the_main_thread_it_stays_silent() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    seen: list[object] = []

    def use() -> None:
        with SignalPipe([signal.SIGUSR2]) as signals:
            seen.append(signal.getsignal(signal.SIGUSR2) is before)
            seen.append(signals.read())

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [True, []]
