// Products of a few rows, for attention: unlike a whole matrix product they can leave out, row by
// row, what a mask would drop. Columns must fill whole vectors.
#pragma once

#include <type_traits>

#include "runtime/cpu/gemm.h"
#include "runtime/cpu/math.h"

namespace planc::cpu {

// Rows that one tile has: with four vectors of columns their sums fill most registers of AVX-512.
inline constexpr int64_t kTileRows = 6;

// c = alpha * a b (+ c): R rows, V vectors of columns.
template <class T, int R, int V>
void tile(int64_t k, T alpha, Matrix<T> a, const T* b, int64_t rowB, bool add, T* c, int64_t rowC) {
  using X = Vector<T>;
  X sums[R][V] = {};
  for (int64_t p = 0; p < k; ++p, b += rowB) {
    X row[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) row[v] = at<X>(b, v * kLanes<T>);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      T x = a.data[r * a.rows + p * a.columns];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[r][v] += x * row[v];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      X& to = *reinterpret_cast<X*>(c + r * rowC + v * kLanes<T>);
      to = add ? to + alpha * sums[r][v] : alpha * sums[r][v];
    }
  }
}

template <class T, int V>
void tileOf(int64_t m, int64_t k, T alpha, Matrix<T> a, const T* b, int64_t rowB, bool add, T* c,
            int64_t rowC) {
  switch (m) {
    case 1:
      return tile<T, 1, V>(k, alpha, a, b, rowB, add, c, rowC);
    case 2:
      return tile<T, 2, V>(k, alpha, a, b, rowB, add, c, rowC);
    case 3:
      return tile<T, 3, V>(k, alpha, a, b, rowB, add, c, rowC);
    case 4:
      return tile<T, 4, V>(k, alpha, a, b, rowB, add, c, rowC);
    case 5:
      return tile<T, 5, V>(k, alpha, a, b, rowB, add, c, rowC);
    default:
      return tile<T, 6, V>(k, alpha, a, b, rowB, add, c, rowC);
  }
}

// c = alpha * a b (+ c) for 1 <= m <= kTileRows, any n and k >= 0; b and c by rows.
template <class T>
void multiplyRows(int64_t m, int64_t n, int64_t k, T alpha, Matrix<T> a, const T* b, int64_t rowB,
                  bool add, T* c, int64_t rowC) {
  constexpr int64_t L = kLanes<T>;
  while (n >= L) {
    int64_t vectors = std::min<int64_t>(n / L, 4);
    switch (vectors) {
      case 1:
        tileOf<T, 1>(m, k, alpha, a, b, rowB, add, c, rowC);
        break;
      case 2:
        tileOf<T, 2>(m, k, alpha, a, b, rowB, add, c, rowC);
        break;
      case 3:
        tileOf<T, 3>(m, k, alpha, a, b, rowB, add, c, rowC);
        break;
      default:
        tileOf<T, 4>(m, k, alpha, a, b, rowB, add, c, rowC);
    }
    n -= vectors * L, b += vectors * L, c += vectors * L;
  }
  for (int64_t r = 0; n > 0 && r < m; ++r) {
    T sums[L] = {};
    for (int64_t p = 0; p < k; ++p) {
      T x = a.data[r * a.rows + p * a.columns];
      for (int64_t i = 0; i < n; ++i) sums[i] += x * b[p * rowB + i];
    }
    for (int64_t i = 0; i < n; ++i) {
      T& to = c[r * rowC + i];
      to = add ? to + alpha * sums[i] : alpha * sums[i];
    }
  }
}

// to[j * rowTo + i] = from[i * rowFrom + j] for i < m, j < n.
template <class T>
void transpose(int64_t m, int64_t n, const T* from, int64_t rowFrom, T* to, int64_t rowTo) {
  constexpr int64_t L = kLanes<T>;
  using X = Vector<T>;
  auto plain = [&](int64_t firstI, int64_t lastI, int64_t firstJ, int64_t lastJ) {
    for (int64_t i = firstI; i < lastI; ++i) {
      for (int64_t j = firstJ; j < lastJ; ++j) to[j * rowTo + i] = from[i * rowFrom + j];
    }
  };
  int64_t wholeM = m / L * L, wholeN = n / L * L;
  for (int64_t i = 0; i < wholeM; i += L) {
    for (int64_t j = 0; j < wholeN; j += L) {
      X rows[L];
#pragma GCC unroll 16
      for (int64_t r = 0; r < L; ++r) rows[r] = at<X>(from, (i + r) * rowFrom + j);
      // Exchanges the off-diagonal halves of blocks of 2, 4, 8 ... rows and columns.
      auto stage = [&](auto step) {
        constexpr int64_t s = decltype(step)::value;
        using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
        Vector<Index> low, high;
#pragma GCC unroll 16
        for (int64_t l = 0; l < L; ++l) {
          low[l] = Index((l & s) == 0 ? l : L + l - s);
          high[l] = Index((l & s) == 0 ? l + s : L + l);
        }
#pragma GCC unroll 16
        for (int64_t r = 0; r < L; ++r) {
          if ((r & s) != 0) continue;
          X a = rows[r], b = rows[r + s];
          rows[r] = __builtin_shuffle(a, b, low);
          rows[r + s] = __builtin_shuffle(a, b, high);
        }
      };
      stage(std::integral_constant<int64_t, 1>());
      stage(std::integral_constant<int64_t, 2>());
      stage(std::integral_constant<int64_t, 4>());
      if constexpr (L == 16) stage(std::integral_constant<int64_t, 8>());
#pragma GCC unroll 16
      for (int64_t r = 0; r < L; ++r) *reinterpret_cast<X*>(to + (j + r) * rowTo + i) = rows[r];
    }
  }
  plain(0, wholeM, wholeN, n);
  plain(wholeM, m, 0, n);
}

}  // namespace planc::cpu
