// Products of the thin matrices that a step of many clients consists of, where a matrix library would need more passes
// over memory:
//
//   outputs   X W'                  samples and rows of a layer, both read along memory
//   summed    y <- f y + v + A X    products are added up in registers, so y and v go through memory once
//
// Samples may be given by number, and are then read where the data lie.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

// What is held in registers: in a tile of outputs some samples by some rows of a layer, in a tile of y some of its rows,
// in each of them some packs of numbers side by side.
#if defined(__AVX512F__)
constexpr int BYTES = 64, SAMPLES = 5, ROWS = 5, HEIGHT = 6, WIDTH = 4;
#elif defined(__AVX2__)
constexpr int BYTES = 32, SAMPLES = 3, ROWS = 3, HEIGHT = 6, WIDTH = 2;
#else
constexpr int BYTES = 16, SAMPLES = 3, ROWS = 3, HEIGHT = 6, WIDTH = 2;
#endif

// numbers of a sample that are multiplied in one go, so that a tile's samples stay near; rows of a layer, and samples of a
// client, for one thread
constexpr int64_t STRETCH = 1024, SHARE = 10 * ROWS, MOST = 24 * SAMPLES;

template <typename T>
struct Numbers {
  typedef T pack __attribute__((vector_size(BYTES), aligned(alignof(T)), may_alias));
};

// ---- sums over the numbers in packs

template <typename P, int... I>
inline __attribute__((always_inline)) P picked(P a, P b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, I...);
#else
  return __builtin_shuffle(a, b, decltype(a < b){I...});
#endif
}

// Neighbours w numbers long are added, those of a to even places, those of b to odd ones.
template <int w, typename P, int... J>
inline __attribute__((always_inline)) P merged(P a, P b, std::integer_sequence<int, J...>) {
  constexpr int L = sizeof...(J);
  using Low = std::integer_sequence<int, (J / w % 2 * L + J / (2 * w) * 2 * w + J % w)...>;
  using High = std::integer_sequence<int, (J / w % 2 * L + J / (2 * w) * 2 * w + J % w + w)...>;
  return picked(a, b, Low()) + picked(a, b, High());
}

// The sums of C packs, a power of two and at most as many as there are numbers in one, L / C apart in the first of them
template <int C, int w, int L, typename P>
inline __attribute__((always_inline)) void add_up(P* packs) {
  if constexpr (w > 0) {
    constexpr int half = C / 2;
#pragma GCC unroll 16
    for (int i = 0; i < (C > 1 ? half : 1); i++) {
      packs[i] = merged<w>(packs[i], packs[i + half], std::make_integer_sequence<int, L>());
    }
    add_up<(C > 1 ? half : 1), w / 2, L>(packs);
  }
}

constexpr int power_of_two(int most) { return most < 2 ? 1 : 2 * power_of_two(most / 2); }

// The sum of each of N packs
template <int N, typename P, typename T>
inline __attribute__((always_inline)) void totals(P* packs, T* found) {
  constexpr int L = sizeof(P) / sizeof(T), C = power_of_two(N < L ? N : L);
  add_up<C, L / 2, L>(packs);
  T numbers[L];
  *reinterpret_cast<P*>(numbers) = packs[0];
#pragma GCC unroll 16
  for (int c = 0; c < C; c++) found[c] = numbers[c * (L / C)];
  if constexpr (N > C) totals<N - C>(packs + C, found + C);
}

// Where samples lie: one after another, or by number.
template <typename T>
struct Samples {
  const T* X;
  const int64_t* numbers;  // none: those of a client one after another
  // of a client so many; how far clients and samples are apart; how many there are, from whose end negative numbers count
  int64_t each, step, down, all;

  const T* at(int64_t client, int64_t i) const {
    if (!numbers) return X + client * step + i * down;
    const int64_t number = numbers[client * each + i];
    return X + (number < 0 ? number + all : number) * down;
  }
};

// ---- outputs

// Some samples times some rows, m numbers each, added to what is in `out` unless it is the first time
template <int S, int R, typename T>
inline __attribute__((always_inline)) void dots(const T* const* x, const T* w, int64_t w_down, int64_t m, T* out,
                                                int64_t out_down, bool first) {
  using Pack = typename Numbers<T>::pack;
  constexpr int64_t size = sizeof(Pack) / sizeof(T);
  Pack sum[S][R] = {};
  int64_t p = 0;
  for (; p + size <= m; p += size) {
    Pack a[S];
#pragma GCC unroll 5
    for (int s = 0; s < S; s++) a[s] = *reinterpret_cast<const Pack*>(x[s] + p);
#pragma GCC unroll 5
    for (int r = 0; r < R; r++) {
      const Pack b = *reinterpret_cast<const Pack*>(w + r * w_down + p);
#pragma GCC unroll 5
      for (int s = 0; s < S; s++) sum[s][r] += a[s] * b;
    }
  }
  T found[S][R];
  totals<S * R>(&sum[0][0], &found[0][0]);
  for (; p < m; p++) {
    for (int s = 0; s < S; s++) {
      for (int r = 0; r < R; r++) found[s][r] += x[s][p] * w[r * w_down + p];
    }
  }
#pragma GCC unroll 5
  for (int s = 0; s < S; s++) {
#pragma GCC unroll 5
    for (int r = 0; r < R; r++) {
      T& place = out[s * out_down + r];
      place = first ? found[s][r] : place + found[s][r];
    }
  }
}

// All rows: as many at a time as fit into registers, then half as many, ...
template <int S, int R, typename T>
void along_rows(const T* const* x, const T* w, int64_t w_down, int64_t m, T* out, int64_t out_down, bool first,
                int64_t left) {
  for (; left >= R; left -= R, w += R * w_down, out += R) dots<S, R>(x, w, w_down, m, out, out_down, first);
  if constexpr (R > 1) along_rows<S, R / 2>(x, w, w_down, m, out, out_down, first, left);
}

// All samples from the i-th to the end, in the same way
template <int S, typename T>
void along_samples(const Samples<T>& samples, int64_t client, int64_t i, int64_t end, const T* w, int64_t w_down,
                   int64_t from, int64_t m, T* out, int64_t out_down, int64_t rows) {
  for (; i + S <= end; i += S) {
    const T* x[S];
    for (int s = 0; s < S; s++) x[s] = samples.at(client, i + s) + from;
    along_rows<S, ROWS>(x, w + from, w_down, m, out + i * out_down, out_down, from == 0, rows);
  }
  if constexpr (S > 1) along_samples<S / 2>(samples, client, i, end, w, w_down, from, m, out, out_down, rows);
}

// Of each client n rows of W, k numbers each; out [clients, samples, n].
template <typename T>
void outputs(const T* X, const int64_t* numbers, const T* W, T* out, const int64_t* sizes) {
  const int64_t clients = sizes[0], n = sizes[1], k = sizes[2], W_step = sizes[3], W_down = sizes[4];
  const Samples<T> samples = {X, numbers, sizes[5], sizes[6], sizes[7], sizes[8]};
  const int64_t shares = (n + SHARE - 1) / SHARE, blocks = (samples.each + MOST - 1) / MOST;
#pragma omp parallel for schedule(static)
  for (int64_t share = 0; share < clients * blocks * shares; share++) {
    const int64_t client = share / shares / blocks, row = share % shares * SHARE, i = share / shares % blocks * MOST;
    const T* w = W + client * W_step + row * W_down;
    for (int64_t from = 0; from < k; from += STRETCH) {
      along_samples<SAMPLES>(samples, client, i, std::min(i + MOST, samples.each), w, W_down, from,
                             std::min(STRETCH, k - from), out + client * samples.each * n + row, n,
                             std::min(SHARE, n - row));
    }
  }
}

// ---- summed

// All that a stretch of rows needs; rows of y and v are m numbers apart, and there are k samples.
template <typename T>
struct Rows {
  T* y;
  const T* v;
  T f;
  const T* A;
  const T* const* B;
  int64_t m, k, A_down, A_right;
};

// H rows, W packs of kind U in each, from a column on.  While products are added up, y and v are brought near.
template <typename U, int H, int W, bool V, typename T>
inline __attribute__((always_inline)) void tile(const Rows<T>& rows, int64_t column) {
  constexpr int64_t size = sizeof(U) / sizeof(T);
  T* y = rows.y + column;
  const T *v = rows.v + column, *A = rows.A;
  const T f = rows.f;
  U sum[H][W] = {};
  for (int64_t p = 0; p < rows.k; p++, A += rows.A_right) {
    if (p < H * W) {
      const int64_t at = p / W * rows.m + p % W * size;
      __builtin_prefetch(y + at, 1);
      if constexpr (V) __builtin_prefetch(v + at);
    }
    const T* B = rows.B[p] + column;
    U b[W];
#pragma GCC unroll 4
    for (int w = 0; w < W; w++) b[w] = *reinterpret_cast<const U*>(B + w * size);
#pragma GCC unroll 6
    for (int h = 0; h < H; h++) {
#pragma GCC unroll 4
      for (int w = 0; w < W; w++) sum[h][w] += A[h * rows.A_down] * b[w];
    }
  }
#pragma GCC unroll 6
  for (int h = 0; h < H; h++) {
#pragma GCC unroll 4
    for (int w = 0; w < W; w++) {
      const int64_t at = h * rows.m + w * size;
      U& place = *reinterpret_cast<U*>(y + at);
      sum[h][w] += f * place;
      if constexpr (V) sum[h][w] += *reinterpret_cast<const U*>(v + at);
      place = sum[h][w];
    }
  }
}

// Tiles of one kind, as far as they fit; returns the column where the next kind begins.
template <typename U, int H, int W, bool V, typename T>
int64_t tiles(const Rows<T>& rows, int64_t column) {
  constexpr int64_t size = W * sizeof(U) / sizeof(T);
  for (; column + size <= rows.m; column += size) tile<U, H, W, V>(rows, column);
  return column;
}

template <int H, bool V, typename T>
void whole(const Rows<T>& rows) {
  using Pack = typename Numbers<T>::pack;
  tiles<T, H, 1, V>(rows, tiles<Pack, H, 1, V>(rows, tiles<Pack, H, WIDTH, V>(rows, 0)));
}

// All rows of a stretch, in the same way as rows of a layer
template <int H, bool V, typename T>
void stretch(Rows<T> rows, int64_t left) {
  for (; left >= H; left -= H) {
    whole<H, V>(rows);
    rows.y += H * rows.m, rows.A += H * rows.A_down;
    if constexpr (V) rows.v += H * rows.m;
  }
  if constexpr (H > 1) stretch<H / 2, V>(rows, left);
}

// Of a client: `runs` rows of y, each an n x m matrix; A [runs n, k] and k samples of m numbers.
template <bool V, typename T>
void summed(T* y, const T* v, const T* factor, const T* A, const T* X, const int64_t* numbers, const int64_t* sizes) {
  const int64_t clients = sizes[0], runs = sizes[1], n = sizes[2], m = sizes[3], k = sizes[4];
  const int64_t v_step = sizes[5], factor_step = sizes[6];  // from row to row, 0 if all have the same
  const int64_t A_step = sizes[7], A_down = sizes[8], A_right = sizes[9];
  const Samples<T> samples = {X, numbers, k, sizes[10], sizes[11], sizes[12]};
  std::vector<const T*> B(clients * k);
  for (int64_t j = 0; j < clients * k; j++) B[j] = samples.at(j / k, j % k);
  const int64_t blocks = (n + HEIGHT - 1) / HEIGHT;
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < clients * runs * blocks; block++) {
    const int64_t row = block / blocks, client = row / runs, first = block % blocks * HEIGHT;
    const Rows<T> rows = {y + (row * n + first) * m,
                          V ? v + row * v_step + first * m : y,
                          factor ? factor[row * factor_step] : 1,
                          A + client * A_step + (row % runs * n + first) * A_down,
                          B.data() + client * k,
                          m, k, A_down, A_right};
    stretch<HEIGHT, V>(rows, std::min<int64_t>(HEIGHT, n - first));
  }
}

}  // namespace

#define FOR(T)                                                                                            \
  extern "C" void outputs_##T(const T* X, const int64_t* numbers, const T* W, T* out, const int64_t* s) { \
    outputs(X, numbers, W, out, s);                                                                       \
  }                                                                                                       \
  extern "C" void summed_##T(T* y, const T* v, const T* factor, const T* A, const T* X,                   \
                             const int64_t* numbers, const int64_t* s) {                                  \
    v ? summed<true>(y, v, factor, A, X, numbers, s) : summed<false>(y, v, factor, A, X, numbers, s);     \
  }

FOR(float)
FOR(double)
