"""The wheels that messages tell people to install, as in pyproject.toml.

Messages never name an extra of tmaasync: pip would look for it in a package index, where the name
may be another's.
"""

from __future__ import annotations

WHEELS = {
    "cuda13": (
        "cuda-python>=13",
        "cupy-cuda13x>=13.6",
        "nvidia-cuda-cccl>=13,<14",
        "nvidia-cuda-nvrtc>=13,<14",
    ),
    "cuda12": (
        "cuda-python>=12.9,<13",
        "cupy-cuda12x>=13.6",
        "nvidia-cuda-cccl-cu12>=12.9",
        "nvidia-cuda-nvrtc-cu12>=12.9",
        "nvidia-cuda-runtime-cu12>=12.9",
    ),
    "torch": (
        "cuda-python>=13",
        "nvidia-cuda-cccl>=13,<14",
        "nvidia-cuda-nvrtc>=13,<14",
        "torch>=2.7",
    ),
    "plot": ("matplotlib>=3.8",),
    "headers": ("nvidia-cuda-runtime>=13,<14",),
}
"""The wheels of each extra. ``headers``, CUDA's own, is none: every installation has it."""


def install_command(extra: str, *names: str, options: str = "") -> str:
    """Return the command that installs the wheels of an extra, or those with these names.

    >>> install_command("cuda13", "cupy", "nvidia-cuda-nvrtc")
    "pip install 'cupy-cuda13x>=13.6' 'nvidia-cuda-nvrtc>=13,<14'"
    """
    wanted = [wheel for wheel in WHEELS[extra] if not names or wheel.startswith(names)]
    return " ".join(filter(None, ("pip install", options, *(f"'{wheel}'" for wheel in wanted))))
