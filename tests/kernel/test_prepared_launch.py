"""Packed launches, with a stand-in for the driver that notes what it is given."""

from __future__ import annotations

import functools
import gc
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fake_driver import Driver

from tmaasync._driver import LaunchConfig, PreparedLaunch
from tmaasync.errors import DriverError, LaunchError

MAPS = [bytes([i]) * 128 for i in (1, 2)]
ARGUMENTS = [*MAPS, b"\x03\x00\x00\x00", b"\x04" * 12]
CONFIG = LaunchConfig((8, 1, 1), (128, 1, 1), None, 1024, False, 5)


@pytest.fixture
def driver_of(use_driver: Callable[[object], None]) -> Callable[..., Driver]:
    def make(devices: int = 1) -> Driver:
        driver = Driver(devices, argument_sizes=[*map(len, ARGUMENTS)])
        use_driver(driver)
        return driver

    return make


def prepared() -> PreparedLaunch:
    return PreparedLaunch("function", CONFIG, ARGUMENTS, "arrays", 0)


def at(argument: bytes, address: int) -> bytes:
    return struct.pack("<Q", address) + argument[8:]


def test_a_call_passes_the_arguments_as_they_were_packed(driver_of: Any) -> None:
    driver = driver_of()
    prepared()()
    assert driver.launched == [(5, 0, ARGUMENTS)]
    assert driver.functions == ["function"]


def test_at_changes_the_first_addresses_and_the_stream_and_nothing_else(driver_of: Any) -> None:
    driver = driver_of()
    launch = prepared()
    launch.launch_at((0x7F00_0000_1000, 0x7F00_0000_2000), 5)
    launch.launch_at([0x7F00_0000_3000], 9)
    launch.launch_at([0x7F00_0000_3000], 5)

    first = at(MAPS[0], 0x7F00_0000_3000)
    second = at(MAPS[1], 0x7F00_0000_2000)
    rest = ARGUMENTS[2:]
    assert driver.launched == [
        (5, 0, [at(MAPS[0], 0x7F00_0000_1000), second, *rest]),
        (9, 0, [first, second, *rest]),
        (5, 0, [first, second, *rest]),
    ]


def test_a_bound_launch_keeps_its_addresses_and_stream_whatever_comes_after(driver_of: Any) -> None:
    driver = driver_of()
    launch = prepared()
    first = launch.bind((0x7F00_0000_1000, 0x7F00_0000_2000), 9)
    second = launch.bind([0x7F00_0000_3000, 0x7F00_0000_4000], 5)
    launch.launch_at((0x5000, 0x6000), 7)
    del launch
    gc.collect()
    second()
    first()
    first()

    def moved(*addresses: int) -> list[bytes]:
        return [*map(at, MAPS, addresses), *ARGUMENTS[2:]]

    once = (9, 0, moved(0x7F00_0000_1000, 0x7F00_0000_2000))
    assert driver.launched == [
        (7, 0, moved(0x5000, 0x6000)),
        (5, 0, moved(0x7F00_0000_3000, 0x7F00_0000_4000)),
        once,
        once,
    ]


@pytest.mark.parametrize("takes_values", [False, True])
def test_threads_do_not_see_each_others_words_and_streams(
    driver_of: Any, takes_values: bool
) -> None:
    driver = driver_of()
    driver.wait_s = 0.001
    launch = prepared()
    if takes_values:
        launch.take_values("QQhQ")

    def repeat(number: int) -> None:
        words = (number, number, number, number) if takes_values else (number, number)
        for _ in range(20):
            launch.launch_at(words, number)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(driver.launched) == 80
    for stream, _, (first, second, third, _) in driver.launched:
        assert (first, second) == (at(MAPS[0], stream), at(MAPS[1], stream))
        assert third == (struct.pack("<i", stream) if takes_values else ARGUMENTS[2])


@pytest.mark.parametrize(
    "again",
    [
        lambda launch: launch(),
        lambda launch: launch.launch_at((1, 2), 5),
        lambda launch: launch.bind((1, 2), 5)(),
    ],
)
def test_a_thread_without_a_context_gets_the_devices(driver_of: Any, again: Any) -> None:
    driver = driver_of()
    driver.contexts, driver.statuses = [], [201]
    launch = prepared()
    again(launch)
    assert [device for _, device, _ in driver.launched] == [None, 0]
    again(launch)
    assert [device for _, device, _ in driver.launched] == [None, 0, 0]
    assert (driver.contexts, driver.retained) == ([0], [0])


@pytest.mark.parametrize(
    "launched",
    [lambda launch: launch.launch_at((1, 2), 5), lambda launch: launch.bind((1, 2), 5)()],
)
def test_where_there_are_several_devices_the_right_one_is_made_current(
    driver_of: Any, launched: Any
) -> None:
    driver = driver_of(2)
    launch = prepared()
    launched(launch)
    driver.contexts = [1]
    launched(launch)
    assert [device for _, device, _ in driver.launched] == [0, 0]
    assert driver.contexts == [1]


def test_where_there_are_several_devices_a_bound_launch_still_has_arguments_of_its_own(
    driver_of: Any,
) -> None:
    driver = driver_of(2)
    launch = prepared()
    bound = launch.bind((0x1000, 0x2000), 9)
    launch.launch_at((0x3000, 0x4000), 7)
    bound()
    assert driver.launched[-1] == (9, 0, [at(MAPS[0], 0x1000), at(MAPS[1], 0x2000), *ARGUMENTS[2:]])


@pytest.mark.parametrize(
    ("statuses", "error", "launches"),
    [
        ([1], LaunchError, 1),
        ([201, 1], LaunchError, 2),
        ([201, 201], LaunchError, 2),
        ([719], DriverError, 1),
    ],
)
def test_a_refused_launch_is_an_error_and_the_next_one_is_not(
    driver_of: Any, statuses: list[int], error: type[Exception], launches: int
) -> None:
    driver = driver_of()
    launch = prepared()
    bound = launch.bind((1, 2), 5)
    for again in (functools.partial(launch.launch_at, (1, 2), 5), bound):
        driver.statuses = list(statuses)
        driver.launched.clear()
        with pytest.raises(error, match="words"):
            again()
        assert len(driver.launched) == launches
        again()


class Tracer:
    """Notes what it is to launch; launches another function with the same arguments."""

    def __init__(self) -> None:
        self.wanted = False
        self.streams: list[int] = []

    def collector_of(self) -> object:
        return "collector" if self.wanted else None

    def run(self, launch: Callable[[Any, LaunchConfig], None], config: LaunchConfig) -> None:
        self.streams.append(config.stream)
        launch("function", config._replace(stream=99))


def test_while_traces_are_wanted_the_tracer_launches_with_the_same_arguments(
    driver_of: Any,
) -> None:
    driver, tracer = driver_of(), Tracer()
    launch = PreparedLaunch("function", CONFIG, ARGUMENTS, "arrays", 0, tracer)

    launch()
    tracer.wanted = True
    launch()
    launch.launch_at([0x1000, 0x2000], 6)
    bound = launch.bind([0x3000, 0x4000], 8)
    bound()
    tracer.wanted = False
    launch()
    bound()

    moved = [at(MAPS[0], 0x1000), at(MAPS[1], 0x2000), *ARGUMENTS[2:]]
    streams_and_arguments = [(stream, arguments) for stream, _, arguments in driver.launched]
    elsewhere = [at(MAPS[0], 0x3000), at(MAPS[1], 0x4000), *ARGUMENTS[2:]]
    assert streams_and_arguments == [
        (5, ARGUMENTS),
        (99, ARGUMENTS),
        (99, moved),
        (99, elsewhere),
        (6, moved),
        (8, elsewhere),
    ]
    assert tracer.streams == [5, 6, 8]


def test_a_traced_launch_that_the_driver_refuses_says_so(driver_of: Any) -> None:
    driver, tracer = driver_of(), Tracer()
    tracer.wanted = True
    driver.statuses = [1]

    with pytest.raises(LaunchError, match="the driver refused the launch"):
        PreparedLaunch("function", CONFIG, ARGUMENTS, "arrays", 0, tracer)()
