import os
import signal

import pytest

from engine.interrupt import SIGNALS, StopSwitch


def test_a_signal_that_torchrun_passes_on_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = StopSwitch()
    with switch.listen():
        for number in SIGNALS:
            signal.raise_signal(number)
        assert switch.signal == SIGNALS[0]
        monkeypatch.setattr("engine.interrupt.ECHO_SECONDS", 0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        switch = StopSwitch()
        with switch.listen():
            signal.raise_signal(signal.SIGHUP)
        assert switch.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_late_signal_does_not_end_a_process_of_torchrun_that_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A torchrun that dies sends one for each of its threads."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    before = signal.getsignal(signal.SIGTERM)
    switch = StopSwitch()
    try:
        with switch.listen():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # would end this process
        assert switch.signal is signal.SIGTERM
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, before)
