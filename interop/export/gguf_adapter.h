// A LoRA adapter as a GGUF file beside that of its base.
#pragma once

#include <string>
#include <vector>

#include "interop/export/export_source.h"
#include "interop/gguf/gguf_types.h"

namespace tapestry {

/// Writes the adapter in a folder, PEFT's or the checkpoint of a run with adapters, for the model
/// `base`: NAME.lora_a [r, in] and NAME.lora_b [out, r], NAME that of the base's tensor in its GGUF
/// file, rows of B permuted as there.
///
/// llama.cpp adds alpha / r times B A, with one alpha for all. Modules whose scale is another have
/// the ratio multiplied into B.
///
/// ValueError: the base is none that GGUF can say, or not the one that the adapter was trained
/// beside; the adapter has tensors of another kind, as DoRA, modules_to_save and bias make them
/// (which can be merged), or of a module or shape that the base does not have, or one of A and B
/// alone; values that the type cannot hold. IoError.
void export_gguf_adapter(const ExportSource& base,
                         const std::string& adapter,
                         const std::string& path,
                         GgufType type = GgufType::kF32);

}  // namespace tapestry
