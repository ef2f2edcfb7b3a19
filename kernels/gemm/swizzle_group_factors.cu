// Scale factors of groups of rows in swizzled atoms of 128 rows by 4 factors ("1D Block Scaling
// Factors Layout" of cuBLAS). Each group begins a new row of atoms, as in torch's
// scaled_grouped_mm. Where there are no rows or factors, the atoms have zeros.
//
// The byte of row r and factor k is at factors[r * row_stride + k * factor_stride]. Grid: any
// number of CTAs of 128 threads; each writes a word of four factors.
#include <tmaasync/structured/grouped_scheduler.cuh>

using namespace tmaasync;

constexpr int kAtomRows = 128, kAtomFactors = 4;

extern "C" __global__ void __launch_bounds__(kAtomRows) swizzle_group_factors(
    const unsigned char* factors,
    u32* atoms,
    const i32* ends,
    int count,
    int total_rows,
    int width,
    i64 row_stride,
    i64 factor_stride
) {
    const RowGroups groups{ends, count, total_rows};
    const int thread = threadIdx.x, slot = thread % 32 * 4 + thread / 32;
    for (const auto tile : GroupedScheduler<kAtomRows, kAtomFactors>(groups, width)) {
        const int row = tile.m + thread;
        u32 word = 0;
        for (int i = 0; i < kAtomFactors; ++i) {
            if (row >= tile.rows.length || tile.n + i >= width) continue;
            const i64 at = (tile.rows.start + row) * row_stride + (tile.n + i) * factor_stride;
            word |= static_cast<u32>(factors[at]) << 8 * i;
        }
        const i64 atom_row = tile.m_tiles_before + tile.m / kAtomRows;
        const i64 atom = atom_row * count_tiles(width, kAtomFactors) + tile.n / kAtomFactors;
        atoms[atom * kAtomRows + slot] = word;
    }
}
