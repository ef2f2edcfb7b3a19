"""CUDA C++ into a shared library for this machine."""
