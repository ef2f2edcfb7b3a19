"""The parts of `tmaasync.signal`, all below it: none imports it."""
