#include "autograd/ops/linalg/linalg_kernels.h"

// Each matrix is one thread's work.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>

#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::linalg {

namespace {

// One preconditioner and one element type: Eigen's templates take seconds each to compile.
using Matrix = Eigen::MatrixXd;
using Svd = Eigen::JacobiSVD<Matrix, Eigen::HouseholderQRPreconditioner>;
using Vector = Eigen::VectorXd;
// What tensors hold.
template <class T>
using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// One matrix of memory of a dtype, and back.
Matrix load(DType dtype, const void* data, int64_t i, int64_t rows, int64_t cols) {
  if (dtype == kFloat64) {
    return Eigen::Map<const Rows<double>>(static_cast<const double*>(data) + i * rows * cols, rows,
                                          cols);
  }
  return Eigen::Map<const Rows<float>>(static_cast<const float*>(data) + i * rows * cols, rows,
                                       cols)
      .cast<double>();
}
Matrix load(const Batch& a, int64_t i) { return load(a.dtype, a.data, i, a.rows, a.cols); }

void store(const Matrix& m, DType dtype, void* data, int64_t i) {
  if (dtype == kFloat64) {
    Eigen::Map<Rows<double>>(static_cast<double*>(data) + i * m.size(), m.rows(), m.cols()) = m;
  } else {
    Eigen::Map<Rows<float>>(static_cast<float*>(data) + i * m.size(), m.rows(), m.cols()) =
        m.cast<float>();
  }
}
void store(double value, DType dtype, void* data, int64_t i) {
  if (dtype == kFloat64) {
    static_cast<double*>(data)[i] = value;
  } else {
    static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

// Calls f(i) for the matrices of the batch; false means failure. The first one that failed.
template <class F>
int64_t for_each(const Batch& a, const F& f) {
  const int64_t work = std::max<int64_t>(a.rows * a.cols * std::min(a.rows, a.cols), 1);
  std::atomic<int64_t> failed = a.count;
  std::atomic<bool> no_memory = false;
  kernels::parallel_for(a.count, std::max<int64_t>(kernels::kGrainSize / work, 1),
                        [&](int64_t begin, int64_t end) {
                          // An exception must not leave a thread of the team.
                          try {
                            for (int64_t i = begin; i < end; ++i) {
                              if (!f(i)) {
                                int64_t first = failed;
                                while (i < first && !failed.compare_exchange_weak(first, i)) {
                                }
                                return;
                              }
                            }
                          } catch (const std::bad_alloc&) {
                            no_memory = true;
                          }
                        });
  if (no_memory) {
    return kNoMemory;
  }
  return failed < a.count ? failed.load() : kNone;
}

using Lu = Eigen::PartialPivLU<Matrix>;

bool is_singular(const Lu& lu) { return (lu.matrixLU().diagonal().array() == 0).any(); }

// Cofactors by singular values: those of A = U S V^T are det(U) det(V) U cof(S) V^T.
Matrix cofactors_by_svd(const Matrix& a) {
  const Svd svd(a, Eigen::ComputeFullU | Eigen::ComputeFullV);
  const Vector& s = svd.singularValues();
  Vector others = Vector::Ones(s.size());
  for (int64_t i = 0; i < s.size(); ++i) {
    for (int64_t j = 0; j < s.size(); ++j) {
      others[i] *= i == j ? 1 : s[j];
    }
  }
  if (Lu(svd.matrixU()).determinant() * Lu(svd.matrixV()).determinant() < 0) {
    others = -others;
  }
  const Matrix left = svd.matrixU() * others.asDiagonal();
  return left * svd.matrixV().transpose();
}

}  // namespace

int64_t cholesky(const Batch& a, void* l) {
  return for_each(a, [&](int64_t i) {
    const Eigen::LLT<Matrix> llt(load(a, i));
    store(llt.matrixL(), a.dtype, l, i);
    return llt.info() == Eigen::Success;
  });
}

int64_t qr(const Batch& a, int64_t k, void* q, void* r) {
  return for_each(a, [&](int64_t i) {
    const Eigen::HouseholderQR<Matrix> factors(load(a, i));
    Matrix basis = Matrix::Identity(a.rows, k);
    basis.applyOnTheLeft(factors.householderQ());
    store(basis, a.dtype, q, i);
    Matrix triangle = factors.matrixQR().topRows(k);
    for (int64_t col = 0; col < a.cols; ++col) {
      triangle.col(col).tail(std::max<int64_t>(k - col - 1, 0)).setZero();
    }
    store(triangle, a.dtype, r, i);
    return true;
  });
}

int64_t svd(const Batch& a, bool full, void* u, void* s, void* vh) {
  const int64_t k = std::min(a.rows, a.cols);
  const unsigned parts =
      full ? Eigen::ComputeFullU | Eigen::ComputeFullV : Eigen::ComputeThinU | Eigen::ComputeThinV;
  return for_each(a, [&](int64_t i) {
    const Matrix m = load(a, i);
    if (!m.allFinite()) {
      return false;
    }
    if (k == 0) {  // nothing to find; the full bases are unit matrices
      store(Matrix::Identity(a.rows, full ? a.rows : 0), a.dtype, u, i);
      store(Matrix::Identity(full ? a.cols : 0, a.cols), a.dtype, vh, i);
      return true;
    }
    const Svd factors(m, parts);
    store(factors.matrixU(), a.dtype, u, i);
    store(factors.singularValues(), a.dtype, s, i);
    store(factors.matrixV().transpose(), a.dtype, vh, i);
    return true;
  });
}

int64_t eigh(const Batch& a, bool upper, void* w, void* v) {
  return for_each(a, [&](int64_t i) {
    Matrix m = load(a, i);
    if (upper) {
      m.transposeInPlace();  // Eigen reads the lower triangle
    }
    m.triangularView<Eigen::StrictlyUpper>().setZero();
    if (!m.allFinite()) {
      return false;
    }
    if (a.rows == 0) {
      return true;
    }
    const Eigen::SelfAdjointEigenSolver<Matrix> solver(m);
    store(solver.eigenvalues(), a.dtype, w, i);
    store(solver.eigenvectors(), a.dtype, v, i);
    return solver.info() == Eigen::Success;
  });
}

// Eigen's solvers look at the first element of a right side, so none gets an empty one.
int64_t solve(const Batch& a, int64_t columns, const void* b, void* x) {
  return for_each(a, [&](int64_t i) {
    if (a.rows == 0) {
      return true;
    }
    const Lu lu(load(a, i));
    if (is_singular(lu)) {
      return false;
    }
    if (columns > 0) {
      store(lu.solve(load(a.dtype, b, i, a.rows, columns)), a.dtype, x, i);
    }
    return true;
  });
}

int64_t solve_triangular(
    const Batch& a, bool upper, bool unit, int64_t columns, const void* b, void* x) {
  return for_each(a, [&](int64_t i) {
    Matrix triangle = load(a, i);
    if (unit) {
      triangle.diagonal().setOnes();
    }
    if ((triangle.diagonal().array() == 0).any()) {
      return false;
    }
    if (a.rows == 0 || columns == 0) {
      return true;
    }
    Matrix right = load(a.dtype, b, i, a.rows, columns);
    if (upper) {
      triangle.triangularView<Eigen::Upper>().solveInPlace(right);
    } else {
      triangle.triangularView<Eigen::Lower>().solveInPlace(right);
    }
    store(right, a.dtype, x, i);
    return true;
  });
}

int64_t inverse(const Batch& a, void* y) {
  return for_each(a, [&](int64_t i) {
    if (a.rows == 0) {
      return true;
    }
    const Lu lu(load(a, i));
    if (is_singular(lu)) {
      return false;
    }
    store(lu.solve(Matrix::Identity(a.rows, a.rows)), a.dtype, y, i);
    return true;
  });
}

int64_t det(const Batch& a, void* y) {
  return for_each(a, [&](int64_t i) {
    store(a.rows == 0 ? 1 : Lu(load(a, i)).determinant(), a.dtype, y, i);
    return true;
  });
}

int64_t slogdet(const Batch& a, void* sign, void* logabsdet) {
  return for_each(a, [&](int64_t i) {
    double s = 1;
    double log_sum = 0;
    if (a.rows > 0) {
      const Lu lu(load(a, i));
      s = static_cast<double>(lu.permutationP().determinant());
      for (const double pivot : Vector(lu.matrixLU().diagonal())) {
        s *= static_cast<double>(static_cast<int>(pivot > 0) - static_cast<int>(pivot < 0));
        log_sum += std::log(std::abs(pivot));
      }
    }
    // A NaN has no sign, and none of its comparisons holds.
    if (std::isnan(log_sum)) {
      s = log_sum;
    }
    store(s, a.dtype, sign, i);
    store(s == 0 ? -std::numeric_limits<double>::infinity() : log_sum, a.dtype, logabsdet, i);
    return true;
  });
}

int64_t cofactors(const Batch& a, void* y) {
  return for_each(a, [&](int64_t i) {
    const Matrix m = load(a, i);
    if (a.rows == 0) {
      return true;
    }
    if (!m.allFinite()) {
      return false;
    }
    const Lu lu(m);
    const Vector pivots = lu.matrixLU().diagonal().cwiseAbs();
    const double small = std::numeric_limits<double>::epsilon() * 16 * static_cast<double>(a.rows);
    if (pivots.minCoeff() <= pivots.maxCoeff() * small) {
      store(cofactors_by_svd(m), a.dtype, y, i);
    } else {
      const Matrix inverse = lu.solve(Matrix::Identity(a.rows, a.rows));
      store(lu.determinant() * inverse.transpose(), a.dtype, y, i);
    }
    return true;
  });
}

}  // namespace tapestry::linalg
