// What threads encode with, so that caches outlive a call.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "text/tokenizers/huggingface/model.h"

namespace tapestry::data::huggingface {

/// As many as threads have ever encoded at once.
class SpacePool {
 public:
  /// One of them, as long as it lives.
  class Lease {
   public:
    explicit Lease(SpacePool& pool) : pool_(pool) {
      const std::lock_guard lock(pool.mutex_);
      if (pool.free_.empty()) {
        space_ = std::make_unique<ModelSpace>();
      } else {
        space_ = std::move(pool.free_.back());
        pool.free_.pop_back();
      }
    }
    ~Lease() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(space_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ModelSpace& operator*() { return *space_; }

   private:
    SpacePool& pool_;
    std::unique_ptr<ModelSpace> space_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ModelSpace>> free_;
};

}  // namespace tapestry::data::huggingface
