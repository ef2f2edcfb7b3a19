"""Stand-ins for what needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class LaunchStub:
    """A prepared launch that launches nothing."""

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """See `tmaasync.kernel.Launch`."""

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """See `tmaasync.kernel.Launch`."""
        del addresses, stream
        return lambda: None
