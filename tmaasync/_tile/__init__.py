"""The parts of `tmaasync.tile`, all below it: none imports it."""
