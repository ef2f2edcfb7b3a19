"""The emulator as a back end of kernels; `tmaasync._parts` registers it."""
