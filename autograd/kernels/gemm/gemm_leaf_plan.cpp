#include "autograd/kernels/gemm/gemm_leaf_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/machine/ceil_div.h"

namespace tapestry::kernels {

namespace {

/// Elements of k, `step` apart.
struct Elements {
  int64_t k;
  int64_t step;
  int64_t count;
};

struct Leaf {
  std::vector<Elements> runs;
  int64_t items = 0;
};

std::vector<Leaf> leaves_of(std::span<const SumRun> runs, int64_t per_item) {
  std::vector<Leaf> leaves;
  bool ended = true;
  for (const SumRun& run : runs) {
    if (ended) {
      leaves.emplace_back();
    }
    const int64_t count = run.end > run.begin ? ceil_div(run.end - run.begin, run.step) : 0;
    if (count > 0) {
      leaves.back().runs.push_back({run.begin, run.step, count});
      leaves.back().items += ceil_div(count, per_item);
    }
    ended = run.ends_leaf;
  }
  return leaves;
}

class Builder {
 public:
  Builder(int64_t per_item, bool in_place) : per_item_(per_item) { plan_.in_place = in_place; }

  void add(const std::vector<Leaf>& leaves) {
    int64_t all = 0;
    for (const Leaf& leaf : leaves) {
      all += leaf.items;
    }
    if (all == 0) {
      return;
    }
    const int64_t even = ceil_div(all, ceil_div(all, kMaxDepth));
    plan_.blocks.emplace_back();
    for (const Leaf& leaf : leaves) {
      if (leaf.items > kMaxDepth) {
        const int64_t part = ceil_div(leaf.items, ceil_div(leaf.items, kMaxDepth));
        for (int64_t done = 0; done < leaf.items; done += part) {
          next_block();
          take(leaf, done, std::min(leaf.items, done + part));
        }
        continue;
      }
      // Whole leaves, so that blocks are as even as they can be.
      const int64_t with = plan_.blocks.back().items + leaf.items;
      if (leaf.items > 0 && (with > kMaxDepth || with - leaf.items / 2 > even)) {
        next_block();
      }
      take(leaf, 0, leaf.items);
    }
  }

  LeafPlan& plan() { return plan_; }

 private:
  void next_block() {
    if (plan_.blocks.back().items > 0) {
      plan_.blocks.emplace_back();
    }
  }

  /// Items [begin, end) of a leaf.
  void take(const Leaf& leaf, int64_t begin, int64_t end) {
    LeafBlock& block = plan_.blocks.back();
    LeafPiece piece{};
    piece.item = block.items;
    piece.goes_on = begin > 0;
    int64_t at = 0;
    int64_t next_k = -1;  // of rows that lie side by side
    for (const Elements& run : leaf.runs) {
      const int64_t items = ceil_div(run.count, per_item_);
      const int64_t first = std::max<int64_t>(0, begin - at);
      const int64_t last = std::min(items, end - at);
      at += items;
      if (first >= last) {
        continue;
      }
      const int64_t k = run.k + first * per_item_ * run.step;
      const int64_t count = std::min(run.count, last * per_item_) - first * per_item_;
      if (plan_.in_place && piece.items > 0 && k != next_k) {
        block.pieces.push_back(piece);
        piece = {};
        piece.item = block.items;
        piece.goes_on = true;
      }
      if (piece.items == 0) {
        piece.k = k;
      }
      next_k = k + count;
      piece.items += last - first;
      pack({k, run.step, count, block.items}, block);
      block.items += last - first;
      block.elements += count;
    }
    piece.ends = end == leaf.items;
    block.pieces.push_back(piece);
  }

  /// Neighbours in k, if they are neighbouring items too, are copied together.
  void pack(const PackedRun& run, LeafBlock& block) const {
    if (!block.runs.empty()) {
      PackedRun& before = block.runs.back();
      if (before.step == 1 && run.step == 1 && before.k + before.count == run.k &&
          before.count % per_item_ == 0) {
        before.count += run.count;
        return;
      }
    }
    block.runs.push_back(run);
  }

  int64_t per_item_;
  LeafPlan plan_;
};

/// Which sums meet, and which of them wait for another block.
void connect(int64_t leaves, bool tree, LeafPlan& plan) {
  struct Waiting {
    LeafPiece* piece;
    const LeafBlock* block;
  };
  std::array<Waiting, kLeafSlots + 1> waiting{};
  uint32_t done = 0;
  for (LeafBlock& block : plan.blocks) {
    LeafPiece* last = nullptr;
    for (LeafPiece& piece : block.pieces) {
      const auto take_up = [&](int slot) {
        const Waiting& sum = waiting[static_cast<size_t>(slot)];
        if (sum.block != &block) {
          const uint32_t bit = uint32_t{1} << static_cast<unsigned>(slot);
          sum.piece->to_kept = true;
          piece.from_kept |= bit;
          plan.kept |= bit;
        }
      };
      if (piece.goes_on) {
        take_up(kOpenSlot);
      }
      int slot = kOpenSlot;
      if (piece.ends) {
        last = &piece;
        if (tree) {
          piece.adds = std::countr_one(done++);
          piece.to_c = done == leaves;
          slot = piece.adds + 1;
        }
      }
      for (int below = 1; below < slot; ++below) {
        take_up(below);
      }
      waiting[static_cast<size_t>(slot)] = {&piece, &block};
    }
    if (last != nullptr) {
      last->last = true;
    }
  }
}

}  // namespace

LeafPlan plan_leaves(std::span<const SumRun> runs, int64_t per_item, bool tree, bool in_place) {
  std::vector<Leaf> leaves = leaves_of(runs, per_item);
  if (!tree) {
    std::erase_if(leaves, [](const Leaf& leaf) { return leaf.items == 0; });
  }
  assert(!tree || (std::has_single_bit(leaves.size()) && leaves.size() < (1U << kLeafSlots)));
  const bool whole_items = std::all_of(leaves.begin(), leaves.end(), [&](const Leaf& leaf) {
    return std::all_of(leaf.runs.begin(), leaf.runs.end(), [&](const Elements& run) {
      return run.step == 1 && run.count % per_item == 0;
    });
  });
  Builder builder(per_item, in_place && whole_items);
  builder.add(leaves);
  connect(static_cast<int64_t>(leaves.size()), tree, builder.plan());
  return std::move(builder.plan());
}

}  // namespace tapestry::kernels
