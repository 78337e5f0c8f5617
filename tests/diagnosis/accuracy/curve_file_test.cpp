#include "diagnosis/accuracy/curve_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::accuracy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CurveFile : public ::testing::Test {
 protected:
  CurveRun read(const std::string& text, const char* name = "curve.csv") {
    dir_.write(name, text);
    return read_curve(dir_.file(name));
  }
  std::string refusal(const std::string& text) {
    try {
      read(text);
      return "none";
    } catch (const IoError& error) {
      return error.what();
    }
  }
  data::TempDir dir_;
};

TEST_F(CurveFile, ReadsMetricsByContentWhateverTheFileIsCalled) {
  const std::string text =
      "{\"step\":1,\"loss\":2.5,\"grad_norm\":\"inf\"}\n{\"step\":2,\"loss\":\"nan\",\"grad_norm\":"
      "1}\n";
  const CurveRun run = read(text, "losses.txt");
  EXPECT_THAT(run.steps, ElementsAre(1, 2));
  EXPECT_EQ(run.loss[0], 2.5);
  EXPECT_TRUE(std::isnan(run.loss[1]));
  EXPECT_TRUE(std::isinf(run.grad_norm[0]));
  dir_.write("metrics.jsonl", text);
  EXPECT_THAT(read_curve(dir_.path()).steps, ElementsAre(1, 2));
}

TEST_F(CurveFile, ReadsTablesOfOtherFrameworks) {
  const CurveRun run = read("Step,train/LM-Loss,other,train/grad-norm\n1, 2.5,x,0.5\n\n2,2,y,\n");
  EXPECT_THAT(run.steps, ElementsAre(1, 2));
  EXPECT_THAT(run.loss, ElementsAre(2.5, 2));
  EXPECT_EQ(run.grad_norm[0], 0.5);
  EXPECT_TRUE(std::isnan(run.grad_norm[1]));
  EXPECT_THAT(read("iteration;loss\n0;1e0\n5;inf\n").steps, ElementsAre(0, 5));
  EXPECT_THAT(read("Wall time\tStep\tValue\n1.5\t3\t4\n").loss, ElementsAre(4));
  EXPECT_THAT(read("\"Step\",\"my \"\"run\"\", first - loss\"\r\n\"1\",\"2.25\"\r\n").loss,
              ElementsAre(2.25));
  EXPECT_TRUE(read("step,loss\n1,2\n").grad_norm.empty());
}

TEST_F(CurveFile, RowsWithoutALossBelongToOtherThings) {
  EXPECT_THAT(read("step,loss,eval\n1,2,\n1,,3\n2,2,\n").steps, ElementsAre(1, 2));
}

TEST_F(CurveFile, LaterRowsReplaceEarlierOnes) {
  const CurveRun run = read("step,loss\n1,9\n2,8\n3,7\n2,6\n3,5\n");
  EXPECT_THAT(run.loss, ElementsAre(9, 6, 5));
  EXPECT_THAT(run.notes, ElementsAre(Says("2 ... again; the earlier ... 2")));
  const CurveRun last = read("step,loss\n1,9\n2,8\n1,7\n");
  EXPECT_THAT(last.loss, ElementsAre(7));
  EXPECT_THAT(last.notes, ElementsAre(Says("several runs; ... last ... step 1")));
}

TEST_F(CurveFile, RefusesWhatIsNoCurve) {
  EXPECT_THAT(refusal(""), HasSubstr("has no step with a loss; expected metrics.jsonl"));
  EXPECT_THAT(refusal("loss,value\n"),
              HasSubstr("curve.csv:1: no column step among 'loss, value'"));
  EXPECT_THAT(refusal("step,perplexity\n"), HasSubstr("no column loss"));
  EXPECT_THAT(refusal("step,loss\none,2\n"),
              HasSubstr("curve.csv:2: step is 'one'; expected a number"));
  EXPECT_THAT(refusal("step,loss\n1.5,2\n"), Says("'1.5'; ... expected a whole number"));
  EXPECT_THAT(refusal("step,loss\n-1,2\n"), HasSubstr("step is '-1'"));
  EXPECT_THAT(refusal("step,loss\n1,2x\n"), HasSubstr("loss is '2x'; expected a number"));
  EXPECT_THAT(refusal("step,loss\n1\n"), Says("1 ... header asks for ... 2"));
  EXPECT_THAT(refusal("step,loss\n"), HasSubstr("has no step with a loss"));
  EXPECT_THAT(refusal("{\"step\":1}\n"), HasSubstr("curve.csv:1: 'loss' is missing"));
  EXPECT_THAT(refusal("{\"step\":1,\"loss\":[]}\n"), HasSubstr("'loss' is []; expected a number"));
  EXPECT_THROW(read_curve(dir_.file("nothing")), IoError);
  dir_.write("a.csv", "step,loss\n1,2\n");
  EXPECT_THROW(read_curves({dir_.file("a.csv"), dir_.file("a.csv")}), ValueError);
}

}  // namespace
}  // namespace tapestry::accuracy
