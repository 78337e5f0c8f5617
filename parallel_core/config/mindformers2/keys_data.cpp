// Rows of `train_dataset` and `eval_dataset`.
#include "parallel_core/config/mindformers2/keys.h"

namespace tapestry::config::mindformers2 {
namespace data_table {
namespace {

constexpr std::string_view kReads = "batches are read by the training thread";
constexpr std::string_view kCausal = "causality never needs a mask in memory";
constexpr std::string_view kPacked = "rows of examples keep these apart by themselves";
constexpr std::string_view kBlend = "of BlendedMegatronDatasetDataLoader";
constexpr std::string_view kLength = "must be model.seq_length";

constexpr Row kRows[] = {
    {"train_dataset", "dataloader.type", "str", "", Fate::kRule,
     "dataset_config.data_path|dataset_config.sft_data_path",
     "MindDataset reads mindrecord files, for which there is no reader; convert them to a data set "
     "of tokens (preprocess_data)",
     "BlendedMegatronDatasetDataLoader|HFDataLoader"},
    {"train_dataset", "dataloader.shuffle", "bool", "False", Fate::kRule, "dataset_config.shuffle",
     "of HFDataLoader: the order of the examples; a blended data set is shuffled by itself, as in "
     "Megatron, and True shuffles it no further"},
    {"train_dataset", "dataloader.column_names", "list", "[input_ids, labels]", Fate::kNothing, "",
     "a batch has tokens, labels, masks and positions"},
    {"train_dataset", "dataloader.python_multiprocessing", "bool", "False", Fate::kNothing, "",
     kReads},
    {"train_dataset", "dataloader.num_parallel_workers", "int", "8", Fate::kNothing, "", kReads},
    {"train_dataset", "dataloader.drop_remainder", "bool", "True", Fate::kSame,
     "dataset_config.drop_remainder"},
    {"train_dataset", "dataloader.datasets_type", "str", "GPTDataset", Fate::kRefused, "",
     "there is one kind of blended data set", "GPTDataset"},
    {"train_dataset", "dataloader.sizes", "list", "", Fate::kNothing, "",
     "a data set begins anew at its end, until all steps have their samples"},
    {"train_dataset", "dataloader.config.seed", "int", "1234", Fate::kNothing, "",
     "the order follows training.seed"},
    {"train_dataset", "dataloader.config.split", "str", "1, 0, 0", Fate::kRule,
     "dataset_config.split", kBlend},
    {"train_dataset", "dataloader.config.seq_length", "int", "", Fate::kRule, "", kLength},
    {"train_dataset", "dataloader.config.eod_mask_loss", "bool", "False", Fate::kSame,
     "dataset_config.eod_mask_loss"},
    {"train_dataset", "dataloader.config.reset_position_ids", "bool", "False", Fate::kSame,
     "dataset_config.reset_position_ids"},
    {"train_dataset", "dataloader.config.reset_attention_mask", "bool", "False", Fate::kSame,
     "dataset_config.reset_attention_mask"},
    {"train_dataset", "dataloader.config.create_attention_mask", "bool", "False", Fate::kNothing,
     "", kCausal},
    {"train_dataset", "dataloader.config.create_compressed_eod_mask", "bool", "False", Fate::kRule,
     "dataset_config.reset_attention_mask", "True: documents of a row do not see each other"},
    {"train_dataset", "dataloader.config.eod_pad_length", "int", "128", Fate::kNothing, "",
     kCausal},
    {"train_dataset", "dataloader.config.eod", "int", "", Fate::kRule,
     "dataset_config.eos_token_id", "-1: none"},
    {"train_dataset", "dataloader.config.pad", "int", "-1", Fate::kRule,
     "dataset_config.pad_token_id", "-1: none"},
    {"train_dataset", "dataloader.config.data_path", "list|str", "", Fate::kSame,
     "dataset_config.data_path",
     "prefixes, or weight, prefix, weight, prefix, ...; the record of the first data set gives "
     "tokenizer_type"},
    {"train_dataset", "dataloader.load_func", "str", "load_dataset", Fate::kNothing, "",
     "files are JSONL", "load_dataset"},
    {"train_dataset", "dataloader.path", "str", "", Fate::kRule, "dataset_config.sft_data_path",
     "json with data_files, or a file or folder of this machine; data sets of a hub are refused"},
    {"train_dataset", "dataloader.data_files", "str|list", "", Fate::kRule,
     "dataset_config.sft_data_path", "JSONL files"},
    {"train_dataset", "dataloader.split", "str", "train", Fate::kRefused, "",
     "all examples of the files are read; write those to train on into a file of their own",
     "train"},
    {"train_dataset", "dataloader.create_attention_mask", "bool", "False", Fate::kNothing, "",
     kCausal},
    {"train_dataset", "dataloader.create_compressed_eod_mask", "bool", "False", Fate::kNothing, "",
     kPacked},
    {"train_dataset", "dataloader.compressed_eod_mask_length", "int", "128", Fate::kNothing, "",
     kPacked},
    {"train_dataset", "dataloader.use_broadcast_data", "bool", "True", Fate::kNothing, "",
     "every rank reads its own rows"},
    {"train_dataset", "dataloader.handler.take.n", "int", "", Fate::kRule, "",
     "the files may have up to so many examples; of more, head -n writes the first"},
    {"train_dataset", "dataloader.handler.AlpacaInstructDataHandler.seq_length", "int", "",
     Fate::kRule, "", kLength},
    {"train_dataset", "dataloader.handler.AlpacaInstructDataHandler.padding", "bool", "False",
     Fate::kNothing, "", kPacked},
    {"train_dataset", "dataloader.handler.AlpacaInstructDataHandler.tokenizer.pretrained_model_dir",
     "str", "", Fate::kRule, "dataset_config.tokenizer_model", "with tokenizer_type: huggingface"},
    {"train_dataset", "dataloader.handler.AlpacaInstructDataHandler.tokenizer.*", "any", "",
     Fate::kNothing, "", "the tokenizer's own files say it"},
    {"train_dataset", "dataloader.handler.AlpacaInstructDataHandler.output_columns", "any", "",
     Fate::kNothing, "", kPacked},
    {"train_dataset", "dataloader.handler.PackingHandler.seq_length", "int", "", Fate::kRule, "",
     kLength},
    {"train_dataset", "dataloader.handler.PackingHandler.pack_strategy", "str", "pack", Fate::kRule,
     "dataset_config.sft_packing",
     "pack: rows of whole examples; without this handler a row has one. truncate, which cuts "
     "examples at the end of a row, is refused",
     "pack"},
    {"train_dataset", "dataloader.handler.PackingHandler.output_columns", "any", "", Fate::kNothing,
     "", kPacked},
    {"train_dataset", "drop_remainder", "bool", "True", Fate::kSame,
     "dataset_config.drop_remainder"},
    {"train_dataset", "num_parallel_workers", "int", "8", Fate::kNothing, "", kReads},
    {"train_dataset", "python_multiprocessing", "bool", "False", Fate::kNothing, "", kReads},
    {"train_dataset", "prefetch_size", "int", "1", Fate::kNothing, "", kReads},
    {"train_dataset", "numa_enable", "bool", "False", Fate::kNothing, "", kReads},
    {"train_dataset", "use_distribute_dataset", "bool", "False", Fate::kNothing, "",
     "every rank reads its own rows"},
    {"eval_dataset", "", "map?", "null", Fate::kNothing, "",
     "MindFormers 2.0 reads it and never evaluates; training_config.eval_interval under `tapestry` "
     "does"},
};

}  // namespace
}  // namespace data_table

std::span<const Row> data_rows() { return data_table::kRows; }

}  // namespace tapestry::config::mindformers2
