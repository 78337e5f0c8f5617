#include "parallel_core/config/mindformers2/static_file.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/reading.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config::mindformers2 {
namespace {

// A path of a static file; "x.*" is all below.
struct StaticRow {
  std::string_view path;
  std::string_view here;  // empty: nothing stands for it
  std::string_view note = {};
  std::string_view accepted = {};  // only these values, separated by '|'
};

constexpr std::string_view kWhole = "a checkpoint is whole whatever the layout";
constexpr std::string_view kEager = "operations run eagerly, on the processor";
constexpr std::string_view kLayout = "the layout follows from the sizes in parallel_config";
constexpr std::string_view kFused = "whether matrices are fused changes no number";
constexpr std::string_view kReads = "a batch has tokens, labels, masks and positions";

constexpr StaticRow kRows[] = {
    {"seed", "training_config.seed"},
    {"output_dir", "training_config.output_dir"},
    {"resume_training", "training_config.resume_training"},
    {"load_ckpt_format", "", "the files say it"},
    {"src_strategy_path_or_dir", "", kWhole},
    {"auto_trans_ckpt", "", kWhole},
    {"only_save_strategy", "", kWhole, "False|false"},
    {"use_parallel", "", "it follows from the number of ranks"},
    {"run_mode", "", "pretrain_gpt trains; generate writes text", "train|finetune"},
    {"use_legacy", "", kEager},
    {"pretrained_model_dir", "model_config.from_hf"},
    {"trainer.*", "", "pretrain_gpt is the trainer"},
    {"optimizer.type", "optimizer_config.optimizer_type"},
    {"optimizer.betas", "optimizer_config.betas"},
    {"optimizer.eps", "optimizer_config.eps"},
    {"optimizer.weight_decay", "optimizer_config.weight_decay"},
    {"context.*", "", kEager},
    {"parallel_config.model_parallel", "parallel_config.tensor_model_parallel_size"},
    {"parallel_config.use_seq_parallel", "parallel_config.sequence_parallel"},
    {"parallel_config.gradient_aggregation_group", "", "gradients are reduced in buckets"},
    {"parallel_config.vocab_emb_dp", "", "tensor-parallel ranks always share the token table"},
    {"micro_batch_interleave_num", "", "micro-batches are not cut further", "1"},
    {"parallel.parallel_mode", "", kLayout},
    {"parallel.enable_alltoall", "", kLayout},
    {"parallel.search_mode", "", kLayout},
    {"parallel.gradients_mean", "", "gradients are the mean over the ranks"},
    {"parallel.strategy_ckpt_config.*", "", kWhole},
    {"parallel.enable_parallel_optimizer", "training_config.use_distributed_optimizer"},
    {"model.model_config.qkv_concat", "", kFused},
    {"model.model_config.input_sliced_sig", "", "labels are shifted by the data set"},
    {"model.model_config.use_contiguous_weight_layout_attention", "", kFused},
    {"model.model_config.use_past", "", "it belongs to generation"},
    {"profile", "training_config.profile"},
    {"profile_start_step", "training_config.profile_step_start"},
    {"profile_stop_step", "training_config.profile_step_end"},
    {"profile_communication", "training_config.profile_communication"},
    {"profile_memory", "training_config.profile_memory"},
    {"init_start_profile", "", "a profile begins at its first step"},
    {"layer_scale", "", "all layers have one learning rate", "False|false"},
    {"layer_decay", "", "all layers have one learning rate"},
    {"lr_scale_factor", "", "all layers have one learning rate"},
    {"train_dataset.input_columns", "", kReads},
    {"train_dataset.construct_args_key", "", kReads},
    {"train_dataset.seed", "", "the order follows the seed of the run"},
    {"train_dataset_task.*", "", "examples become rows of tokens"}};

const RawNode* child(const RawNode& map, std::string_view name) {
  const auto found = std::find_if(map.entries.begin(), map.entries.end(),
                                  [&](const RawEntry& entry) { return entry.key.scalar == name; });
  return found != map.entries.end() ? &found->value : nullptr;
}

const RawNode* below(const RawNode& root, std::string_view path) {
  const RawNode* at = &root;
  for (const std::string& part : parts_of(path)) {
    at = at != nullptr ? child(*at, part) : nullptr;
  }
  return at;
}

// Takes the path out of the tree, and mappings that are empty then.
void erase(RawNode& root, std::string_view path) {
  const size_t dot = path.find('.');
  const std::string_view name = path.substr(0, dot);
  for (auto entry = root.entries.begin(); entry != root.entries.end(); ++entry) {
    if (entry->key.scalar != name) {
      continue;
    }
    if (dot != std::string_view::npos && path.substr(dot + 1) != "*") {
      erase(entry->value, path.substr(dot + 1));
      if (!entry->value.entries.empty() || entry->value.kind != RawNode::Kind::kMap) {
        return;
      }
    }
    root.entries.erase(entry);
    return;
  }
}

class StaticFile {
 public:
  explicit StaticFile(const RawNode& root) : root_(root) {}

  Translation translated() {
    const bool profiles =
        below(root_, "profile") != nullptr &&
        (below(root_, "profile")->scalar == "True" || below(root_, "profile")->scalar == "true");
    take_examples();
    take_schedule();
    take_offset();
    for (const StaticRow& row : kRows) {
      take(row, profiles);
    }
    take_start();
    take_model();
    return {.root = std::move(root_), .errors = std::move(errors_), .notes = std::move(notes_)};
  }

 private:
  void put(std::string_view here, const RawNode& value) { put_below(root_, parts_of(here), value); }

  void take(const StaticRow& row, bool profiles) {
    const bool all = row.path.ends_with(".*");
    const std::string_view path = all ? row.path.substr(0, row.path.size() - 2) : row.path;
    const RawNode* found = below(root_, path);
    if (found == nullptr) {
      return;
    }
    const RawNode value = *found;
    const auto accepted = split_text(row.accepted, '|');
    if (!accepted.empty() &&
        std::find(accepted.begin(), accepted.end(), value.scalar) == accepted.end()) {
      errors_.push_back(concat(value.place.text(), ": ", path, ": ", value.scalar,
                               " is refused: ", row.note, "; leave it out"));
    }
    erase(root_, row.path);
    const bool idle = !profiles && row.here.starts_with("training_config.profile");
    if (row.here.empty() && accepted.empty()) {
      notes_.push_back(concat(value.place.text(), ": ", path, " has no effect: ", row.note));
    } else if (!row.here.empty() && !idle) {
      put(row.here, value);
    }
  }

  // Of an empty load_checkpoint the weights are those of pretrained_model_dir.
  void take_start() {
    const RawNode* from = below(root_, "load_checkpoint");
    if (from != nullptr) {
      const RawNode value = *from;
      erase(root_, "load_checkpoint");
      if (!value.scalar.empty()) {
        put("training_config.load_checkpoint", value);
      }
    }
  }

  // A number stands for every stage; 0 changes nothing.
  void take_offset() {
    const RawNode* offset = below(root_, "model.model_config.offset");
    if (offset != nullptr && offset->kind == RawNode::Kind::kScalar && offset->scalar == "0") {
      erase(root_, "model.model_config.offset");
    }
  }

  void take_model() {
    const RawNode* model = below(root_, "model.model_config");
    if (model == nullptr || model->kind != RawNode::Kind::kMap) {
      return;
    }
    const RawNode body = *model;
    erase(root_, "model.model_config.*");
    erase(root_, "model.arch.*");
    const RawNode* rest = below(root_, "model");
    if (rest != nullptr && rest->entries.empty()) {
      erase(root_, "model");
    }
    for (const RawEntry& entry : body.entries) {
      put_below(root_, {"model_config", entry.key.scalar}, entry.value);
    }
  }

  // The same classes as those of lr_scheduler; a share of the run, whose length epochs may say, is
  // a share of the schedule.
  void take_schedule() {
    const RawNode* schedule = below(root_, "lr_schedule");
    if (schedule == nullptr || schedule->kind != RawNode::Kind::kMap) {
      return;
    }
    RawNode body = *schedule;
    erase(root_, "lr_schedule.*");
    if (const RawNode* share = below(body, "warmup_ratio")) {
      double number = 0;
      std::from_chars(share->scalar.data(), share->scalar.data() + share->scalar.size(), number);
      if (number > 0) {
        put("optimizer_config.lr_warmup_fraction", *share);
      }
      erase(body, "warmup_ratio");
    }
    RawNode file{.kind = RawNode::Kind::kMap};
    put_below(file, {"lr_scheduler"}, std::move(body));
    read_as_new(file, [](Reading& r) { translate_schedule(r); });
  }

  // HFDataLoader with its handlers, and the length of its rows.
  void take_examples() {
    const RawNode* loader = below(root_, "train_dataset.data_loader");
    const RawNode* type = loader != nullptr ? child(*loader, "type") : nullptr;
    if (type == nullptr || type->scalar != "HFDataLoader") {
      return;
    }
    RawNode file{.kind = RawNode::Kind::kMap};
    RawNode data = *below(root_, "train_dataset");
    for (RawEntry& entry : data.entries) {
      entry.key.scalar = entry.key.scalar == "data_loader" ? "dataloader" : entry.key.scalar;
    }
    for (const char* known : {"input_columns", "construct_args_key", "seed"}) {
      erase(data, known);
    }
    put_below(file, {"train_dataset"}, std::move(data));
    read_as_new(file, [&](Reading& r) {
      translate_data(r);
      for (const char* handler : {"AlpacaInstructDataHandler", "PackingHandler"}) {
        const std::string path =
            concat("train_dataset.dataloader.handler.", handler, ".seq_length");
        if (r.given(path) && below(root_, "model.model_config.seq_length") == nullptr) {
          r.put("model_config.seq_length", *r.find(path));
        }
      }
      if (r.given("train_dataset.drop_remainder")) {
        r.put("dataset_config.drop_remainder", *r.find("train_dataset.drop_remainder"));
      }
    });
    erase(root_, "train_dataset.*");
  }

  template <class Rule>
  void read_as_new(const RawNode& file, const Rule& rule) {
    Reading r({});
    r.read(file);
    rule(r);
    errors_.insert(errors_.end(), r.errors.begin(), r.errors.end());
    notes_.insert(notes_.end(), r.notes.begin(), r.notes.end());
    for (const RawEntry& section : r.result().entries) {
      for (const RawEntry& entry : section.value.entries) {
        put_below(root_, {section.key.scalar, entry.key.scalar}, entry.value);
      }
    }
  }

  RawNode root_;
  std::vector<std::string> errors_;
  std::vector<std::string> notes_;
};

}  // namespace

bool is_static_file(const RawNode& root) {
  const RawNode* trainer = child(root, "trainer");
  const RawNode* model = below(root, "model.model_config");
  return (trainer != nullptr && trainer->kind == RawNode::Kind::kMap) ||
         (model != nullptr && model->kind == RawNode::Kind::kMap);
}

Translation translate_static(const RawNode& root) { return StaticFile(root).translated(); }

}  // namespace tapestry::config::mindformers2
