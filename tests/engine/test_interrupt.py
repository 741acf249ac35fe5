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
