"""From a CUDA source to a library with a kernel, and the facts about it (`EmulatedProgram`).

`cpp` compiles the source; `ptx` translates the inline PTX in it.
"""
