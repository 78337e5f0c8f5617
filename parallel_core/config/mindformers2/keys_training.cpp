// Rows of `checkpoint`, `training`, `optimizer` and `lr_scheduler`.
#include "parallel_core/config/mindformers2/keys.h"

namespace tapestry::config::mindformers2 {
namespace training_table {
namespace {

constexpr std::string_view kRead = "files are read by every rank at once, each its own part";
constexpr std::string_view kSchedule = "optimizer_config.lr_decay_style";
constexpr std::string_view kWarmup = "optimizer_config.lr_warmup_iters";
constexpr std::string_view kKernel = "a choice of kernel, with the same numbers";
constexpr std::string_view kMuon = "of Muon";

constexpr Row kRows[] = {
    {"checkpoint", "enable_save", "bool", "True", Fate::kRule,
     "training_config.save_interval|training_config.save_last",
     "False: nothing is saved, not even at the end"},
    {"checkpoint", "save_path", "str", "\"\"", Fate::kRule, "training_config.output_dir",
     "the folder that holds `checkpoint`: of ./output/checkpoint it is ./output, of any other it "
     "is that folder; empty: ./output"},
    {"checkpoint", "save_max", "int", "5", Fate::kSame, "training_config.keep_checkpoint_max"},
    {"checkpoint", "save_interleaved_steps", "int", "1000", Fate::kRule,
     "training_config.save_interval", "with enable_save"},
    {"checkpoint", "no_save_optim", "bool", "False", Fate::kNothing, "",
     "the weights of a checkpoint are files of their own, and the optimizer's state lies beside "
     "them"},
    {"checkpoint", "async_save", "bool", "False", Fate::kSame, "training_config.async_save"},
    {"checkpoint", "prefix", "str?", "checkpoint", Fate::kNothing, "",
     "a checkpoint is a folder checkpoint/step_NNNNNNNN with the names of Hugging Face"},
    {"checkpoint", "remove_redundancy", "bool", "False", Fate::kSame,
     "training_config.remove_redundancy"},
    {"checkpoint", "load_path", "str", "\"\"", Fate::kSame, "training_config.load_checkpoint"},
    {"checkpoint", "load_balanced", "bool", "False", Fate::kNothing, "", kRead},
    {"checkpoint", "no_load_optim", "bool", "False", Fate::kRule, "training_config.resume_training",
     "False, with a load_path: the run goes on, with optimizer, step and data; True: it starts at "
     "step 1 with the weights alone"},
    {"checkpoint", "load_worker_number", "int", "1", Fate::kNothing, "", kRead},
    {"checkpoint", "save_global_layout_cache", "bool", "True", Fate::kNothing, "",
     "the layout is gathered once"},
    {"checkpoint", "reshard_worker_num", "int", "1", Fate::kNothing, "", kRead},

    {"training", "steps", "int", "1000", Fate::kSame, "training_config.training_iters"},
    {"training", "local_batch_size", "int", "1", Fate::kSame, "dataset_config.batch_size"},
    {"training", "global_batch_size", "int", "1", Fate::kRule, "dataset_config.micro_batch_num",
     "global_batch_size / (data-parallel ranks x local_batch_size), which must leave no remainder; "
     "the ranks are those that are started"},
    {"training", "max_norm", "float", "1.0", Fate::kRule, "optimizer_config.clip_grad",
     "must be above 0: MindFormers multiplies gradients by max_norm / norm"},
    {"training", "seed", "int", "42", Fate::kSame, "training_config.seed"},
    {"training", "deterministic", "bool", "False", Fate::kNothing, "",
     "the same run always gives the same bits"},
    {"training", "rampup_batch_size", "list?", "null", Fate::kSame,
     "training_config.rampup_batch_size"},

    {"optimizer", "type", "str", "AdamW", Fate::kSame, "optimizer_config.optimizer_type",
     "MindFormers 2.0 has no other", "AdamW|Muon"},
    {"optimizer", "betas", "list", "[0.9, 0.95]", Fate::kRule, "optimizer_config.betas",
     "of AdamW; Muon has adamw_betas"},
    {"optimizer", "eps", "float", "1e-8", Fate::kRule, "optimizer_config.eps",
     "of AdamW; Muon's Newton-Schulz iteration always adds 1e-7, and its AdamW has adamw_eps"},
    {"optimizer", "weight_decay", "float", "0.01", Fate::kSame, "optimizer_config.weight_decay"},
    {"optimizer", "weight_decay_include", "list?", "null", Fate::kSame,
     "optimizer_config.weight_decay_include"},
    {"optimizer", "weight_decay_exclude", "list?", "null", Fate::kRule,
     "optimizer_config.weight_decay_exclude",
     "null is an empty list: vectors and what ends in .bias do not decay, all else does"},
    {"optimizer", "enable_cpu_offload", "bool", "False", Fate::kRefused, "",
     "all memory is that of the processor; leave it out", "False"},
    {"optimizer", "enable_fused_opt", "bool", "False", Fate::kNothing, "", kKernel},
    {"optimizer", "use_fused", "bool", "False", Fate::kNothing, "", kKernel},
    {"optimizer", "amsgrad", "bool", "False", Fate::kRefused, "",
     "AdamW keeps no largest second moment", "False"},
    {"optimizer", "maximize", "bool", "False", Fate::kRefused, "", "a loss is made smaller",
     "False"},
    {"optimizer", "matched_adamw_rms", "float", "0.2", Fate::kRule,
     "optimizer_config.matched_adamw_rms", kMuon},
    {"optimizer", "momentum", "float", "0.95", Fate::kRule, "optimizer_config.momentum", kMuon},
    {"optimizer", "nesterov", "bool", "True", Fate::kRule, "optimizer_config.nesterov", kMuon},
    {"optimizer", "ns_steps", "int", "5", Fate::kRule, "optimizer_config.ns_steps", kMuon},
    {"optimizer", "ns_coefficients", "list", "[3.4445, -4.7750, 2.0315]", Fate::kRule,
     "optimizer_config.ns_coefficients",
     "of Muon: three numbers for ns_steps iterations, or a list of [three numbers, iterations]"},
    {"optimizer", "adamw_betas", "list", "[0.95, 0.95]", Fate::kRule, "optimizer_config.betas",
     kMuon},
    {"optimizer", "adamw_eps", "float", "1e-8", Fate::kRule, "optimizer_config.eps", kMuon},
    {"optimizer", "qk_clip_enabled", "bool", "True", Fate::kRule,
     "optimizer_config.qk_clip_enabled", "of Muon, with multi-latent attention"},
    {"optimizer", "qk_clip_threshold", "float", "100", Fate::kRule,
     "optimizer_config.qk_clip_threshold", kMuon},
    {"optimizer", "comm_strategy", "str", "allgather", Fate::kNothing, "",
     "ranks exchange their parts of matrices whatever it says", "allgather|allgather_deredundency"},
    {"optimizer", "use_fused_adamw", "bool", "False", Fate::kNothing, "", kKernel},
    {"optimizer", "adamw_include", "list?", "null", Fate::kRule, "optimizer_config.adamw_include",
     "of Muon; null: [\"*word_embeddings*\", \"*output_layer*\"]"},
    {"optimizer", "swap", "bool", "False", Fate::kRefused, "",
     "all memory is that of the processor; leave it out", "False"},

    {"lr_scheduler", "type", "str", "", Fate::kRule, kSchedule,
     "the table below says which schedule each type is",
     "ConstantWarmUpLR|LinearWithWarmUpLR|CosineWithWarmUpLR|CosineWithRestartsAndWarmUpLR|"
     "PolynomialWithWarmUpLR|WarmUpStableDecayLR|ConstantWithCoolDownLR|CosineAnnealingLR|"
     "CosineAnnealingWarmRestarts"},
    {"lr_scheduler", "learning_rate", "float", "1e-5", Fate::kRule,
     "optimizer_config.learning_rate", "the largest rate"},
    {"lr_scheduler", "warmup_steps", "int?", "null", Fate::kRule, kWarmup, "steps"},
    {"lr_scheduler", "warmup_ratio", "float|int?", "null", Fate::kRule, kWarmup,
     "times training.steps, rounded down"},
    {"lr_scheduler", "warmup_lr_init", "float", "0.0", Fate::kRule,
     "optimizer_config.lr_warmup_init", "the rate of the first update of a warm-up"},
    {"lr_scheduler", "total_steps", "int?", "null", Fate::kNothing, "",
     "MindFormers 2.0 puts training.steps there"},
    {"lr_scheduler", "lr_end", "float", "", Fate::kRule, "optimizer_config.min_lr",
     "the rate at the end of the decay"},
    {"lr_scheduler", "num_cycles", "float|int", "", Fate::kRule, "optimizer_config.lr_num_cycles",
     "waves of the cosine"},
    {"lr_scheduler", "decay_steps", "int?", "null", Fate::kRule, "optimizer_config.lr_decay_iters",
     "steps of the decay"},
    {"lr_scheduler", "decay_ratio", "float?", "null", Fate::kRule,
     "optimizer_config.lr_decay_iters", "times training.steps, rounded down"},
    {"lr_scheduler", "power", "float|int", "1.0", Fate::kRule, "optimizer_config.lr_decay_power",
     "of PolynomialWithWarmUpLR"},
    {"lr_scheduler", "decay_start_steps", "int?", "null", Fate::kRule,
     "optimizer_config.lr_wsd_decay_iters",
     "of WarmUpStableDecayLR: the decay lasts from this step to the end"},
    {"lr_scheduler", "decay_start_ratio", "float?", "null", Fate::kRule,
     "optimizer_config.lr_wsd_decay_iters", "times training.steps, rounded down"},
    {"lr_scheduler", "keep_steps", "int", "0", Fate::kRule, "optimizer_config.lr_keep_iters",
     "of ConstantWithCoolDownLR"},
    {"lr_scheduler", "lr_end1", "float", "0.0", Fate::kRule, "optimizer_config.min_lr",
     "of ConstantWithCoolDownLR"},
    {"lr_scheduler", "final_steps", "int", "0", Fate::kRule, "optimizer_config.lr_final_iters",
     "of ConstantWithCoolDownLR"},
    {"lr_scheduler", "lr_end2", "float?", "null", Fate::kRule, "optimizer_config.final_lr",
     "of ConstantWithCoolDownLR; null: lr_end1"},
    {"lr_scheduler", "base_lr", "float", "", Fate::kRule, "optimizer_config.learning_rate",
     "of the CosineAnnealing types"},
    {"lr_scheduler", "t_max", "int", "", Fate::kRule, "optimizer_config.lr_decay_iters",
     "of CosineAnnealingLR"},
    {"lr_scheduler", "eta_min", "float", "0.0", Fate::kRule, "optimizer_config.min_lr",
     "of the CosineAnnealing types"},
    {"lr_scheduler", "t_0", "int", "", Fate::kRule, "optimizer_config.lr_restart_iters",
     "of CosineAnnealingWarmRestarts"},
    {"lr_scheduler", "t_mult", "int", "1", Fate::kRule, "optimizer_config.lr_restart_mult",
     "of CosineAnnealingWarmRestarts"},
    {"lr_scheduler", "lr_scale", "any", "", Fate::kRefused, "",
     "it belongs to LearningRateWiseLayer, and all parameters have one schedule here"},
};

}  // namespace
}  // namespace training_table

std::span<const Row> training_rows() { return training_table::kRows; }

}  // namespace tapestry::config::mindformers2
