// Einstein's summation by permuting, folding and batched matrix products.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/autograd_meta.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// A tensor with a letter for each axis.
struct Term {
  Tensor tensor;
  std::string letters;
};

struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

bool has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

Equation parse(std::string_view text) {
  std::string packed;
  std::copy_if(text.begin(), text.end(), std::back_inserter(packed),
               [](char c) { return c != ' '; });
  const size_t arrow = packed.find("->");
  Equation out;
  std::string letters;
  for (const char c : packed.substr(0, arrow)) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    check<ValueError>(is_letter || c == ',', "einsum '", text, "': unexpected '", c,
                      "'; axes are named by letters a-z and A-Z, '...' is not supported");
    if (c == ',') {
      out.operands.push_back(std::move(letters));
      letters.clear();
    } else {
      letters.push_back(c);
    }
  }
  out.operands.push_back(letters);
  std::map<char, int> occurrences;
  for (const std::string& operand : out.operands) {
    for (const char c : operand) {
      ++occurrences[c];
    }
  }
  if (arrow == std::string::npos) {
    for (const auto& [letter, count] : occurrences) {
      if (count == 1) {
        out.result.push_back(letter);
      }
    }
    return out;
  }
  out.result = packed.substr(arrow + 2);
  for (const char c : out.result) {
    check<ValueError>(occurrences.contains(c), "einsum '", text, "': '", c,
                      "' of the result is in no operand");
    check<ValueError>(std::count(out.result.begin(), out.result.end(), c) == 1, "einsum '", text,
                      "': '", c, "' is twice in the result");
  }
  return out;
}

// Sums over the axes whose letter is not in `keep`.
Term sum_unless(const Term& term, const std::string& keep) {
  Shape axes;
  std::string letters;
  for (size_t i = 0; i < term.letters.size(); ++i) {
    if (has(keep, term.letters[i])) {
      letters.push_back(term.letters[i]);
    } else {
      axes.push_back(static_cast<int64_t>(i));
    }
  }
  return axes.empty() ? term : Term{sum(term.tensor, axes).to(term.tensor.dtype()), letters};
}

// A letter that stands twice takes the diagonal of its two axes.
Term take_diagonals(Term term) {
  size_t i = 0;
  while (i < term.letters.size()) {
    const size_t other = term.letters.find(term.letters[i], i + 1);
    if (other == std::string::npos) {
      ++i;
      continue;
    }
    // The later axis goes to the end; all but the diagonal is cleared there and summed away.
    const auto first = static_cast<int64_t>(i);
    Shape order;
    for (int64_t axis = 0; axis < term.tensor.dim(); ++axis) {
      if (axis != static_cast<int64_t>(other)) {
        order.push_back(axis);
      }
    }
    order.push_back(static_cast<int64_t>(other));
    const Tensor moved = term.tensor.permute(order);
    Shape mask = Shape::filled(moved.dim(), 1);
    mask[first] = moved.shape()[first];
    mask.back() = mask[first];
    const Tensor diagonal = eye(mask.back()).to(kBool).reshape(mask);
    term.tensor = sum(where(diagonal, moved, scalar(0, moved.dtype())), {-1}).to(moved.dtype());
    term.letters.erase(other, 1);
  }
  return term;
}

Tensor in_order(const Term& term, const std::string& letters) {
  Shape axes;
  for (const char c : letters) {
    axes.push_back(static_cast<int64_t>(term.letters.find(c)));
  }
  return term.tensor.permute(axes);
}

// Product of both, summed over the letters that nobody needs later.
Term contract(const Term& a, const Term& b, const std::string& keep) {
  std::string batch;
  std::string summed;
  std::string rows;
  std::string columns;
  for (const char c : a.letters) {
    (!has(b.letters, c) ? rows : has(keep, c) ? batch : summed).push_back(c);
  }
  for (const char c : b.letters) {
    if (!has(a.letters, c)) {
      columns.push_back(c);
    }
  }
  const Tensor left = in_order(a, batch + rows + summed);
  const Tensor right = in_order(b, batch + summed + columns);
  const auto product = [](const Tensor& t, size_t from, size_t count) {
    int64_t numel = 1;
    for (size_t i = from; i < from + count; ++i) {
      numel *= t.shape()[static_cast<int64_t>(i)];
    }
    return numel;
  };
  const int64_t batches = product(left, 0, batch.size());
  const int64_t m = product(left, batch.size(), rows.size());
  const int64_t k = product(left, batch.size() + rows.size(), summed.size());
  const int64_t n = product(right, batch.size() + summed.size(), columns.size());
  Shape shape;
  for (size_t i = 0; i < batch.size() + rows.size(); ++i) {
    shape.push_back(left.shape()[static_cast<int64_t>(i)]);
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    shape.push_back(right.shape()[static_cast<int64_t>(batch.size() + summed.size() + i)]);
  }
  const Tensor y = matmul(left.reshape({batches, m, k}), right.reshape({batches, k, n}));
  return {y.reshape(shape), batch + rows + columns};
}

}  // namespace

Tensor einsum(std::string_view equation, const TensorList& operands) {
  check_defined("einsum", operands, "operands");
  const Equation parsed = parse(equation);
  check<ValueError>(parsed.operands.size() == operands.size(), "einsum '", equation, "': names ",
                    parsed.operands.size(), " operands, got ", operands.size());
  std::map<char, int64_t> sizes;
  std::vector<Term> terms;
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string& letters = parsed.operands[i];
    check<ValueError>(static_cast<int64_t>(letters.size()) == operands[i].dim(), "einsum '",
                      equation, "': '", letters, "' names ", letters.size(), " axes, operand ", i,
                      " is ", describe(operands[i]));
    for (size_t axis = 0; axis < letters.size(); ++axis) {
      const int64_t size = operands[i].shape()[static_cast<int64_t>(axis)];
      const auto [known, is_new] = sizes.emplace(letters[axis], size);
      check<ValueError>(known->second == size, "einsum '", equation, "': '", letters[axis], "' is ",
                        known->second, " and, in operand ", i, ", ", size);
    }
    terms.push_back(take_diagonals({operands[i], letters}));
  }
  Term done = terms[0];
  for (size_t i = 1; i <= terms.size(); ++i) {
    // Letters that the result or an operand still to come asks for.
    std::string later = parsed.result;
    for (size_t j = i + 1; j < terms.size(); ++j) {
      later += terms[j].letters;
    }
    if (i == terms.size()) {
      done = sum_unless(done, later);
      break;
    }
    const Term a = sum_unless(done, later + terms[i].letters);
    const Term b = sum_unless(terms[i], later + done.letters);
    done = contract(a, b, later);
  }
  Tensor y = in_order(done, parsed.result);
  // Products save their operands, here perhaps as copies in another layout.
  for (size_t i = 0; y.requires_grad() && i < operands.size(); ++i) {
    const auto wants_this = [&](const Tensor& other) {
      return other.requires_grad() && &other != &operands[i];
    };
    if (std::any_of(operands.begin(), operands.end(), wants_this)) {
      watch_versions(y, {operands[i]});
    }
  }
  return y;
}

}  // namespace tapestry
