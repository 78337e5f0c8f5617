// Rules of `checkpoint`, `training` and `optimizer`.
#include <cmath>

#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/reading.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config::mindformers2 {
namespace {

void translate_saving(Reading& r) {
  if (!r.flag("checkpoint.enable_save")) {
    r.put("training_config.save_interval", "null", "checkpoint.enable_save");
    r.put("training_config.save_last", "False", "checkpoint.enable_save");
  } else {
    r.put("training_config.save_interval", r.text("checkpoint.save_interleaved_steps"),
          "checkpoint.save_interleaved_steps");
  }
  std::string folder = r.text("checkpoint.save_path");
  while (folder.size() > 1 && folder.ends_with('/')) {
    folder.pop_back();
  }
  if (folder.empty()) {
    return;
  }
  constexpr std::string_view kLast = "/checkpoint";
  if (folder == "checkpoint") {
    folder = ".";
  } else if (folder.ends_with(kLast) && folder.size() > kLast.size()) {
    folder.resize(folder.size() - kLast.size());
  } else {
    r.note("checkpoint.save_path",
           concat("checkpoints go to ", folder, "/checkpoint, logs and metrics beside it"));
  }
  r.put("training_config.output_dir",
        scalar_node(folder, r.place("checkpoint.save_path"), /*quoted=*/true));
}

void translate_loading(Reading& r) {
  if (!r.text("checkpoint.load_path").empty() && !r.flag("checkpoint.no_load_optim")) {
    r.put(
        "training_config.resume_training", "True",
        r.given("checkpoint.no_load_optim") ? "checkpoint.no_load_optim" : "checkpoint.load_path");
  }
}

// Sequences of a step over all ranks, as micro-batches of each.
void translate_batch(Reading& r) {
  constexpr const char* kGlobal = "training.global_batch_size";
  const int64_t global = r.integer(kGlobal);
  const int64_t local = r.integer("training.local_batch_size");
  const int64_t shard = r.integer("parallelism.data_parallel_shard");
  const int64_t ranks = r.data_parallel_size().value_or(shard > 1 ? shard : 1);
  if (global < 1 || local < 1) {
    r.error(global < 1 ? kGlobal : "training.local_batch_size",
            concat("is ", global < 1 ? global : local, ", expected a number above 0"));
    return;
  }
  const int64_t of_ranks = ranks * local;
  if (of_ranks / local != ranks || global % of_ranks != 0) {
    r.error(kGlobal,
            concat("is ", global, ", and no multiple of ", of_ranks, ": ", ranks, " data-parallel ",
                   ranks == 1 ? "rank" : "ranks", " x local_batch_size ", local,
                   "; MindFormers would leave out the rest; choose a multiple, or start another "
                   "number of ranks"));
    return;
  }
  r.put("dataset_config.micro_batch_num", concat(global / of_ranks), kGlobal);
}

void put_or_initial(Reading& r, const char* path, const char* here, const char* initial) {
  if (const RawNode* node = r.find(path)) {
    r.put(here, *node);
  } else {
    r.put(here, parse_yaml(initial, Place{kDefaultPlace}, true, r.errors));
  }
}

void translate_muon(Reading& r) {
  for (const char* ignored : {"optimizer.betas", "optimizer.eps"}) {
    if (r.given(ignored)) {
      r.note(ignored, ignored == std::string_view("optimizer.eps")
                          ? "Muon's iteration adds 1e-7 to norms here; adamw_eps is that of its "
                            "AdamW"
                          : "Muon does not read it; adamw_betas counts");
    }
  }
  put_or_initial(r, "optimizer.adamw_betas", "optimizer_config.betas", "[0.95, 0.95]");
  put_or_initial(r, "optimizer.adamw_eps", "optimizer_config.eps", "1e-8");
  for (const char* key :
       {"matched_adamw_rms", "momentum", "nesterov", "ns_steps", "ns_coefficients"}) {
    if (const RawNode* node = r.find(concat("optimizer.", key))) {
      r.put(concat("optimizer_config.", key), *node);
    }
  }
  constexpr const char* kOthers = "optimizer.adamw_include";
  if (r.is_null(kOthers)) {
    r.put("optimizer_config.adamw_include",
          list_node({"*word_embeddings*", "*output_layer*"}, r.place(kOthers), /*quoted=*/true));
  } else {
    r.put("optimizer_config.adamw_include", *r.find(kOthers));
  }
  const bool clips = r.flag("optimizer.qk_clip_enabled");
  const bool latent = r.has_section("model") && !r.is_qwen3();
  if (clips && latent) {
    r.put("optimizer_config.qk_clip_enabled", "True", "optimizer.qk_clip_enabled");
    r.put("optimizer_config.qk_clip_threshold", r.text("optimizer.qk_clip_threshold"),
          "optimizer.qk_clip_threshold");
  } else if (r.given("optimizer.qk_clip_enabled") && clips) {
    r.refuse("optimizer.qk_clip_enabled",
             "it clips the matrices of multi-latent attention, which the model has not; write "
             "False");
  }
}

void translate_adamw(Reading& r) {
  put_or_initial(r, "optimizer.betas", "optimizer_config.betas", "[0.9, 0.95]");
  if (const RawNode* node = r.find("optimizer.eps")) {
    r.put("optimizer_config.eps", *node);
  }
  for (const char* key :
       {"matched_adamw_rms", "momentum", "nesterov", "ns_steps", "ns_coefficients", "adamw_betas",
        "adamw_eps", "qk_clip_enabled", "qk_clip_threshold", "adamw_include"}) {
    if (r.given(concat("optimizer.", key))) {
      r.error(concat("optimizer.", key), "belongs to Muon, and type is AdamW; leave it out");
    }
  }
}

// MindFormers decides by the shapes of parameters, which a list, though it is empty, asks for.
void translate_decay(Reading& r) {
  constexpr const char* kExclude = "optimizer.weight_decay_exclude";
  if (r.number("optimizer.weight_decay") == 0) {
    return;
  }
  if (r.is_null(kExclude)) {
    r.put("optimizer_config.weight_decay_exclude", list_node({}, r.place(kExclude)));
  } else {
    r.put("optimizer_config.weight_decay_exclude", *r.find(kExclude));
  }
}

}  // namespace

void translate_training(Reading& r) {
  translate_saving(r);
  translate_loading(r);
  translate_batch(r);
  r.put("training_config.log_interval",
        scalar_node("1", Place{"the step line of MindFormers 2.0"}));
  if (!(r.number("training.max_norm") > 0)) {
    r.error("training.max_norm",
            concat("is ", r.text("training.max_norm"),
                   ", expected a number above 0: MindFormers multiplies gradients by max_norm / "
                   "norm; without clipping write `tapestry: {optimizer_config: {clip_grad: 0}}`"));
  }
  r.put("optimizer_config.clip_grad", r.text("training.max_norm"), "training.max_norm");
}

void translate_optimizer(Reading& r) {
  translate_decay(r);
  if (r.text("optimizer.type") == "Muon") {
    translate_muon(r);
  } else {
    translate_adamw(r);
  }
}

}  // namespace tapestry::config::mindformers2
