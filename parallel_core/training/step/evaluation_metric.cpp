#include "parallel_core/training/step/evaluation_metric.h"

#include <set>

#include "autograd/tensor/error.h"

namespace tapestry {

std::string evaluation_names(const std::vector<EvaluationMetric>& metrics) {
  std::string names = "loss, perplexity";
  for (const EvaluationMetric& metric : metrics) {
    names += ", " + metric.name;
  }
  return names;
}

void check_evaluation(const AllConfig& config,
                      const std::vector<EvaluationMetric>& metrics,
                      bool has_function) {
  std::set<std::string> names = {"loss", "perplexity"};
  for (const EvaluationMetric& metric : metrics) {
    check<ValueError>(!metric.name.empty(), "evaluation: a metric has no name");
    check<ValueError>(metric.measure != nullptr, "evaluation: the metric ", metric.name,
                      " has no function that measures it");
    check<ValueError>(names.insert(metric.name).second, "evaluation: there are two metrics ",
                      metric.name, "; loss and perplexity are there in any case");
  }
  const auto& wanted = config.training_config.eval_metric;
  check<ValueError>(!wanted || has_function || names.contains(*wanted),
                    "training_config.eval_metric is '", wanted.value_or(""),
                    "', but this program's evaluations compute ", evaluation_names(metrics),
                    "; name one of these, or give the program a metric of that name "
                    "(PretrainOptions::metrics)");
}

}  // namespace tapestry
