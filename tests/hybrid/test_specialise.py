"""Programs by signature: made once, bounded in number, for signatures that come back; patience with parameters."""

from __future__ import annotations

import threading
import time

from ge.hybrid.specialise import HOT_CALLS, MOST_PATIENCE, Patience, Specialiser


def test_a_signature_has_one_program_whoever_asks_first() -> None:
    programs: Specialiser[str, object] = Specialiser(4)
    found: list[object] = []

    def make() -> object:
        time.sleep(0.01)  # lets the other threads come
        return object()

    threads = [
        threading.Thread(target=lambda: found.append(programs.program("sizes", make))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert programs.made == 1 and set(found) == {programs.find("sizes")}


def test_the_oldest_program_is_dropped_and_made_again() -> None:
    programs: Specialiser[int, str] = Specialiser(2)
    for key in (1, 2, 3):
        programs.program(key, lambda key=key: f"program {key}")
    assert list(programs) == [2, 3] and programs.find(1) is None
    assert programs.program(1, lambda: "again") == "again" and programs.made == 4


def test_what_cannot_be_made_is_tried_again() -> None:
    programs: Specialiser[int, str] = Specialiser(2)

    def fails() -> str:
        raise ValueError("no")

    for _ in range(2):
        try:
            programs.program(1, fails)
        except ValueError:
            continue
    assert len(programs) == 0 and programs.program(1, lambda: "made") == "made"


def test_signatures_that_come_back_get_programs_and_each_makes_the_next_rarer() -> None:
    programs: Specialiser[int, int] = Specialiser(8, free=2)

    def calls_until_hot(key: int) -> int:
        calls = 1
        while not programs.is_hot(key):
            calls += 1
        return programs.program(key, lambda: calls)

    assert [calls_until_hot(key) - 1 for key in range(5)] == [
        HOT_CALLS, HOT_CALLS, HOT_CALLS, 2 * HOT_CALLS, 4 * HOT_CALLS
    ]  # fmt: skip


def test_some_programs_are_forgotten() -> None:
    programs: Specialiser[tuple[int, bool], int] = Specialiser(8)
    for key in ((1, True), (1, False), (2, True)):
        programs.program(key, lambda: 0)
    programs.forget(lambda key: key[-1])
    assert list(programs) == [(1, False)]
    programs.forget()
    assert not programs


def test_patience_doubles_up_to_a_bound() -> None:
    patience: Patience[str] = Patience(first=16)
    lengths = [patience.lengthen("weights") for _ in range(40)]
    assert lengths[:3] == [16, 32, 64] and lengths[-1] == MOST_PATIENCE
