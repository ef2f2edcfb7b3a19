"""Two front ends compile kernels into libraries: C++ sources, and inline PTX in them."""
