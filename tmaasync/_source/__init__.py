"""CUDA C++: its paths, tokens and names, its compilation, and the folder that caches programs."""
