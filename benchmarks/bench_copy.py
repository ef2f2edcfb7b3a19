"""ops.copy against CuPy's and torch's own copies. Writes section "copy" of the results file."""

from __future__ import annotations

import argparse
from typing import Any

import cupy
import numpy as np
from race import geometric_mean, race, recorded, speed_text, tera_per_second

from tmaasync import ops


def contiguous(size_bytes: int) -> tuple[Any, Any, str]:
    source = cupy.random.default_rng(0).standard_normal(size_bytes // 4, dtype=cupy.float32)
    return source, cupy.full_like(source, np.nan), f"contiguous {size_bytes / 2**20:g} MiB"


def window(rows: int, columns: int, pitch: int) -> tuple[Any, Any, str]:
    source = cupy.random.default_rng(0).standard_normal((rows, pitch), dtype=cupy.float32)
    target = cupy.full_like(source, np.nan)
    return source[:, :columns], target[:, :columns], f"window {rows} x {columns} of {pitch} fp32"


def peers(source: Any, target: Any) -> dict[str, Any]:
    candidates = {
        "tmaasync": lambda: ops.copy(source, target),
        "cupy": lambda: cupy.copyto(target, source),
    }
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        return candidates
    torch_source, torch_target = torch.from_dlpack(source), torch.from_dlpack(target)
    return candidates | {"torch": lambda: torch_target.copy_(torch_source)}


def measure(source: Any, target: Any, label: str, rounds: int) -> dict[str, Any]:
    ops.copy(source, target)
    if not bool((source.view(np.uint32) == target.view(np.uint32)).all()):
        raise SystemExit(f"{label}: the copy is wrong")
    row = {"case": label, "bytes": 2 * source.nbytes}
    row |= race(peers(source, target), rounds=rounds, reference="cupy")
    row["tb_per_s"] = tera_per_second(row, row["bytes"], 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    cases = [
        *((contiguous, (mebibytes << 20,)) for mebibytes in (64, 256, 1024, 4096)),
        (window, (8192, 8192, 16384)),
        (window, (4097, 2052, 2056)),
        (window, (16384, 8192, 8200)),
    ]
    with recorded("copy") as rows:
        for make, arguments in cases:
            rows.append(measure(*make(*arguments), rounds))
            print(
                f"{rows[-1]['case']:36s} {rows[-1]['tb_per_s']['tmaasync']:6.3f} TB/s  "
                f"{speed_text(rows[-1], 'cupy')}",
                flush=True,
            )
    print(f"geometric mean {geometric_mean(rows, 'cupy'):.3f} x cupy")


if __name__ == "__main__":
    main()
