#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/inference/open_model.h"
#include "parallel_core/post_training/distil/teacher.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/checkpoints/saved_model.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry::post_training {

namespace {

// The teacher's configuration in the student's layout and dtype; how layers are shared out among
// stages is its own affair. What only training knows of has no effect.
void take_layout(AllConfig& teacher, const AllConfig& student) {
  teacher.parallel_config = student.parallel_config;
  teacher.parallel_config.virtual_pipeline_model_parallel_size.reset();
  teacher.parallel_config.offset.reset();
  teacher.parallel_config.num_layer_list.reset();
  teacher.dataset_config.data_layout = student.dataset_config.data_layout;
  TransformerConfig& model = teacher.model_config;
  const TransformerConfig& own = student.model_config;
  model.sequence_parallel = own.sequence_parallel;
  model.layer_recompute.clear();
  model.hidden_dropout = 0;
  model.attention_dropout = 0;
  model.mtp_num_layers = 0;
  model.compute_dtype = own.compute_dtype;
  model.params_dtype = own.compute_dtype;
  model.embedding_init_dtype.reset();
  model.residual_connection_dtype.reset();
  model.use_fused_kernels = true;
}

}  // namespace

std::unique_ptr<ParallelModel> open_teacher(const AllConfig& config,
                                            const data::TokenizerIdentity& tokenizer,
                                            ProcessGroup& world) {
  const std::string folder = resolve_checkpoint(*config.post_training_config.teacher);
  SavedModel saved = open_saved_model(folder);
  const int64_t vocabulary = saved.config.model_config.vocab_size;
  constexpr const char* kKey = "post_training_config.teacher: ";
  check<ValueError>(vocabulary == config.model_config.vocab_size, kKey, folder,
                    " has a vocabulary of ", vocabulary, " tokens, the student of ",
                    config.model_config.vocab_size,
                    "; the divergence compares token by token, so both must have the same one");
  const data::TokenizerIdentity own = saved.tokenizer->identity();
  check<ValueError>(tokenizer.type.empty() || own == tokenizer, kKey, folder, " has a ",
                    describe(own), ", the student a ", describe(tokenizer),
                    "; both must have the same tokenizer");
  verify_weights(folder, config.training_config.crc_check, world);
  take_layout(saved.config, config);
  std::unique_ptr<GPTModel> model = model_without_weights(saved.config);
  load_weights(*model, saved.config.model_config, folder);
  log_info(concat("the teacher is ", folder));
  return model;
}

}  // namespace tapestry::post_training
