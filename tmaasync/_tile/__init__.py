"""Parts of `tmaasync.tile`, which imports them."""
