"""The parts of `tmaasync.pipeline`, all below it: none imports it."""
