// y <- f y + v + A B, for the rows of many clients: a tile of y stays in registers from the first product to the last,
// so y and v go through memory once.  A matrix library has no such operation; with it v takes a pass of its own.

#include <algorithm>
#include <cstdint>

namespace {

// What is held in registers: some rows of a matrix, in each of them some packs of numbers side by side.
#if defined(__AVX512F__)
constexpr int BYTES = 64, HEIGHT = 10, WIDTH = 2;
#elif defined(__AVX2__)
constexpr int BYTES = 32, HEIGHT = 6, WIDTH = 2;
#else
constexpr int BYTES = 16, HEIGHT = 6, WIDTH = 2;
#endif

template <typename T>
struct Numbers {
  typedef T pack __attribute__((vector_size(BYTES), aligned(alignof(T)), may_alias));
};

// All that a stretch of rows needs; rows of y and v are m numbers apart, and so are those of B, which has k.
template <typename T>
struct Rows {
  T* y;
  const T *v, *factor, *A, *B;
  int64_t m, k, B_down, A_down, A_right;
};

// H rows, W packs of kind U in each, from a column on
template <typename U, int H, int W, typename T>
inline __attribute__((always_inline)) void tile(const Rows<T>& rows, int64_t column) {
  constexpr int64_t size = sizeof(U) / sizeof(T);
  T* y = rows.y + column;
  const T *v = rows.v + column, *B = rows.B + column, *A = rows.A;
  const T f = *rows.factor;
  U sum[H][W];
#pragma GCC unroll 10
  for (int h = 0; h < H; h++) {
#pragma GCC unroll 2
    for (int w = 0; w < W; w++) {
      const int64_t at = h * rows.m + w * size, next = at + W * size;
      sum[h][w] = f * *reinterpret_cast<U*>(y + at) + *reinterpret_cast<const U*>(v + at);
      __builtin_prefetch(y + next, 1);
      __builtin_prefetch(v + next);
    }
  }
  for (int64_t p = 0; p < rows.k; p++, A += rows.A_right, B += rows.B_down) {
    U b[W];
#pragma GCC unroll 2
    for (int w = 0; w < W; w++) b[w] = *reinterpret_cast<const U*>(B + w * size);
#pragma GCC unroll 10
    for (int h = 0; h < H; h++) {
#pragma GCC unroll 2
      for (int w = 0; w < W; w++) sum[h][w] += A[h * rows.A_down] * b[w];
    }
  }
#pragma GCC unroll 10
  for (int h = 0; h < H; h++) {
#pragma GCC unroll 2
    for (int w = 0; w < W; w++) *reinterpret_cast<U*>(y + h * rows.m + w * size) = sum[h][w];
  }
}

// Tiles of one kind, as far as they fit; returns the column where the next kind begins.
template <typename U, int H, int W, typename T>
int64_t tiles(const Rows<T>& rows, int64_t column) {
  constexpr int64_t size = W * sizeof(U) / sizeof(T);
  for (; column + size <= rows.m; column += size) tile<U, H, W>(rows, column);
  return column;
}

template <int H, typename T>
void whole(const Rows<T>& rows) {
  using Pack = typename Numbers<T>::pack;
  tiles<T, H, 1>(rows, tiles<Pack, H, 1>(rows, tiles<Pack, H, WIDTH>(rows, 0)));
}

// All rows of a stretch: as many at a time as fit into registers, then half as many, ...
template <int H, typename T>
void stretch(Rows<T> rows, int64_t left) {
  for (; left >= H; left -= H) {
    whole<H>(rows);
    rows.y += H * rows.m, rows.v += H * rows.m, rows.A += H * rows.A_down;
  }
  if constexpr (H > 1) stretch<H / 2>(rows, left);
}

// Of a client: `runs` rows of y, each an n x m matrix; A [runs n, k] and B [k, m].
template <typename T>
void summed(T* y, const T* v, const T* factor, const T* A, const T* B, const int64_t* sizes) {
  const int64_t clients = sizes[0], runs = sizes[1], n = sizes[2], m = sizes[3], k = sizes[4];
  const int64_t v_step = sizes[5], factor_step = sizes[6];  // from row to row, 0 if all have the same
  const int64_t A_step = sizes[7], A_down = sizes[8], A_right = sizes[9], B_step = sizes[10], B_down = sizes[11];
  const int64_t blocks = (n + HEIGHT - 1) / HEIGHT;
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < clients * runs * blocks; block++) {
    const int64_t row = block / blocks, client = row / runs, first = block % blocks * HEIGHT;
    const Rows<T> rows = {y + (row * n + first) * m,
                          v + row * v_step + first * m,
                          factor + row * factor_step,
                          A + client * A_step + (row % runs * n + first) * A_down,
                          B + client * B_step,
                          m, k, B_down, A_down, A_right};
    stretch<HEIGHT>(rows, std::min<int64_t>(HEIGHT, n - first));
  }
}

}  // namespace

extern "C" void summed_float(float* y, const float* v, const float* factor, const float* A, const float* B,
                             const int64_t* sizes) {
  summed(y, v, factor, A, B, sizes);
}

extern "C" void summed_double(double* y, const double* v, const double* factor, const double* A, const double* B,
                              const int64_t* sizes) {
  summed(y, v, factor, A, B, sizes);
}
