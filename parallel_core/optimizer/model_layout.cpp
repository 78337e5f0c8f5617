#include "parallel_core/optimizer/model_layout.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "parallel_core/parameter_ranks.h"

namespace tapestry {

namespace {

class GroupOfRanks final : public optim::RankGroup {
 public:
  explicit GroupOfRanks(ProcessGroup& group) : group_(group) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void sum(const Tensor& values) const override { group_.all_reduce(values); }
  void all_to_all(const Tensor& output,
                  const Tensor& input,
                  const std::vector<int64_t>& output_counts,
                  const std::vector<int64_t>& input_counts) const override {
    group_.all_to_all(output, input, output_counts, input_counts);
  }

 private:
  ProcessGroup& group_;
};

class ModelLayout final : public optim::ParameterLayout {
 public:
  ModelLayout(const nn::Module& model, const DistributedDataParallel* data_parallel)
      : dense_(/*of_experts=*/false, data_parallel), experts_(/*of_experts=*/true, data_parallel) {
    for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
      logical_.emplace(entry.name, entry.parameter->logical());
      if (entry.parameter->flags().expert) {
        of_experts_.insert(entry.name);
      }
    }
  }

  std::vector<nn::LogicalTensor> logical(const std::string& parameter_name) const override {
    return logical_.at(parameter_name);
  }
  const optim::RankGroup* slices() const override { return dense_.slices(); }
  const optim::RankGroup* copies() const override { return dense_.copies(); }
  const optim::RankGroup* slices_of(const std::string& parameter_name) const override {
    return part_of(parameter_name).slices();
  }
  const optim::RankGroup* copies_of(const std::string& parameter_name) const override {
    return part_of(parameter_name).copies();
  }

 private:
  // The ranks that share the parameters of experts, or all others.
  class Part {
   public:
    Part(bool of_experts, const DistributedDataParallel* data_parallel) {
      if (ProcessGroup& group = slices_group(of_experts); group.size() > 1) {
        slices_.emplace(group);
      }
      if (data_parallel != nullptr) {
        ProcessGroup& group = of_experts ? data_parallel->expert_group() : data_parallel->group();
        if (group.size() > 1) {
          copies_.emplace(group);
        }
      }
    }
    const optim::RankGroup* slices() const { return slices_ ? &*slices_ : nullptr; }
    const optim::RankGroup* copies() const { return copies_ ? &*copies_ : nullptr; }

   private:
    std::optional<GroupOfRanks> slices_;
    std::optional<GroupOfRanks> copies_;
  };

  const Part& part_of(const std::string& parameter_name) const {
    return of_experts_.contains(parameter_name) ? experts_ : dense_;
  }

  std::map<std::string, std::vector<nn::LogicalTensor>> logical_;
  std::set<std::string> of_experts_;
  Part dense_;
  Part experts_;
};

}  // namespace

std::shared_ptr<const optim::ParameterLayout> model_layout(
    const nn::Module& model, const DistributedDataParallel* data_parallel) {
  return std::make_shared<ModelLayout>(model, data_parallel);
}

}  // namespace tapestry
