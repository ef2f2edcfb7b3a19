// Rotates the rows of a matrix in shared memory, one row a warp, and adds a column's maximum.
constexpr int kRows = 8, kColumns = 32;

extern "C" __global__ void rotate(const float* values, float* rotated, float* largest, int pitch) {
    __shared__ float rows[kRows][kColumns + 1];
    const int row = threadIdx.y, column = threadIdx.x;
    rows[row][column] = values[(blockIdx.x * kRows + row) * pitch + column];
    __syncwarp();
    const float turned = rows[row][(column + 1) % kColumns];
    __syncwarp();
    rows[row][column] = turned;
    __syncthreads();
    if (row == 0) {
        float most = rows[0][column];
        for (int other = 1; other < kRows; ++other) most = fmaxf(most, rows[other][column]);
        largest[blockIdx.x * kColumns + column] = most;
    }
    rotated[(blockIdx.x * kRows + row) * kColumns + column] = rows[row][column];
}
