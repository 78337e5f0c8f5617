#include "parallel_core/comm/process_group.h"

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

class SingleProcessGroup final : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "world-0"; }

  void all_reduce(const Tensor& tensor, ReduceOp /*op*/) override { require_dense(tensor); }
  void broadcast(const Tensor& tensor, int root) override {
    require_dense(tensor);
    check<ValueError>(root == 0, "broadcast: rank ", root, " is not in a group of one");
  }
  void barrier() override {}

 private:
  static void require_dense(const Tensor& tensor) {
    check<ValueError>(tensor.is_contiguous(), "collective: the tensor ", describe(tensor),
                      " must be contiguous");
  }
};

}  // namespace

std::shared_ptr<ProcessGroup> single_process_group() {
  return std::make_shared<SingleProcessGroup>();
}

}  // namespace tapestry
