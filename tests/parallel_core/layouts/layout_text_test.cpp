#include "diagnosis/verify/layout_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/message_of.h"
#include "tests/parallel_core/layouts/layout_testing.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kParallel = "parallel_config.";
const std::string kTraining = "training_config.";

TEST(LayoutText, NamesKeysOfTheConfiguration) {
  const LayoutText text = parse_layout("tp=2, sp ,pp=4,vpp=2,dp=3,cp=1,micro=8");
  EXPECT_EQ(text.data_parallel_size, 3);
  EXPECT_THAT(
      text.overrides,
      ElementsAre(kParallel + "tensor_model_parallel_size=2", kParallel + "sequence_parallel=True",
                  kParallel + "pipeline_model_parallel_size=4",
                  kParallel + "virtual_pipeline_model_parallel_size=2",
                  kParallel + "context_parallel_size=1", "dataset_config.micro_batch_num=8"));
}

TEST(LayoutText, Experts) {
  EXPECT_THAT(parse_layout("tp=2,dp=2,ep=4,etp=1").overrides,
              ElementsAre(kParallel + "tensor_model_parallel_size=2",
                          kParallel + "expert_model_parallel_size=4",
                          kParallel + "expert_tensor_parallel_size=1"));
}

TEST(LayoutText, EmptyTextChangesNothing) {
  for (const char* text : {"", "  "}) {
    EXPECT_THAT(parse_layout(text).overrides, IsEmpty());
    EXPECT_EQ(parse_layout(text).data_parallel_size, 1);
  }
}

TEST(LayoutText, TablesOfLayers) {
  EXPECT_THAT(parse_layout("pp=2,layers=9,3,tp=2").overrides,
              Contains(kParallel + "num_layer_list=[9, 3]"));
  EXPECT_THAT(parse_layout("layers=3,1/2,2").overrides,
              ElementsAre(kParallel + "num_layer_list=[[3, 1], [2, 2]]"));
  EXPECT_THAT(parse_layout("offset=0,1,-1").overrides,
              ElementsAre(kParallel + "offset=[0, 1, -1]"));
}

TEST(LayoutText, ShardingAndOverlap) {
  EXPECT_THAT(
      parse_layout("dp=2,overlap").overrides,
      ElementsAre(kTraining + "wrap_with_ddp=True", kTraining + "overlap_grad_reduce=True"));
  EXPECT_THAT(parse_layout("dp=2,zero=z2,overlap").overrides,
              ElementsAre(kParallel + "zero_level=z2", kTraining + "wrap_with_ddp=True",
                          kTraining + "overlap_grad_reduce=True",
                          "optimizer_config.overlap_param_gather=True"));
  EXPECT_THAT(parse_layout("dp=2,dist_opt,bucket=100").overrides,
              ElementsAre(kTraining + "use_distributed_optimizer=True",
                          kTraining + "bucket_size=100", kTraining + "wrap_with_ddp=True"));
  EXPECT_THAT(parse_layout("overlap=False").overrides,
              ElementsAre(kTraining + "overlap_grad_reduce=False",
                          "optimizer_config.overlap_param_gather=False"));
}

TEST(LayoutText, ComplaintsNameTheEntry) {
  const auto complaint = [](const std::string& text) {
    return message_of<ValueError>([&] { parse_layout(text); });
  };
  EXPECT_THAT(complaint("tp=2,np=3"), AllOf(HasSubstr("'np=3' is not known"), HasSubstr("vpp")));
  EXPECT_THAT(complaint("tp=2,tp=3"), HasSubstr("'tp=3' is the second entry of this name"));
  EXPECT_THAT(complaint("tp"), HasSubstr("'tp' needs a number"));
  EXPECT_THAT(complaint("tp="), HasSubstr("'tp=' has no value"));
  EXPECT_THAT(complaint("tp=two"), HasSubstr("'tp=two' needs a number"));
  EXPECT_THAT(complaint("tp=0"), HasSubstr("'tp=0' must be between 1 and"));
  EXPECT_THAT(complaint("pp=-2"), HasSubstr("'pp=-2' must be between 1 and"));
  EXPECT_THAT(complaint("dp=99999999999"), HasSubstr("must be between 1 and"));
  EXPECT_THAT(complaint("sp=2"), HasSubstr("'sp=2' must be True or False"));
  EXPECT_THAT(complaint("zero=z4"), HasSubstr("'zero=z4' must be z1, z2 or z3"));
  EXPECT_THAT(complaint("zero"), HasSubstr("'zero' must be z1, z2 or z3"));
  EXPECT_THAT(complaint("layers=9,x"), HasSubstr("'x' is not known"));
  EXPECT_THAT(complaint("layers=9,/3"), HasSubstr("needs numbers"));
  EXPECT_THAT(complaint("layers"), HasSubstr("needs numbers"));
  EXPECT_THAT(complaint("tp=2,,pp=2"), HasSubstr("'' is not known"));
  EXPECT_THAT(complaint("3,tp=2"), HasSubstr("'3' is not known"));
  EXPECT_THAT(complaint("ep=0"), HasSubstr("'ep=0' must be between 1 and"));
}

TEST(LayoutText, ConfigurationsOfBoth) {
  const LayoutPair delayed = testing::small_pair("pp=2,dp=2,overlap,delay,micro=3");
  EXPECT_EQ(layout_text(delayed.layout, 2), "tp=1,pp=2,dp=2,overlap,delay,micro=3");
  EXPECT_FALSE(delayed.single.training_config.delay_grad_reduce);
  const LayoutPair pair = testing::small_pair("tp=2,sp,dp=2,zero=z1,overlap,micro=3");
  EXPECT_EQ(layout_text(pair.layout, pair.data_parallel_size),
            "tp=2,sp,pp=1,dp=2,zero=z1,overlap,micro=3");
  EXPECT_EQ(layout_text(pair.single, 1), "tp=1,pp=1,dp=1,micro=6");
  EXPECT_EQ(world_size(pair.layout.parallel_config, pair.data_parallel_size), 4);
  EXPECT_TRUE(pair.layout.model_config.sequence_parallel);
  EXPECT_FALSE(pair.single.model_config.sequence_parallel);
}

// What the configuration says stays, unless the text names it.
TEST(LayoutText, ConfiguredKeysStay) {
  const testing::Overrides configured = {kParallel + "pipeline_model_parallel_size=2",
                                         kParallel + "num_layer_list=[1, 1]"};
  const LayoutPair pair = testing::small_pair("tp=2", configured);
  EXPECT_EQ(layout_text(pair.layout, 1), "tp=2,pp=2,layers=1,1,dp=1,micro=1");
  EXPECT_EQ(layout_text(pair.single, 1), "tp=1,pp=1,dp=1,micro=1");
}

TEST(LayoutText, ReadsWhatItWrites) {
  for (const char* text :
       {"tp=2,sp,pp=2,vpp=2,layers=2,1/3,2,dp=4,dist_opt,bucket=50,overlap,micro=5",
        "tp=1,pp=3,offset=1,-1,embedding_stage,dp=2,zero=z3,micro=1"}) {
    const LayoutPair pair = testing::small_pair(text, {"model_config.num_layers=8"});
    EXPECT_EQ(layout_text(pair.layout, pair.data_parallel_size), text);
  }
}

}  // namespace
}  // namespace tapestry
