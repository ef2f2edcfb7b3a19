"""The parts of `tmaasync.ragged`, all below it: none imports it."""
