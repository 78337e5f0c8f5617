#include "diagnosis/accuracy/compare_dumps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"
#include "diagnosis/dump/rounding_file.h"
#include "tests/diagnosis/dump/dump_testing.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry::accuracy {
namespace {

using dump::config_in;
using dump::DumpedTensor;
using dump::DumpWriter;
using dump::fresh_folder;
using dump::numbered;
using dump::RoundingRow;
using dump::TensorState;
using testing::AllOf;
using testing::HasSubstr;

constexpr double kMovement = 1e-6;

/// A dump that a test makes up: tensors in the order of the step.
class Side {
 public:
  explicit Side(const std::string& name, const std::string& saved = "full")
      : folder_(fresh_folder(name)),
        config_(config_in(folder_, ", \"saved_data\": \"" + saved + "\"")) {}

  /// Adds the step's tensors on a rank; names, pass and time are filled in.
  void step(int64_t iteration, std::vector<DumpedTensor> tensors, int64_t rank = 0) {
    DumpWriter writer(config_, rank, 0);
    writer.begin_iteration(iteration);
    int64_t time = 1;
    for (DumpedTensor& tensor : tensors) {
      tensor.timestamp = time;
      tensor.task_id = time++;
      tensor.pass = !tensor.pass.empty()                       ? tensor.pass
                    : tensor.op_name.starts_with("Gradients/") ? "backward"
                                                               : "forward";
      writer.write(tensor);
      const RoundingRow row = {tensor.op_name, tensor.input, tensor.slot,
                               tensor.pass,    iteration,    kMovement};
      rounding_.push_back(row);
    }
    writer.end_iteration();
  }
  /// Says that every tensor so far moves by kMovement, or as told.
  void measure(const std::map<std::string, double>& others = {}) {
    for (RoundingRow& row : rounding_) {
      const auto other = others.find(row.op_name);
      row.distance = other == others.end() ? row.distance : other->second;
    }
    dump::write_rounding(dump::rounding_path(folder_), rounding_);
  }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  dump::DumpConfig config_;
  std::vector<RoundingRow> rounding_;
};

DumpedTensor value(const std::string& name, const Tensor& x) {
  return {.op_type = "Value", .op_name = name, .value = x, .source = "model.cpp:1"};
}
DumpedTensor module_output(const std::string& path, const Tensor& x) {
  return {.op_type = "Module", .op_name = path, .value = x, .module = path};
}

/// Three values of a step, the second and third moved by these shares of their largest element.
std::vector<DumpedTensor> three(double second = 0, double third = 0) {
  const auto moved = [](double by) {
    const Tensor x = numbered({2, 4}, 1).clone();
    x.data<float>()[5] += static_cast<float>(by * 2.75);
    return x;
  };
  return {value("embedding", moved(0)), value("layers.0.output", moved(second)),
          value("logits", moved(third))};
}

VerdictReport compare(const Side& ours, const Side& expected, const CompareOptions& options = {}) {
  return compare_dumps(ours.folder(), expected.folder(), options);
}

/// The finding of a tensor.
Finding finding(const VerdictReport& report, const std::string& tensor) {
  for (const Finding& row : report.findings) {
    if (row["tensor"] == tensor) {
      return row;
    }
  }
  ADD_FAILURE() << tensor << " is not in\n" << report_text(report);
  return {};
}

TEST(CompareDumps, EqualDumpsAgree) {
  Side a("a");
  Side b("b");
  a.step(0, three());
  b.step(0, three());
  a.measure();
  const VerdictReport report = compare(a, b);
  EXPECT_EQ(report.outcome, Outcome::kAgrees);
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_FALSE(report.first.has_value());
  EXPECT_EQ(report.findings.size(), 3U);
  EXPECT_THAT(report.lines[0], HasSubstr("3 tensors of 1 step compared; 0 beyond 8 times"));
}

DumpedTensor parameter(const std::string& name, const Tensor& x, const std::string& pass) {
  return {.op_type = "Parameter", .op_name = name, .value = x, .pass = pass};
}

// What a PyTorch program's hooks write by default: of each module inputs and outputs, in backward
// the gradients that arrive at its outputs as the op's inputs.
TEST(CompareDumps, AMapPairsWhatModulesGive) {
  const Tensor in = numbered({2, 4}, 5);
  const Tensor out = numbered({2, 4}, 1);
  const Tensor arriving = numbered({2, 4}, 3);
  const Tensor leaving = numbered({2, 4}, 7);
  const auto module_tensor = [](const std::string& name, bool input, const Tensor& x) {
    DumpedTensor tensor = module_output(name, x);
    tensor.input = input;
    return tensor;
  };
  Side a("a");
  Side b("b");
  a.step(0, {value("layers.0.output", out), value("layers.0.mlp.active", in),
             value("Gradients/layers.0.output", arriving)});
  b.step(0, {module_tensor("net.block_0", true, in), module_tensor("net.block_0", false, out),
             module_tensor("Gradients/net.block_0", true, arriving),
             module_tensor("Gradients/net.block_0", false, leaving)});
  a.measure();
  const std::string file = fresh_folder("map") + ".yaml";
  std::ofstream(file) << "'net\\.block_(\\d+)': layers.$1.output\n"
                         "'net\\.block_(\\d+) input 0': layers.$1.mlp.active\n";
  const VerdictReport report = compare(a, b, {.map = NameMap(file)});
  EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
  EXPECT_EQ(report.findings.size(), 3U);
  EXPECT_EQ(finding(report, "layers.0.output")["other"], "net.block_0 output 0");
  EXPECT_EQ(finding(report, "layers.0.mlp.active")["other"], "net.block_0 input 0");
  EXPECT_EQ(finding(report, "Gradients/layers.0.output")["other"], "Gradients/net.block_0 input 0");
}

// An update is what two almost equal weights differ by: it moves by a unit of the weight.
TEST(CompareDumps, AnUpdateMovesByAUnitOfItsWeight) {
  const auto step_of = [](double update) {
    return std::vector<DumpedTensor>{
        parameter("w", full({4}, 1.5, kFloat32), "optimizer"),
        parameter("Updates/w", full({4}, update, kFloat64), "optimizer")};
  };
  constexpr double kUnit = 0x1p-23;
  const auto compared = [&](double units) {
    Side a("a");
    Side b("b");
    a.step(0, step_of(1e-3));
    b.step(0, step_of(1e-3 + units * kUnit));
    a.measure({{"Updates/w", 0}, {"w", 0}});
    return compare(a, b);
  };
  EXPECT_EQ(compared(1).outcome, Outcome::kAgrees) << report_text(compared(1));
  EXPECT_EQ(compared(8).outcome, Outcome::kAgrees);
  EXPECT_EQ(compared(30).first->tensor, "Updates/w");
}

// Adam makes a whole step of a gradient that is next to nothing, in the direction that rounding
// gives it. Where both gradients are the same, 0 among them, the updates have to be, too.
TEST(CompareDumps, AnUpdateWhoseDirectionRoundingDecidesAgrees) {
  const auto compared = [](double their_tiny, std::array<double, 4> their_update) {
    const auto step_of = [](double tiny, const std::array<double, 4>& update) {
      Tensor updates = empty({4}, kFloat64);
      std::copy(update.begin(), update.end(), updates.data<double>());
      const float small = static_cast<float>(tiny);
      return std::vector<DumpedTensor>{
          parameter("Gradients/w", tensor({1.0F, small, 0.0F, -1.0F}), "backward"),
          parameter("w", full({4}, 1.5, kFloat32), "optimizer"),
          parameter("Updates/w", updates, "optimizer")};
    };
    Side a("a");
    Side b("b");
    a.step(0, step_of(1e-9, {-1e-3, -1e-3, 0, 1e-3}));
    b.step(0, step_of(their_tiny, their_update));
    a.measure();
    return compare(a, b);
  };
  const VerdictReport flipped = compared(-1e-9, {-1e-3, 1e-3, 0, 1e-3});
  EXPECT_EQ(flipped.outcome, Outcome::kAgrees) << report_text(flipped);
  const auto first_of = [&](double tiny, std::array<double, 4> update) {
    const VerdictReport report = compared(tiny, update);
    return report.first ? report.first->tensor : std::string("none");
  };
  EXPECT_EQ(first_of(1e-9, {-1e-3, 1e-3, 0, 1e-3}), "Updates/w");      // the same gradient
  EXPECT_EQ(first_of(-1e-9, {-1e-3, 1e-3, 1e-3, 1e-3}), "Updates/w");  // a step of none
  EXPECT_EQ(first_of(-1e-9, {1e-3, 1e-3, 0, 1e-3}), "Updates/w");      // of a large one
}

TEST(CompareDumps, WhatIsOfNoSampleIsComparedWithTheSameMicroBatchesAlone) {
  const auto dump = [](Side& side, const std::vector<std::vector<int64_t>>& split, double tokens) {
    std::vector<DumpedTensor> step;
    for (size_t m = 0; m < split.size(); ++m) {
      const auto rows = static_cast<int64_t>(split[m].size());
      DumpedTensor logits = value("logits", full({rows, 4}, 2.0, kFloat32));
      logits.samples = split[m];
      DumpedTensor sum{
          .op_type = "sum", .op_name = "sum-op0", .value = full({2}, tokens, kFloat32)};
      sum.source = "reduction.cpp:1";
      logits.micro_batch = sum.micro_batch = static_cast<int64_t>(m);
      step.push_back(logits);
      step.push_back(sum);
    }
    side.step(0, step);
    side.measure();
  };
  Side a("a");
  Side b("b");
  dump(a, {{0, 1}, {2, 3}}, 8);
  dump(b, {{0, 1, 2, 3}}, 16);
  const VerdictReport split = compare(a, b);
  EXPECT_EQ(split.outcome, Outcome::kAgrees) << report_text(split);
  EXPECT_THAT(report_text(split), HasSubstr("1 tensor left out, as they are of no sample"));
  Side c("c");
  dump(c, {{0, 1}, {2, 3}}, 9);
  EXPECT_EQ(compare(a, c).first->op, "sum-op0");
}

TEST(CompareDumps, OpsAreComparedWhereTheSameOnesRun) {
  const auto op = [](const std::string& type, const std::string& name, double x) {
    DumpedTensor tensor{.op_type = type, .op_name = name, .value = full({2, 4}, x, kFloat32)};
    tensor.module = "norm";
    tensor.source = "norm.cpp:1";
    return tensor;
  };
  Side fused("fused");
  fused.step(0, {op("rms_norm", "norm/rms_norm-op0", 1), op("mul", "norm/mul-op0", 5)});
  fused.measure();
  Side composed("composed");
  composed.step(0, {op("mul", "norm/mul-op0", 2), op("rsqrt", "norm/rsqrt-op0", 3),
                    op("mul", "norm/mul-op1", 5), value("logits", numbered({2}, 1))});
  composed.measure();
  const VerdictReport report = compare(fused, composed);
  EXPECT_EQ(report.outcome, Outcome::kNotComparable) << report_text(report);
  EXPECT_THAT(report_text(report), Says("ops run in their module"));
  Side same("same");
  same.step(0, {op("rms_norm", "norm/rms_norm-op0", 1), op("mul", "norm/mul-op0", 6)});
  EXPECT_EQ(compare(fused, same).first->op, "norm/mul-op0");
}

TEST(CompareDumps, TheFirstThatRoundingDoesNotExplainIsNamed) {
  Side a("a");
  Side b("b");
  // Seven movements are allowed, and the fault shows in everything that comes later.
  a.step(3, three(/*second=*/7 * kMovement, /*third=*/1e-3));
  b.step(3, three());
  b.measure();
  const VerdictReport report = compare(a, b);
  EXPECT_EQ(report.outcome, Outcome::kDiffers);
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->tensor, "logits");
  EXPECT_EQ(report.first->step, 4);
  EXPECT_EQ(report.first->pass, "forward");
  EXPECT_EQ(report.first->source, "model.cpp:1");
  EXPECT_NEAR(*report.first->distance, 1e-3, 1e-6);
  EXPECT_NEAR(*report.first->bound, 8e-6, 1e-12);
  EXPECT_EQ(finding(report, "layers.0.output")["status"], "agrees");
  EXPECT_EQ(finding(report, "logits")["status"], "differs");
  EXPECT_EQ(report.findings[0]["tensor"], "logits");  // the largest share comes first
  EXPECT_THAT(report_text(report), HasSubstr("First: logits: 2.25274992 instead of 2.25;"));

  EXPECT_EQ(compare(a, b, {.multiple = 5}).first->tensor, "layers.0.output");
  EXPECT_EQ(compare(a, b, {.multiple = 2000}).outcome, Outcome::kAgrees);
}

TEST(CompareDumps, TheEarliestStepAndOpComeFirst) {
  Side a("a");
  Side b("b");
  a.step(0, three());
  a.step(1, three(1e-2, 1e-1));
  a.step(2, three(1, 1));
  for (const int64_t step : {0, 1, 2, 5}) {
    b.step(step, three());
  }
  a.measure();
  const VerdictReport report = compare(a, b);
  EXPECT_EQ(report.first->tensor, "layers.0.output");
  EXPECT_EQ(report.first->step, 2);
  EXPECT_THAT(report.lines[0], HasSubstr("9 tensors of 3 steps"));
}

TEST(CompareDumps, AnOpsInputsAreJudgedBeforeItsOutputs) {
  const auto op = [](double input, double output) {
    DumpedTensor in = value("layers.0/matmul-op0", numbered({4}, 1 + input));
    in.op_type = "matmul";
    in.input = true;
    DumpedTensor out = in;
    out.input = false;
    out.value = numbered({4}, 2 + output);
    return std::vector<DumpedTensor>{in, out};
  };
  Side good("good");
  good.step(0, op(0, 0));
  good.measure();
  Side wrong_op("op");
  wrong_op.step(0, op(0, 1e-2));
  EXPECT_EQ(compare(wrong_op, good).first->tensor, "layers.0/matmul-op0 output 0");
  EXPECT_EQ(compare(wrong_op, good).first->op, "layers.0/matmul-op0");
  Side wrong_input("input");
  wrong_input.step(0, op(1e-2, 1e-2));
  EXPECT_EQ(compare(wrong_input, good).first->tensor, "layers.0/matmul-op0 input 0");
}

TEST(CompareDumps, WithoutBoundsNothingIsSaid) {
  Side a("a");
  Side b("b");
  a.step(0, three(1e-3));
  b.step(0, three());
  const VerdictReport report = compare(a, b);
  EXPECT_EQ(report.outcome, Outcome::kNotComparable);
  EXPECT_EQ(report.exit_code(), 2);
  EXPECT_THAT(report.lines[0], AllOf(HasSubstr("rounding.csv"), HasSubstr("--measure_rounding")));
  EXPECT_EQ(finding(report, "layers.0.output")["status"], "not_measured");
  EXPECT_NEAR(finding(report, "layers.0.output")["distance"].get<double>(), 1e-3, 1e-6);
}

TEST(CompareDumps, NothingInCommon) {
  Side a("a");
  Side b("b");
  a.step(0, three());
  a.measure();
  b.step(1, three());
  EXPECT_THAT(compare(a, b).lines[0], Says("is in both dumps"));
  EXPECT_EQ(compare(a, b).exit_code(), 2);
  b.step(0, {value("something else", numbered({2}))});
  const VerdictReport report = compare(a, b);
  EXPECT_EQ(report.exit_code(), 2);
  EXPECT_THAT(report.lines[0], HasSubstr("--map FILE"));
  EXPECT_THAT(report_text(report), HasSubstr("something else"));
  EXPECT_THAT(message_of<IoError>([&] { compare_dumps("/no/dump", b.folder(), {}); }),
              HasSubstr("/no/dump"));
}

TEST(CompareDumps, NanAndInfinity) {
  const auto with = [](float x) {
    return std::vector<DumpedTensor>{value("logits", tensor({1, x, 2}))};
  };
  const float nan = std::nanf("");
  Side good("good");
  good.step(0, with(1));
  good.measure();
  Side broken("broken");
  broken.step(0, with(nan));
  broken.measure();
  EXPECT_TRUE(std::isinf(*compare(broken, good).first->distance));
  EXPECT_EQ(compare(good, broken).outcome, Outcome::kDiffers);
  EXPECT_EQ(compare(broken, broken).outcome, Outcome::kAgrees);  // both have it at the same place
  Side infinite("infinite");
  infinite.step(0, with(INFINITY));
  EXPECT_EQ(compare(infinite, broken).outcome, Outcome::kDiffers);
}

/// Our value of two samples, put together from ranks, against a whole one of another layout.
TEST(CompareDumps, AnyLayout) {
  const Tensor whole = numbered({2, 3, 8}, 1);
  Side one("one");
  one.step(0, {{.op_type = "Value", .op_name = "x", .value = whole, .samples = {0, 1}}});
  one.measure();
  Side many("many");  // dp 2 tp 2, sequence-first; rank 3 is wrong
  for (int64_t rank = 0; rank < 4; ++rank) {
    const int64_t sample = rank / 2;
    const int64_t half = rank % 2 * 4;
    Tensor part = whole.slice(0, sample, sample + 1).slice(2, half, half + 4).clone();
    if (rank == 3) {
      part.data<float>()[6] += 1;
    }
    many.step(0,
              {{.op_type = "Value",
                .op_name = "x",
                .value = part.transpose(0, 1),
                .micro_batch = 0,
                .samples = {sample},
                .sample_axis = 1,
                .global_shape = Shape{3, 1, 8},
                .ranges = {{{0, 3}}, {{0, 1}}, {{half, half + 4}}},
                .state = TensorState::kSlice}},
              rank);
  }
  const VerdictReport report = compare(many, one);
  EXPECT_EQ(report.outcome, Outcome::kDiffers);
  EXPECT_EQ(report.first->sample, 1);
  EXPECT_EQ(report.first->rank, 3);
  EXPECT_NEAR(*report.first->distance, 1 / 12.75, 1e-6);
}

TEST(CompareDumps, CopiesOfARankThatDiffer) {
  Side a("a");
  Side b("b");
  const auto copy = [](double from) {
    return std::vector<DumpedTensor>{{.op_type = "Value",
                                      .op_name = "x",
                                      .value = numbered({4}, from),
                                      .state = TensorState::kCopy}};
  };
  a.step(0, copy(1), 0);
  a.step(0, copy(1.5), 1);  // as after an all-reduce that was left out
  b.step(0, copy(1));
  b.measure();
  const VerdictReport report = compare(a, b);
  EXPECT_EQ(report.outcome, Outcome::kDiffers);
  EXPECT_THAT(report.findings[0]["detail"].get<std::string>(),
              HasSubstr("our copies on ranks 0 and 1 differ"));
}

TEST(CompareDumps, SixteenBitTensorsAreComparedByNorms) {
  const auto step = [](double by) {
    const Tensor x = full({100}, 1).clone();
    x.data<float>()[3] += static_cast<float>(by);
    return std::vector<DumpedTensor>{value("x", x.to(kBFloat16))};
  };
  Side good("good");
  good.step(0, step(0));
  good.measure({{"x", 0.01}});
  Side moved("moved");
  moved.step(0, step(0.5));  // half of the largest element, but 0.05 of the norm
  EXPECT_EQ(compare(moved, good).outcome, Outcome::kAgrees);
  EXPECT_NEAR(compare(moved, good).findings[0]["distance"].get<double>(), 0.05, 1e-3);
}

TEST(CompareDumps, TheCoarserSideHasToBeMeasured) {
  Side fine("fine");
  fine.step(0, {value("x", numbered({4}, 1.01))});
  fine.measure();
  Side coarse("coarse");
  coarse.step(0, {value("x", numbered({4}, 1.01).to(kBFloat16))});
  EXPECT_EQ(compare(coarse, fine).outcome, Outcome::kNotComparable);
  EXPECT_THAT(compare(coarse, fine).lines[0], Says("with the coarser one"));
  coarse.measure();
  EXPECT_EQ(compare(coarse, fine).outcome, Outcome::kAgrees);  // half an ulp of bfloat16 is allowed
}

TEST(CompareDumps, StatisticsAlone) {
  for (const std::string saved : {"statistic", "full"}) {
    Side good("good", saved);
    good.step(0, three());
    good.measure();
    Side same("same", "statistic");
    same.step(0, three(7 * kMovement));
    EXPECT_EQ(compare(same, good).outcome, Outcome::kAgrees) << saved;
    EXPECT_THAT(compare(same, good).lines[0], HasSubstr("3 by their statistics"));
    Side other("other", "statistic");
    other.step(0, three(0, 0.5));  // now the largest element
    const VerdictReport report = compare(other, good);
    EXPECT_EQ(report.outcome, Outcome::kDiffers) << saved;
    EXPECT_EQ(report.first->tensor, "logits");
  }
}

TEST(CompareDumps, StatisticsNeverFindMoreThanValuesDo) {
  for (int64_t seed = 0; seed < 8; ++seed) {
    const auto made_up = [&](double by) {
      const Tensor x = numbered({40}).clone();
      auto* data = x.data<float>();
      for (int64_t i = 0; i < 40; ++i) {
        const auto noise = static_cast<double>((i * 7919 + seed * 104729) % 1000) / 500 - 1;
        data[i] = static_cast<float>(std::sin(static_cast<double>(i + seed)) + by * noise);
      }
      return x;
    };
    const auto distance = [&](const std::string& saved, DType dtype) {
      Side a("a" + saved, saved);
      Side b("b" + saved, saved);
      a.step(0, {value("x", made_up(1e-2).to(dtype))});
      b.step(0, {value("x", made_up(0).to(dtype))});
      return compare(a, b).findings[0]["distance"].get<double>();
    };
    for (const DType dtype : {kFloat32, kBFloat16}) {
      EXPECT_LE(distance("statistic", dtype), distance("full", dtype) * (1 + 1e-12))
          << "seed " << seed << " " << name_of(dtype);
    }
  }
}

TEST(CompareDumps, NamesOfLlama) {
  Side ours("ours");
  const Tensor query = numbered({1, 2, 3, 4}, 1);  // [B, heads, S, D]
  const Tensor hidden = numbered({1, 3, 8}, 2);
  const std::vector<int64_t> samples = {0};
  ours.step(0,
            {{.op_type = "Value",
              .op_name = "layers.0.attention.query",
              .value = query,
              .samples = samples},
             {.op_type = "Value", .op_name = "layers.0.mlp", .value = hidden, .samples = samples},
             {.op_type = "Value",
              .op_name = "Gradients/layers.0.mlp",
              .value = hidden,
              .samples = samples}});
  ours.measure();
  const auto theirs = [&](double wrong) {
    DumpedTensor gradient = module_output("Gradients/model.layers.0.mlp", hidden);
    gradient.input = true;  // of the module's output
    std::vector<DumpedTensor> step = {
        module_output("model.layers.0.self_attn.q_proj",
                      (query + wrong).permute({0, 2, 1, 3}).reshape({1, 3, 8})),
        module_output("model.layers.0.mlp.down_proj", hidden), gradient};
    for (DumpedTensor& tensor : step) {
      tensor.samples = samples;
    }
    return step;
  };
  Side good("good");
  good.step(0, theirs(0));
  const VerdictReport report = compare(ours, good);
  EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
  EXPECT_EQ(report.findings.size(), 3U);
  Side bad("bad");
  bad.step(0, theirs(0.25));
  EXPECT_EQ(compare(ours, bad).first->tensor, "layers.0.attention.query");
  EXPECT_EQ(compare(ours, bad).first->op, "model.layers.0.self_attn.q_proj");
}

TEST(CompareDumps, FusedMatricesOfGpt2AndMegatron) {
  // [B, S, n, D] with 4 heads in 2 groups of D = 2.
  const Tensor q = numbered({2, 3, 4, 2}, 1);
  const Tensor k = numbered({2, 3, 2, 2}, 100);
  const Tensor v = numbered({2, 3, 2, 2}, 200);
  const std::vector<int64_t> samples = {0, 1};
  const auto ours_of = [&](const std::string& name, const Tensor& x) {
    return DumpedTensor{.op_type = "Value",
                        .op_name = "layers.3.attention." + name,
                        .value = x.permute({0, 2, 1, 3}),
                        .samples = samples};
  };
  Side ours("ours");
  ours.step(0, {ours_of("query", q), ours_of("key", k), ours_of("value", v)});
  ours.measure();
  {
    TensorList pieces;  // a group's queries, its key, its value; sequence-first
    for (const int64_t group : {0, 1}) {
      pieces.push_back(q.slice(2, 2 * group, 2 * group + 2));
      pieces.push_back(k.slice(2, group, group + 1));
      pieces.push_back(v.slice(2, group, group + 1));
    }
    const Tensor fused = cat(pieces, 2).reshape({2, 3, 16}).transpose(0, 1);
    DumpedTensor tensor =
        module_output("module.module.decoder.layers.3.self_attention.linear_qkv", fused);
    tensor.samples = samples;
    tensor.sample_axis = 1;
    Side megatron("megatron");
    megatron.step(0, {tensor});
    const VerdictReport report = compare(ours, megatron);
    EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
    EXPECT_EQ(report.findings.size(), 3U);
  }
  Side heads("heads");  // GPT-2 has as many keys as queries
  heads.step(0, {ours_of("query", q), ours_of("key", q + 7), ours_of("value", q + 9)});
  heads.measure();
  const auto gpt2 = [&](const std::string& name, double wrong) {
    const auto flat = [](const Tensor& x) { return x.reshape({2, 3, 8}); };
    DumpedTensor tensor = module_output("transformer.h.3.attn.c_attn",
                                        cat({flat(q), flat(q + 7 + wrong), flat(q + 9)}, 2));
    tensor.samples = samples;
    Side side(name);
    side.step(0, {tensor});
    return side;
  };
  EXPECT_EQ(compare(heads, gpt2("gpt2", 0)).outcome, Outcome::kAgrees);
  EXPECT_EQ(compare(heads, gpt2("wrong", 1)).first->tensor, "layers.3.attention.key");
}

TEST(CompareDumps, ParametersOfOtherPrograms) {
  const auto parameter = [](const std::string& name, const Tensor& x) {
    return DumpedTensor{.op_type = "Parameter", .op_name = name, .value = x};
  };
  const Tensor wq = numbered({4, 4}, 1);  // [out, in]
  const Tensor up = numbered({6, 4}, 50);
  const std::string stem = "Gradients/layers.0.";
  Side ours("ours");
  ours.step(0, {parameter(stem + "attention.wq.weight", wq),
                parameter(stem + "attention.wk.weight", wq + 20),
                parameter(stem + "attention.wv.weight", wq + 40),
                parameter(stem + "feed_forward.w_up.weight", up)});
  ours.measure();
  const auto gpt2 = [&](const std::string& name, const Tensor& wk) {
    Side side(name);
    const std::string prefix = "Gradients/transformer.h.0.";
    side.step(0, {parameter(prefix + "attn.c_attn.weight", cat({wq.t(), wk.t(), (wq + 40).t()}, 1)),
                  parameter(prefix + "mlp.c_fc.weight", up.t())});
    return side;
  };
  const VerdictReport report = compare(ours, gpt2("gpt2", wq + 20));
  EXPECT_EQ(report.outcome, Outcome::kAgrees) << report_text(report);
  EXPECT_EQ(report.findings.size(), 4U);
  // A matrix the wrong way round.
  EXPECT_EQ(compare(ours, gpt2("turned", (wq + 20).t())).first->tensor,
            stem + "attention.wk.weight");
}

TEST(CompareDumps, AMapOfNames) {
  Side ours("ours");
  ours.step(0, {value("layers.1.output", numbered({4}, 1))});
  ours.measure();
  Side theirs("theirs");
  theirs.step(0, {module_output("net.block_1.out", numbered({4}, 1))});
  EXPECT_EQ(compare(ours, theirs).outcome, Outcome::kNotComparable);
  const std::string file = theirs.folder() + "/map.yaml";
  dump::write_text(file, "'net\\.block_(\\d+)\\.out': layers.$1.output\n'net.*': rest\n");
  EXPECT_EQ(compare(ours, theirs, {.map = NameMap(file)}).outcome, Outcome::kAgrees);
  dump::write_text(file, R"({"net\\.block_(\\d+)\\.out": "layers.$1.output"})");
  EXPECT_EQ(compare(ours, theirs, {.map = NameMap(file)}).outcome, Outcome::kAgrees);
}

TEST(CompareDumps, WhatDoesNotFitIsCountedNotJudged) {
  Side a("a");
  Side b("b");
  a.step(0, {value("x", numbered({4})),
             value("y", numbered({2, 3})),
             {.op_type = "Value", .op_name = "z", .value = numbered({2}), .samples = {0}}});
  b.step(0, {value("x", numbered({4})),
             value("y", numbered({3, 2})),
             {.op_type = "Value", .op_name = "z", .value = numbered({2}), .samples = {8}}});
  a.measure();
  const VerdictReport report = compare(a, b);
  EXPECT_EQ(report.outcome, Outcome::kAgrees);
  EXPECT_THAT(report_text(report), AllOf(Says("2 ... but not comparable"),
                                         HasSubstr("shapes do not fit: [2, 3] and [3, 2]"),
                                         Says("sample is on both sides")));
}

TEST(NameMap, WhatIsNoneIsRefused) {
  const std::string folder = fresh_folder();
  const std::string file = folder + "/map.yaml";
  const auto error_of = [&](const std::string& text) {
    dump::write_text(file, text);
    return message_of<ValueError>([&] { const NameMap map(file); });
  };
  EXPECT_THAT(error_of("[1, 2]"), AllOf(Says(file), HasSubstr("expected a mapping")));
  EXPECT_THAT(error_of("{a: [b]}"), HasSubstr("line 1"));
  EXPECT_THAT(error_of("a: b\n'(': c\n"), AllOf(HasSubstr("line 2"), HasSubstr("'('")));
  EXPECT_THAT(error_of("a: 'b"), Says(file));
  EXPECT_THAT(message_of<IoError>([] { const NameMap map("/no/map"); }), HasSubstr("/no/map"));
}

}  // namespace
}  // namespace tapestry::accuracy
